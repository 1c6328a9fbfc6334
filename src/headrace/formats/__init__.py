"""Bytes to Arrow batches and back: one file per format."""
