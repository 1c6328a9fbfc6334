"""`delta`: a source and a sink for Delta Lake tables."""
