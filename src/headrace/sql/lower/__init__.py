"""Relations → operators of a plan."""
