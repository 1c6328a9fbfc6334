"""What every sink promises, kept by Redis: rows in a list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from redis.client import Pipeline

from headrace.connectors.redis.sink import RedisSink
from tests.contract.test_sinks import Case, SinkContract


@pytest.fixture
def case(redis_client: Any, redis_port: int, tmp_path: Path) -> Case:
    options = {"address": f"redis://127.0.0.1:{redis_port}", "target": "list", "target.key_prefix": "rows"}

    def visible() -> list[dict[str, Any]]:
        return [json.loads(entry) for entry in redis_client.lrange("rows", 0, -1)]

    inside: list[tuple[Any, str]] = [(RedisSink, name) for name in ("_connect", "_check_lists", "_queue")]
    inside += [(Pipeline, name) for name in ("watch", "multi", "execute")]
    return Case("redis", options, visible, {"target": "set"}, tmp_path, inside=inside)


class TestSink(SinkContract):
    """redis."""
