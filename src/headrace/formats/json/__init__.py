"""JSON lines and messages, including Debezium."""
