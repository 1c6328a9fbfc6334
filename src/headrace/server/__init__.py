"""`headrace serve`: many pipelines behind one REST API, each in a process of its own."""
