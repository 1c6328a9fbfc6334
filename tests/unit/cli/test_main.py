import subprocess
import sys

import click
import pytest
from click.testing import CliRunner, Result

from headrace.base.errors import (
    ConfigurationError,
    CorruptStateError,
    ExternalError,
    HeadraceError,
    IncompatibleStateError,
    InternalError,
    OperatorError,
    PlanError,
)
from headrace.cli.main import CommandLine, main
from headrace.cli.terminal import verbose_option


def fail_with(error: BaseException, *args: str) -> Result:
    @click.group(cls=CommandLine)
    def group() -> None: ...

    @group.command
    @verbose_option
    def fail(verbose: bool) -> None:  # noqa: ARG001
        raise error

    return CliRunner().invoke(group, ["fail", *args])


def test_version_is_one_line() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.stdout) == (0, "headrace 0.1.0\n")


def test_help_tells_every_command_in_a_whole_sentence() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.stdout for name in ("run", "explain", "state", "operators", "doctor"))
    assert "..." not in result.stdout.partition("Commands:")[2]


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["run", "--help"], ["state", "--help"]])
def test_the_command_line_starts_without_the_heavy_libraries(args: list[str]) -> None:
    heavy = ("pyspark", "pyarrow", "datafusion", "pandas", "numpy", "pydantic", "rich.console")
    code = f"""
import sys
from headrace.cli.main import main
try:
    main({args})
except SystemExit as end:
    assert end.code == 0
sys.stderr.write(" ".join(name for name in {heavy} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_an_error_shows_its_code_message_place_and_hint() -> None:
    result = fail_with(ConfigurationError("no [such] thing", where="headrace.toml:3", hint="try `another`"))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        "error[configuration]: no [such] thing\n  at headrace.toml:3\n  hint: try `another`\n"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PlanError("x"), 2),
        (IncompatibleStateError("x"), 2),
        (CorruptStateError("x"), 1),
        (ExternalError("x"), 1),
        (InternalError("x"), 1),
        (OperatorError("x", operator_id="map_1", subtask=0, epoch=3, traceback_text=""), 1),
    ],
)
def test_the_exit_code_says_whose_turn_it_is(error: HeadraceError, code: int) -> None:
    assert fail_with(error).exit_code == code


def test_an_error_in_an_operator_shows_the_users_own_traceback() -> None:
    text = 'Traceback (most recent call last):\n  File "user.py", line 3, in process_batch\nValueError: [x]\n'
    error = OperatorError("`Double` raised", operator_id="double_1", subtask=1, epoch=7, traceback_text=text)
    result = fail_with(error)
    assert "error[operator]: `Double` raised\n  at operator double_1, subtask 1, epoch 7\n" in result.stderr
    assert text in result.stderr


def test_an_error_names_the_log_file_it_knows_of() -> None:
    error = ExternalError("Spark is gone")
    error.log_file = "/runs/1/spark.log"
    assert "  log: /runs/1/spark.log\n" in fail_with(error).stderr


def test_an_unexpected_exception_asks_to_be_reported_and_shows_no_traceback() -> None:
    result = fail_with(KeyError("what"))
    assert result.exit_code == 1
    assert result.stderr.startswith("error[internal]: KeyError: 'what'\n")
    assert "please report it" in result.stderr
    assert "Traceback" not in result.stderr


def test_verbose_shows_the_traceback() -> None:
    assert "Traceback (most recent call last)" in fail_with(KeyError("what"), "--verbose").stderr


def test_a_request_to_stop_is_silent() -> None:
    class ClosedError(HeadraceError):
        exit_code = 0

    result = fail_with(ClosedError("the reader has gone"))
    assert (result.exit_code, result.stderr) == (0, "")


def test_ctrl_c_exits_with_130() -> None:
    assert fail_with(KeyboardInterrupt()).exit_code == 130


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["rum"], "there is no command `rum`; did you mean `run`?"),
        (["zzz"], "the commands are"),
        (["run"], "missing argument"),
        (["run", "x.py", "--paralelism", "2"], "--parallelism"),
        (["run", "x.py", "--parallelism", "two"], "'two' is not a valid integer"),
        (["run", "x.py", "--conf", "nothing"], "`nothing` is not name=value"),
        (["explain", "x.py", "--format", "xml"], "'xml' is not one of"),
    ],
)
def test_bad_usage_exits_with_2_and_points_to_the_help(args: list[str], expected: str) -> None:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 2
    assert result.stderr.startswith("error[usage]: ")
    assert expected in result.stderr
    assert "--help`" in result.stderr
