"""What every source of the registry promises; a new one needs an entry in CASES and nothing else."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import ConfigurationError
from headrace.model.operator import Finish, Limit, Offset, SourceOperator
from headrace.model.registry import BUILT_IN, registry
from tests.support import WITH_SERVERS, plan, read_range, read_split

NOW = 1_700_000_000.25
ROWS = 257


def _memory(_: Path) -> dict[str, Any]:
    return {"rows": [{"a": i, "b": f"row {i}", "_timestamp": i * 1000} for i in range(ROWS)]}


def _lanes(_: Path) -> dict[str, Any]:
    sizes = (ROWS - 60, 50, 0, 10)
    lanes, first = [], 0
    for size in sizes:
        lanes.append([{"a": i, "at": i * 1000} for i in range(first, first + size)])
        first += size
    return {"lanes": lanes, "timestamp_column": "at"}


def _file(folder: Path) -> dict[str, Any]:
    path = folder / "in.json"
    lines = [json.dumps({"a": i, "b": None if i % 7 == 0 else "ü" * (i % 13)}) for i in range(ROWS)]
    path.write_text("\n\n".join(lines), encoding="utf-8")
    return {"path": str(path)}


def _json_files(folder: Path, *, compress: bool = False) -> dict[str, Any]:
    first = 0
    for number, size in enumerate((100, 1, ROWS - 151, 50)):
        lines = [json.dumps({"a": i, "b": "ü" * (i % 13)}) for i in range(first, first + size)]
        path = folder / "in" / f"day={number % 2}" / f"{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = "\n".join(lines).encode()
        path.write_bytes(gzip.compress(data) if compress else data)
        first += size
    (folder / "in" / "empty.json").touch()
    options: dict[str, Any] = {"path": str(folder / "in"), "schema": {"a": "int64", "b": "string"}}
    return {**options, "source.compression": "gzip"} if compress else options


def _parquet_files(folder: Path) -> dict[str, Any]:
    (folder / "in").mkdir(exist_ok=True)
    for number, (first, last) in enumerate(pairwise((0, 0, 10, 200, ROWS))):
        table = pa.table({"a": pa.array(range(first, last), pa.int32())})
        pq.write_table(table, folder / "in" / f"{number}.parquet", row_group_size=7)
    return {"path": str(folder / "in"), "format": "parquet", "schema": {"a": "int64", "b": "string"}}


def _csv_files(folder: Path) -> dict[str, Any]:
    for number, (first, last) in enumerate(pairwise((0, 10, 200, ROWS))):
        path = folder / "in" / f"day={number}" / "x.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("b,a\n" + "".join(f'"ü, {i}",{i}\n' for i in range(first, last)), encoding="utf-8")
    schema = {"a": "int64", "b": "string", "day": "int32"}
    return {"path": str(folder / "in"), "format": "csv", "schema": schema}


def _delta_table(folder: Path) -> dict[str, Any]:
    for first, last in pairwise((0, 10, 200, ROWS)):
        table = pa.table(
            {"a": pa.array(range(first, last), pa.int32()), "day": [f"{first % 3}"] * (last - first)}
        )
        write_deltalake(str(folder / "table"), table, mode="append", partition_by=["day"])
    return {"path": str(folder / "table"), "schema": {"a": "int64", "day": "string"}}


CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "delta": ("delta", _delta_table, {"source.watch_interval": "often"}),
    "filesystem": ("filesystem", _json_files, {"source.compression": "zip"}),
    "filesystem of compressed files": (
        "filesystem",
        lambda folder: _json_files(folder, compress=True),
        {"format": "xml"},
    ),
    "filesystem of CSV files": ("filesystem", _csv_files, {"csv.delimiter": "long"}),
    "filesystem of Parquet files": ("filesystem", _parquet_files, {"path": ""}),
    "impulse": ("impulse", lambda _: {"message_count": ROWS}, {"event_rate": "often"}),
    "impulse with a rate": (
        "impulse",
        lambda _: {"message_count": ROWS, "event_rate": 7.3, "start_time": "2026-01-01"},
        {"delay": "soon"},
    ),
    "impulse with an interval": (
        "impulse",
        lambda _: {"message_count": ROWS, "event_time_interval": "10ms"},
        {"message_count": -1},
    ),
    "memory": ("memory", _memory, {"rows": 5}),
    "memory with lanes": ("memory", _lanes, {"timestamp_unit": "weeks"}),
    "nexmark": (
        "nexmark",
        lambda _: {"event_rate": 7.3, "message_count": ROWS, "seed": 4},
        {"event_rate": "often"},
    ),
    "nexmark without a pace": (
        "nexmark",
        lambda _: {"event_rate": ROWS, "runtime": 1, "paced": "false", "base_time": "2026-01-01"},
        {"runtime": "soon"},
    ),
    "single_file": ("single_file", _file, {"path": ""}),
}


def build_source(name: str, options: Mapping[str, Any]) -> SourceOperator:
    built = registry.build("source", name, options)
    assert isinstance(built, SourceOperator)
    return built


def later(source: SourceOperator, sizes: list[int]) -> list[Offset]:
    """Epochs planned long enough after the start for every row to be due, all at one time."""
    return plan(source, sizes, start=NOW, now=NOW + 1000)


def multiset(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(
        json.dumps({k: v for k, v in row.items() if k != "subtask_index"}, sort_keys=True, default=str)
        for row in rows
    )


class SourceContract:
    """The promises; a source is held to them by a subclass `Test…` with a fixture `source` of ROWS rows."""

    def test_reading_a_range_twice_gives_the_same_rows(self, source: SourceOperator) -> None:
        start, *_, end = later(source, [10**9])
        for parallelism in (1, 3):
            first = read_range(source, start, end, parallelism=parallelism)
            assert len(first) == ROWS
            assert first == read_range(source, start, end, parallelism=parallelism)

    @pytest.mark.parametrize("sizes", [[1], [3, 1, 100, 7], [64], [10**9]])
    @pytest.mark.parametrize("parallelism", [1, 2, 5])
    def test_any_cut_into_epochs_and_splits_gives_the_same_rows(
        self, source: SourceOperator, sizes: list[int], parallelism: int
    ) -> None:
        start, *_, end = later(source, [10**9])
        whole = read_range(source, start, end)
        offsets = later(source, sizes)
        rows = []
        for begin, stop in pairwise(offsets):
            part = read_range(source, begin, stop, parallelism=parallelism)
            assert len(part) <= max(sizes)
            rows += part
        assert multiset(rows) == multiset(whole)

    def test_the_splits_of_a_lane_are_in_its_order(self, source: SourceOperator) -> None:
        start, *_, end = later(source, [10**9])
        alone = read_range(source, start, end, parallelism=1)
        shared = read_range(source, start, end, parallelism=4)
        without = [{k: v for k, v in row.items() if k != "subtask_index"} for row in alone]
        assert without == [{k: v for k, v in row.items() if k != "subtask_index"} for row in shared]

    def test_a_pickled_source_reads_the_same(self, source: SourceOperator) -> None:
        copy = cloudpickle.loads(cloudpickle.dumps(source))
        start, *_, end = later(source, [10**9])
        assert read_range(copy, start, end) == read_range(source, start, end)
        assert copy.is_finished(end)

    def test_offsets_survive_json(self, source: SourceOperator) -> None:
        offsets = later(source, [50])
        assert json.loads(json.dumps(offsets)) == offsets
        start, end = json.loads(json.dumps([offsets[1], offsets[2]]))
        assert read_range(source, start, end) == read_range(source, offsets[1], offsets[2])

    def test_a_bounded_source_is_finished_at_its_last_row_and_not_before(
        self, source: SourceOperator
    ) -> None:
        offsets = later(source, [100])
        assert [source.is_finished(offset) for offset in offsets] == [False] * (len(offsets) - 1) + [True]
        splits = source.splits(offsets[-2], offsets[-1], parallelism=2)
        assert {read_split(source, split)[1] for split in splits} == {Finish.FINAL}
        splits = source.splits(offsets[0], offsets[1], parallelism=2)
        assert {read_split(source, split)[1] for split in splits} == {Finish.GRACEFUL}

    def test_an_empty_range_has_no_rows(self, source: SourceOperator) -> None:
        start = source.initial_offset(time=NOW)
        assert source.latest_offset(start, Limit(0, NOW), parallelism=1) == start
        assert read_range(source, start, start, parallelism=3) == []

    def test_a_known_count_is_the_number_of_rows(self, source: SourceOperator) -> None:
        offsets = later(source, [100])
        for start, end in pairwise(offsets):
            known = source.count(start, end)
            assert known is None or known == len(read_range(source, start, end))

    def test_every_batch_has_the_same_schema_with_an_event_time(self, source: SourceOperator) -> None:
        offsets = later(source, [100])
        schemas = set()
        for start, end in pairwise(offsets):
            for split in source.splits(start, end, parallelism=2):
                schemas |= {batch.schema for batch in read_split(source, split)[0]}
        (schema,) = schemas
        assert schema.field(TIMESTAMP).type == pa.timestamp("ns")

    def test_a_resumed_source_continues_after_the_last_row(self, source: SourceOperator) -> None:
        offsets = later(source, [100])
        copy = cloudpickle.loads(cloudpickle.dumps(source))
        rest = copy.latest_offset(offsets[1], Limit(10**9, NOW + 1000), parallelism=3)
        rows = read_range(source, offsets[0], offsets[1]) + read_range(copy, offsets[1], rest, parallelism=3)
        assert multiset(rows) == multiset(read_range(source, offsets[0], offsets[-1]))

    def test_display_is_one_line(self, source: SourceOperator) -> None:
        assert "\n" not in source.display()
        assert len(source.display()) < 200


def test_every_source_of_the_registry_has_a_case() -> None:
    assert set(BUILT_IN["source"]) - WITH_SERVERS <= {name for name, _, _ in CASES.values()}


class TestSources(SourceContract):
    """The sources that need no server."""

    @pytest.fixture(params=CASES)
    def case(self, request: pytest.FixtureRequest) -> str:
        name: str = request.param
        return name

    @pytest.fixture
    def source(self, case: str, tmp_path: Path) -> SourceOperator:
        name, options, _ = CASES[case]
        return build_source(name, options(tmp_path))

    def test_a_bad_option_is_named(self, case: str, tmp_path: Path) -> None:
        name, options, bad = CASES[case]
        with pytest.raises(ConfigurationError, match=f"`{next(iter(bad))}`"):
            registry.build("source", name, {**options(tmp_path), **bad})
        with pytest.raises(ConfigurationError, match="unknown option `wrong`"):
            registry.build("source", name, {**options(tmp_path), "wrong": 1})

    def test_every_option_is_described(self, case: str) -> None:
        for field in registry.options("source", CASES[case][0]).model_fields.values():
            assert field.description
