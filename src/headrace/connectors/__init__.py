"""Sources, sinks and lookup tables: a folder or a file for each external system."""
