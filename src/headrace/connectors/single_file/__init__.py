"""`single_file`: the lines of one local file as a source, a sink and a lookup table."""
