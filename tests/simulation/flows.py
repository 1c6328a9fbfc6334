"""The pipelines that are simulated, and what each of them must have written in the end."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

import headrace as hr
from headrace.model.plan import Plan
from tests.flows import SECOND, T0, RunningCount, TumblingCount
from tests.simulation.ends import KEYED, SimulatedQueue, SimulatedSource, make_sink
from tests.simulation.scene import LATENESS, Lanes, Row, Rows

WIDTH: Final = 10
Build = Callable[[hr.Pipeline, "Shape"], None]
Sources = Mapping[str, Lanes]
Check = Callable[[list[Row], Rows], Iterator[str]]


@dataclass(frozen=True)
class Shape:
    """One form of a pipeline: its sinks, and how it has changed since it was first started."""

    flow: str
    kinds: tuple[str, ...]
    """The kind of each sink."""
    bucket: bool
    database: Path
    interval: str
    extra: bool = False
    """With a stateless operator more."""
    dropped: bool = False
    """Without the last branch, its state and its sink."""

    def sink(self, index: int) -> hr.ArrowOperator:
        return make_sink(
            self.kinds[index],
            f"out{index}",
            bucket=self.bucket,
            database=self.database,
            interval=self.interval,
        )


@dataclass(frozen=True)
class Flow:
    """A pipeline, its sources, and for each sink what it must hold in the end."""

    build: Build
    sources: tuple[str, ...]
    checks: tuple[Check, ...]
    counts: str | None = None
    """The operator whose table has the number of rows of each key."""
    windows: str | None = None
    """The operator whose table holds open windows: none in the end."""
    droppable: bool = False
    kinds: tuple[str, ...] | None = None
    """The kinds of sink that it can have; None for all that take rows."""
    received: bool = False
    """Whether its source logs what it receives, of one lane."""


@functools.lru_cache(maxsize=512)
def plan_of(shape: Shape) -> Plan:
    """The plan of a pipeline; it is made once per process."""
    pipeline = hr.Pipeline(shape.flow)
    FLOWS[shape.flow].build(pipeline, shape)
    return pipeline.plan()


def unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _rows(p: hr.Pipeline, shape: Shape, node: str = "rows") -> hr.Stream:
    stream = p.source(SimulatedSource(node), id=node)
    return stream.map(unchanged, id=f"extra_{node}") if shape.extra else stream


def _passthrough(p: hr.Pipeline, shape: Shape) -> None:
    _rows(p, shape).sink(shape.sink(0), id="out0")


def _running(p: hr.Pipeline, shape: Shape) -> None:
    _rows(p, shape).key_by("k").apply(RunningCount(), id="count").sink(shape.sink(0), id="out0")


def _windows(stream: hr.Stream) -> hr.Stream:
    return stream.key_by("k").apply(TumblingCount(WIDTH * SECOND), id="windows")


def _watermarked(p: hr.Pipeline, shape: Shape, node: str = "rows") -> hr.Stream:
    return _rows(p, shape, node).watermark(lateness=f"{LATENESS}s", id=f"time_{node}")


def _tumbling(p: hr.Pipeline, shape: Shape) -> None:
    _windows(_watermarked(p, shape)).sink(shape.sink(0), id="out0")


def _union(p: hr.Pipeline, shape: Shape) -> None:
    both = _watermarked(p, shape, "left").union(_watermarked(p, shape, "right"))
    _windows(both).sink(shape.sink(0), id="out0")


def _fan_out(p: hr.Pipeline, shape: Shape) -> None:
    rows = _watermarked(p, shape)
    rows.sink(shape.sink(0), id="out0")
    _windows(rows).sink(shape.sink(1), id="out1")
    if not shape.dropped:
        rows.key_by("k").apply(RunningCount(), id="count").sink(shape.sink(2), id="out2")


COLUMNS: Final = pa.schema([("k", pa.int64()), ("counter", pa.int64())])


def _received(p: hr.Pipeline, shape: Shape) -> None:
    rows = p.source(SimulatedQueue(node="rows", format="json", schema=COLUMNS), id="rows")
    if shape.extra:
        rows = rows.map(unchanged, id="extra_rows")
    rows.sink(shape.sink(0), id="out0")
    rows.key_by("k").apply(RunningCount(), id="count").sink(shape.sink(1), id="out1")


def _sql_rows(p: hr.Pipeline, shape: Shape) -> hr.Stream:
    rows = p.source(SimulatedSource("rows"), id="rows", schema=COLUMNS).watermark(
        lateness=f"{LATENESS}s", id="time"
    )
    return rows.filter("counter >= 0", id="extra_rows") if shape.extra else rows


def _sql_windows(p: hr.Pipeline, shape: Shape) -> None:
    query = f"""
        SELECT k, cast(extract(epoch FROM w.start) AS bigint) * {SECOND} AS window_start, n, s
        FROM (SELECT k, tumble(interval '{WIDTH} seconds') AS w, count(*) AS n, sum(counter) AS s
              FROM input GROUP BY 1, 2)
    """
    _sql_rows(p, shape).sql(query, id="windows").sink(shape.sink(0), id="out0")


def _sql_updating(p: hr.Pipeline, shape: Shape) -> None:
    query = "SELECT k, count(*) AS n, sum(counter) AS s FROM input GROUP BY k"
    _sql_rows(p, shape).sql(query, id="totals").sink(shape.sink(0), id="out0")


def _check_totals(expected: list[Row], rows: Rows) -> Iterator[str]:
    """An updating result has one row for each key in the end."""
    totals = {
        key: (len(numbers), sum(numbers))
        for key in {row.key for row in expected}
        if (numbers := [row.number for row in expected if row.key == key])
    }
    found = {row["k"]: (row["n"], row["s"]) for row in rows}
    if len(found) < len(rows):
        yield f"TOO MUCH rows: {rows}"
    if found != totals:
        yield f"WRONG totals: {found}, expected {totals}"


def _check_passed(expected: list[Row], rows: Rows) -> Iterator[str]:
    yield from _compare(
        Counter((row.key, row.number) for row in expected),
        Counter((row["k"], row["counter"]) for row in rows),
    )


def _check_numbered(expected: list[Row], rows: Rows) -> Iterator[str]:
    yield from _check_passed(expected, rows)
    counts = Counter(row.key for row in expected)
    wanted = Counter((key, n) for key, count in counts.items() for n in range(1, count + 1))
    yield from _compare(wanted, Counter((row["k"], row["n"]) for row in rows))


def _compare(expected: Counter[tuple[int, int]], found: Counter[tuple[int, int]]) -> Iterator[str]:
    if lost := expected - found:
        yield f"LOST {sorted(lost.elements())}"
    if extra := found - expected:
        yield f"TOO MUCH {sorted(extra.elements())}"


def _check_windows(expected: list[Row], rows: Rows) -> Iterator[str]:
    """A window comes once, with all its rows; late ones may be in it."""
    on_time: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    every: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for row in expected:
        window = (row.key, (T0 // SECOND + row.second) // WIDTH * WIDTH * SECOND)
        every[window].append(row.number)
        if not row.late:
            on_time[window].append(row.number)
    found = Counter((row["k"], row["window_start"]) for row in rows)
    if repeated := [window for window, times in found.items() if times > 1]:
        yield f"TOO MUCH windows {sorted(repeated)}"
    if lost := on_time.keys() - found.keys():
        yield f"LOST windows {sorted(lost)}"
    if extra := found.keys() - every.keys():
        yield f"TOO MUCH windows {sorted(extra)} without rows"
    for emitted in rows:
        window = (emitted["k"], emitted["window_start"])
        least, most = on_time.get(window, []), every.get(window, [])
        if not len(least) <= emitted["n"] <= len(most) or (
            emitted["n"] == len(most) and emitted["s"] != sum(most)
        ):
            about = f"{emitted['n']} rows with sum {emitted['s']}, expected {least} up to {most}"
            yield f"WRONG window {window}: {about}"


FLOWS: Final[dict[str, Flow]] = {
    "passthrough": Flow(_passthrough, ("rows",), (_check_passed,)),
    "running": Flow(_running, ("rows",), (_check_numbered,), counts="count"),
    "tumbling": Flow(_tumbling, ("rows",), (_check_windows,), windows="windows"),
    "union": Flow(_union, ("left", "right"), (_check_windows,), windows="windows"),
    "fan_out": Flow(
        _fan_out,
        ("rows",),
        (_check_passed, _check_windows, _check_numbered),
        counts="count",
        windows="windows",
        droppable=True,
    ),
    "received": Flow(_received, ("rows",), (_check_passed, _check_numbered), counts="count", received=True),
    "sql_windows": Flow(_sql_windows, ("rows",), (_check_windows,)),
    "sql_updating": Flow(_sql_updating, ("rows",), (_check_totals,), kinds=KEYED),
}
