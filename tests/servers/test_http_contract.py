"""What every sink promises, kept by webhook and websocket when nothing crashes."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_sinks import Case, SinkContract
from tests.servers.http import Answer, run_http, wait_for


@pytest.fixture
def hooked(tmp_path: Path) -> Iterator[Case]:
    with run_http(lambda _: Answer()) as server:

        def visible() -> list[dict[str, Any]]:
            return [json.loads(request.body) for request in server.requests]

        options = {"endpoint": server.url, "max_in_flight": 1}
        yield Case("webhook", options, visible, {"max_in_flight": 0}, tmp_path)


@pytest.fixture
def socketed(tmp_path: Path) -> Iterator[Case]:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.server import serve

    messages: list[str | bytes] = []
    began: list[Any] = []
    ended: list[Any] = []

    def listen(connection: Any) -> None:
        # A ping is answered before what came ahead of it is read here, where the next connection is read too.
        wait_for(lambda: len(ended) == began.index(connection))
        with contextlib.suppress(ConnectionClosed):  # by a commit that failed
            messages.extend(connection)
        ended.append(connection)

    with serve(listen, "127.0.0.1", 0, process_request=lambda one, _: began.append(one)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def visible() -> list[dict[str, Any]]:
            wait_for(lambda: len(ended) == len(began))
            return [json.loads(message) for message in messages]

        options = {"endpoint": f"ws://127.0.0.1:{server.socket.getsockname()[1]}"}
        yield Case("websocket", options, visible, {"max_message_size": "large"}, tmp_path)


@pytest.fixture(params=["hooked", "socketed"])
def case(request: pytest.FixtureRequest) -> Case:
    made: Case = request.getfixturevalue(request.param)
    return made


class TestSinks(SinkContract):
    """webhook and websocket."""
