"""What a dora node or operator imports."""
