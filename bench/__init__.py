"""Benchmarks. Run with `make bench`; never by `make test`."""
