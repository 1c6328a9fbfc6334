"""Schema registries and schema files."""
