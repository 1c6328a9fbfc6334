"""A `Dataflow` → operators of a plan, and its diagram."""
