"""SQL text → statements."""
