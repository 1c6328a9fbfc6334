"""Jobs: where plans meet the engine."""
