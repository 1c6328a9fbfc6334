"""Runs a case as a stream and as a batch, and compares what is left in the end."""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.pipeline import Pipeline
from headrace.api.run_options import RunOptions
from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.model.fragments import new_context, plain_schema
from headrace.testing.in_process import run_in_process
from tests.differential.data import LANES, Column, Data

TOLERANCE = 1e-9
Views = Sequence[tuple[str, str]]
"""Names and SELECTs, each over the tables and those before it."""


@dataclass(frozen=True)
class Life:
    """One life of the job; the last of a case goes on to the end."""

    parallelism: int = 1
    epoch_rows: int = 100
    epochs: int | None = None
    seed: int = 0


@dataclass
class Case:
    """A query over tables as a stream, as a batch for DataFusion and, where it can be said, for DuckDB."""

    tables: Sequence[Data]
    stream: str
    batch: Views
    """Each view is computed whole before the next; the last one is the answer."""
    duck: Views | None = None
    columns: Sequence[Column] = ()
    lives: Sequence[Life] = field(default_factory=lambda: [Life()])

    def __repr__(self) -> str:
        lines = [f"-- lives: {self.lives}", "-- stream:", self.stream, "-- batch:", as_names(self.batch)]
        if self.duck is not None and self.duck != self.batch:
            lines += ["-- DuckDB:", as_names(self.duck)]
        for one in self.tables:
            lines.append(
                f"-- {one.name}: {', '.join(f'{n} {t.sql}' for n, t in one.columns)}; late {one.lateness} s"
            )
            if one.changes is not None:
                lines += [f"   {op} {before} -> {after}" for op, before, after in one.changes]
            for number, lane in enumerate(one.lanes):
                lines += [f"   {number}: {row}" for row in lane]
        return "\n".join(["", *lines, ""])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


Row = tuple[Any, ...]


def compiled(text: str) -> Pipeline:
    return Pipeline.from_sql(text, preview=lambda _: ("memory", {"name": "rows"}))


def streaming(case: Case) -> tuple[list[Row], pa.Schema | None]:
    """The rows of the stream that were not taken back, and their types if there were any rows."""
    with tempfile.TemporaryDirectory() as folder:
        definitions = [one.definition(Path(folder)) for one in case.tables]
        text = "\n".join([*definitions, case.stream])
        tables: list[pa.Table] = []
        try:
            pipeline = compiled(text)
            for number, life in enumerate(case.lives):
                if number == 1:
                    pipeline = compiled(text)  # another process would compile it anew, to the same operators
                result = run_in_process(
                    pipeline,
                    Path(folder) / "state",
                    parallelism=life.parallelism,
                    epoch_rows=life.epoch_rows,
                    max_epochs=life.epochs,
                    options=RunOptions(compact_after=3),
                    seed=life.seed,
                )
                assert result.late_rows == 0
                assert not result.errors
                assert not any("unmatched_retractions" in values for values in result.metrics.values())
                tables += [table for table in result.rows.values() if table.num_columns]
                if result.reason == "finished":
                    break
            else:
                raise AssertionError("the stream has not come to its end")
        finally:
            for one in case.tables:
                LANES.pop(f"{folder}/{one.name}", None)
    counted: Counter[Row] = Counter()
    for table in tables:
        shown = _shown(table)
        if RETRACT in table.schema.names:
            taken_back = pc.fill_null(table[RETRACT], False).to_pylist()
            counted.update(row for row, back in zip(shown, taken_back, strict=True) if not back)
            counted.subtract(row for row, back in zip(shown, taken_back, strict=True) if back)
        else:
            counted.update(shown)
    assert min(counted.values(), default=0) >= 0, f"more was taken back than given: {counted}"
    schema = None
    for table in tables:
        one = pa.schema([f for f in table.schema if f.name not in (TIMESTAMP, RETRACT)])
        assert schema is None or one == schema
        schema = one
    return list(counted.elements()), schema


def _shown(table: pa.Table) -> list[Row]:
    columns: list[list[Any]] = []
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if name in (TIMESTAMP, RETRACT):
            continue
        if pa.types.is_struct(column.type):
            columns += [_plain(part) for part in column.combine_chunks().flatten()]
        else:
            columns.append(_plain(column))
    return list(zip(*columns, strict=True))


