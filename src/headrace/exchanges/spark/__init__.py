"""The exchange on Spark: sessions, shipped code, workers."""
