"""`filesystem`: files in a directory or an object store, and the parts that table formats share."""
