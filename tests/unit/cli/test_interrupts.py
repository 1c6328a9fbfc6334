"""Ctrl-C and SIGTERM at every moment of a command: a word and an exit code, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCHER = """
import atexit, os, signal, sys


def send():
    try:
        os.kill(os.getpid(), signal.{number})
    finally:
        if {twice}:
            os.kill(os.getpid(), signal.{number})


class SendWhenImported:
    def find_spec(self, name, path=None, target=None):
        if name == {moment!r}:
            sys.meta_path.remove(self)
            send()


class SendWhenFreed:
    def __del__(self):
        send()


sys.meta_path.insert(0, SendWhenImported())
if {moment!r} == "last exit handler":
    atexit.register(send)
if {moment!r} == "destructor":
    from headrace.cli.check import check

    callback = check.callback
    check.callback = lambda **named: (SendWhenFreed(), callback(**named))
sys.argv = ["headrace", *{arguments!r}]
from headrace.__main__ import main

main()
"""


def launch(
    moment: str, arguments: list[str], *, number: str = "SIGINT", twice: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command that sends itself a signal when it imports a module, or at another moment."""
    program = LAUNCHER.format(moment=moment, arguments=arguments, number=number, twice=twice)
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture
def java(tmp_path: Path) -> str:
    """A Java that starts and never answers; it ends with the process that has started it."""
    binary = tmp_path / "java" / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\nexec cat\n")
    binary.chmod(0o755)
    return str(tmp_path / "java")


QUERY = ["run", "-e", "SELECT 1 AS n", "-q"]


@pytest.mark.parametrize(("number", "twice"), [("SIGINT", True), ("SIGTERM", False)])
@pytest.mark.parametrize(
    "moment",
    [
        "click",
        "headrace.cli.run",
        "pyspark",
        "headrace.sql.compile",
        "pyarrow",
        "datafusion",
        "headrace.jobs.handle",
    ],
)
def test_a_signal_while_modules_are_imported_and_java_starts_shows_no_traceback(
    java: str, moment: str, number: str, twice: bool
) -> None:
    run = launch(moment, QUERY, number=number, twice=twice, JAVA_HOME=java)
    assert run.stderr.split() == ["interrupted"], (run.returncode, run.stderr)
    assert run.returncode == {"SIGINT": 130, "SIGTERM": 143}[number]


@pytest.mark.parametrize("moment", ["last exit handler", "destructor"])
def test_a_signal_where_no_exception_can_be_raised_shows_no_traceback(tmp_path: Path, moment: str) -> None:
    (tmp_path / "query.sql").write_text("SELECT 1 AS n;")
    run = launch(moment, ["check", str(tmp_path / "query.sql")])
    assert "Traceback" not in run.stderr
    assert run.stderr.split() == ["interrupted"], (run.returncode, run.stderr)
    assert run.returncode == 130


def test_a_command_that_is_not_interrupted_is_told_nothing(tmp_path: Path) -> None:
    (tmp_path / "query.sql").write_text("SELECT 1 AS n;")
    run = launch("no such module", ["check", str(tmp_path / "query.sql")])
    assert run.returncode == 0, run.stderr
    assert "interrupted" not in run.stderr
