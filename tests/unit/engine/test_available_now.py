"""A run with `available_now` reads what is there at its start; the next one reads what came since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import headrace as hr
from headrace.base.errors import UserError
from headrace.jobs.progress import RunResult
from headrace.testing.in_process import ManualClock, run_in_process


def numbers(result: RunResult) -> list[int]:
    rows = result.rows["rows"]
    return sorted(rows.column("n").to_pylist()) if rows.num_rows else []


def run(
    connector: str, options: dict[str, Any], state: Path, *, available_now: bool = True, **more: Any
) -> RunResult:
    pipeline = hr.Pipeline()
    pipeline.source(connector, id="numbers", **options).sink("memory", name="rows")
    return run_in_process(pipeline, state, options=hr.RunOptions(available_now=available_now), **more)


def append_lines(path: Path, first: int, last: int) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps({"n": n}) + "\n" for n in range(first, last))


def grow_file(folder: Path, first: int, last: int) -> None:
    append_lines(folder / "in.json", first, last)


def grow_directory(folder: Path, first: int, last: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    for n in range(first, last):
        pq.write_table(pa.table({"n": [n]}), folder / "in" / f"{n}.parquet")


def grow_delta(folder: Path, first: int, last: int) -> None:
    write_deltalake(str(folder / "table"), pa.table({"n": list(range(first, last))}), mode="append")


GROWING: dict[str, tuple[Any, Any]] = {
    "single_file": (grow_file, lambda folder: {"path": str(folder / "in.json"), "schema": {"n": "int64"}}),
    "filesystem": (
        grow_directory,
        lambda folder: {"path": str(folder / "in"), "format": "parquet", "schema": {"n": "int64"}},
    ),
    "filesystem that is watched": (
        grow_directory,
        lambda folder: {
            "path": str(folder / "in"),
            "format": "parquet",
            "schema": {"n": "int64"},
            "source.watch_interval": "1ms",
        },
    ),
    "delta": (grow_delta, lambda folder: {"path": str(folder / "table"), "schema": {"n": "int64"}}),
}


@pytest.mark.parametrize("case", GROWING)
def test_each_run_reads_what_came_since_the_last_one(case: str, tmp_path: Path) -> None:
    grow, options = GROWING[case]
    connector, state = case.split(maxsplit=1)[0], tmp_path / "state"
    grow(tmp_path, 0, 7)
    first = run(connector, options(tmp_path), state, epoch_rows=2)
    assert numbers(first) == list(range(7))
    assert (first.reason, first.epochs > 1) == ("available_now", True)
    nothing = run(connector, options(tmp_path), state)
    assert (numbers(nothing), nothing.epochs, nothing.reason) == ([], 0, "available_now")
    for begin, end in ((7, 8), (8, 12)):
        grow(tmp_path, begin, end)
        assert numbers(run(connector, options(tmp_path), state, epoch_rows=3)) == list(range(begin, end))


@pytest.mark.parametrize("case", GROWING)
def test_what_comes_while_the_run_is_at_work_is_left_for_the_next_one(case: str, tmp_path: Path) -> None:
    grow, options = GROWING[case]
    connector, state = case.split(maxsplit=1)[0], tmp_path / "state"
    grow(tmp_path, 0, 6)
    grown: list[int] = []

    def grow_once(_: Any) -> None:
        if not grown:
            grow(tmp_path, 6, 9)
            grown.append(1)

    first = run(connector, options(tmp_path), state, epoch_rows=2, on_progress=grow_once)
    assert numbers(first) == list(range(6))
    assert numbers(run(connector, options(tmp_path), state)) == [6, 7, 8]


@pytest.mark.parametrize("case", GROWING)
def test_a_run_that_is_stopped_between_is_gone_on_with(case: str, tmp_path: Path) -> None:
    grow, options = GROWING[case]
    connector, state = case.split(maxsplit=1)[0], tmp_path / "state"
    grow(tmp_path, 0, 6)
    stopped = run(connector, options(tmp_path), state, epoch_rows=2, max_epochs=1)
    assert stopped.reason == "max_epochs"
    grow(tmp_path, 6, 8)
    rest = run(connector, options(tmp_path), state, parallelism=3)
    assert sorted(numbers(stopped) + numbers(rest)) == list(range(8))


@pytest.mark.parametrize("case", ["single_file", "filesystem", "delta"])
def test_a_source_that_a_run_has_ended_for_good_is_refused(case: str, tmp_path: Path) -> None:
    grow, options = GROWING[case]
    grow(tmp_path, 0, 3)
    state = tmp_path / "state"
    assert run(case, options(tmp_path), state, available_now=False).reason == "finished"
    with pytest.raises(UserError, match="earlier run") as refused:
        run(case, options(tmp_path), state)
    assert "another state directory" in str(refused.value.hint)


def test_files_that_a_run_has_forgotten_are_not_read_again(tmp_path: Path) -> None:
    grow, options = GROWING["filesystem"]
    grow(tmp_path, 0, 5)
    run("filesystem", options(tmp_path), tmp_path / "s", available_now=False, epoch_rows=1, max_epochs=3)
    with pytest.raises(UserError, match="has forgotten the files that it read"):
        run("filesystem", options(tmp_path), tmp_path / "s")


def test_a_line_without_its_newline_is_left_for_the_next_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, state = tmp_path / "in.csv", tmp_path / "state"
    options = {"path": str(path), "format": "csv", "schema": {"n": "int64", "t": "string"}}
    path.write_text('n,t\n1,"a\nb"\n2,"c')
    assert numbers(run("single_file", options, state)) == [1]
    assert "has no newline yet" in caplog.text
    with path.open("a") as file:
        file.write('\nd"\n')
    assert numbers(run("single_file", options, state)) == [2]


def test_a_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    append_lines(path, 0, 3)
    options = {"path": str(path), "schema": {"n": "int64"}}
    run("single_file", options, tmp_path / "state")
    path.unlink()
    append_lines(path, 5, 9)
    with pytest.raises(hr.HeadraceError, match=r"in\.json"):
        run("single_file", options, tmp_path / "state")


def test_windows_that_are_open_at_the_end_stay_open_for_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "in.json"

    def lines(*minutes: int) -> None:
        with path.open("a") as file:
            file.writelines(json.dumps({"ts": f"2026-01-01T00:{m:02}:00"}) + "\n" for m in minutes)

    def windows() -> list[tuple[int, int]]:
        pipeline = hr.Pipeline.from_sql(
            f"""
            CREATE TABLE t (ts TIMESTAMP, WATERMARK FOR ts AS ts)
            WITH (connector = 'single_file', path = '{path}', format = 'json', type = 'source');
            CREATE TABLE rows (minute BIGINT, n BIGINT) WITH (connector = 'memory', name = 'rows');
            INSERT INTO rows
            SELECT extract(minute FROM w.start), n
            FROM (SELECT tumble(interval '10 minutes') AS w, count(*) AS n FROM t GROUP BY 1);
            """
        )
        result = run_in_process(
            pipeline, tmp_path / "state", epoch_rows=1, options=hr.RunOptions(available_now=True)
        )
        rows = result.rows["rows"].to_pylist()
        return [(row["minute"], row["n"]) for row in rows]

    lines(1, 2, 11)
    assert windows() == [(0, 2)]
    assert windows() == []
    lines(12, 13, 31)
    assert windows() == [(10, 3)]


def test_a_paced_generator_gives_what_is_due_at_the_start(tmp_path: Path) -> None:
    clock = ManualClock()
    pipeline = hr.Pipeline()
    pipeline.source("impulse", event_rate=1).sink("memory", name="rows")
    sizes = []
    for seconds in (0, 10, 0.25, 5):
        clock.advance(seconds)
        result = run_in_process(
            pipeline, tmp_path, clock=clock, options=hr.RunOptions(available_now=True), epoch_rows=3
        )
        sizes.append(result.rows["rows"].num_rows)
    assert sizes == [1, 10, 0, 5]


def test_a_source_with_an_end_of_its_own_ends(tmp_path: Path) -> None:
    rows = {"rows": [{"n": n} for n in range(5)]}
    first = run("memory", rows, tmp_path, epoch_rows=2)
    assert (numbers(first), first.reason) == ([0, 1, 2, 3, 4], "finished")
    second = run("memory", rows, tmp_path)
    assert (numbers(second), second.reason, second.epochs) == ([], "finished", 0)


class Endless(hr.SourceOperator):
    """A source of somebody's own that does not say where what is there now ends."""

    def initial_offset(self, *, time: float) -> hr.Offset:
        return {"0": 0}

    def latest_offset(self, start: hr.Offset, limit: Any, *, parallelism: int) -> hr.Offset:
        return start

    def splits(self, start: hr.Offset, end: hr.Offset, *, parallelism: int) -> list[hr.Split]:
        return []

    def run(self, ctx: Any, collector: Any) -> hr.Finish:
        return hr.Finish.GRACEFUL


@pytest.mark.parametrize(
    ("connector", "options", "message"),
    [
        ("impulse", {}, "impulse generates numbers without end"),
        (
            "websocket",
            {"endpoint": "ws://localhost:1", "format": "json", "schema": {"n": "int64"}},
            "WebSocketSource cannot say where what is there now ends",
        ),
        (Endless(), {}, "Endless cannot say where what is there now ends"),
    ],
)
def test_a_source_that_cannot_say_where_now_ends_is_refused_by_name(
    connector: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    pipeline = hr.Pipeline()
    pipeline.source(connector, id="numbers", **options).sink("memory", name="rows")
    with pytest.raises(UserError, match=message) as refused:
        run_in_process(pipeline, tmp_path, options=hr.RunOptions(available_now=True))
    assert "numbers" in str(refused.value)
    assert refused.value.hint
