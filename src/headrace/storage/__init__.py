"""Files of a local directory or of an object store behind one interface."""
