"""The engine without Spark: stages as functions from envelopes to envelopes, and the driver's half of an epoch."""
