"""Any batching, any order within the lateness, any crash point, any parallelism at any epoch: one result."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing.in_process import CrashError, run_in_process
from tests.flows import SECOND, T0, RunningCount, TumblingCount

STEPS = [
    "begin",
    "tasks_done",
    "operators_written",
    "metadata_written",
    "sink_committed:windows",
    "sink_committed:numbers",
    "committed",
]
LATENESS = 8
WIDTH = 10


@dataclass
class Life:
    """One life of the job: how it is cut, and where it dies."""

    parallelism: int
    epoch_rows: int
    max_epochs: int | None
    crash: tuple[str, int] | None
    seed: int
    rescales: dict[int, int] = field(default_factory=dict)
    """After which epochs it goes on with which parallelism."""


@dataclass
class Case:
    """Rows within the lateness, and the lives of the job that processes them."""

    rows: list[tuple[int, int]]
    lives: list[Life] = field(default_factory=list)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    deltas = draw(st.lists(st.integers(0, 4), min_size=0, max_size=60))
    front, rows = 0, []
    for delta in deltas:
        front += delta
        back = draw(st.integers(0, LATENESS))
        rows.append((draw(st.integers(0, 5)), max(0, front - back)))
    lives = draw(
        st.lists(
            st.builds(
                Life,
                parallelism=st.integers(1, 4),
                epoch_rows=st.integers(1, 30),
                max_epochs=st.integers(1, 4),
                crash=st.none() | st.tuples(st.sampled_from(STEPS), st.integers(1, 8)),
                seed=st.integers(0, 3),
                rescales=st.dictionaries(st.integers(1, 8), st.integers(1, 5), max_size=4),
            ),
            max_size=4,
        )
    )
    rescales = draw(st.dictionaries(st.integers(1, 30), st.integers(1, 5), max_size=8))
    last = Life(draw(st.integers(1, 4)), draw(st.integers(1, 40)), None, None, 0, rescales)
    return Case(rows, [*lives, last])


def build(rows: list[tuple[int, int]]) -> hr.Pipeline:
    table = pa.table(
        {
            "counter": pa.array(range(len(rows)), pa.int64()),
            "k": pa.array([k for k, _ in rows], pa.int64()),
            "_timestamp": pa.array([T0 + t * SECOND for _, t in rows], pa.int64()).cast(pa.timestamp("ns")),
        }
    )
    pipeline = hr.Pipeline("property")
    stream = pipeline.source(hr.MemorySource(table)).watermark(lateness=f"{LATENESS}s").key_by("k")
    stream.apply(TumblingCount(WIDTH * SECOND)).sink(hr.MemorySink("windows"), id="windows")
    stream.apply(RunningCount()).sink(hr.MemorySink("numbers"), id="numbers")
    return pipeline


def expected(rows: list[tuple[int, int]]) -> tuple[Counter[tuple[int, ...]], Counter[tuple[int, ...]]]:
    windows: dict[tuple[int, int], list[int]] = {}
    seen: Counter[int] = Counter()
    numbers: Counter[tuple[int, ...]] = Counter()
    for index, (key, time) in enumerate(rows):
        windows.setdefault((key, (T0 + time * SECOND) // (WIDTH * SECOND) * WIDTH * SECOND), []).append(index)
        seen[key] += 1
        numbers[key, index, seen[key]] += 1
    return Counter((k, start, len(v), sum(v)) for (k, start), v in windows.items()), numbers


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_the_result_is_that_of_one_batch_computation(case: Case) -> None:
    collected: dict[str, list[pa.Table]] = {"windows": [], "numbers": []}
    with tempfile.TemporaryDirectory() as state:
        for life in case.lives:
            try:
                result = run_in_process(
                    build(case.rows),
                    state,
                    parallelism=life.parallelism,
                    epoch_rows=life.epoch_rows,
                    max_epochs=life.max_epochs,
                    options=hr.RunOptions(compact_after=2, keep_checkpoints=2),
                    seed=life.seed,
                    on_step=_crasher(life.crash),
                    rescale=life.rescales.get,
                )
            except CrashError:
                continue
            for name, table in result.rows.items():
                collected[name].append(table)
    windows, numbers = expected(case.rows)
    assert _tuples(collected["windows"], ["k", "window_start", "n", "s"]) == windows
    assert _tuples(collected["numbers"], ["k", "counter", "n"]) == numbers


def _crasher(crash: tuple[str, int] | None) -> Callable[[str, int], None] | None:
    if crash is None:
        return None

    def step(name: str, epoch: int) -> None:
        if (name, epoch) == crash:
            raise CrashError(f"{name} of epoch {epoch}")

    return step


def _tuples(tables: list[pa.Table], columns: list[str]) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for table in tables:
        if table.num_columns:
            found.update(zip(*(table[name].to_pylist() for name in columns), strict=True))
    return found
