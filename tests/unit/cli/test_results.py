"""Results on a terminal: which rows a person sees, and that the table stays."""

from __future__ import annotations

import io
import re
import sys

import pyarrow as pa
import pytest
from rich.console import Console

from headrace.api import standing_rows as module
from headrace.api.standing_rows import Appended, Updated
from headrace.cli.results import LiveResults, Results
from headrace.sql.compile import Preview

COUNTS = pa.schema([("k", pa.string()), ("n", pa.int64())])


def changes(*rows: tuple[str, int, int]) -> pa.Table:
    """Rows that come (+1) and go (-1)."""
    return pa.table(
        {
            "k": [k for k, _, _ in rows],
            "n": [n for _, n, _ in rows],
            "_retract": [by < 0 for _, _, by in rows],
        }
    )


def test_of_rows_that_never_change_the_last_are_seen() -> None:
    result = Appended(pa.schema([("n", pa.int64())]))
    result.add(pa.table({"n": list(range(5))}))
    result.add(pa.table({"n": [5, 6]}))
    assert result.last(3) == [("4",), ("5",), ("6",)]
    assert result.total == 7


def test_a_row_that_is_taken_back_is_gone_and_a_new_one_stands_in_its_place() -> None:
    result = Updated(COUNTS, ("k",))
    result.add(changes(("a", 1, 1), ("b", 1, 1), ("c", 1, 1)))
    result.add(changes(("a", 1, -1), ("a", 2, 1), ("b", 1, -1)))
    assert result.last(10) == [("a", "2"), ("c", "1")]
    assert result.total == 2


def test_without_a_key_equal_rows_are_counted() -> None:
    result = Updated(COUNTS)
    result.add(changes(("a", 1, 1), ("a", 1, 1), ("b", 1, 1)))
    result.add(changes(("a", 1, -1)))
    assert result.last(10) == [("a", "1"), ("b", "1")]
    result.add(changes(("a", 1, -1), ("c", 1, 1)))
    assert result.last(10) == [("b", "1"), ("c", "1")]


def test_changes_that_cancel_each_other_out_change_nothing() -> None:
    result = Updated(COUNTS, ("k",))
    result.add(changes(("a", 1, 1)))
    result.add(changes(("a", 1, -1), ("a", 2, 1), ("a", 2, -1), ("a", 1, 1)))
    assert result.last(10) == [("a", "1")]


def test_when_not_all_rows_fit_those_that_changed_last_are_seen() -> None:
    result = Updated(COUNTS, ("k",))
    result.add(changes(*((k, 1, 1) for k in "abcde")))
    result.add(changes(("b", 1, -1), ("b", 2, 1)))
    assert result.last(2) == [("b", "2"), ("e", "1")]
    assert result.total == 5


def test_only_so_many_rows_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 3)
    result = Updated(COUNTS, ("k",))
    result.add(changes(*((k, 1, 1) for k in "abcde")))
    result.add(changes(("a", 1, -1), ("f", 1, 1)))
    assert [row[0] for row in result.last(10)] == ["d", "e", "f"]
    assert result.total == 5


def test_values_look_as_people_write_them() -> None:
    table = pa.table(
        {
            "at": pa.array([1_700_000_000_500_000_000, None], pa.timestamp("ns")),
            "text": ["two\nlines", None],
            "list": [[1, 2], None],
            "number": [1.5, None],
            "flag": [True, None],
        }
    )
    result = Appended(table.schema)
    result.add(table)
    assert result.last(2) == [
        ("2023-11-14 22:13:20.500", "two\\nlines", "[1,2]", "1.5", "true"),
        ("", "", "", "", ""),
    ]


