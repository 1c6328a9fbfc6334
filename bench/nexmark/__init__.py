"""The Nexmark queries in Headrace, in Structured Streaming, and in DataFusion over all at once."""
