"""Streaming SQL: compiles SQL to a plan."""
