"""Web sockets, beside websockets alone."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from websockets.sync.client import connect
from websockets.sync.server import serve

from bench.connectors._received import read_received
from bench.connectors._rows import COLUMNS, make_rows, sink_rate
from headrace.connectors.http.websocket import WebSocketSink, WebSocketSource

ROWS = 20_000


def talk(connection: Any) -> None:
    """A server that sends the rows to readers, and receives those of writers."""
    if connection.recv() == "send":
        for n in range(ROWS):
            connection.send(json.dumps({"n": n, "text": f"row {n}"}))
    for _ in connection:
        pass


def measure() -> dict[str, float]:
    """Read and write a web socket with the connector, and with the client alone."""
    with tempfile.TemporaryDirectory() as folder, serve(talk, "127.0.0.1", 0, compression=None) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        source = WebSocketSource(endpoint=url, schema=COLUMNS, subscription_message="send")
        read = read_received(source, Path(folder), ROWS)
        written = sink_rate(lambda: WebSocketSink(endpoint=url), [make_rows(ROWS)], Path(folder, "sink"))
        with connect(url, proxy=None) as socket:
            begun = time.perf_counter()
            socket.send("send")
            client_read = sum(json.loads(socket.recv())["n"] >= 0 for _ in range(ROWS))
            client_read /= time.perf_counter() - begun
            begun = time.perf_counter()
            for n in range(ROWS):
                socket.send(json.dumps({"n": n, "text": f"row {n}"}))
            socket.ping().wait(30)
            client_written = ROWS / (time.perf_counter() - begun)
    return {
        "source": read,
        "client, read and json.loads": client_read,
        "sink": written,
        "client, json.dumps and write": client_written,
    }
