"""Streaming SQL: text becomes a plan."""
