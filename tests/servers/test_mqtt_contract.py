"""What every sink promises, kept by mqtt when nothing crashes."""

from __future__ import annotations

import json
import uuid
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
from tests.servers.http import wait_for
from tests.servers.mqtt import Mosquitto
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
def case(mosquitto: Mosquitto, tmp_path: Path) -> Iterator[Case]:
    topic = mosquitto.topic()
    with mosquitto.listening(topic) as messages:

        def visible() -> list[dict[str, Any]]:
            mark = uuid.uuid4().hex.encode()
            mosquitto.send(topic, [mark])
            wait_for(lambda: any(message.payload == mark for message in messages))
            return [json.loads(one.payload) for one in messages if one.payload.startswith(b"{")]

        options = {"url": mosquitto.url, "topic": topic}
        yield make_case("mqtt", options, visible, {"qos": "Often"}, tmp_path)
