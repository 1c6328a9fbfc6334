"""Event times that cannot be right are told, with the type that reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import Pipeline
from headrace.cli.progress import summary
from headrace.engine.event_times import is_plausible
from headrace.jobs.progress import Progress, RunResult
from headrace.testing.in_process import run_in_process

NOW = 1_763_500_000  # in seconds


def run(folder: Path, column: str, values: list[object], seen: list[Progress] | None = None) -> RunResult:
    file = folder / "in.json"
    file.write_text("".join(json.dumps({"at": value}) + "\n" for value in values))
    sql = f"""
        CREATE TABLE e (at {column} NOT NULL, WATERMARK FOR at) WITH (
          connector = 'single_file', path = '{file}', bad_data = 'drop');
        SELECT count(*) AS n FROM e GROUP BY tumble(INTERVAL '1 hour');
    """
    pipeline = Pipeline.from_sql(sql, preview=lambda _: ("memory", {}))
    note = None if seen is None else seen.append
    return run_in_process(pipeline, folder / "state", epoch_rows=1, parallelism=1, on_progress=note)


@pytest.mark.parametrize(
    ("column", "value", "right"),
    [
        ("TIMESTAMP", NOW * 10**3, "milliseconds: declare it as TIMESTAMP(3)"),
        ("TIMESTAMP", NOW * 10**6, "microseconds: declare it as TIMESTAMP(6)"),
        ("TIMESTAMP", NOW, "seconds: declare it as TIMESTAMP(0)"),
        ("TIMESTAMP(6)", NOW * 10**3, "milliseconds: declare it as TIMESTAMP(3)"),
        ("TIMESTAMP(0)", 4_000_000_000, "more than ten years ahead"),
        ("TIMESTAMP", "1969-12-31T00:00:00", "before 2000"),
    ],
)
def test_a_number_in_another_unit_is_told_with_the_type_that_reads_it(
    tmp_path: Path, column: str, value: object, right: str
) -> None:
    (warning,) = run(tmp_path, column, [value]).warnings
    assert warning.startswith("the event times of `e` in column `at` are at ")
    assert warning.endswith(right)


def test_the_warning_comes_once_while_it_runs_and_again_in_the_summary(tmp_path: Path) -> None:
    seen: list[Progress] = []
    result = run(tmp_path, "TIMESTAMP", [NOW * 10**3 + n for n in range(3)], seen)
    assert [len(progress.warnings) for progress in seen] == [1, *[0] * (len(seen) - 1)]
    assert f"  ! {seen[0].warnings[0]}" in summary(result, program=["q.sql"], state_dir=None)


@pytest.mark.parametrize("value", [NOW * 10**9, "2000-01-01T00:00:00", "2026-01-01T00:00:00.5Z"])
def test_plausible_times_are_not_worth_a_word(tmp_path: Path, value: object) -> None:
    assert run(tmp_path, "TIMESTAMP", [value]).warnings == ()


def test_from_2000_to_ten_years_ahead_is_plausible() -> None:
    first = 946_684_800
    ahead = NOW + 3653 * 86_400
    times = [first - 1, first, ahead, ahead + 1]
    assert [is_plausible(time * 10**9, now=NOW) for time in times] == [False, True, True, False]


def test_a_run_of_which_no_record_can_be_read_says_so_while_it_runs_and_in_the_summary(
    tmp_path: Path,
) -> None:
    seen: list[Progress] = []
    result = run(tmp_path, "TIMESTAMP", ["soon", None, "later"], seen)
    assert result.unreadable == seen[0].unreadable == ("source_e",)
    assert seen[0].warnings[0].startswith("no record of `source_e` could be read so far (wrong-value")
    text = summary(result, program=["q.sql"], state_dir=None)
    assert "  3 bad records (wrong-value 2, missing-value 1): all of source_e" in text


def test_the_watermark_of_the_summary_is_the_one_that_closed_the_windows(tmp_path: Path) -> None:
    seen: list[Progress] = []
    result = run(tmp_path, "TIMESTAMP", ["2026-01-01T00:00:00", "2026-01-01T05:00:00"], seen)
    assert sum(rows.num_rows for rows in result.rows.values()) == 2
    assert "  watermark end of data" in summary(result, program=["q.sql"], state_dir=None)
