"""Event streams and requests, beside httpx alone."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import httpx
import pyarrow as pa

from bench.connectors._received import read_received
from bench.connectors._rows import COLUMNS, sink_rate
from headrace.connectors.http.sse import SseSource
from headrace.connectors.http.webhook import WebhookSink
from tests.servers.http import Answer, HttpServer, run_http

EVENTS, REQUESTS = 100_000, 2_000
STREAM = {"Content-Type": "text/event-stream"}


def measure() -> dict[str, float]:
    """Read a stream and make requests with the connectors, and with the client alone."""
    events = [f'id: {n}\ndata: {{"n": {n}, "text": "row {n}"}}\n\n'.encode() for n in range(EVENTS)]
    parts = [b"".join(events[start : start + 100]) for start in range(0, EVENTS, 100)]
    with (
        tempfile.TemporaryDirectory() as folder,
        run_http(lambda _: Answer(headers=STREAM, parts=parts)) as stream,
        run_http(lambda _: Answer()) as hook,
    ):
        source = SseSource(endpoint=stream.url, schema=COLUMNS)
        return {
            "sse source": read_received(source, Path(folder), EVENTS),
            "client, read and json.loads": _read_alone(stream.url),
            "webhook sink, a row a request": _send(hook, Path(folder, "a"), REQUESTS),
            "webhook sink, 100 rows a request": _send(
                hook, Path(folder, "b"), 100 * REQUESTS, batch_size=100
            ),
            "client, a row a request": _send_alone(hook.url),
        }


def _read_alone(url: str) -> float:
    begun = time.perf_counter()
    with httpx.stream("GET", url, trust_env=False) as response:
        seen: int = sum(
            json.loads(line[5:])["n"] >= 0 for line in response.iter_lines() if line.startswith("data:")
        )
    return seen / (time.perf_counter() - begun)


def _send(hook: HttpServer, folder: Path, rows: int, **options: int) -> float:
    batch = pa.record_batch({"n": list(range(rows))})
    return sink_rate(lambda: WebhookSink(endpoint=hook.url, **options), [batch], folder)


def _send_alone(url: str) -> float:
    begun = time.perf_counter()
    with httpx.Client(trust_env=False) as client:
        for n in range(REQUESTS):
            client.post(url, content=json.dumps({"n": n})).raise_for_status()
    return REQUESTS / (time.perf_counter() - begun)
