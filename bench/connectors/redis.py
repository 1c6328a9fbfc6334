"""Strings, lists and hashes of Redis, beside redis-py alone."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.connectors._rows import COLUMNS, make_rows, rate, sink_rate
from headrace.connectors.redis.lookup import RedisLookup
from headrace.connectors.redis.sink import RedisSink
from headrace.model.operator import OperatorContext
from tests.servers.redis import fetch_server, run_server
from tests.support import EpochTables, task

ROWS = 50_000


def measure() -> dict[str, float]:
    """Write rows with the connector and look them up again; the same with the client alone."""
    import redis

    rows = make_rows(ROWS)
    with (
        tempfile.TemporaryDirectory() as folder,
        run_server(fetch_server(), Path(folder)) as port,
        redis.Redis(port=port) as client,
    ):
        rates = {}
        for target, more in (
            ("string", {"target.key_column": "n"}),
            ("list", {"target.key_prefix": "rows"}),
            ("hash", {"target.key_prefix": "table", "target.field_column": "n"}),
        ):
            rates[f"sink, {target}"] = _sink(port, Path(folder) / target, rows, target, more)
        begun = time.perf_counter()
        with client.pipeline(transaction=False) as pipe:
            for row in rows.to_pylist():
                pipe.set(f"alone:{row['n']}", json.dumps(row))
            pipe.execute()
        rates["client, pipelined set and json.dumps"] = ROWS / (time.perf_counter() - begun)
        rates["lookup"] = _lookup(port)
        begun = time.perf_counter()
        values = [json.loads(value) for value in client.mget([str(n) for n in range(ROWS)]) if value]
        rates["client, mget and json.loads"] = len(values) / (time.perf_counter() - begun)
        return rates


def _sink(port: int, folder: Path, rows: pa.RecordBatch, target: str, more: dict[str, Any]) -> float:
    options = {"address": f"redis://127.0.0.1:{port}", "target": target, **more}
    return sink_rate(lambda: RedisSink(**options), [rows], folder)


def _lookup(port: int) -> float:
    key = {"schema": COLUMNS, "primary_key": ["n"], "metadata": {"n": "key"}}
    table = RedisLookup(address=f"redis://127.0.0.1:{port}", **key)
    ctx = OperatorContext(
        task(), EpochTables(RedisSink(address="redis://h", target="list", key_prefix="x"), {})
    )
    return rate(lambda: table.lookup(pa.array(range(ROWS)), ctx), ROWS)