def _plain(column: Any) -> list[Any]:
    """Values that can be compared: instants as nanoseconds, lists as tuples, every NaN the same."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ns")).cast(pa.int64())
    return [_value(one) for one in column.to_pylist()]


def _value(one: Any) -> Any:
    if isinstance(one, list):
        return tuple(_value(part) for part in one)
    if isinstance(one, float) and math.isnan(one):
        return "NaN"
    return one


def batch(case: Case) -> tuple[list[Row], pa.Schema]:
    """What DataFusion says over all rows, and the types it gives them."""
    ctx = new_context()
    for one in case.tables:
        ctx.register_record_batches(
            one.name, [one.rows().combine_chunks().to_batches() or _empty(one.rows())]
        )
    table = pa.table({})
    for name, body in case.batch:
        plan = ctx.sql(body)
        analyzed = ctx.create_dataframe_from_logical_plan(plan.optimized_logical_plan())
        schema = plain_schema(analyzed.schema())
        batches = plan.collect()
        table = pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()
        ctx.register_record_batches(name, [table.to_batches() or _empty(table)])
    return _shown(table), table.schema


def _empty(table: pa.Table) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist([], schema=table.schema)]


def duck(case: Case) -> list[Row] | None:
    """What DuckDB says, if the question can be put to it."""
    if case.duck is None:
        return None
    with duckdb.connect() as database:
        for one in case.tables:
            database.register(one.name, one.rows())
        return _shown(database.sql(as_names(case.duck)).to_arrow_table())


def check(case: Case) -> None:
    """The stream and the batch must agree."""
    expected, types = batch(case)
    independent = duck(case)
    found, schema = streaming(case)
    inexact = [not column.exact for column in case.columns for _ in range(_width(column))]
    inexact = inexact or [False] * len(types)
    for name, rows in (("DataFusion", expected), ("DuckDB", independent)):
        if rows is not None and not same_rows(found, rows, inexact):
            raise AssertionError(f"{case!r}\n-- the stream:\n{_listed(found)}\n-- {name}:\n{_listed(rows)}")
    if schema is not None:
        shown = [kind for one in schema for kind in _types(one.type)]
        windows = [column.kind == "window" for column in case.columns for _ in range(_width(column))]
        wanted = [
            pa.timestamp("ns") if window else one.type
            for one, window in zip(types, windows or [False] * len(types), strict=True)
        ]
        assert shown == wanted, f"{case!r}\n-- types of the stream: {shown}\n-- of the batch: {wanted}"


def _types(kind: pa.DataType) -> list[pa.DataType]:
    """A type; of a window, those of its ends."""
    return [kind.field(i).type for i in range(kind.num_fields)] if pa.types.is_struct(kind) else [kind]


def _width(column: Column) -> int:
    """How many columns it has in the batch."""
    return 2 if column.kind == "window" else 1


def _listed(rows: Sequence[Row]) -> str:
    return "\n".join(f"   {row}" for row in sorted(rows, key=_sort_key)) or "   nothing"


def _sort_key(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(_order(one) for one in row)


def _order(one: Any) -> tuple[Any, ...]:
    if one is None:
        return (0,)
    if isinstance(one, str):
        return (2, one)
    if isinstance(one, tuple):
        return (3, _sort_key(one))
    return (1, one)


def same_rows(left: Sequence[Row], right: Sequence[Row], inexact: Sequence[bool]) -> bool:
    """Whether both are the same multiset, inexact numbers up to the tolerance."""
    if len(left) != len(right):
        return False
    if not any(inexact):
        return Counter(left) == Counter(right)
    arranged = [sorted(rows, key=lambda row: _sort_key(_arranged(row, inexact))) for rows in (left, right)]
    return all(
        all(_close(a, b) if loose else a == b for a, b, loose in zip(one, other, inexact, strict=True))
        for one, other in zip(*arranged, strict=True)
    )


def _arranged(row: Row, inexact: Sequence[bool]) -> list[Any]:
    """Exact values first, so that the last bits of a number do not decide what is compared with what."""
    exact = [one for one, loose in zip(row, inexact, strict=True) if not loose]
    return exact + [one for one, loose in zip(row, inexact, strict=True) if loose]


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-7)
    return bool(a == b)


_USE = re.compile(r"\b(FROM|JOIN) (q\d+)( AS \w+)?")


def as_views(views: Views) -> str:
    made = [f"CREATE VIEW {name} AS {body};" for name, body in views]
    return "\n".join([*made, f"SELECT * FROM {views[-1][0]}"])


def as_names(views: Views) -> str:
    named = ",\n".join(f"{name} AS ({body})" for name, body in views)
    return f"WITH {named}\nSELECT * FROM {views[-1][0]}"


def as_subqueries(views: Views) -> str:
    bodies: dict[str, str] = {}
    for name, body in views:
        bodies[name] = _USE.sub(lambda m: f"{m[1]} ({bodies[m[2]]}){m[3] or f' AS {m[2]}'}", body)
    return bodies[views[-1][0]]


STYLES = (as_views, as_names, as_subqueries)


def as_batch(views: Views, columns: Sequence[Column]) -> Views:
    """The same views, and their answer without event time."""
    names = [
        name
        for column in columns
        for name in ([f"{column.name}_s", f"{column.name}_e"] if column.kind == "window" else [column.name])
    ]
    return [*views, ("answer", f"SELECT {', '.join(names)} FROM {views[-1][0]}")]
