from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import PlanError
from headrace.base.windows import AlignedWindow, Hop, Instant, Tumble
from headrace.operators import window_aggregate
from headrace.operators.aggregation import Aggregation
from headrace.operators.window_aggregate import PartialAggregate, WindowAggregate
from headrace.testing.in_process import run_in_process
from tests.unit.operators.windowing import (
    SCHEMA,
    SECOND,
    TIME,
    every_way,
    holistic,
    in_parts,
    pipeline,
    random_rows,
    table,
    to_rows,
)

WINDOWS: dict[str, AlignedWindow] = {
    "tumble": Tumble(10 * SECOND),
    "hop": Hop(5 * SECOND, 20 * SECOND),
    "hop whose slide does not divide its width": Hop(4 * SECOND, 10 * SECOND),
    "hop with holes": Hop(10 * SECOND, 4 * SECOND),
    "instant": Instant(),
}


def flow(
    rows: pa.Table | list[pa.Table], aggregation: Aggregation, window: AlignedWindow, **more: Any
) -> hr.Pipeline:
    before = [PartialAggregate(aggregation, window)] if aggregation.in_parts else []
    return pipeline(
        rows,
        WindowAggregate(aggregation, window, window_column="w"),
        keys=aggregation.keys,
        before=before,
        **more,
    )


def expected(rows: pa.Table, window: AlignedWindow, items: str, *, by: str = "k") -> list[dict[str, Any]]:
    """What DuckDB makes of the rows and the windows they are in."""
    stamped = rows.set_column(0, "t", rows.column("_timestamp").cast(pa.int64()))
    times = stamped.column("t").to_numpy()
    steps = range(-(-window.width // window.slide))
    last = times // window.slide * window.slide
    copies = []
    for step in steps:
        starts = last - step * window.slide
        copy = stamped.append_column("start", pa.array(starts))
        copies.append(copy.filter(pa.array(times < starts + window.width)))
    copied = pa.concat_tables(copies)  # noqa: F841 - DuckDB finds it by its name
    keys = f"{by}, " if by else ""
    found = duckdb.sql(f"SELECT {keys}{items}, start FROM copied GROUP BY {keys}start")
    assert found is not None
    made: list[dict[str, Any]] = []
    for row in found.to_arrow_table().to_pylist():
        start = row.pop("start")
        end = start + window.width
        made.append({**row, "w": {"start": start, "end": end}, "_timestamp": end - 1})
    return made


def same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> bool:
    return sorted(map(repr, found)) == sorted(map(repr, wanted))


PARTS = "count(*)::BIGINT AS n, sum(v)::BIGINT AS s, min(v) AS least, avg(v) AS mean"


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS.keys())
def test_parts_give_what_duckdb_gives_however_they_come(window: AlignedWindow, tmp_path: Path) -> None:
    rows = random_rows(400)
    whole = every_way(lambda: flow(rows, in_parts(), window, lateness="20s"), tmp_path)
    assert same(to_rows(whole), expected(rows, window, PARTS))


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS.keys())
def test_raw_rows_give_what_duckdb_gives_however_they_come(window: AlignedWindow, tmp_path: Path) -> None:
    rows = random_rows(400, seed=1)
    whole = every_way(lambda: flow(rows, holistic(), window, lateness="20s"), tmp_path)
    # Values of one instant stay in the order of the source.
    items = 'median(v) AS middle, list(v ORDER BY t, place) AS "all", count(*) AS n'
    placed = rows.append_column("place", pa.array(range(rows.num_rows)))
    assert same(to_rows(whole), expected(placed, window, items))


@pytest.mark.parametrize("window", [Tumble(10 * SECOND), Hop(4 * SECOND, 10 * SECOND)])
def test_without_keys_all_rows_are_one_group(window: AlignedWindow, tmp_path: Path) -> None:
    rows = random_rows(300, seed=2)
    whole = every_way(lambda: flow(rows, in_parts(()), window, lateness="20s"), tmp_path)
    assert same(to_rows(whole), expected(rows, window, PARTS, by=""))


def test_lanes_that_are_far_apart_in_time_meet_in_the_same_windows(tmp_path: Path) -> None:
    rows = [random_rows(150, seed=3), random_rows(200, seed=4, span=200), random_rows(10, seed=5)]
    whole = every_way(lambda: flow(rows, in_parts(), Tumble(10 * SECOND), lateness="20s"), tmp_path)
    assert same(to_rows(whole), expected(pa.concat_tables(rows), Tumble(10 * SECOND), PARTS))


