"""`rabbitmq`: a source and a sink."""
