"""The Python API, and pipelines from files."""
