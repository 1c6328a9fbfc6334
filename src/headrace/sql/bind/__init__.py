"""Statements → relations: names become columns, queries get their meaning."""
