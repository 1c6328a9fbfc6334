"""Every test in this folder starts Spark; they share one session. Fixtures with real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.http import certificate
from tests.servers.kafka import kafka
from tests.servers.mqtt import mosquitto
from tests.servers.postgres import postgres, postgres_server

__all__ = ["certificate", "kafka", "mosquitto", "postgres", "postgres_server"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
