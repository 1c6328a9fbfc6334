"""State tables against plain Python models, over random lives: the same content always."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.state.config import (
    TableConfig,
    global_table_config,
    keyed_table_config,
    timestamp_table_config,
)
from headrace.state.tables import GlobalTable, KeyedTable, TimeTable
from tests.unit.state.harness import Life

KEYED = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.float64())])
TIMED = pa.schema([("_timestamp", pa.timestamp("ns")), ("k", pa.string()), ("v", pa.int64())])

# Thousands of small files: in memory where the system offers that, because syncing a disk takes longer.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

lives = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))

small_keys = st.tuples(st.sampled_from([None, 1, 2, 3, 4, 5]), st.sampled_from([None, "", "x", "yy"]))
keyed_steps = st.one_of(
    st.tuples(st.just("put"), st.lists(st.tuples(small_keys, st.floats(0, 9)), max_size=5)),
    st.tuples(st.just("delete"), st.lists(small_keys, max_size=3)),
    st.tuples(st.just("check"), st.none()),
    st.tuples(st.just("commit"), st.sampled_from([None, 1, 2, 3])),
    st.tuples(st.just("crash"), st.none()),
    st.tuples(st.just("wipe"), st.none()),
)
tiers = st.sampled_from([2, 3, 8])


def histories(step: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(step, min_size=15, max_size=40)


@lives
@given(steps=histories(keyed_steps), compact_after=tiers)
def test_a_keyed_table_is_a_dict(steps: list[tuple[str, Any]], compact_after: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        config = keyed_table_config("t", "", KEYED, key=["a", "b"])
        life = Life(Path(root), [config], compact_after=compact_after)
        model: dict[Any, float] = {}
        saved: dict[Any, float] = {}
        for kind, argument in [*steps, ("commit", None), ("check", None)]:
            if kind == "put":
                rows = [{"a": key[0], "b": key[1], "v": value} for key, value in argument]
                batch = pa.RecordBatch.from_pylist(rows, schema=KEYED)
                life.by_subtask(batch, ["a", "b"], lambda one, part: keyed(one).put(part))
                model.update(argument)
            elif kind == "delete":
                batch = keys_batch(argument)
                life.by_subtask(batch, ["a", "b"], lambda one, part: keyed(one).delete(part))
                for key in argument:
                    model.pop(key, None)
            elif kind == "check":
                check_keyed(life, model)
            elif kind == "commit":
                life.commit(parallelism=argument)
                saved = dict(model)
            else:
                life.wipe_cache() if kind == "wipe" else life.begin()
                model = dict(saved)


def keys_batch(keys: list[tuple[Any, Any]]) -> pa.RecordBatch:
    rows = [{"a": key[0], "b": key[1]} for key in keys]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema([KEYED.field("a"), KEYED.field("b")]))


def keyed(manager: Any) -> KeyedTable:
    table = manager.get("t")
    assert isinstance(table, KeyedTable)
    return table


def check_keyed(life: Life, model: dict[Any, float]) -> None:
    found: dict[Any, float] = {}
    count = 0
    for manager in life.managers:
        for batch in keyed(manager).scan():
            for row in batch.to_pylist():
                found[row["a"], row["b"]] = row["v"]
                count += 1
    assert found == model
    assert count == len(model)
    everyone = [(a, b) for a in (None, 1, 2, 3, 4, 5, 6) for b in (None, "", "x", "yy")]

    def look(manager: Any, part: pa.RecordBatch) -> None:
        rows, present = keyed(manager).get(part)
        for key, row, is_there in zip(part.to_pylist(), rows.to_pylist(), present, strict=True):
            assert is_there == ((key["a"], key["b"]) in model)
            assert row["v"] == model.get((key["a"], key["b"]))

    life.by_subtask(keys_batch(everyone), ["a", "b"], look)


small_rows = st.tuples(st.integers(0, 5), st.sampled_from([None, "p", "q"]), st.sampled_from([None, 1]))
few_rows = st.lists(small_rows, max_size=6)
few_keys = st.lists(st.sampled_from([None, "p", "q", "r"]), max_size=2)
bounds = st.one_of(st.none(), st.integers(-1, 7))
slow = st.sampled_from([0, 0, 0, 0, 1])
time_steps = st.one_of(
    st.tuples(st.just("insert"), few_rows),
    st.tuples(st.just("insert"), few_rows),
    st.tuples(st.just("delete_key"), few_keys),
    st.tuples(st.just("delete_time_key"), st.tuples(st.integers(0, 5), few_keys)),
    st.tuples(st.just("delete_value"), few_rows),
    st.tuples(st.just("delete_value"), few_rows),
    st.tuples(st.just("delete_time_range"), st.tuples(bounds, bounds)),
    st.tuples(st.just("check"), st.tuples(bounds, bounds, few_keys)),
    st.tuples(st.just("commit"), st.tuples(slow, st.sampled_from([None, None, 1, 2, 3]))),
    st.tuples(st.just("commit"), st.tuples(slow, st.none())),
    st.tuples(st.just("crash"), st.none()),
    st.tuples(st.just("wipe"), st.none()),
)
shapes: list[dict[str, Any]] = [
    {"key": ["k"], "order_by": "time"},
    {"key": ["k"], "order_by": "key"},
    {"key": ["k"], "generational": True},
    {"key": [], "order_by": "time"},
]
Row = tuple[int, str | None, int | None]


class TimeModel:
    """The law of a time table: a list of rows, oldest insert first."""

    def __init__(self, *, keyed: bool, generational: bool) -> None:
        self.keyed, self.generational = keyed, generational
        self.rows: list[Row] = []

    def insert(self, rows: list[Row], cutoff: int) -> None:
        for row in rows:
            if self.generational:
                self.rows = [one for one in self.rows if one[1] != row[1]]
            self.rows.append(row)
        self.expire(cutoff)

    def expire(self, cutoff: int) -> None:
        self.rows = [row for row in self.rows if row[0] >= cutoff]

    def delete_key(self, keys: list[Any]) -> None:
        self.rows = [row for row in self.rows if not self.is_among(row, keys)]

    def delete_time_key(self, time: int, keys: list[Any]) -> None:
        self.rows = [row for row in self.rows if not (row[0] == time and self.is_among(row, keys))]

    def is_among(self, row: Row, keys: list[Any]) -> bool:
        return row[1] in keys if self.keyed else bool(keys)

    def delete_value(self, rows: list[Row]) -> None:
        for row in rows:
            if row in self.rows:
                self.rows.remove(row)

    def delete_time_range(self, start: int | None, end: int | None) -> None:
        self.rows = [row for row in self.rows if not inside(row, start, end)]


def inside(row: Row, start: int | None, end: int | None) -> bool:
    return (start is None or row[0] >= start) and (end is None or row[0] < end)


def timed(manager: Any) -> TimeTable:
    table = manager.get("t")
    assert isinstance(table, TimeTable)
    return table


def rows_batch(rows: list[Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, TIMED, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=TIMED)


def to_rows(table: pa.Table) -> list[Row]:
    times = table.column("_timestamp").cast(pa.int64()).to_pylist()
    return list(zip(times, table.column("k").to_pylist(), table.column("v").to_pylist(), strict=True))


@pytest.mark.parametrize("shape", shapes, ids=["by-time", "by-key", "generational", "without-key"])
@lives
@given(steps=histories(time_steps), compact_after=tiers)
def test_a_time_table_is_a_list_of_rows(
    shape: dict[str, Any], steps: list[tuple[str, Any]], compact_after: int
) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        retention = timedelta(microseconds=0)
        config = timestamp_table_config("t", "", retention, schema=TIMED, **shape)
        life = Life(Path(root), [config], compact_after=compact_after)
        model = TimeModel(keyed=bool(config.key), generational=config.generational)
        saved: list[Row] = []
        for kind, argument in [*steps, ("commit", (0, None)), ("check", (None, None, ["p", None]))]:
            if kind == "commit":
                advance, parallelism = argument
                watermark = (life.watermark or 0) + advance
                life.commit(watermark, parallelism=parallelism)
                model.expire(watermark)
                saved = list(model.rows)
            elif kind in ("crash", "wipe"):
                life.wipe_cache() if kind == "wipe" else life.begin()
                model.rows = list(saved)
            elif kind == "check":
                check_timed(life, model, *argument)
            else:
                change_timed(life, config, model, kind, argument)


def change_timed(life: Life, config: TableConfig, model: TimeModel, kind: str, argument: Any) -> None:
    def spread(batch: pa.RecordBatch, act: Any) -> None:
        if config.key:
            life.by_subtask(batch, ["k"], act)
        else:
            for manager in life.managers:
                act(manager, batch)

    if kind == "insert":
        if config.key:
            spread(rows_batch(argument), lambda one, part: timed(one).insert(part))
        else:  # any subtask may hold any row
            timed(life.managers[len(argument) % life.parallelism]).insert(rows_batch(argument))
        model.insert(argument, life.watermark or 0)
    elif kind == "delete_key":
        spread(key_batch(argument), lambda one, part: timed(one).delete_key(part))
        model.delete_key(argument)
    elif kind == "delete_time_key":
        time, keys = argument
        spread(key_batch(keys), lambda one, part: timed(one).delete_time_key(time, part))
        model.delete_time_key(time, keys)
    elif kind == "delete_time_range":
        for manager in life.managers:
            timed(manager).delete_time_range(*argument)
        model.delete_time_range(*argument)
    elif config.key:
        spread(rows_batch(argument), lambda one, part: timed(one).delete_value(part))
        model.delete_value(argument)
    else:  # a subtask without a key deletes among its own rows
        first = timed(life.managers[0])
        own = Counter(to_rows(first.all()))
        first.delete_value(rows_batch(argument))
        model.delete_value(list((Counter(argument) & own).elements()))


def key_batch(keys: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.string())], ["k"])


def check_timed(life: Life, model: TimeModel, start: int | None, end: int | None, keys: list[Any]) -> None:
    everything = [row for one in life.managers for row in to_rows(timed(one).all())]
    assert Counter(everything) == Counter(model.rows)
    span = [row for one in life.managers for row in to_rows(timed(one).range(start, end))]
    assert Counter(span) == Counter(row for row in model.rows if inside(row, start, end))
    found: list[Row] = []
    if model.keyed:
        life.by_subtask(key_batch(keys), ["k"], lambda one, part: found.extend(to_rows(timed(one).get(part))))
        assert Counter(found) == Counter(row for row in model.rows if row[1] in keys)
    earliest = [time for one in life.managers if (time := timed(one).min_time()) is not None]
    assert min(earliest, default=None) == min((row[0] for row in model.rows), default=None)


names = st.one_of(
    st.sampled_from(["a", "b", "c"]), st.integers(0, 2), st.tuples(st.just("a"), st.integers(0, 1))
)
values = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=3), st.binary(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["x", "__bytes__", "__object__"]), inner, max_size=2),
    ),
    max_leaves=4,
)
global_steps = st.one_of(
    st.tuples(st.just("insert"), st.tuples(names, values, st.integers(0, 2))),
    st.tuples(st.just("delete"), st.tuples(names, st.none(), st.integers(0, 2))),
    st.tuples(st.just("take"), st.none()),
    st.tuples(st.just("commit"), st.sampled_from([None, 1, 2, 3])),
    st.tuples(st.just("crash"), st.none()),
)


@lives
@given(steps=histories(global_steps), compact_after=tiers)
def test_a_global_table_is_a_dict_that_all_subtasks_share(
    steps: list[tuple[str, Any]], compact_after: int
) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        life = Life(Path(root), [global_table_config("t")], compact_after=compact_after)
        saved: dict[Any, Any] = {}
        written: dict[int, dict[Any, Any]] = {}
        for kind, argument in [*steps, ("commit", None)]:
            if kind in ("insert", "delete"):
                key, value, number = argument
                subtask = number % life.parallelism
                table = shared(life.managers[subtask])
                if kind == "insert":
                    table.insert(key, value)
                    assert table.get(key) == value
                else:
                    table.delete(key)
                    assert table.get(key, "gone") == "gone"
                written.setdefault(subtask, {})[key] = (kind, value)
            elif kind == "take":
                taken = shared(life.managers[0]).take()
                assert taken == visible(saved, written.get(0, {}))
                written.setdefault(0, {}).update(dict.fromkeys(taken, ("delete", None)))
            elif kind == "commit":
                for subtask in sorted(written):
                    saved = visible(saved, written[subtask])
                written = {}
                life.commit(parallelism=argument)
                for manager in life.managers:
                    assert shared(manager).get_all() == saved
            else:
                life.begin()
                written = {}


def shared(manager: Any) -> GlobalTable:
    table = manager.get("t")
    assert isinstance(table, GlobalTable)
    return table


def visible(saved: dict[Any, Any], changes: dict[Any, Any]) -> dict[Any, Any]:
    merged = dict(saved)
    for key, (kind, value) in changes.items():
        merged.pop(key, None)
        if kind == "insert":
            merged[key] = value
    return merged