@pytest.mark.parametrize("make", [in_parts, holistic])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS.keys())
def test_without_rows_there_are_no_windows(window: AlignedWindow, make: Any, tmp_path: Path) -> None:
    for keys in ((), ("k",)):
        result = run_in_process(flow(table([]), make(keys), window), tmp_path / str(len(keys)))
        assert (result.reason, to_rows(result)) == ("finished", [])


def test_windows_come_out_in_order_and_end_one_nanosecond_after_their_timestamp(tmp_path: Path) -> None:
    rows = random_rows(500, seed=6)
    window = Hop(5 * SECOND, 15 * SECOND)
    build = flow(rows, in_parts(), window, lateness="20s")
    found = to_rows(run_in_process(build, tmp_path, parallelism=1, epoch_rows=50))
    times = [row["_timestamp"] for row in found]
    assert times == sorted(times)
    assert all(row["w"]["end"] == row["_timestamp"] + 1 for row in found)
    assert list(found[0]) == ["k", "n", "s", "least", "mean", "w", "_timestamp"]


def test_the_order_in_which_envelopes_arrive_changes_nothing(tmp_path: Path) -> None:
    rows = random_rows(300, seed=7)
    found = [
        run_in_process(
            flow(rows, make(), Hop(5 * SECOND, 15 * SECOND), lateness="20s"),
            tmp_path / f"{make.__name__}-{seed}",
            epoch_rows=60,
            seed=seed,
        ).rows["out"]
        for make in (in_parts, holistic)
        for seed in range(3)
    ]
    assert found[0].equals(found[1])
    assert found[0].equals(found[2])
    assert found[3].equals(found[4])
    assert found[3].equals(found[5])


