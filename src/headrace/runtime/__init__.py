"""The engine without Spark: tasks from envelopes to envelopes, and the driver's half of an epoch."""
