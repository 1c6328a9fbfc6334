"""What every source and every sink promises, kept by NATS with JetStream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.operator import ArrowOperator, SourceOperator
from headrace.registry import registry
from tests.contract.test_sinks import (
    Case,
    Shown,
    test_a_commit_repeated_is_a_commit_once,
    test_a_sink_can_be_pickled_and_shown_on_one_line,
    test_an_attempt_that_was_not_committed_leaves_nothing,
    test_an_epoch_without_rows_shows_nothing,
    test_commit_data_is_json,
    test_rows_are_counted,
    test_rows_too_many_for_the_commit_data_are_staged,
    test_the_same_rows_in_two_epochs_are_shown_twice,
    test_what_is_not_committed_is_invisible,
)
from tests.contract.test_sources import (
    ROWS,
    test_a_bounded_source_is_finished_at_its_last_row_and_not_before,
    test_a_known_count_is_the_number_of_rows,
    test_a_pickled_source_reads_the_same,
    test_a_resumed_source_continues_after_the_last_row,
    test_an_empty_range_has_no_rows,
    test_any_cut_into_epochs_and_splits_gives_the_same_rows,
    test_display_is_one_line,
    test_every_batch_has_the_same_schema_with_an_event_time,
    test_offsets_survive_json,
    test_reading_a_range_twice_gives_the_same_rows,
    test_the_splits_of_a_lane_are_in_its_order,
)
from tests.servers.nats import NatsServer
from tests.support import SinkDriver

__all__ = [
    "test_a_bounded_source_is_finished_at_its_last_row_and_not_before",
    "test_a_commit_repeated_is_a_commit_once",
    "test_a_known_count_is_the_number_of_rows",
    "test_a_pickled_source_reads_the_same",
    "test_a_resumed_source_continues_after_the_last_row",
    "test_a_sink_can_be_pickled_and_shown_on_one_line",
    "test_an_attempt_that_was_not_committed_leaves_nothing",
    "test_an_empty_range_has_no_rows",
    "test_an_epoch_without_rows_shows_nothing",
    "test_any_cut_into_epochs_and_splits_gives_the_same_rows",
    "test_commit_data_is_json",
    "test_display_is_one_line",
    "test_every_batch_has_the_same_schema_with_an_event_time",
    "test_offsets_survive_json",
    "test_reading_a_range_twice_gives_the_same_rows",
    "test_rows_are_counted",
    "test_rows_too_many_for_the_commit_data_are_staged",
    "test_the_same_rows_in_two_epochs_are_shown_twice",
    "test_the_splits_of_a_lane_are_in_its_order",
    "test_what_is_not_committed_is_invisible",
]


@pytest.fixture(scope="module")
def stream(nats_server: NatsServer) -> str:
    """Some rows."""
    stream = nats_server.create()
    nats_server.send(stream, [json.dumps({"a": i, "b": "ü" * (i % 13)}) for i in range(ROWS)])
    return stream


@pytest.fixture(autouse=True)
def _small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.connectors.nats_source._WORTH_SPLITTING", 10)


@pytest.fixture
def source(nats_server: NatsServer, stream: str) -> SourceOperator:
    options = {"stream": stream, "schema": {"a": "int64", "b": "string"}, "source.bounded": True}
    built = registry.build("source", "nats", nats_server.options(**options))
    assert isinstance(built, SourceOperator)
    return built


@pytest.fixture
def case(nats_server: NatsServer, tmp_path: Path, request: pytest.FixtureRequest) -> Case:
    stream = nats_server.create()
    options = dict(nats_server.options(subject=f"{stream}.rows", stream=stream))

    def build() -> ArrowOperator:
        built = registry.build("sink", "nats", options)
        assert isinstance(built, ArrowOperator)
        return built

    def visible() -> list[dict[str, Any]]:
        return [json.loads(message.data) for message in nats_server.read(stream)]

    driver = SinkDriver(build, tmp_path / "state", job=f"{request.node.name}-{stream}")
    return Case("nats", options, visible, {"subject": ""}, driver)


@pytest.fixture
def shown(case: Case) -> Shown:
    assert case.visible is not None
    return case.visible
