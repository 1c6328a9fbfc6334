"""`iceberg`: a sink for Iceberg tables."""
