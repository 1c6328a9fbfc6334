"""`nats`: a source and a sink, with JetStream or without."""
