"""Avro: messages, object container files and schemas."""
