"""Tables with random columns and rows: ties, nulls, duplicates, disorder within the lateness, and changes."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from hypothesis import strategies as st

import headrace as hr
from headrace.connectors.memory import MemorySource
from headrace.model.registry import register

Kind = Literal["int", "dyadic", "float", "text", "bool", "time", "window", "list"]
"""What a column can be asked. `dyadic` floats have exact sums; sums of a `float` depend on the order."""

SECOND = 1_000_000_000
ROWS = 40


@dataclass(frozen=True)
class Column:
    """A column that queries can use. What is not exact may differ in the last bits from engine to engine."""

    name: str
    kind: Kind
    exact: bool = True
    part: str | None = None
    """Which end of the window that the row is in this is, if it is one."""


@dataclass(frozen=True)
class Type:
    """A type of SQL, as Arrow has it, with the values that its columns take."""

    sql: str
    arrow: pa.DataType
    kind: Kind
    values: tuple[Any, ...]


TYPES = (
    Type("SMALLINT", pa.int16(), "int", (0, 1, 2, 3, -1, None)),
    Type("INT", pa.int32(), "int", (0, 1, 2, 7, -4, None)),
    Type("BIGINT", pa.int64(), "int", (0, 1, 2, 5, -3, 40, None)),
    Type("INT UNSIGNED", pa.uint32(), "int", (0, 1, 2, 9, None)),
    Type("TEXT", pa.string(), "text", ("a", "b", "B", "", "été", "a b", None)),
    Type("BOOLEAN", pa.bool_(), "bool", (True, False, None)),
    Type("DOUBLE", pa.float64(), "dyadic", (0.0, 0.25, 1.5, -2.0, 8.75, None)),
    Type("DOUBLE", pa.float64(), "float", (0.1, 0.2, -0.7, 1e9, 3.3, None)),
    Type("TIMESTAMP", pa.timestamp("ns"), "time", (0, 1, SECOND, 1_700_000_000 * SECOND + 5, -SECOND, None)),
)
KEYS = TYPES[:5]
NAN = Type("DOUBLE", pa.float64(), "float", (float("nan"), 0.1, -1.5, float("inf"), None))


@dataclass
class Data:
    """A table of the streaming side: its columns, and its rows, lane by lane, or the changes of its rows."""

    name: str
    columns: tuple[tuple[str, Type], ...]
    lanes: list[list[dict[str, Any]]] = field(default_factory=list)
    lateness: int = 0
    changes: list[tuple[str, dict[str, Any] | None, dict[str, Any] | None]] | None = None
    """(op, before, after) of a table of changes."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, kind.arrow) for name, kind in self.columns])

    def definition(self, folder: Path) -> str:
        """CREATE TABLE; what it reads is put in place."""
        columns = [f"{name} {kind.sql}" for name, kind in self.columns]
        if self.changes is not None:
            path = folder / f"{self.name}.json"
            lines = [json.dumps({"before": b, "after": a, "op": op}) for op, b, a in self.changes]
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            columns[0] += " PRIMARY KEY"
            options = f"connector = 'single_file', path = '{path}', type = 'source', format = 'debezium_json'"
        else:
            place = f"{folder}/{self.name}"
            LANES[place] = [pa.Table.from_pylist(lane, schema=self.schema) for lane in self.lanes]
            columns[1] += " NOT NULL"
            columns.append(f"WATERMARK FOR ts AS ts - INTERVAL '{self.lateness} seconds'")
            options = f"connector = 'lanes', place = '{place}', type = 'source'"
        return f"CREATE TABLE {self.name} ({', '.join(columns)}) WITH ({options});"

    def rows(self) -> pa.Table:
        """The rows that there are in the end, event time (`et`) as nanoseconds beside them."""
        if self.changes is None:
            rows = [row for lane in self.lanes for row in lane]
            times = [row["ts"] for row in rows]
        else:
            alive: dict[Any, dict[str, Any]] = {}
            for _, before, after in self.changes:
                if before is not None:
                    del alive[before["id"]]
                if after is not None:
                    alive[after["id"]] = after
            rows, times = list(alive.values()), [0] * len(alive)
        table = pa.Table.from_pylist(rows, schema=self.schema)
        return table.append_column("et", pa.array(times, pa.int64()))


LANES: dict[str, list[pa.Table]] = {}


class LanesSource:
    """A source whose lanes are given under a name: each has an order and a watermark of its own."""

    class Options(hr.Options):
        """The name of the lanes."""

        place: str

    def __new__(cls, options: Options) -> MemorySource:  # type: ignore[misc]
        return MemorySource(lanes=LANES[options.place])


register("lanes", LanesSource, role="source")


def _columns(draw: st.DrawFn, *, wide: bool) -> tuple[tuple[str, Type], ...]:
    keys = [(f"k{n}", draw(st.sampled_from(KEYS))) for n in range(draw(st.integers(1, 2)))]
    types = (*TYPES, NAN) if draw(st.integers(0, 9)) == 9 else TYPES
    values = draw(st.lists(st.sampled_from(types if wide else TYPES[:8]), min_size=1, max_size=3))
    return (*keys, *((f"v{n}", kind) for n, kind in enumerate(values)))


def _values(chance: random.Random, columns: tuple[tuple[str, Type], ...]) -> dict[str, Any]:
    return {name: chance.choice(kind.values) for name, kind in columns}


def _chance(draw: st.DrawFn) -> random.Random:
    """Rows come out of one number: fewer rows of the same number are the first of them."""
    return random.Random(draw(st.integers(0, 2**16)))


BIGINT = TYPES[2]
TIMESTAMP = TYPES[-1]


@st.composite
def streams(draw: st.DrawFn, name: str) -> Data:
    """A table of rows in order of event time, but for the lateness that it declares."""
    columns = _columns(draw, wide=True)
    lateness = draw(st.integers(0, 6))
    start = draw(st.sampled_from([1_767_225_600, 0, -20])) * SECOND
    lanes: list[list[dict[str, Any]]] = []
    chance = _chance(draw)
    for lane_number in range(draw(st.integers(1, 3))):
        lane: list[dict[str, Any]] = []
        front = start
        for number in range(draw(st.integers(0, ROWS // 2))):
            front += chance.choice([0, 0, 1, 500_000_000, SECOND, 2 * SECOND, 5 * SECOND])
            back = min(chance.choice([0, 0, 1, 2, 4, 6]), lateness)
            row = {"id": lane_number * 100 + number, "ts": front - back * SECOND, **_values(chance, columns)}
            lane.append(row)
            if chance.random() < 0.1:
                lane.append(row)  # a duplicate
        lanes.append(lane)
    return Data(name, (("id", BIGINT), ("ts", TIMESTAMP), *columns), lanes, lateness)


@st.composite
def changes(draw: st.DrawFn, name: str) -> Data:
    """A table of keyed rows that are created, updated and deleted."""
    columns = tuple(one for one in _columns(draw, wide=False) if one[1] is not NAN)
    chance = _chance(draw)
    alive: dict[int, dict[str, Any]] = {}
    made: list[tuple[str, dict[str, Any] | None, dict[str, Any] | None]] = []
    for _ in range(draw(st.integers(0, ROWS))):
        key = chance.randrange(8)
        before = alive.pop(key, None)
        if before is not None and chance.random() < 0.3:
            made.append(("d", before, None))
            continue
        after = {"id": key, **_values(chance, columns)}
        made.append((chance.choice("cr") if before is None else "u", before, after))
        alive[key] = after
    return Data(name, (("id", BIGINT), *columns), changes=made)
