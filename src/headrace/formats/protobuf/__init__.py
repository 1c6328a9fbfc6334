"""Protobuf messages, read and written by column."""
