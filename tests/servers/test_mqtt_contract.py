"""What every sink promises, kept by mqtt when nothing crashes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_sinks import Case, SinkContract
from tests.servers.http import wait_for
from tests.servers.mqtt import Mosquitto


@pytest.fixture
def case(mosquitto: Mosquitto, tmp_path: Path) -> Iterator[Case]:
    topic = mosquitto.topic()
    with mosquitto.listening(topic) as messages:

        def visible() -> list[dict[str, Any]]:
            mark = uuid.uuid4().hex.encode()
            mosquitto.send(topic, [mark])
            wait_for(lambda: any(message.payload == mark for message in messages))
            return [json.loads(one.payload) for one in messages if one.payload.startswith(b"{")]

        options = {"url": mosquitto.url, "topic": topic}
        yield Case("mqtt", options, visible, {"qos": "Often"}, tmp_path)


class TestSink(SinkContract):
    """mqtt."""
