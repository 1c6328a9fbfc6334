"""Tests of SQL files: what they find, what they run and what they compare."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from headrace import udf
from headrace.base.errors import UserError
from headrace.testing import sql_cases
from headrace.testing.in_process import CrashError
from headrace.testing.row_comparison import differences
from headrace.testing.sql_cases import CaseResult, find_cases, run_case

EVENTS = """
CREATE TABLE events (id BIGINT, k TEXT, v DOUBLE, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '5 seconds')
WITH (connector = 'single_file', path = 'inputs/events.json', format = 'json', type = 'source');
"""
COUNTS = "SELECT k, count(*) AS n FROM events GROUP BY k;"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inputs").mkdir()
    events = [{"id": n, "k": "abc"[n % 3], "v": n / 10, "at": f"2024-01-01T00:00:{n:02d}"} for n in range(30)]
    (tmp_path / "inputs/events.json").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return tmp_path


def write(folder: Path, name: str, sql: str, **files: str) -> None:
    (folder / f"{name}.sql").write_text(sql)
    for end, text in files.items():
        (folder / f"{name}.{end.replace('__', '.')}").write_text(text)


def run(folder: Path, name: str, *, update: bool = False) -> CaseResult:
    (case,) = find_cases(folder / f"{name}.sql")
    return run_case(case, update=update)


def rows(*values: object) -> str:
    return "".join(f"{json.dumps(value)}\n" for value in values)


TEN_EACH = rows({"n": 10, "k": "c"}, {"k": "a", "n": 10}, {"k": "b", "n": 10.0})


def test_a_case_passes_when_every_run_gives_the_expected_rows(folder: Path) -> None:
    write(folder, "counts", EVENTS + COUNTS, expected__jsonl=TEN_EACH)
    result = run(folder, "counts")
    assert result.passed, result
    assert result.seconds > 0


def test_windows_come_out_once_however_the_run_is_cut(folder: Path) -> None:
    sql = (
        EVENTS
        + "SELECT k, count(*) AS n, max(id) AS last FROM events GROUP BY k, tumble(interval '6 seconds')"
    )
    write(folder, "windows", sql)
    result = run(folder, "windows", update=True)
    assert result.passed, result
    assert [file.name for file in result.written] == ["windows.expected.jsonl"]
    assert len((folder / "windows.expected.jsonl").read_text().splitlines()) == 15
    assert run(folder, "windows").passed


def test_runs_are_really_stopped_and_killed_at_every_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes: list[str] = []

    class CountedError(CrashError):
        def __init__(self, text: str) -> None:
            crashes.append(text.partition(" ")[0].partition(":")[0])

    monkeypatch.setattr(sql_cases, "CrashError", CountedError)
    write(folder, "counts", EVENTS + COUNTS, expected__jsonl=TEN_EACH)
    assert run(folder, "counts").passed
    assert crashes == list(sql_cases.STEPS)


def test_rows_that_differ_are_shown(folder: Path) -> None:
    write(folder, "counts", EVENTS + COUNTS, expected__jsonl=TEN_EACH.replace("10.0", "11"))
    result = run(folder, "counts")
    assert [failure.title.partition(":")[0] for failure in result.failures] == [
        "whole",
        "stopped and resumed",
        "killed and resumed",
    ]
    assert sorted(result.failures[0].lines()) == ['+ {"k":"b","n":10}', '− {"k": "b", "n": 11}']


def test_a_long_difference_is_cut() -> None:
    lines = sql_cases.CaseFailure("x", "", [f"{n:02d}" for n in range(30)], []).lines()
    assert (len(lines), lines[0], lines[-1]) == (21, "− 00", "… and 10 others")


def test_a_function_that_depends_on_the_run_is_found_out(folder: Path) -> None:
    calls: list[int] = []

    @udf
    def numbered(x: int) -> int:
        calls.append(x)
        return len(calls)

    write(folder, "numbered", EVENTS + "SELECT id, numbered(id) AS n FROM events")
    (case,) = find_cases(folder / "numbered.sql")
    result = run_case(case, functions=[numbered], update=True)
    assert not result.passed
    assert "compared with the whole run" in result.failures[0].title
    assert not (folder / "numbered.expected.jsonl").exists()


def test_each_of_several_results_has_its_file_and_no_sink_is_written(folder: Path) -> None:
    sink = "CREATE TABLE out (k TEXT, n BIGINT) WITH (connector = 'single_file', path = 'out.json', \
        format = 'debezium_json', type = 'sink');"
    sql = (
        EVENTS
        + sink
        + f"INSERT INTO out {COUNTS} SELECT id FROM events WHERE id < 2; SELECT 1 AS one FROM events"
    )
    write(folder, "several", sql)
    missing = run(folder, "several")
    assert sorted(failure.title for failure in missing.failures) == [
        "there is no several.out.expected.jsonl",
        "there is no several.select.expected.jsonl",
        "there is no several.select_2.expected.jsonl",
    ]
    written = run(folder, "several", update=True).written
    assert sorted(file.name for file in written) == [
        "several.out.expected.jsonl",
        "several.select.expected.jsonl",
        "several.select_2.expected.jsonl",
    ]
    assert (folder / "several.select.expected.jsonl").read_text() == '{"id":0}\n{"id":1}\n'
    assert not (folder / "out.json").exists()
    assert run(folder, "several").passed
    (folder / "several.other.expected.jsonl").write_text("")
    assert "there is no result `other`" in str(run(folder, "several"))


def test_an_update_leaves_files_that_say_the_same(folder: Path) -> None:
    write(folder, "counts", EVENTS + COUNTS, expected__jsonl=TEN_EACH)
    assert run(folder, "counts", update=True).written == []
    assert (folder / "counts.expected.jsonl").read_text() == TEN_EACH


def test_no_rows_are_expected_by_an_empty_file(folder: Path) -> None:
    write(folder, "none", EVENTS + "SELECT id FROM events WHERE id < 0", expected__jsonl="")
    assert run(folder, "none").passed
    write(folder, "some", EVENTS + "SELECT id FROM events WHERE id < 1", expected__jsonl="\n")
    assert run(folder, "some").failures[0].lines() == ['+ {"id":0}']


def test_sql_that_must_be_refused_is_compared_by_its_words(folder: Path) -> None:
    write(folder, "bad", "SELECT x FROM nowhere", error__txt="something else\n")
    result = run(folder, "bad")
    assert result.failures[0].title == "it is refused with other words"
    assert "− something else" in result.failures[0].lines()
    assert [file.name for file in run(folder, "bad", update=True).written] == ["bad.error.txt"]
    assert "  at bad.sql:1:15\n" in (folder / "bad.error.txt").read_text()
    assert run(folder, "bad").passed


def test_sql_that_is_refused_and_should_not_be_fails(folder: Path) -> None:
    write(folder, "bad", "SELECT x FROM nowhere", expected__jsonl="")
    result = run(folder, "bad")
    assert result.failures[0].title == "it is refused"
    assert "nowhere" in str(result)
    assert not run(folder, "bad", update=True).passed


def test_sql_that_should_be_refused_and_is_not_fails(folder: Path) -> None:
    write(folder, "good", EVENTS + COUNTS, error__txt="no")
    assert "it is accepted" in run(folder, "good").failures[0].title


def test_a_failure_while_running_is_a_failure_of_the_case(folder: Path) -> None:
    write(folder, "cast", EVENTS + "SELECT CAST(k AS BIGINT) AS n FROM events", expected__jsonl="")
    result = run(folder, "cast")
    assert result.failures[0].title == "it failed"


def test_a_source_without_an_end_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_cases, "MOST_EPOCHS", 3)
    sql = "CREATE TABLE i WITH (connector = 'impulse', event_rate = '10'); SELECT * FROM i"
    write(folder, "endless", sql, expected__jsonl="")
    assert "does not come to an end" in run(folder, "endless").failures[0].title


def test_expected_rows_that_are_not_json_objects_are_told_with_their_place(folder: Path) -> None:
    write(folder, "counts", EVENTS + COUNTS, expected__jsonl='{"k": 1}\nnonsense\n')
    assert "at counts.expected.jsonl:2" in str(run(folder, "counts"))
    write(folder, "counts", EVENTS + COUNTS, expected__jsonl="[1]\n")
    assert "a row is a JSON object" in str(run(folder, "counts"))


def test_numbers_may_be_as_far_apart_as_the_sql_says(folder: Path) -> None:
    sql = EVENTS + "SELECT id, v / 3 AS v FROM events WHERE id = 1"
    expected = rows({"id": 1, "v": 0.0333333333})
    write(folder, "third", sql, expected__jsonl=expected)
    assert not run(folder, "third").passed
    write(folder, "third", f"-- A third.\n-- approx: 1e-6\n{sql}", expected__jsonl=expected)
    assert run(folder, "third").passed
    write(folder, "third", f"{sql}\n-- approx: 1e-6", expected__jsonl=expected)
    assert not run(folder, "third").passed
    write(folder, "third", f"-- approx: some\n{sql}", expected__jsonl=expected)
    assert "`some` is not a number" in str(run(folder, "third"))


@pytest.mark.parametrize(
    ("left", "right", "tolerance", "same"),
    [
        ('{"a":1,"b":2}', '{"b": 2, "a": 1}', None, True),
        ('{"a":1.50}', '{"a":1.5}', None, True),
        ('{"a":1}', '{"a":true}', None, False),
        ('{"a":0}', '{"a":false}', 1.0, False),
        ('{"a":null}', "{}", None, False),
        ('{"a":null}', '{"a":0.0}', 1.0, False),
        ('{"a":0.1}', '{"a":0.10000000000000001}', None, False),
        ('{"a":[1.0,{"b":2.0}]}', '{"a":[1.1,{"b":1.9}]}', 0.2, True),
        ('{"a":[1.0,{"b":2.0}]}', '{"a":[1.1,{"b":1.0}]}', 0.2, False),
        ('{"a":[1.0]}', '{"a":[1.0,1.0]}', 0.2, False),
        ('{"a":100}', '{"a":101}', 0.5, False),
        ('{"a":123456789012345678.01}', '{"a":123456789012345678.02}', None, False),
    ],
)
def test_rows_are_equal_if_their_values_are(
    left: str, right: str, tolerance: float | None, same: bool
) -> None:
    found = differences(Counter([left]), Counter([right]), tolerance)
    assert found == (([], []) if same else ([left], [right]))


def test_rows_are_compared_by_their_number() -> None:
    one, two = Counter({'{"a":1}': 2, '{"a": 1}': 1}), Counter({'{"a":1}': 2})
    assert [len(side) for side in differences(one, two)] == [1, 0]
    assert [len(side) for side in differences(two, one)] == [0, 1]


def test_cases_are_found_in_a_directory_and_below(folder: Path) -> None:
    (folder / "deep").mkdir()
    write(folder, "a", COUNTS, expected__jsonl="")
    write(folder, "a.b", COUNTS, expected__jsonl="", t__expected__jsonl="")
    write(folder / "deep", "c", COUNTS, error__txt="")
    cases = {case.name: case for case in find_cases(folder)}
    assert sorted(cases) == ["a", "a.b", "deep/c"]
    assert list(cases["a"].expected) == [""]
    assert sorted(cases["a.b"].expected) == ["", "t"]
    assert cases["deep/c"].error is not None


@pytest.mark.parametrize("name", ["count.expected.jsonl", "counts.x", "absent", "empty"])
def test_a_path_without_cases_is_refused(name: str, folder: Path) -> None:
    (folder / "empty").mkdir()
    write(folder, "counts", COUNTS)
    (folder / "counts.x").write_text("")
    if name.endswith("jsonl"):
        (folder / name).write_text("")
        with pytest.raises(UserError, match="belongs to no test") as caught:
            find_cases(folder)
        assert caught.value.hint == "did you mean `counts.sql`?"
        return
    with pytest.raises(UserError):
        find_cases(folder / name)


def test_a_case_cannot_both_be_refused_and_have_rows(folder: Path) -> None:
    write(folder, "both", COUNTS, expected__jsonl="", error__txt="")
    with pytest.raises(UserError, match="both"):
        find_cases(folder)
