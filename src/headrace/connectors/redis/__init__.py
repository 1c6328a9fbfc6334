"""`redis`: a lookup table and a sink."""
