"""A node that receives."""
