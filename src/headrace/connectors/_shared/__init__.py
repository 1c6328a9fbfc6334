"""What several connectors share."""
