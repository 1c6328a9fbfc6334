"""YAML text → a `Dataflow`, or every mistake with its place."""
