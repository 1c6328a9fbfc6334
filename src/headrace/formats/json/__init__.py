"""JSON lines and messages, Debezium's among them."""
