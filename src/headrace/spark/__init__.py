"""The exchange on Spark: the only place that imports pyspark."""
