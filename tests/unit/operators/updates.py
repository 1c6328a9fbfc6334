"""What tests of updating results need: change streams, runs in several ways, and what is left at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.state.rows import canonical
from headrace.testing.in_process import ManualClock, run_in_process

SECOND = 1_000_000_000
T0 = 1_700_000_000 * SECOND
STAMP = pa.timestamp("ns")

Contents = Counter[tuple[Any, ...]]


@dataclass
class Changes:
    """A stream of rows that come and go, and the rows that are there at the end, in the order they came."""

    schema: pa.Schema
    """Without `_timestamp` and `_retract`."""
    rows: list[tuple[Any, ...]]
    times: list[int]
    retracts: list[bool]

    @classmethod
    def of(cls, schema: pa.Schema, *changes: tuple[str, tuple[Any, ...]]) -> Changes:
        """Changes as `("+", row)` and `("-", row)`, a second apart."""
        return cls(
            schema,
            [row for _, row in changes],
            [T0 + index * SECOND for index in range(len(changes))],
            [sign == "-" for sign, _ in changes],
        )

    @classmethod
    def random(
        cls,
        schema: pa.Schema,
        draw: Callable[[np.random.Generator], tuple[Any, ...]],
        *,
        seed: int,
        count: int,
        retracts: float = 0.4,
    ) -> Changes:
        """Random rows, each of which may be taken back later; draw few values, so that many are equal."""
        random = np.random.default_rng(seed)
        made = cls(schema, [], [], [])
        alive: list[tuple[tuple[Any, ...], int]] = []
        for index in range(count):
            if alive and random.random() < retracts:
                row, time = alive.pop(int(random.integers(len(alive))))
                made._add(row, time, retract=True)
            else:
                made._add(draw(random), T0 + index * SECOND, retract=False)
                alive.append((made.rows[-1], made.times[-1]))
        return made

    def _add(self, row: tuple[Any, ...], time: int, *, retract: bool) -> None:
        self.rows.append(row)
        self.times.append(time)
        self.retracts.append(retract)

    def table(self, *, updating: bool = True) -> pa.Table:
        """The stream as a source delivers it."""
        columns = {
            field.name: pa.array([row[i] for row in self.rows], field.type, from_pandas=False)
            for i, field in enumerate(self.schema)
        }
        columns["_timestamp"] = pa.array(self.times, pa.int64()).cast(STAMP)
        if updating:
            columns["_retract"] = pa.array(self.retracts, pa.bool_())
        return pa.table(columns)

    def left(self) -> pa.Table:
        """The rows that are there at the end."""
        alive: list[tuple[Any, int]] = []
        for row, time, retract in zip(self.rows, self.times, self.retracts, strict=True):
            entry = (canonical(row), time)
            if not retract:
                alive.append(((entry, row), time))
            else:
                alive.pop(next(i for i, ((one, _), _) in enumerate(alive) if one == entry))
        rows = [row for (_, row), _ in alive]
        columns = {f.name: pa.array([row[i] for row in rows], f.type) for i, f in enumerate(self.schema)}
        columns["_timestamp"] = pa.array([time for _, time in alive], pa.int64()).cast(STAMP)
        return pa.table(columns)


def stream_schema(schema: pa.Schema, *, updating: bool) -> pa.Schema:
    """A schema with the columns of a stream."""
    schema = schema.append(pa.field("_timestamp", STAMP))
    return schema.append(pa.field("_retract", pa.bool_())) if updating else schema


def contents(*results: hr.RunResult, name: str = "out") -> Contents:
    """What a reader of the output has at the end; every retraction must find its row in what came before."""
    held: Contents = Counter()
    for result in results:
        table = result.rows.get(name, pa.table({}))
        names = [n for n in table.schema.names if n not in {"_timestamp", "_retract"}]
        rows = [canonical(tuple(row[n] for n in names)) for row in table.to_pylist()]
        signs = table["_retract"].to_pylist() if "_retract" in table.schema.names else [False] * len(rows)
        for row, retract in zip(rows, signs, strict=True):
            if retract:
                assert held[row] > 0, f"{row} is retracted, but was not there"
            held[row] += -1 if retract else 1
    return +held


def answer(sql: str, **tables: pa.Table) -> Contents:
    """What DuckDB makes of the rows that are left."""
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return Counter(canonical(row) for row in connection.execute(sql).fetchall())


def run_all_ways(build: Callable[[], hr.Pipeline], folder: Path) -> Contents:
    """What is left after a whole run; small epochs, and a stop with another parallelism, leave the same."""
    whole = contents(run_in_process(build(), folder / "whole", parallelism=1))
    small = run_in_process(
        build(), folder / "small", parallelism=2, epoch_rows=7, seed=1, options=hr.RunOptions(compact_after=3)
    )
    assert contents(small) == whole
    stopped = run_in_process(build(), folder / "cut", parallelism=2, epoch_rows=11, max_epochs=3, seed=2)
    resumed = run_in_process(build(), folder / "cut", parallelism=3, epoch_rows=13, seed=3)
    assert resumed.reason == "finished"
    assert contents(stopped, resumed) == whole
    return whole


def run_by_the_clock(
    pipeline: hr.Pipeline, folder: Path, *, step: float, parallelism: int = 2
) -> list[list[dict[str, Any]]]:
    """Run one row per epoch, the clock `step` seconds on after each: the output of each epoch."""
    clock, epochs = ManualClock(), []
    while True:
        result = run_in_process(
            pipeline, folder, parallelism=parallelism, epoch_rows=1, max_epochs=1, clock=clock
        )
        epochs.append(result.rows.get("out", pa.table({})).to_pylist())
        if result.reason == "finished":
            return epochs
        clock.advance(step)


def metric(result: hr.RunResult, name: str) -> float:
    """A counter, summed over the operators."""
    return sum(values.get(name, 0) for values in result.metrics.values())


def signs(rows: Sequence[Mapping[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    """Rows as (sign, values of some columns…)."""
    return [("-" if row["_retract"] else "+", *(row[name] for name in names)) for row in rows]
