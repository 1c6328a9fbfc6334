"""`kafka` and `confluent`: a source and a sink."""
