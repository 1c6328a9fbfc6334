"""A node that sends."""
