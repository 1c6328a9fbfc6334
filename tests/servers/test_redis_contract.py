"""What every sink promises, kept by Redis: rows in a list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.operator import ArrowOperator
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
from tests.support import SinkDriver

__all__ = [
    "test_a_commit_repeated_is_a_commit_once",
    "test_a_sink_can_be_pickled_and_shown_on_one_line",
    "test_an_attempt_that_was_not_committed_leaves_nothing",
    "test_an_epoch_without_rows_shows_nothing",
    "test_commit_data_is_json",
    "test_rows_are_counted",
    "test_rows_too_many_for_the_commit_data_are_staged",
    "test_the_same_rows_in_two_epochs_are_shown_twice",
    "test_what_is_not_committed_is_invisible",
]


@pytest.fixture
def case(redis_client: Any, redis_port: int, tmp_path: Path, request: pytest.FixtureRequest) -> Case:
    options = {"address": f"redis://127.0.0.1:{redis_port}", "target": "list", "target.key_prefix": "rows"}

    def build() -> ArrowOperator:
        built = registry.build("sink", "redis", options)
        assert isinstance(built, ArrowOperator)
        return built

    def visible() -> list[dict[str, Any]]:
        return [json.loads(entry) for entry in redis_client.lrange("rows", 0, -1)]

    driver = SinkDriver(build, tmp_path / "state", job=request.node.name)
    return Case("redis", options, visible, {"target": "set"}, driver)


@pytest.fixture
def shown(case: Case) -> Shown:
    assert case.visible is not None
    return case.visible
