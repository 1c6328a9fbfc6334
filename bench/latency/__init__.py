"""How soon a result is visible, and how soon the first row is there, beside hand-written Spark."""
