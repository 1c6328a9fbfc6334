"""What every sink promises, kept by webhook and websocket when nothing crashes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.operator import ArrowOperator
from headrace.registry import registry
from tests.contract.test_sinks import (
    Case,
    Shown,
    test_a_bad_option_is_named,
    test_a_commit_repeated_is_a_commit_once,
    test_a_sink_can_be_pickled_and_shown_on_one_line,
    test_an_attempt_that_was_not_committed_leaves_nothing,
    test_an_epoch_without_rows_shows_nothing,
    test_commit_data_is_json,
    test_every_option_is_described,
    test_rows_are_counted,
    test_rows_too_many_for_the_commit_data_are_staged,
    test_the_same_rows_in_two_epochs_are_shown_twice,
    test_what_is_not_committed_is_invisible,
)
from tests.servers.http import Answer, run_http, wait_for
from tests.support import SinkDriver

__all__ = [
    "test_a_bad_option_is_named",
    "test_a_commit_repeated_is_a_commit_once",
    "test_a_sink_can_be_pickled_and_shown_on_one_line",
    "test_an_attempt_that_was_not_committed_leaves_nothing",
    "test_an_epoch_without_rows_shows_nothing",
    "test_commit_data_is_json",
    "test_every_option_is_described",
    "test_rows_are_counted",
    "test_rows_too_many_for_the_commit_data_are_staged",
    "test_the_same_rows_in_two_epochs_are_shown_twice",
    "test_what_is_not_committed_is_invisible",
]


@pytest.fixture
def shown(case: Case) -> Shown:
    assert case.visible is not None
    return case.visible


def make_case(name: str, options: dict[str, Any], visible: Shown, bad: dict[str, Any], folder: Path) -> Case:
    def build() -> ArrowOperator:
        built = registry.build("sink", name, options)
        assert isinstance(built, ArrowOperator)
        return built

    return Case(name, options, visible, bad, SinkDriver(build, folder / "state"))


@pytest.fixture
def hooked(tmp_path: Path) -> Iterator[Case]:
    with run_http(lambda _: Answer()) as server:

        def visible() -> list[dict[str, Any]]:
            return [json.loads(request.body) for request in server.requests]

        options = {"endpoint": server.url, "max_in_flight": 1}
        yield make_case("webhook", options, visible, {"max_in_flight": 0}, tmp_path)


@pytest.fixture
def socketed(tmp_path: Path) -> Iterator[Case]:
    from websockets.sync.server import serve

    messages: list[str | bytes] = []
    began: list[Any] = []
    ended: list[Any] = []

    def listen(connection: Any) -> None:
        messages.extend(connection)
        ended.append(connection)

    with serve(listen, "127.0.0.1", 0, process_request=lambda *given: began.append(given)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def visible() -> list[dict[str, Any]]:
            wait_for(lambda: len(ended) == len(began))
            return [json.loads(message) for message in messages]

        options = {"endpoint": f"ws://127.0.0.1:{server.socket.getsockname()[1]}"}
        yield make_case("websocket", options, visible, {"max_message_size": "large"}, tmp_path)


@pytest.fixture(params=["hooked", "socketed"])
def case(request: pytest.FixtureRequest) -> Case:
    made: Case = request.getfixturevalue(request.param)
    return made
