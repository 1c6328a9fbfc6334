"""Operators that ship with Headrace, one file each."""