class Screen(io.StringIO):
    """A terminal: what is on it after all movements of the cursor."""

    def lines(self) -> list[str]:
        lines, row, column = [""], 0, 0
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", self.getvalue()):
            if part == "\r":
                column = 0
            elif part == "\n":
                row, column = row + 1, 0
                lines += [""] * (row - len(lines) + 1)
            elif part.startswith("\x1b["):
                if part.endswith("A"):
                    row -= int(part[2:-1])
                elif part == "\x1b[2K":
                    lines[row] = ""
            else:
                before = lines[row].ljust(column)
                lines[row] = before[:column] + part + before[column + len(part) :]
                column += len(part)
        return [line.rstrip() for line in lines]


def live(results: Results, *, height: int = 12, progress: bool = True) -> tuple[LiveResults, Screen]:
    screen = Screen()
    console = Console(file=screen, force_terminal=True, width=60, height=height, highlight=False)
    return LiveResults(results, console, progress=progress, clock=lambda: 0.0), screen


def test_the_table_follows_the_rows_and_stays_at_the_end() -> None:
    results = Results()
    assert results.sink(Preview(COUNTS, updating=True, key=("k",))) == ("preview", {"name": "query 1"})
    shown, screen = live(results)
    with shown.active():
        shown.say("starting Spark …")
        assert screen.lines() == ["starting Spark …"]
        shown.add("query 1", changes(("a", 1, 1), ("b", 10, 1)))
        shown.tick()
        assert screen.lines() == ["k    n", "──────", "a    1", "b   10", "2 rows", "starting Spark …"]
        shown.add("query 1", changes(("a", 1, -1), ("a", 2, 1)))
        shown.tick()
        assert screen.lines()[2:4] == ["a    2", "b   10"]
    assert screen.lines() == ["k    n", "──────", "a    2", "b   10", "2 rows", ""]


def test_a_result_without_rows_is_an_empty_table_at_the_end() -> None:
    results = Results()
    results.sink(Preview(COUNTS, updating=False, key=()))
    shown, screen = live(results)
    with shown.active():
        shown.say("starting Spark …")
    assert screen.lines() == ["k   n", "─────", "0 rows", ""]


def test_what_others_write_appears_above(monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results()
    results.sink(Preview(COUNTS, updating=True, key=()))
    shown, screen = live(results)
    monkeypatch.setattr(sys, "stdout", screen)
    with shown.active():
        shown.add("query 1", changes(("a", 1, 1)))
        shown.tick()
        sys.stdout.write("another sink\n")
    assert screen.lines()[:4] == ["another sink", "k   n", "─────", "a   1"]


def test_several_results_are_labelled_and_share_the_screen() -> None:
    results = Results()
    for _ in range(2):
        results.sink(Preview(pa.schema([("n", pa.int64())]), updating=False, key=()))
    shown, screen = live(results, height=16, progress=False)
    with shown.active():
        shown.add("query 1", pa.table({"n": list(range(100))}))
        shown.add("query 2", pa.table({"n": [7]}))
    assert screen.lines() == [
        "query 1",
        " n",
        "──",
        "98",
        "99",
        "last 2 of 100 rows",
        "",
        "query 2",
        "n",
        "─",
        "7",
        "1 row",
        "",
    ]


def test_wide_rows_are_cut_and_not_wrapped() -> None:
    results = Results()
    results.sink(Preview(pa.schema([("text", pa.string()), ("n", pa.int64())]), updating=False, key=()))
    shown, screen = live(results)
    with shown.active():
        shown.add("query 1", pa.table({"text": ["long " * 50], "n": [12345]}))
    lines = screen.lines()
    assert len(lines) == 5
    assert max(map(len, lines)) <= 60
    assert lines[2].endswith("12345")


def test_names_and_values_are_not_taken_for_markup() -> None:
    results = Results()
    results.sink(Preview(pa.schema([("[bold]", pa.string())]), updating=False, key=()))
    shown, screen = live(results)
    with shown.active():
        shown.add("query 1", pa.table({"[bold]": ["[red]x"]}))
    assert [line.strip() for line in screen.lines()][:3] == ["[bold]", "──────", "[red]x"]
