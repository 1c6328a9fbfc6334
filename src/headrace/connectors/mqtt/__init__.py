"""`mqtt`: a source and a sink."""
