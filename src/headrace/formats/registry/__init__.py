"""Schema registries and files of schemas."""
