"""`run`, `check` and `explain` of SQL: what they take, and what they say about mistakes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import headrace as hr
from headrace.api.loading import find_program
from headrace.cli.main import main
from headrace.exchanges.spark.session import SparkRequest
from headrace.testing.in_process import run_in_process
from tests.canary.options import CANARY
from tests.canary.search import file_holds_canary

GOOD = """
create table numbers with (connector = 'impulse', message_count = '10');
create table kept (n BIGINT) with (connector = 'blackhole');
insert into kept select counter from numbers;
select count(*) as n from numbers;
"""
BAD = """
create table numbers with (connector = 'impuls');
create table others with (connector = 'impulse', mesage_count = '10');
select countr from others;
"""


def headrace(*args: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args], input=stdin)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    file = tmp_path / "good.sql"
    file.write_text(GOOD)
    return file


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    file = tmp_path / "bad.sql"
    file.write_text(BAD)
    return file


def test_check_counts_what_a_good_program_has(good: Path) -> None:
    result = headrace("check", good)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("ok: 1 source, ")
    assert "2 sinks" in result.stdout


@pytest.mark.parametrize("connector", ["delta", "filesystem"])
def test_check_finds_two_tables_on_one_path(connector: str, tmp_path: Path) -> None:
    paths = (tmp_path / "out", f"{tmp_path}/../{tmp_path.name}/out")
    tables = "".join(
        f"create table {name} (n BIGINT) with (connector = '{connector}', path = '{path}', type = 'sink');"
        f"insert into {name} select counter from numbers;"
        for name, path in zip("ab", paths, strict=True)
    )
    result = headrace("check", "-e", f"create table numbers with (connector = 'impulse');{tables}")
    assert result.exit_code == 2
    assert "`sink_a` and `sink_b` both write" in result.stderr


def test_check_names_every_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("confluent_kafka", "paho.mqtt.client"):
        monkeypatch.setitem(sys.modules, module, None)
    sql = """
        create table k (n BIGINT) with (
          connector = 'kafka', type = 'source', format = 'json', bootstrap_servers = 'b:9092', topic = 't');
        create table m (n BIGINT) with (
          connector = 'mqtt', type = 'sink', format = 'json', url = 'mqtts://b:8883', topic = 't');
        insert into m select n from k;
    """
    result = headrace("check", "-e", sql)
    assert result.exit_code == 2
    assert "pip install 'headrace[kafka]'" in result.stderr
    assert "pip install 'headrace[mqtt]'" in result.stderr


def test_an_updating_result_for_a_table_format_is_refused_with_sinks_that_take_it(tmp_path: Path) -> None:
    sql = f"""
        create table numbers with (connector = 'impulse');
        create table d (n BIGINT) with (connector = 'delta', path = '{tmp_path}/d', type = 'sink');
        insert into d select count(*) as n from numbers;
    """
    result = headrace("check", "-e", sql)
    assert result.exit_code == 2
    text = " ".join(result.stderr.split())
    assert "`d` cannot take an updating result" in text
    assert "`postgres`, or as changes to `filesystem` with format = 'debezium_json'" in text


def test_check_takes_texts_and_the_standard_input() -> None:
    assert headrace("check", "-", stdin=GOOD).exit_code == 0
    assert headrace("check", "-e", GOOD).exit_code == 0
    assert headrace("check", "-", "-e", "select * from numbers", stdin=GOOD).exit_code == 0


def test_check_takes_python_files(tmp_path: Path) -> None:
    file = tmp_path / "check_me.py"
    file.write_text(
        "import headrace as hr\npipeline = hr.Pipeline('p')\n"
        "pipeline.source('impulse', message_count=1).sink('blackhole')\n"
    )
    assert headrace("check", file).stdout == "ok: 1 source, 0 operators, 1 sink, 0 state tables\n"


@pytest.mark.parametrize("command", ["check", "explain", "run"])
def test_every_mistake_is_shown_with_its_place_and_what_is_possible(command: str, bad: Path) -> None:
    result = headrace(command, bad)
    assert (result.exit_code, result.stdout) == (2, "")
    said = result.stderr
    assert f"error[sql]: there is no connector `impuls`\n  at {bad}:2:" in said
    assert "  2 | create table numbers with (connector = 'impuls');\n    |    " in said
    assert "did you mean `impulse`?" in said
    assert f"  at {bad}:3:" in said
    assert "message_count" in said
    assert f"  at {bad}:4:8\n  4 | select countr from others;\n    |        ^^^^^^\n  hint: " in said
    assert said.endswith("3 errors\n")
    assert "Traceback" not in said


@pytest.mark.parametrize("arguments", [[], ["--state-dir", "STATE"], ["--log-dir", "LOGS"]])
def test_spark_starts_while_sql_is_read_and_nothing_is_written_for_sql_that_is_wrong(
    arguments: list[str], bad: Path, started: list[SparkRequest], tmp_path: Path
) -> None:
    given = [str(tmp_path / one) if one.isupper() else one for one in arguments]
    assert headrace("run", bad, "--master", "local[3]", *given).exit_code == 2
    assert [(wanted.master, wanted.log_dir) for wanted in started] == [("local[3]", None)]
    assert not (tmp_path / "STATE").exists()
    assert not (tmp_path / "LOGS").exists()


@pytest.mark.parametrize("arguments", [["--verbose"], ["other.py"], ["gone.sql"]])
def test_spark_waits_where_its_log_is_shown_or_python_may_want_a_session(
    arguments: list[str], bad: Path, started: list[SparkRequest]
) -> None:
    assert headrace("run", bad, *arguments).exit_code == 2
    assert started == []


def test_one_mistake_is_not_counted(bad: Path) -> None:
    bad.write_text("selekt 1")
    result = headrace("check", bad)
    assert result.exit_code == 2
    assert "`selekt` does not begin a statement" in result.stderr
    assert "errors" not in result.stderr


def test_a_traceback_is_shown_when_it_is_asked_for(bad: Path) -> None:
    assert "Traceback" in headrace("check", bad, "--verbose").stderr


@pytest.mark.parametrize("command", ["check", "explain", "run"])
def test_a_command_without_a_program_says_what_it_takes(command: str) -> None:
    result = headrace(command)
    assert result.exit_code == 2
    assert "missing argument: FILE.sql, FILE.yml, FILE.py, - for the standard input" in result.stderr


def test_an_empty_program_is_refused() -> None:
    result = headrace("check", "-", stdin="-- nothing\n")
    assert result.exit_code == 2
    assert "no SQL" in result.stderr


def test_functions_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(
        "from headrace import udf\n\n@udf\ndef twice(x: int) -> int:\n    return 2 * x\n"
    )
    query = "create table n with (connector = 'impulse'); select twice(counter) from n"
    assert headrace("check", "-e", query, "--udf", tmp_path / "f.py").exit_code == 0
    assert headrace("explain", "-e", query, "--udf", tmp_path / "f.py").exit_code == 0
    refused = headrace("check", "-e", query)
    assert refused.exit_code == 2
    assert "twice" in refused.stderr


@pytest.mark.parametrize("form", ["text", "mermaid", "json"])
def test_explain_shows_the_plan_of_sql(form: str, good: Path) -> None:
    result = headrace("explain", good, "--format", form)
    assert result.exit_code == 0, result.stderr
    assert "sink_kept" in result.stdout
    if form == "text":
        assert result.stdout.startswith("pipeline good · ")
        assert 'SELECT "counter"' in result.stdout
    if form == "json":
        json.loads(result.stdout)


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A program whose input and output are named by a secret."""
    monkeypatch.setenv("HEADRACE_TEST_CANARY", CANARY)
    (tmp_path / f"{CANARY}.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(50)))
    return f"""
        create table numbers (n BIGINT) with (
            connector = 'single_file', format = 'json',
            path = '{tmp_path}/{{{{ HEADRACE_TEST_CANARY }}}}.json'
        );
        create table sums (k BIGINT, n BIGINT) with (
            connector = 'single_file', path = '{tmp_path}/{{{{HEADRACE_TEST_CANARY}}}}-out.json',
            format = 'debezium_json', type = 'sink'
        );
        insert into sums select n % 3, count(*) from numbers group by 1;
    """


@pytest.mark.parametrize("form", ["text", "mermaid", "json"])
def test_explain_shows_the_name_of_a_secret_and_not_its_value(form: str, secret: str) -> None:
    result = headrace("explain", "-e", secret, "--format", form)
    assert result.exit_code == 0, result.stderr
    assert CANARY not in result.output
    assert form == "mermaid" or "{{ HEADRACE_TEST_CANARY }}" in result.stdout


@pytest.mark.parametrize("verbose", [(), ("--verbose",)])
def test_an_error_shows_the_name_of_a_secret_and_not_its_value(
    verbose: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TEST_CANARY", CANARY)
    table = "create table t with (connector = 'impulse', message_count = '{{ HEADRACE_TEST_CANARY }}');"
    result = headrace("check", "-e", f"{table} select * from t", *verbose)
    assert result.exit_code == 2
    assert "{{ HEADRACE_TEST_CANARY }}" in result.stderr
    assert CANARY not in result.output


def test_a_failing_run_does_not_show_a_secret(secret: str, tmp_path: Path) -> None:
    (tmp_path / f"{CANARY}.json").unlink()
    result = headrace("run", "-e", secret)
    assert result.exit_code == 2
    assert "there is no file" in result.stderr
    assert CANARY not in result.output


def test_no_file_of_the_state_directory_holds_a_secret(secret: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    pipeline = find_program([], texts=[secret]).load()
    run_in_process(pipeline, state, epoch_rows=7, max_epochs=4)
    files = [file for file in state.rglob("*") if file.is_file()]
    assert len(files) > 10
    assert [file for file in files if file_holds_canary(file)] == []
    assert [file for file in files if CANARY in str(file.relative_to(tmp_path))] == []


def test_a_missing_secret_is_named() -> None:
    table = "create table t with (connector = 'impulse', message_count = '{{ HEADRACE_TEST_ABSENT }}');"
    result = headrace("check", "-e", f"{table} select * from t")
    assert result.exit_code == 2
    assert "the environment has no `HEADRACE_TEST_ABSENT`" in result.stderr


def test_sql_from_a_file_is_a_pipeline_of_the_python_api_too(good: Path) -> None:
    assert hr.load_pipeline(str(good)).name == "good"


@pytest.mark.parametrize("command", ["check", "explain"])
def test_functions_in_sql_are_run_only_if_asked_for(command: str, tmp_path: Path) -> None:
    trace = tmp_path / "run"
    sql = f"""
        create table numbers with (connector = 'impulse', message_count = '10');
        create function f language python as $$
        import pathlib
        pathlib.Path({str(trace)!r}).touch()
        def f(a: int) -> int:
            pathlib.Path({str(trace)!r}).touch()
            return a
        $$;
        select f(1) as one, f(counter) as n from numbers;
    """
    result = headrace(command, "-e", sql)
    assert result.exit_code == 0, result.output
    assert not trace.exists()
    assert headrace(command, "--run-functions", "-e", sql).exit_code == 0
    assert trace.exists()
