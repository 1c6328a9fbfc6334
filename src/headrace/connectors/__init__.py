"""Sources and sinks: one file per outside system. They know neither Spark nor each other."""
