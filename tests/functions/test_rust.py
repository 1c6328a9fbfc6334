"""Functions in Rust: read from their source, built with cargo, called like any other."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import ConfigurationError, ExpressionError, SqlError
from headrace.functions.native import NativeFunction
from headrace.functions.user import Function, load_udfs
from headrace.testing.sql_cases import find_cases, run_case
from tests.functions.conftest import EXAMPLE, Compile

INSTANT = dt.datetime(2026, 1, 1)  # noqa: DTZ001 - a TIMESTAMP has no zone


def call(function: Function, *columns: list[Any]) -> list[Any]:
    assert isinstance(function, NativeFunction)
    given = [pa.array(column, kind) for column, kind in zip(columns, function.arguments, strict=True)]
    values: list[Any] = function.call(given).to_pylist()
    return values


def test_a_file_for_arroyo_loads_unchanged(in_rust: dict[str, Function]) -> None:
    names = [
        "plus_one",
        "initials",
        "first_word",
        "no_sevens",
        "third",
        "later",
        "reversed",
        "mixed",
        "aborts",
    ]
    assert list(in_rust) == names
    assert call(in_rust["plus_one"], [1, None, 3]) == [2, None, 4]
    assert call(in_rust["initials"], ["Ada King", None, "", "Bob"], [1, 1, None, None]) == [
        "A",
        None,
        None,
        "B",
    ]
    assert call(in_rust["first_word"], ["größe x", "y", ""]) == ["größe", "y", ""]
    assert call(in_rust["no_sevens"], [6, 8, 9]) == [6, None, 9]
    assert call(in_rust["third"], [0, 1, 2, 0, 1, 2, 0, 1, 2, 1]) == [True, False, True] * 3 + [False]
    assert in_rust["later"](INSTANT, dt.timedelta(days=-0, seconds=1)) == INSTANT + dt.timedelta(seconds=1)
    assert in_rust["reversed"](b"\x00\xff") == b"\xff\x00"
    assert in_rust["mixed"].arguments == (pa.int8(), pa.uint32(), pa.float32(), pa.bool_())
    assert in_rust["mixed"](-1, 2, 0.5, True) == 1001.5


def test_a_panic_an_error_and_an_abort_are_errors_that_show_the_row(in_rust: dict[str, Function]) -> None:
    with pytest.raises(ExpressionError, match=r"udf `no_sevens` failed: no sevens, for the row x=7"):
        call(in_rust["no_sevens"], [1, 7])
    with pytest.raises(ExpressionError, match=r"panicked at src/user.rs:\d+:\d+: index out of bounds.* x=9"):
        call(in_rust["third"], [1, 2, 9])
    with pytest.raises(ExpressionError, match=r"crashed: its process was ended by SIGABRT, for the row x=3"):
        call(in_rust["aborts"], [1, 2, 3])
    with pytest.raises(ExpressionError, match=r"a duration below zero"):
        in_rust["later"](INSTANT, dt.timedelta(days=-1))


def test_a_library_is_built_once(in_rust: dict[str, Function], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    again = load_udfs(Path(__file__).parent / "sources" / "functions.rs")
    assert [one.name for one in again] == list(in_rust)


@pytest.mark.usefixtures("needs_cargo")
def test_what_the_compiler_says_has_its_place_in_the_text(tmp_path: Path) -> None:
    sql = """CREATE FUNCTION half(x BIGINT) RETURNS DOUBLE LANGUAGE rust AS $$
fn half(x: i64) -> f64 {
    x / 2
}
$$;
SELECT half(1);"""
    with pytest.raises(SqlError) as caught:
        hr.Pipeline.from_sql(sql)
    assert caught.value.message == "function `half`: mismatched types: expected `f64`, found `i64`"
    assert caught.value.where == "<sql>:3:5"
    file = tmp_path / "broken.rs"
    file.write_text("fn f(x: i64) -> i64 { x + missing }\n")
    with pytest.raises(ConfigurationError, match="cannot find value `missing`") as wrong:
        load_udfs(file)
    assert wrong.value.where == f"{file}, line 1"


def test_without_cargo_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    file = tmp_path / "f.rs"
    file.write_text("fn f(x: i64) -> i64 { x }")
    with pytest.raises(ConfigurationError, match="there is no `cargo`") as caught:
        load_udfs(file)
    assert "LANGUAGE native" in (caught.value.hint or "")


@pytest.mark.usefixtures("needs_cargo")
def test_the_example_gives_its_rows_however_the_run_is_cut(compile_c: Compile, tmp_path: Path) -> None:
    for file in EXAMPLE.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "libdistance.so").write_bytes(compile_c(EXAMPLE / "distance.c").read_bytes())
    expected = {
        "select": [
            '{"id":1,"length":"305.1 km","start":"JO59","carrier":"Aurora Cars"}',
            '{"id":2,"length":"877.1 km","start":"JN18","carrier":"Boreal Taxi"}',
            '{"id":3,"length":"305.1 km","start":"JP20","carrier":"Aurora Cars"}',
            '{"id":4,"length":null,"start":"JJ00","carrier":null}',
            '{"id":5,"length":"517.4 km","start":"JO62","carrier":"Boreal Taxi"}',
        ],
        "select_2": [
            '{"cell":"JO59","trips":2}',
            '{"cell":"JP20","trips":2}',
            '{"cell":"JN18","trips":1}',
            '{"cell":"JO62","trips":2}',
            '{"cell":"KO02","trips":1}',
        ],
        "select_3": [
            '{"minute":{"start":"2026-01-01T09:00:00","end":"2026-01-01T09:01:00"},"busiest":"b"}',
            '{"minute":{"start":"2026-01-01T09:01:00","end":"2026-01-01T09:02:00"},"busiest":"b"}',
        ],
    }
    for name, lines in expected.items():
        (tmp_path / f"trips.{name}.expected.jsonl").write_text("\n".join(lines))
    (case,) = find_cases(tmp_path / "trips.sql")
    result = run_case(case, functions=load_udfs(tmp_path / "trips.py"))
    assert result.passed, str(result)
