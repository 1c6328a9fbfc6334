"""Connectors over HTTP: `polling_http`, `sse`, `webhook`, `websocket`."""
