"""Benchmarks of connectors, one module each."""
