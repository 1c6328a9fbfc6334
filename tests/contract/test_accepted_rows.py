"""What a task of a sink accepts, its commit writes: a row can only be refused before the commit point."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import HeadraceError
from headrace.connectors.database.sink import DatabaseSink
from headrace.connectors.delta.sink import DeltaSink
from headrace.connectors.filesystem.sink import FileSystemSink
from headrace.connectors.iceberg.sink import IcebergSink
from headrace.connectors.single_file.sink import SingleFileSink
from headrace.model.operator import ArrowOperator
from tests.support import SinkDriver

_FAR = 10**18
"""Microseconds to the year 33658."""
COLUMNS = {
    "not a number": pa.array([1.0, float("nan")]),
    "infinity": pa.array([1.0, float("inf"), -float("inf")]),
    "dates after 9999": pa.array([0, 10**7], pa.date32()),
    "dates before the year 1": pa.array([0, -(10**6)], pa.date32()),
    "times after 9999": pa.array([0, _FAR], pa.timestamp("us")),
    "times that overflow in another unit": pa.array([0, 10**14], pa.timestamp("s")),
    "times with a zone after 9999": pa.array([0, _FAR], pa.timestamp("us", "UTC")),
    "times in structs": pa.array([{"x": 0}, {"x": _FAR}], pa.struct([("x", pa.timestamp("us"))])),
    "times in lists": pa.array([[0], [_FAR]], pa.list_(pa.timestamp("us"))),
    "numbers in structs": pa.array([{"x": float("nan")}]),
    "a NUL character": pa.array(["a", "b\0c"]),
    "a long text": pa.array(["a", "x" * 5000]),
    "a text that is no file name": pa.array(["a", "é/%=\n.."]),
    "an empty text": pa.array(["a", ""]),
    "bytes": pa.array([b"a", b"\xff" * 300]),
    "the largest numbers": pa.array([1, 2**64 - 1], pa.uint64()),
    "decimals": pa.array([1, None], pa.decimal128(38, 10)),
    "truth": pa.array([True, None]),
}
Make = Callable[[Path], ArrowOperator]


def _lake(kind: Any, partitions: list[str]) -> Make:
    def make(folder: Path) -> ArrowOperator:
        place: dict[str, Any] = {"path": str(folder / "table")}
        if kind is IcebergSink:
            place = {
                "catalog.type": "sql",
                "catalog.url": f"sqlite:///{folder}/catalog.db",
                "catalog.warehouse": f"file://{folder}/warehouse",
                "table_name": "t",
            }
        options = {"partitioning.fields": partitions, "rolling_policy.interval": "0"}
        sink: ArrowOperator = kind(**place, **options)
        return sink

    return make


def _files(encoding: str, partitions: list[str]) -> Make:
    def make(folder: Path) -> ArrowOperator:
        options: dict[str, Any] = {"partitioning.fields": partitions, "rolling_policy.interval": "0"}
        return FileSystemSink(path=str(folder / "files"), format=encoding, **options)

    return make


def _database(folder: Path) -> ArrowOperator:
    options: dict[str, Any] = {"sink.create_table": True}
    return DatabaseSink(url=f"sqlite:///{folder}/rows.db", table="t", **options)


SINKS: dict[str, Make] = {
    "database": _database,
    "single_file": lambda folder: SingleFileSink(path=str(folder / "rows.json"), format="json"),
    **{f"delta by {fields}": _lake(DeltaSink, fields) for fields in ([], ["c"])},
    **{
        f"iceberg by {fields}": _lake(IcebergSink, fields)
        for fields in ([], ["c"], ["day(c)"], ["bucket(c, 4)"], ["truncate(c, 3)"])
    },
    **{
        f"filesystem as {encoding} by {fields}": _files(encoding, fields)
        for encoding, fields in itertools.product(("json", "csv", "parquet", "avro"), ([], ["c"]))
    },
}


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("name", SINKS)
def test_a_row_that_the_task_accepts_is_committed(name: str, column: str, tmp_path: Path) -> None:
    values = COLUMNS[column]
    sink = SinkDriver(lambda: SINKS[name](tmp_path), tmp_path / "state", job=f"{name} {column}")
    rows = pa.record_batch({"n": list(range(len(values))), "c": values})
    try:
        data = sink.prepare(1, [rows])
    except HeadraceError:
        return
    assert data
    sink.commit(1, data)
