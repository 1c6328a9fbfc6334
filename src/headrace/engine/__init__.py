"""Chains, stages, envelopes, tasks and the driver's half of an epoch: no Spark."""
