"""What a pipeline is made of: operators, the plan of nodes and edges, the registry of names."""
