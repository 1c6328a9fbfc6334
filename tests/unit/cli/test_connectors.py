import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main
from headrace.model.registry import BUILT_IN, registry


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["connectors", *arguments])


def write_sql(folder: Path, lines: str, options: str = "") -> str:
    (folder / "rows.json").write_text(lines)
    file = folder / "tables.sql"
    file.write_text(
        f"CREATE TABLE t (n INT) WITH (connector = 'single_file', path = '{folder / 'rows.json'}', "
        f"format = 'json', type = 'source'{options});"
        "CREATE TABLE m (n INT);"
        "CREATE TABLE out (n INT) WITH (connector = 'blackhole');"
    )
    return str(file)


def test_the_list_tells_what_each_promises() -> None:
    result = run()
    assert result.exit_code == 0
    kafka = [line for line in result.stdout.splitlines() if line.startswith("kafka")]
    assert any("sink.commit_mode = 'exactly_once'" in line for line in kafka)


@pytest.mark.parametrize("role", ["source", "sink"])
def test_every_connector_promises_something(role: str) -> None:
    for name in BUILT_IN[role]:  # type: ignore[index]
        deliveries = registry.constructor(role, name).deliveries  # type: ignore[arg-type]
        assert deliveries, name
        assert all(one.how and not one.how.endswith(".") for one in deliveries), name
        assert len(deliveries) == 1 or all(one.when for one in deliveries), name


def test_one_connector_shows_options_and_promises() -> None:
    result = run("kafka")
    assert "bootstrap_servers" in result.stdout
    assert "exactly once with sink.commit_mode = 'exactly_once':" in result.stdout
    lines = [json.loads(line) for line in run("kafka", "--json").stdout.splitlines()]
    assert [line["role"] for line in lines] == ["source", "sink"]
    assert lines[1]["promises"][0]["promise"] == "at least once"


def test_an_unknown_connector_suggests_near_ones() -> None:
    result = run("kafak")
    assert result.exit_code == 2
    assert "did you mean `kafka`?" in result.stderr


def test_a_source_is_tried_with_a_sample_of_its_rows(tmp_path: Path) -> None:
    result = run("test", "T", write_sql(tmp_path, '{"n": 41}\n{"n": 42}\n'))
    assert result.exit_code == 0, result.output
    assert "42" in result.stdout
    assert "2 rows fit the columns" in result.stdout


def test_rows_that_do_not_fit_fail_the_test(tmp_path: Path) -> None:
    result = run("test", "t", write_sql(tmp_path, '{"n": 41}\n{"n": "many"}\n'))
    assert result.exit_code == 1
    assert "line 2" in result.stderr


def test_rows_that_would_be_dropped_are_told(tmp_path: Path) -> None:
    result = run(
        "test", "t", write_sql(tmp_path, '{"n": 41}\n{"n": "many"}\n', ", dead_letter_table = 'bad'")
    )
    assert result.exit_code == 0
    assert "line 2 cannot be read" in result.stdout


def test_a_source_without_rows_says_so(tmp_path: Path) -> None:
    result = run("test", "t", write_sql(tmp_path, ""), "--seconds", "0.1")
    assert "no rows came within 0.1 s" in result.stdout


def test_a_sink_is_tried_without_writing(tmp_path: Path) -> None:
    assert run("test", "out", write_sql(tmp_path, "")).exit_code == 0


@pytest.mark.parametrize(
    ("table", "message"), [("m", "is a table in memory"), ("x", "there is no CREATE TABLE x")]
)
def test_what_cannot_be_tried_is_a_mistake_of_the_user(table: str, message: str, tmp_path: Path) -> None:
    result = run("test", table, write_sql(tmp_path, ""))
    assert result.exit_code == 2
    assert message in result.stderr


def test_columns_that_were_not_written_are_printed_as_they_can_be(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"userId": 1, "ts": "2026-01-01T09:00:00", "name": "a"}\n')
    file = tmp_path / "t.sql"
    options = f"connector = 'single_file', path = '{tmp_path / 'x.json'}', type = 'source'"
    file.write_text(f"CREATE TABLE t WITH ({options}); SELECT * FROM t;")
    result = run("test", "t", str(file))
    assert result.exit_code == 0, result.output
    assert '    "userId" BIGINT,\n    ts TEXT,  -- these are times: TIMESTAMP reads them\n' in result.stdout
    assert result.stdout.endswith("    name TEXT\n")
    checked = CliRunner().invoke(main, ["check", str(file)])
    assert 't was written without columns; found: "userId" BIGINT, ts TEXT, name TEXT' in checked.stdout


def test_columns_of_an_empty_source_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("")
    file = tmp_path / "t.sql"
    for more, code in ((", type = 'source'", 2), ("", 0)):
        options = f"connector = 'single_file', path = '{tmp_path / 'x.json'}'{more}"
        file.write_text(f"CREATE TABLE t WITH ({options});")
        result = run("test", "t", str(file))
        assert result.exit_code == code, result.output
        assert "the columns of `t` cannot be found out" in result.output


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("userId TEXT", 'column `userid` is NULL in every row: the rows have `userId`, write "userId"'),
        (
            "lable TEXT",
            "`lable` is NULL in every row: the rows have no such field; did you mean `label`?",
        ),
        ("zzz TEXT", "no such field; the rows have userId, label, nothing as well"),
        ("nothing TEXT", "column `nothing` is NULL in every row\n"),
    ],
)
@pytest.mark.parametrize("format_name", ["json", "csv"])
def test_columns_that_are_always_null_are_told_with_what_was_meant(
    column: str, message: str, format_name: str, tmp_path: Path
) -> None:
    text = '{"n": 1, "userId": "a", "label": "b", "nothing": null}\n'
    (tmp_path / "x").write_text(text if format_name == "json" else "n,userId,label,nothing\n1,a,b,\n")
    file = tmp_path / "t.sql"
    options = (
        f"connector = 'single_file', path = '{tmp_path / 'x'}', format = '{format_name}', type = 'source'"
    )
    file.write_text(f"CREATE TABLE t (n INT, {column}) WITH ({options});")
    result = run("test", "t", str(file))
    assert result.exit_code == 0, result.output
    assert message in result.stdout
