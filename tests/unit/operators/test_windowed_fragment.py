from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import PlanError
from headrace.base.windows import Tumble
from headrace.model.fragments import Fragment
from headrace.operators.window_aggregate import PartialAggregate, WindowAggregate
from headrace.operators.windowed_fragment import WindowedFragment
from headrace.testing.in_process import run_in_process
from tests.unit.operators.windowing import (
    SCHEMA,
    SECOND,
    every_way,
    in_parts,
    pipeline,
    random_rows,
    table,
    to_rows,
)

WINDOW = Tumble(10 * SECOND)
COUNTED = WindowAggregate(in_parts(), WINDOW, window_column="w").output

JOIN = """
    SELECT coalesce(l.k, r.k) AS k, l.n AS left_n, r.n AS right_n,
           coalesce(l._timestamp, r._timestamp) AS _timestamp
    FROM input0 l FULL JOIN input1 r ON l.k = r.k AND l._timestamp = r._timestamp
"""


def counted(p: hr.Pipeline, rows: pa.Table, name: str) -> hr.Stream:
    stream = p.source(hr.MemorySource(rows), id=name).watermark(lateness="20s")
    stream = stream.apply(PartialAggregate(in_parts(), WINDOW)).key_by("k")
    return stream.apply(WindowAggregate(in_parts(), WINDOW, window_column="w"))


def joined(left: pa.Table, right: pa.Table) -> hr.Pipeline:
    p = hr.Pipeline("join")
    fragment = Fragment(JOIN, {"input0": COUNTED, "input1": COUNTED})
    first, second = counted(p, left, "left").key_by("k"), counted(p, right, "right").key_by("k")
    first.apply(WindowedFragment(fragment, [["k"], ["k"]]), second).sink(hr.MemorySink("out"))
    return p


def counts(rows: pa.Table) -> dict[tuple[int | None, int], int]:
    found: dict[tuple[int | None, int], int] = {}
    times = rows.column("_timestamp").cast(pa.int64()).to_pylist()
    for key, time in zip(rows.column("k").to_pylist(), times, strict=True):
        end = time // WINDOW.width * WINDOW.width + WINDOW.width - 1
        found[key, end] = found.get((key, end), 0) + 1
    return found


def test_two_windowed_streams_are_joined_window_by_window_however_they_come(tmp_path: Path) -> None:
    left, right = random_rows(300), random_rows(150, seed=1)
    whole = every_way(lambda: joined(left, right), tmp_path)
    lefts, rights = counts(left), counts(right)
    wanted: list[tuple[int | None, int, int | None, int | None]] = []
    for key, time in {*lefts, *rights}:
        if key is None:  # a null joins nothing, so each side stands alone
            wanted += [(key, time, lefts[key, time], None)] if (key, time) in lefts else []
            wanted += [(key, time, None, rights[key, time])] if (key, time) in rights else []
        else:
            wanted.append((key, time, lefts.get((key, time)), rights.get((key, time))))
    found = [(row["k"], row["_timestamp"], row["left_n"], row["right_n"]) for row in to_rows(whole)]
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def test_a_join_with_a_side_that_has_no_rows_still_ends(tmp_path: Path) -> None:
    found = to_rows(run_in_process(joined(table([1, 2]), table([])), tmp_path))
    assert [(row["left_n"], row["right_n"]) for row in found] == [(2, None)]
    assert to_rows(run_in_process(joined(table([]), table([])), tmp_path / "none")) == []


TOP = """
    SELECT k, n, place, w, _timestamp FROM (
        SELECT *, row_number() OVER (PARTITION BY _timestamp ORDER BY n DESC, k NULLS LAST) AS place
        FROM input0
    ) WHERE place <= 2
"""


def top(rows: pa.Table) -> hr.Pipeline:
    p = hr.Pipeline("top")
    fragment = Fragment(TOP, {"input0": COUNTED})
    counted(p, rows, "rows").key_by().apply(WindowedFragment(fragment, [[]])).sink(hr.MemorySink("out"))
    return p


def test_the_first_rows_of_each_window_are_found_over_all_keys(tmp_path: Path) -> None:
    rows = random_rows(400, seed=2)
    whole = every_way(lambda: top(rows), tmp_path)
    by_window: dict[int, list[tuple[int, bool, int, int | None]]] = {}
    for (key, time), n in counts(rows).items():
        by_window.setdefault(time, []).append((-n, key is None, key or 0, key))
    wanted = [
        (time, place + 1, row[3], -row[0])
        for time, found in sorted(by_window.items())
        for place, row in enumerate(sorted(found)[:2])
    ]
    found = sorted((row["_timestamp"], row["place"], row["k"], row["n"]) for row in to_rows(whole))
    assert found == sorted(wanted, key=lambda row: row[:2])


def test_results_come_in_order_of_time(tmp_path: Path) -> None:
    result = run_in_process(top(random_rows(400, seed=3)), tmp_path, parallelism=1, epoch_rows=60)
    times = [row["_timestamp"] for row in to_rows(result)]
    assert times == sorted(times)
    assert len(times) > 10


DISTINCT = "SELECT DISTINCT k, _timestamp FROM input0"


def distinct(times: list[float]) -> hr.Pipeline:
    operator = WindowedFragment(Fragment(DISTINCT, {"input0": SCHEMA}), [["k"]])
    return pipeline(table(times), operator, lateness="0s")


def test_rows_wait_until_the_watermark_has_passed_them(tmp_path: Path) -> None:
    build = distinct([1, 1, 2, 2, 3])
    first = run_in_process(build, tmp_path, parallelism=1, epoch_rows=1, max_epochs=3)
    assert [row["_timestamp"] for row in to_rows(first)] == [1 * SECOND]
    rest = run_in_process(build, tmp_path, parallelism=1, epoch_rows=1)
    assert [row["_timestamp"] for row in to_rows(rest)] == [2 * SECOND, 3 * SECOND]


def test_rows_behind_the_watermark_are_counted_and_dropped(tmp_path: Path) -> None:
    result = run_in_process(distinct([1, 5, 4, 5, 4.5, 6]), tmp_path, parallelism=1, epoch_rows=1)
    assert [row["_timestamp"] // SECOND for row in to_rows(result)] == [1, 5, 6]
    assert result.late_rows == 2


def test_fragments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PlanError, match="input1"):
        WindowedFragment(Fragment(DISTINCT, {"input0": SCHEMA}), [["k"], ["k"]])
    with pytest.raises(PlanError, match="the result of a windowed fragment has no `_timestamp`"):
        WindowedFragment(Fragment("SELECT k FROM input0", {"input0": SCHEMA}), [["k"]])


def test_a_plan_shows_the_query() -> None:
    shown = WindowedFragment(Fragment(DISTINCT, {"input0": SCHEMA}), [["k"]]).details()
    assert shown == {"sql": DISTINCT}
