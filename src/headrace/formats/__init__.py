"""Formats: convert bytes to Arrow batches and back; a folder or a file for each format."""