def test_a_window_before_1970_starts_at_a_multiple_of_its_width(tmp_path: Path) -> None:
    rows = table([-11, -10, -0.5, 0])
    found = to_rows(run_in_process(flow(rows, in_parts(), Tumble(10 * SECOND)), tmp_path))
    assert [(row["w"]["start"] // SECOND, row["n"]) for row in found] == [(-20, 1), (-10, 2), (0, 1)]


def test_a_hop_has_a_row_in_every_window_that_covers_it_and_in_no_other(tmp_path: Path) -> None:
    window = Hop(4 * SECOND, 10 * SECOND)
    found = to_rows(run_in_process(flow(table([9]), in_parts(), window), tmp_path))
    assert [row["w"]["start"] // SECOND for row in found] == [0, 4, 8]


def test_rows_ages_apart_do_not_make_windows_in_between(tmp_path: Path) -> None:
    window = Hop(SECOND // 100, SECOND // 10)
    found = to_rows(run_in_process(flow(table([-8e9, 9e9]), in_parts(), window), tmp_path))
    assert len(found) == 20


def late_flow(window: AlignedWindow, aggregation: Aggregation, times: Sequence[float]) -> hr.Pipeline:
    return flow(table(times), aggregation, window, lateness="0s")


@pytest.mark.parametrize("make", [in_parts, holistic])
def test_a_row_behind_the_watermark_counts_as_long_as_its_window_is_open(make: Any, tmp_path: Path) -> None:
    # One row per epoch; after the third the watermark is at 19.
    build = late_flow(Tumble(10 * SECOND), make(), [1, 12, 19, 11, 9, 25, 19.5])
    result = run_in_process(build, tmp_path, parallelism=1, epoch_rows=1)
    assert [(row["w"]["start"] // SECOND, row["n"]) for row in to_rows(result)] == [(0, 1), (10, 3), (20, 1)]
    assert result.late_rows == 2


@pytest.mark.parametrize("make", [in_parts, holistic])
def test_a_row_of_a_hop_counts_in_those_of_its_windows_that_are_open(make: Any, tmp_path: Path) -> None:
    # At watermark 20 the windows [0, 10), [5, 15) and [10, 20) are closed, [15, 25) is open.
    build = late_flow(Hop(5 * SECOND, 10 * SECOND), make(), [12, 20, 16, 14, 40])
    result = run_in_process(build, tmp_path, parallelism=1, epoch_rows=1)
    counts = {row["w"]["start"] // SECOND: row["n"] for row in to_rows(result)}
    assert counts == {5: 1, 10: 1, 15: 2, 20: 1, 35: 1, 40: 1}
    assert result.late_rows == 1


def test_late_rows_of_a_part_are_all_counted(tmp_path: Path) -> None:
    times = [100, 100, *[1, 2, 3, 4, 5, 101]]
    build = late_flow(Tumble(10 * SECOND), in_parts(), times)
    result = run_in_process(build, tmp_path, parallelism=1, epoch_rows=2)
    assert result.late_rows == 5
    assert [row["n"] for row in to_rows(result)] == [3]


@pytest.mark.parametrize("make", [in_parts, holistic])
@pytest.mark.parametrize("window", [Tumble(10 * SECOND), Hop(5 * SECOND, 10 * SECOND)])
def test_late_rows_are_emitted_where_they_are_asked_for(
    make: Any, window: AlignedWindow, tmp_path: Path
) -> None:
    origin = pa.struct([("v", pa.int64()), ("note", pa.string())])
    times = [105, 1, 101, 106, 2]
    rows = table(times).append_column(
        pa.field("origin", origin),
        pa.array([{"v": i, "note": f"row {i}"} for i in range(len(times))], origin),
    )
    aggregation = make(schema=SCHEMA.append(pa.field("origin", origin)))
    operator = WindowAggregate(aggregation, window, window_column="w", late_column="origin")
    assert operator.output.names[-3:] == ["w", "origin", "_timestamp"]
    build = pipeline(rows, operator, lateness="0s")
    result = run_in_process(build, tmp_path, parallelism=1, epoch_rows=1)
    found = to_rows(result)
    late = [row for row in found if row["origin"] is not None]
    assert [(row["origin"], row["_timestamp"]) for row in late] == [
        ({"v": 1, "note": "row 1"}, SECOND),
        ({"v": 4, "note": "row 4"}, 2 * SECOND),
    ]
    assert all(row[name] is None for row in late for name in row if name not in {"origin", "_timestamp"})
    on_time = [row for row in found if row["origin"] is None]
    assert all(row["n"] for row in on_time)
    assert sum(row["n"] for row in on_time) == (5 if window.overlaps else 3)
    assert result.late_rows == 2


def test_a_late_column_that_rows_do_not_carry_is_refused() -> None:
    with pytest.raises(PlanError, match="origin"):
        WindowAggregate(holistic(), Tumble(SECOND), late_column="origin")


def test_keys_of_any_type_are_grouped_with_nulls_as_a_group_of_their_own(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "struct": pa.array(
            [{"a": 1, "b": None}, None, {"a": 1, "b": "x"}] * 14,
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
        ),
        "list": pa.array([[1, None], None, []] * 14, pa.list_(pa.int64())),
        "float": pa.array([0.0, None, float("nan"), -0.0, None, float("nan")] * 7),
        "decimal": pa.array([Decimal("1.50"), None, Decimal("2.00")] * 14, pa.decimal128(10, 2)),
        "binary": pa.array([b"\x00", None, b""] * 14),
        "text": pa.array(["", None, "x"] * 14),
    }
    rows = pa.table(
        {"_timestamp": pa.array(range(42), pa.int64()).cast(TIME), **columns, "v": pa.array(range(42))}
    )
    aggregation = in_parts(tuple(columns), rows.schema)
    whole = every_way(lambda: flow(rows, aggregation, Tumble(SECOND), lateness="1s"), tmp_path, epoch_rows=10)
    found = to_rows(whole)
    assert sorted(row["s"] for row in found) == [sum(range(first, 42, 3)) for first in range(3)]
    by_text = {row["text"]: row for row in found}
    assert all(by_text[None][name] is None for name in columns)
    assert by_text[""]["struct"] == {"a": 1, "b": None}
    assert by_text[""]["list"] == [1, None]


def test_an_aggregate_over_windows_takes_the_rows_of_each_instant_together(tmp_path: Path) -> None:
    rows = random_rows(400, seed=8)
    window = Tumble(10 * SECOND)
    inner = in_parts()
    counted = WindowAggregate(inner, window, window_column="w")
    nested = Aggregation(schema=counted.output, keys=("w",), complete=('max("n") AS "most"',))

    def build() -> hr.Pipeline:
        p = hr.Pipeline("nested")
        stream = (
            p.source(hr.MemorySource(rows)).watermark(lateness="20s").apply(PartialAggregate(inner, window))
        )
        stream = stream.key_by("k").apply(WindowAggregate(inner, window, window_column="w")).key_by("w")
        stream.apply(WindowAggregate(nested, Instant())).sink(hr.MemorySink("out"))
        return p

    whole = every_way(build, tmp_path)
    most: dict[int, int] = {}
    for row in expected(rows, window, PARTS):
        most[row["_timestamp"]] = max(most.get(row["_timestamp"], 0), row["n"])
    assert to_rows(whole) == [
        {"w": {"start": t + 1 - window.width, "end": t + 1}, "most": n, "_timestamp": t}
        for t, n in sorted(most.items())
    ]


def test_parts_of_an_aggregate_over_windows_can_be_made_before_its_shuffle(tmp_path: Path) -> None:
    rows = random_rows(300, seed=9)
    window = Tumble(10 * SECOND)
    counted = WindowAggregate(in_parts(), window)
    total = Aggregation(
        schema=counted.output,
        keys=(),
        complete=('sum("n") AS "t"',),
        partial=('sum("n") AS "p"',),
        merge=('sum("p") AS "p"',),
        final=('"p" AS "t"',),
    )

    def build() -> hr.Pipeline:
        return pipeline(
            rows,
            WindowAggregate(in_parts(), window),
            PartialAggregate(total, Instant()),
            before=[PartialAggregate(in_parts(), window)],
            lateness="20s",
        )

    p = build()
    result = run_in_process(p, tmp_path, epoch_rows=50)
    assert sum(row["p"] for row in to_rows(result)) == 300
    assert sum(row["_rows"] for row in to_rows(result)) == len(expected(rows, window, PARTS))


def test_many_copies_of_rows_are_computed_a_few_windows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = random_rows(300, seed=10)
    window = Hop(1 * SECOND, 30 * SECOND)
    monkeypatch.setattr(window_aggregate, "COPIED_ROWS", 100)
    for make in (in_parts, holistic):
        result = run_in_process(flow(rows, make(), window, lateness="20s"), tmp_path / make.__name__)
        counts = expected(rows, window, "count(*) AS n")
        found = [{name: row[name] for name in ("k", "n", "w", "_timestamp")} for row in to_rows(result)]
        assert same(found, counts)


def test_a_task_that_gathers_much_emits_early_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_aggregate, "GATHERED_ROWS", 16)
    monkeypatch.setattr(window_aggregate, "PART_ROWS", 40)
    rows = random_rows(500, seed=11)
    chunks = pa.Table.from_batches(rows.to_batches(max_chunksize=7))
    whole = run_in_process(flow(chunks, in_parts(), Tumble(10 * SECOND)), tmp_path)
    assert same(to_rows(whole), expected(rows, Tumble(10 * SECOND), PARTS))


def test_the_parts_of_a_long_window_are_merged_while_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = random_rows(1200, seed=12, span=1200)
    window = Tumble(100_000 * SECOND)
    build = flow(rows, in_parts(), window, lateness="20s")
    sizes: dict[int, int] = {}
    for limit in (10**9, 1):
        monkeypatch.setattr(window_aggregate, "MANY_ROWS", limit)
        held: list[int] = []
        merge = WindowAggregate._merge_open

        def watched(
            self: WindowAggregate, ctx: hr.OperatorContext, merge: Any = merge, held: Any = held
        ) -> None:
            merge(self, ctx)
            held.append(ctx.time_table("windows").all().num_rows)

        with monkeypatch.context() as patch:
            patch.setattr(WindowAggregate, "_merge_open", watched)
            result = run_in_process(build, tmp_path / str(limit), parallelism=1, epoch_rows=10)
        sizes[limit] = max(held)
        assert same(to_rows(result), expected(rows, window, PARTS))
    assert sizes[1] * 3 < sizes[10**9]


def test_a_row_without_a_time_is_refused(tmp_path: Path) -> None:
    rows = pa.table({"_timestamp": pa.array([1, None], TIME), "k": [1, 2], "v": [1, 2]})
    with pytest.raises(hr.HeadraceError, match="`_timestamp`"):
        run_in_process(flow(rows, holistic(), Tumble(SECOND)), tmp_path)


def test_a_plan_shows_the_window_and_the_keys() -> None:
    assert WindowAggregate(in_parts(), Tumble(10 * SECOND)).display() == "tumble(10s) by (k)"
    assert WindowAggregate(in_parts(()), Hop(SECOND, 90 * SECOND)).display() == "hop(1s, 1m 30s)"
    assert WindowAggregate(in_parts(), Instant()).display() == "instant by (k)"
    assert PartialAggregate(in_parts(), Tumble(10 * SECOND)).display() == "partial tumble(10s) by (k)"


def test_a_window_of_no_length_is_refused() -> None:
    with pytest.raises(PlanError, match="greater than zero"):
        Tumble(0)
    with pytest.raises(PlanError, match="greater than zero"):
        Hop(0, SECOND)


YEAR = 365 * 24 * 3600 * SECOND


@pytest.mark.parametrize(
    "window", [Tumble(60 * SECOND), Hop(60 * SECOND, 90 * SECOND), Hop(90, 60), Instant()]
)
def test_the_windows_of_the_first_and_the_last_time_do_not_overflow(window: AlignedWindow) -> None:
    times = np.array([window.first_time, 0, window.last_time])
    firsts, lasts = window.first_of(times), window.last_of(times)
    assert all(
        abs(int(first) - int(time)) < window.width + window.slide
        for first, time in zip(firsts, times, strict=True)
    )
    assert all(int(first) > int(time) - window.width for first, time in zip(firsts, times, strict=True))
    assert all(0 <= int(time) - int(last) < window.slide for last, time in zip(lasts, times, strict=True))
    assert int(lasts[-1]) + window.width <= 2**63 - 1


@pytest.mark.parametrize("make", [in_parts, holistic])
def test_a_row_whose_window_would_overflow_is_dropped_and_counted(make: Any, tmp_path: Path) -> None:
    rows = table([-9.2145e9, 0, 9.2145e9])
    result = run_in_process(flow(rows, make(), Tumble(100 * YEAR)), tmp_path)
    assert [row["w"]["start"] for row in to_rows(result)] == [0]
    assert sum(values.get("bad_rows", 0) for values in result.metrics.values()) == 2
    assert "dropped" in result.errors[0]


def test_windows_that_are_centuries_apart_come_out_in_order(tmp_path: Path) -> None:
    rows = table([-9.2e9, 9.2e9, 0], k=[1, 2, 3])
    found = to_rows(run_in_process(flow(rows, in_parts(), Tumble(10 * SECOND)), tmp_path, parallelism=1))
    assert [row["k"] for row in found] == [1, 3, 2]


@pytest.mark.parametrize("window", [
    "tumble(interval '1 minute')",
    "hop(interval '20 seconds', interval '1 minute')",
    "session(interval '1 minute')",
])  # fmt: skip
@pytest.mark.parametrize("watermark", ["at", "at - interval '1 hour'"])
def test_a_row_at_the_edge_of_time_is_in_no_window_of_sql(
    tmp_path: Path, window: str, watermark: str
) -> None:
    lines = [
        '{"at": "1677-09-21T00:12:44"}',
        '{"at": "2026-01-01T00:00:00"}',
        '{"at": "2262-04-11T23:47:16"}',
    ]
    (tmp_path / "in.json").write_text("\n".join(lines))
    sql = f"""
        CREATE TABLE t (at TIMESTAMP, WATERMARK FOR at AS {watermark}) WITH (
            connector = 'single_file', path = '{tmp_path}/in.json', format = 'json', type = 'source'
        );
        SELECT {window} AS w, count(*) AS n FROM t GROUP BY 1;
    """
    found = run_in_process(
        hr.Pipeline.from_sql(sql, preview=lambda _: ("memory", {"name": "out"})), tmp_path / "state"
    )
    windows = found.rows["out"].to_pylist()
    assert windows
    starts = [row["w"]["start"] for row in windows]
    # A session begins with its first row: the earliest one still fits.
    is_session = window.startswith("session")
    days = {"2025-12-31", "2026-01-01"} | ({"1677-09-21"} if is_session else set())
    assert all(start.isoformat()[:10] in days for start in starts)
    assert all(row["w"]["start"] < row["w"]["end"] for row in windows)
    bad = sum(values.get("bad_rows", 0) for values in found.metrics.values())
    assert bad == (1 if is_session else 2)
