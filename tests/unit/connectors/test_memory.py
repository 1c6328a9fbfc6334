from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import ConfigurationError
from headrace.connectors.memory import MemorySource
from headrace.model.operator import Limit
from tests.support import plan, read_range


def everything(source: Any) -> Any:
    start, *_, end = plan(source, [10**9], start=100.0, now=101.0)
    return read_range(source, start, end)


@pytest.mark.parametrize(
    "rows",
    [
        [{"a": 1, "_timestamp": 10}, {"a": 2, "_timestamp": 20}],
        pa.table({"a": [1, 2], "_timestamp": [10, 20]}),
        pa.record_batch({"a": [1, 2], "_timestamp": [10, 20]}),
        [pa.record_batch({"a": [n], "_timestamp": [10 * n]}) for n in (1, 2)],
        [{"a": n, "_timestamp": datetime(1970, 1, 1, tzinfo=UTC)} for n in (1, 2)],
    ],
)
def test_rows_come_in_any_shape(rows: Any) -> None:
    assert [row["a"] for row in everything(MemorySource(rows))] == [1, 2]
    assert [row["a"] for row in everything(MemorySource(rows=rows))] == [1, 2]


def test_missing_values_are_null() -> None:
    rows = everything(MemorySource([{"a": 1}, {"b": "x"}]))
    assert [(row["a"], row["b"]) for row in rows] == [(1, None), (None, "x")]


def test_event_time_is_the_named_column_in_its_unit() -> None:
    source = MemorySource([{"at": 5}], timestamp_column="at", timestamp_unit="s")
    assert everything(source) == [{"at": 5, "_timestamp": 5 * 10**9}]
    source = MemorySource([{"at": "1970-01-01T00:00:01.5"}], timestamp_column="at")
    assert everything(source)[0]["_timestamp"] == 1_500_000_000
    source = MemorySource([{"at": "1970-01-01T02:00:00+02:00"}], timestamp_column="at")
    assert everything(source)[0]["_timestamp"] == 0


def test_without_an_event_time_rows_have_the_time_of_planning() -> None:
    assert everything(MemorySource([{"a": 1}])) == [{"a": 1, "_timestamp": 101 * 10**9}]


def test_lanes_share_an_epoch_evenly() -> None:
    source = MemorySource(lanes=[[{"a": i} for i in range(n)] for n in (100, 2, 100)])
    start = source.initial_offset(time=0.0)
    end = source.latest_offset(start, Limit(22, 0.0), parallelism=1)
    assert {lane: position["row"] for lane, position in end.items()} == {"0": 10, "1": 2, "2": 10}
    after = source.latest_offset(end, Limit(1, 0.0), parallelism=1)
    assert source.count(end, after) == 1


def test_lanes_may_be_named_and_are_brought_to_one_schema() -> None:
    source = MemorySource(lanes={"x": [{"a": 1}], "y": [{"a": 2.5, "b": "z"}]})
    rows = everything(source)
    assert [(row["a"], row["b"]) for row in rows] == [(1.0, None), (2.5, "z")]


def test_no_rows_are_finished_at_once() -> None:
    source = MemorySource([])
    assert source.is_finished(source.initial_offset(time=0.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either rows or lanes"),
        ({"rows": [1]}, "list of dicts"),
        ({"rows": [{"a": 1}, {"a": "x"}]}, "do not fit one schema"),
        ({"lanes": [[{"a": 1}], [{"a": "x"}]]}, "do not fit one schema"),
        ({"rows": [{"at": 1}], "timestamp_column": "att"}, "did you mean `at`"),
        ({"rows": [{"at": "noon"}], "timestamp_column": "at"}, "cannot be read as event times"),
        ({"rows": [{"at": 1}, {"at": None}], "timestamp_column": "at"}, "row 1"),
        ({"rows": [{"at": [1]}], "timestamp_column": "at"}, "cannot be an event time"),
    ],
)
def test_bad_options_say_what_is_wrong(options: Any, message: Any) -> None:
    with pytest.raises(ConfigurationError, match=message):
        MemorySource(**options)
