"""`postgres`: a source by logical replication, a sink and a lookup table."""
