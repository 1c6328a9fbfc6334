"""Taps: a sample of the rows that an operator sends on, taken while the pipeline runs.

A tap is part of the stages that tasks run, so it begins and ends between two epochs. Tasks sample, and the
rows travel to the driver with what they report. Nothing of it counts: a tap that goes wrong says so and never
fails an epoch, and one that nobody has looked at for some seconds is taken away.
"""

from __future__ import annotations

import base64
import functools
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import ExpressionError, UserError
from headrace.model.fragments import Fragment

KEPT_SECONDS = 15.0
"""How long a tap stays that nobody looks at."""
MOST_TAPS = 16
"""At once, of one run."""
_KEPT_EPOCHS = 20
_MISSING = re.compile(r"No field named (\S+)\.")
_MOST_BYTES = 1_000_000
"""Of the rows that a subtask samples for a tap in an epoch."""


@dataclass(frozen=True)
class Tap:
    """An output of an operator whose rows someone looks at.

    `query` is a SELECT from `input` that leaves out rows; empty for all. `rows` is the most that each subtask
    samples in an epoch.
    """

    operator: str
    output: str = ""
    query: str = ""
    rows: int = 50


@dataclass(frozen=True)
class TappedRows:
    """What a subtask has sampled for a tap in an epoch."""

    tap: Tap
    seen: int
    """How many rows there were."""
    matched: int
    """How many of them the query has left."""
    problem: str
    """Why rows are missing; empty if none are."""
    tables: Sequence[pa.Table]
    """The sample; rows of one output need not have the same columns."""


class TapSample:
    """Samples the rows of one output in one subtask and epoch; each row has the same chance."""

    def __init__(self, tap: Tap, number: int) -> None:
        self._tap = tap
        self._number = number
        self._random = np.random.default_rng()
        self._kept: list[tuple[Any, pa.Table]] = []
        """Tables with a random rank for each row: the rows with the lowest ranks are the sample."""
        self._highest = 1.0
        self._seen = self._matched = 0
        self._problem = ""

    def take(self, batch: pa.RecordBatch, output: str) -> None:
        """Look at a batch."""
        if output != self._tap.output:
            return
        self._seen += batch.num_rows
        if self._problem:
            return
        try:
            rows = _matching(self._tap.query, batch)
            self._matched += rows.num_rows
            ranks = self._random.random(rows.num_rows)
            (chosen,) = np.nonzero(ranks < self._highest)
            if len(chosen):
                self._kept.append((ranks[chosen], rows.take(pa.array(chosen))))
            if sum(len(table) for _, table in self._kept) > 4 * self._tap.rows:
                self._keep(self._tap.rows)
        except Exception as error:  # noqa: BLE001 - whatever it is, the epoch does not fail for it
            self._problem = str(getattr(error, "message", None) or error)

    def _keep(self, rows: int) -> None:
        """Keep so many rows, those with the lowest ranks."""
        ranks = np.concatenate([own for own, _ in self._kept]) if self._kept else np.empty(0)
        if len(ranks) <= rows:
            return
        self._highest = float(np.partition(ranks, rows)[rows])
        parts = [(own < self._highest, own, table) for own, table in self._kept]
        self._kept = [(own[low], table.filter(pa.array(low))) for low, own, table in parts if low.any()]

    def report(self) -> dict[str, Any]:
        """The sample, as the driver gets it."""
        left = self._tap.rows
        self._keep(left)
        while left and sum(table.nbytes for _, table in self._kept) > _MOST_BYTES:
            left //= 2
            self._keep(left)
            self._problem = self._problem or "rows are missing in the sample: they are too large"
        return {
            "tap": self._number,
            "seen": self._seen,
            "matched": self._matched,
            "problem": self._problem,
            "rows": [_to_text(table) for _, table in self._kept],
        }


def samples_of(taps: Sequence[Tap], operator: str) -> list[TapSample]:
    """What samples the outputs of an operator."""
    return [TapSample(tap, number) for number, tap in enumerate(taps) if tap.operator == operator]


def tapped(samples: Sequence[TapSample]) -> dict[str, Any]:
    """What a task adds to its report: nothing, unless someone looks."""
    return {"tapped": [sample.report() for sample in samples]} if samples else {}


def read_sample(taps: Sequence[Tap], report: Mapping[str, Any]) -> TappedRows:
    """What a task has reported of a sample."""
    tables = [_from_text(text) for text in report["rows"]]
    counts = report["seen"], report["matched"]
    return TappedRows(taps[report["tap"]], *counts, problem=report["problem"], tables=tables)


def _matching(query: str, batch: pa.RecordBatch) -> pa.Table:
    rows = pa.Table.from_batches([batch])
    return _fragment(query, batch.schema).run(input=rows) if query else rows


@functools.lru_cache(maxsize=64)
def _fragment(query: str, schema: pa.Schema) -> Fragment:
    try:
        return Fragment(query, {"input": schema})
    except ExpressionError as error:
        missing = _MISSING.match(error.message)
        if missing is None:
            raise
        columns = ", ".join(name for name in schema.names if name != TIMESTAMP)
        raise UserError(f"the rows have no column `{missing[1]}`; they have {columns}") from None


def _to_text(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return base64.b64encode(sink.getvalue()).decode()


def _from_text(text: str) -> pa.Table:
    with pa.ipc.open_stream(base64.b64decode(text)) as reader:
        return reader.read_all()


@dataclass(frozen=True)
class TappedEpoch:
    """What a tap has shown in one epoch."""

    number: int
    epoch: int
    seen: int
    matched: int
    problem: str
    tables: Sequence[pa.Table]


@dataclass
class _Open:
    """A tap that someone looks at."""

    until: float
    shown: deque[TappedEpoch] = field(default_factory=lambda: deque(maxlen=_KEPT_EPOCHS))


class Taps:
    """Where any thread looks at rows, and the epoch loop finds which rows are looked at."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._open: dict[Tap, _Open] = {}
        self._number = 0

    def look(self, tap: Tap, after: int) -> list[TappedEpoch]:
        """What a tap has shown behind a number; it stays open for as long as someone looks.

        Raises a UserError if too many are open.
        """
        with self._lock:
            self._forget()
            if tap not in self._open:
                if len(self._open) >= MOST_TAPS:
                    raise UserError(
                        f"{MOST_TAPS} places of this pipeline are looked at already",
                        hint=f"close another one; it is free {KEPT_SECONDS:g} seconds later",
                    )
                self._open[tap] = _Open(0.0)
            opened = self._open[tap]
            opened.until = self._now() + KEPT_SECONDS
            return [shown for shown in opened.shown if shown.number > after]

    def wanted(self) -> tuple[Tap, ...]:
        """The taps that are open."""
        with self._lock:
            self._forget()
            return tuple(self._open)

    def show(self, epoch: int, tapped: Iterable[TappedRows]) -> None:
        """Show what an epoch has sampled to those who look."""
        of_tap: dict[Tap, list[TappedRows]] = {}
        for rows in tapped:
            of_tap.setdefault(rows.tap, []).append(rows)
        with self._lock:
            for tap, parts in of_tap.items():
                if tap not in self._open:
                    continue
                self._number += 1
                self._open[tap].shown.append(
                    TappedEpoch(
                        number=self._number,
                        epoch=epoch,
                        seen=sum(part.seen for part in parts),
                        matched=sum(part.matched for part in parts),
                        problem=next((part.problem for part in parts if part.problem), ""),
                        tables=[table for part in parts for table in part.tables],
                    )
                )

    def _forget(self) -> None:
        now = self._now()
        self._open = {tap: opened for tap, opened in self._open.items() if opened.until > now}
