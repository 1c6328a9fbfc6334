"""Recordings of a pipeline: what came in from outside and what went out, epoch by epoch."""
