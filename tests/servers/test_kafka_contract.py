"""What every source and every sink promises, kept by Kafka."""

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
from tests.servers.kafka import KafkaBroker
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
def topic(kafka: KafkaBroker) -> str:
    """Rows in some partitions, and none in others."""
    topic, first = kafka.create(4), 0
    for partition, size in ((0, ROWS - 60), (1, 50), (3, 10)):
        rows = [json.dumps({"a": i, "b": "ü" * (i % 13)}) for i in range(first, first + size)]
        kafka.send(topic, rows, partition=partition)
        first += size
    return topic


@pytest.fixture
def source(kafka: KafkaBroker, topic: str) -> SourceOperator:
    options = {"schema": {"a": "int64", "b": "string"}, "source.offset": "earliest", "source.bounded": True}
    built = registry.build("source", "kafka", kafka.options(topic, **options))
    assert isinstance(built, SourceOperator)
    return built


@pytest.fixture
def case(kafka: KafkaBroker, tmp_path: Path, request: pytest.FixtureRequest) -> Case:
    topic = kafka.create()
    options = dict(kafka.options(topic, **{"sink.commit_mode": "exactly_once"}))

    def build() -> ArrowOperator:
        built = registry.build("sink", "kafka", options)
        assert isinstance(built, ArrowOperator)
        return built

    def visible() -> list[dict[str, Any]]:
        return [json.loads(message.value()) for message in kafka.read(topic)]

    driver = SinkDriver(build, tmp_path / "state", job=f"{request.node.name}-{topic}")
    return Case("kafka", options, visible, {"topic": ""}, driver)


@pytest.fixture
def shown(case: Case) -> Shown:
    assert case.visible is not None
    return case.visible
