"""`filesystem`: files in a directory or an object store, and what tables of files share."""
