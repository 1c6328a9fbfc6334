"""Parses a YAML document into a `Dataflow`, or reports every error with its location."""
