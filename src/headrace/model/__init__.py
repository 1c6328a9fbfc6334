"""The parts of a pipeline: operators, the plan of nodes and edges, the registry of names."""
