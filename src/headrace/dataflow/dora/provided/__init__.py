"""What users' code can import while a dataflow runs: this directory is put on their `sys.path`."""
