"""How the envelopes of an epoch travel between tasks; pyspark lives here."""
