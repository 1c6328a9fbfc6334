"""Functions of PostgreSQL that DataFusion does not have, or computes differently."""
