"""Logs of `headrace run`: lines of JSON with the epoch and the operator, levels by area, no secrets."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.base.errors import ConfigurationError, HeadraceError, OperatorError, UserError
from headrace.base.log_context import log_context
from headrace.base.log_lines import ContextFormatter, error_lines
from headrace.base.secrets import Secrets
from headrace.cli.logs import LogDisplay, logging_for, note
from headrace.cli.main import main
from headrace.jobs.settings import LOG_AREAS, LogSettings, load_settings
from headrace.testing.in_process import run_in_process
from tests.canary.options import CANARY

SOURCES = Path(hr.__file__).parent


def secrets_with(value: str) -> Secrets:
    """Secrets that hold one value."""
    return Secrets({"PASSWORD": value})


def logged(capture: io.StringIO) -> list[dict[str, Any]]:
    """The lines that were logged; each is JSON."""
    return [json.loads(line) for line in capture.getvalue().splitlines()]


@contextlib.contextmanager
def logging_to(capture: io.StringIO, secrets: Secrets | None = None, **log: Any) -> Any:
    """Within the context, stderr is `capture`."""
    settings = LogSettings.model_validate({"format": "json", **log})
    with (
        contextlib.redirect_stderr(capture),
        logging_for(settings, pipeline="clicks", secrets=secrets or Secrets()),
    ):
        yield


def test_a_line_says_when_how_bad_where_and_for_what() -> None:
    capture = io.StringIO()
    with logging_to(capture), log_context(epoch=7), log_context(operator="sums"):
        logging.getLogger("headrace.kafka").warning("no answer from %s", "broker")
    (line,) = logged(capture)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "warning",
        "area": "kafka",
        "message": "no answer from broker",
        "pipeline": "clicks",
        "epoch": 7,
        "operator": "sums",
    }


def test_one_can_grep_for_an_epoch(tmp_path: Path) -> None:
    capture = io.StringIO()
    pipeline = hr.Pipeline("clicks")
    pipeline.source("impulse", message_count=30, id="numbers").sink("blackhole")
    with logging_to(capture, level="engine=debug"):
        run_in_process(pipeline, tmp_path, epoch_rows=10)
    lines = logged(capture)
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert lines[0]["message"] == "epoch 1: 10 rows in, 10 out"
    assert {line["area"] for line in lines} == {"engine"}


def test_a_message_of_a_source_names_it_and_its_epoch(tmp_path: Path) -> None:
    class Talking(hr.ImpulseSource):
        def latest_offset(self, start: hr.Offset, limit: hr.Limit, *, parallelism: int) -> hr.Offset:
            logging.getLogger("headrace.kafka").info("asked")
            return super().latest_offset(start, limit, parallelism=parallelism)

    capture = io.StringIO()
    pipeline = hr.Pipeline("clicks")
    pipeline.source(Talking(message_count=10), id="numbers").sink("blackhole")
    with logging_to(capture):
        run_in_process(pipeline, tmp_path)
    asked = [line for line in logged(capture) if line["message"] == "asked"]
    assert asked
    assert {line["operator"] for line in asked} == {"numbers"}
    assert asked[0]["epoch"] == 1


def test_a_level_is_for_its_area_and_over_with_the_run() -> None:
    capture = io.StringIO()
    root, kafka = logging.getLogger("headrace"), logging.getLogger("headrace.kafka")
    before = root.level, kafka.level, list(root.handlers)
    with logging_to(capture, level={"": "error", "kafka": "debug"}):
        kafka.debug("detail")
        logging.getLogger("headrace.state").warning("not shown")
        logging.getLogger("headrace.state").error("shown")
    assert [line["message"] for line in logged(capture)] == ["detail", "shown"]
    assert (root.level, kafka.level, root.handlers) == before


def test_text_is_what_it_was_and_json_tells_more() -> None:
    capture = io.StringIO()
    with logging_to(capture, format="text"):
        logging.getLogger("headrace.run").info("not shown")
        logging.getLogger("headrace.run").warning("shown")
    assert capture.getvalue() == "shown\n"
    capture = io.StringIO()
    with logging_to(capture):
        note("starting", rows=3)
    (line,) = logged(capture)
    assert (line["level"], line["area"], line["message"], line["rows"]) == ("info", "run", "starting", 3)


def test_the_same_lines_are_in_a_file_that_only_the_user_can_read(tmp_path: Path) -> None:
    capture = io.StringIO()
    with logging_to(capture, dir=str(tmp_path / "logs")):
        note("first")
        with contextlib.suppress(ZeroDivisionError):
            try:
                _ = 1 / 0
            except ZeroDivisionError:
                logging.getLogger("headrace.run").exception("second")
                raise
    (file,) = (tmp_path / "logs").iterdir()
    assert file.read_text() == capture.getvalue()
    assert re.fullmatch(r"headrace-\d+\.jsonl", file.name)
    assert file.stat().st_mode & 0o077 == 0
    assert "ZeroDivisionError" in logged(capture)[1]["traceback"]


def test_a_log_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigurationError, match="log directory"),
        logging_to(io.StringIO(), dir=str(tmp_path / "file")),
    ):
        pass


@pytest.mark.parametrize("secret", [CANARY, f'{CANARY}"with\\quotes'])
@pytest.mark.parametrize("kind", ["text", "json"])
def test_no_line_shows_a_secret(secret: str, kind: str, tmp_path: Path) -> None:
    capture = io.StringIO()
    with (
        logging_to(capture, secrets_with(secret), format=kind, dir=str(tmp_path)),
        log_context(operator=secret),
    ):
        logging.getLogger("headrace.kafka").error("refused: %s", secret)
        note(f"is {secret}", where=secret)
        try:
            int(secret)
        except ValueError:
            logging.getLogger("headrace.kafka").exception("failed")
    written = capture.getvalue() + "".join(file.read_text() for file in tmp_path.iterdir())
    assert "failed" in written
    assert CANARY not in written


def test_an_error_is_a_line_with_its_code_hint_and_place() -> None:
    error = OperatorError(
        f"ValueError: {CANARY}", operator_id="sums", subtask=1, epoch=7, traceback_text=f"… {CANARY}"
    )
    (text,) = error_lines(error, pipeline="clicks", secrets=secrets_with(CANARY))
    assert CANARY not in text
    line = json.loads(text)
    assert (line["level"], line["pipeline"], line["operator"], line["epoch"]) == (
        "error",
        "clicks",
        "sums",
        7,
    )
    assert line["code"] == error.code
    (text,) = error_lines(ZeroDivisionError("oh"), pipeline=None, secrets=Secrets())
    assert json.loads(text)["code"] == "internal"
    (text,) = error_lines(UserError("bad", hint="do this", where="here"), pipeline=None, secrets=Secrets())
    assert {"message": "bad", "hint": "do this", "where": "here"}.items() <= json.loads(text).items()


def test_a_user_s_mistake_is_a_line_of_json_too(tmp_path: Path) -> None:
    (tmp_path / "bad.sql").write_text("SELECT nothing FROM nowhere;")
    result = CliRunner().invoke(main, ["run", str(tmp_path / "bad.sql"), "--log-format", "json"])
    assert result.exit_code == 2
    line = json.loads(result.stderr)
    assert "nowhere" in line["message"]
    assert "bad.sql" in line["where"]


def test_progress_is_logged_every_few_seconds(tmp_path: Path) -> None:
    capture, now = io.StringIO(), [0.0]
    display = LogDisplay(clock=lambda: now[0])
    pipeline = hr.Pipeline("clicks")
    pipeline.source("impulse", message_count=30).sink("blackhole")
    with logging_to(capture):
        run_in_process(pipeline, tmp_path, epoch_rows=10, on_progress=display.update)
        display.tick()
        display.tick()
        now[0] += 60
        display.tick()
    (line,) = logged(capture)
    assert (line["epoch"], line["rows_in"], line["rows_out"]) == (3, 30, 30)


def test_what_a_thread_works_for_is_its_own() -> None:
    capture = io.StringIO()
    with logging_to(capture), log_context(epoch=1):
        other = threading.Thread(target=lambda: note("other"))
        other.start()
        other.join()
        note("own")
    assert [line.get("epoch") for line in logged(capture)] == [None, 1]


@pytest.mark.parametrize(
    ("level", "message"),
    [
        ("loud", "loud"),
        ("kafak=debug", "did you mean `kafka`"),
        ("kafka=loud", "loud"),
        ("kafka=debug=info", "debug=info"),
    ],
)
def test_a_level_or_an_area_that_there_is_not_is_an_error(level: str, message: str) -> None:
    with pytest.raises(HeadraceError) as refused:
        load_settings(flags={"log": {"level": level}}, environ={})
    assert message in str(refused.value)
    assert "--log-level" in str(refused.value)


def test_levels_come_from_a_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text('[log]\nformat = "json"\n[log.level]\nkafka = "debug"\n')
    log = load_settings(environ={}, directory=tmp_path).log
    assert (log.format, dict(log.level)) == ("json", {"kafka": "debug"})
    log = load_settings(environ={"HEADRACE__LOG__LEVEL": "info, state=error"}, directory=tmp_path).log
    assert dict(log.level) == {"": "info", "state": "error"}


def test_every_logger_of_a_run_is_of_an_area() -> None:
    names = {
        name
        for file in SOURCES.rglob("*.py")
        if file.parent.name != "server"  # it is no run, and has no levels by area
        for name in re.findall(r'^_log = logging\.getLogger\("([^"]*)"\)', file.read_text(), re.MULTILINE)
    }
    assert names == {f"headrace.{area}" for area in LOG_AREAS}


def test_a_run_logs_json_alone_from_its_start_to_what_it_did(tmp_path: Path) -> None:
    program = tmp_path / "program.sql"
    program.write_text(
        "CREATE TABLE numbers WITH (connector = 'impulse', message_count = 10);\n"
        "CREATE TABLE out (n BIGINT) WITH (connector = 'blackhole', type = 'sink',\n"
        "format = 'debezium_json');\n"
        "INSERT INTO out SELECT count(*) FROM numbers GROUP BY counter % 3;\n"
    )
    state, logs = tmp_path / "state", tmp_path / "logs"
    run_in_process(hr.load_pipeline(str(program)), state)  # what is left to do needs no Spark
    arguments = ["run", str(program), "-s", str(state), "--log-format", "json", "--log-dir", str(logs)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert {(line["area"], line["pipeline"]) for line in lines} == {("run", "program")}
    messages = [line["message"] for line in lines]
    assert messages[0] == "starting Spark and the first epoch …"
    assert lines[-1]["reason"] == "finished"
    (file,) = logs.glob("headrace-*.jsonl")
    assert file.read_text() == result.stderr
    quiet = CliRunner().invoke(main, [*arguments, "--quiet"])
    assert (quiet.exit_code, quiet.stderr) == (0, "")


def test_a_line_of_text_names_its_epoch_and_operator_and_hides_secrets() -> None:
    record = logging.LogRecord("headrace.kafka", logging.WARNING, "", 0, "no answer to %s", (CANARY,), None)
    formatter = ContextFormatter(secrets_with(CANARY))
    with log_context(epoch=41, operator="orders"):
        assert (
            "WARNING headrace.kafka (epoch 41, operator orders): no answer to {{ PASSWORD }}"
            in formatter.format(record)
        )
    assert "WARNING headrace.kafka: no answer to {{ PASSWORD }}" in formatter.format(record)
