"""The exchanges of envelopes between the tasks of an epoch; the only importers of pyspark."""
