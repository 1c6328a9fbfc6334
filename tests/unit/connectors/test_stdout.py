import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import OutputClosedError, PlanError
from headrace.connectors.stdout import StdoutSink
from tests.support import SinkDriver


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


@contextlib.contextmanager
def printing(
    out: io.TextIOBase, folder: Path, request: pytest.FixtureRequest, **options: Any
) -> Iterator[SinkDriver]:
    with contextlib.redirect_stdout(out):
        yield SinkDriver(lambda: StdoutSink(**options), folder, job=request.node.name)


def test_people_see_an_aligned_table_with_one_header(
    tmp_path: Path, request: pytest.FixtureRequest, terminal: Terminal
) -> None:
    times = pa.array([0, 1_500_000_000], pa.int64()).cast(pa.timestamp("ns"))
    with printing(terminal, tmp_path, request, with_timestamp=True) as sink:
        sink.run(1, [pa.record_batch({"n": [1, 200], "word": ["a", None], "_timestamp": times})])
        sink.run(2, [pa.record_batch({"n": [3, 4], "word": ["line\nbreak", "日本"], "_timestamp": times})])
    assert terminal.getvalue().splitlines() == [
        "  n  word  _timestamp",
        "---  ----  -----------------------",
        "  1  a     1970-01-01 00:00:00",
        "200        1970-01-01 00:00:01.500",
        "  3  lin…  1970-01-01 00:00:00",
        "  4  日本  1970-01-01 00:00:01.500",
    ]


def test_texts_are_cut_to_the_terminal_and_numbers_never(
    tmp_path: Path, request: pytest.FixtureRequest, terminal: Terminal
) -> None:
    with printing(terminal, tmp_path, request) as sink:
        sink.run(1, [pa.record_batch({"n": [1], "word": ["x" * 200]})])
        sink.run(2, [pa.record_batch({"n": [123456789012], "word": ["y" * 200]})])
        sink.run(3, [pa.record_batch({"n": [5], "word": ["z"]})])
    lines = terminal.getvalue().splitlines()
    assert max(len(line) for line in lines[:3]) == 60
    assert lines[2].endswith("xx…")
    assert lines[3].startswith("123456789012  yyy")
    assert lines[4] == "           5  z"


def test_new_columns_get_a_new_header(
    tmp_path: Path, request: pytest.FixtureRequest, terminal: Terminal
) -> None:
    with printing(terminal, tmp_path, request) as sink:
        sink.run(1, [pa.record_batch({"a": [1]})])
        sink.run(2, [pa.record_batch({"b": ["x"]})])
    assert terminal.getvalue() == "a\n-\n1\n\nb\n-\nx\n"


def test_the_format_may_be_chosen_against_the_output(
    tmp_path: Path, request: pytest.FixtureRequest, terminal: Terminal
) -> None:
    with printing(terminal, tmp_path, request, format="json") as sink:
        sink.run(1, [pa.record_batch({"a": [1], "_timestamp": [5]})])
    assert terminal.getvalue() == '{"a":1}\n'
    pipe = io.StringIO()
    with printing(pipe, tmp_path, request, format="table") as sink:
        sink.run(1, [pa.record_batch({"b": [1]})])
    assert pipe.getvalue() == "b\n-\n1\n"


def test_rows_that_change_are_shown_as_changes(
    tmp_path: Path, request: pytest.FixtureRequest, terminal: Terminal
) -> None:
    rows = pa.record_batch({"a": [1, 2], "_timestamp": [5, 5], "_retract": [True, False]})
    with printing(terminal, tmp_path, request, schema={"a": "int64"}) as sink:
        sink.run(1, [rows])
    assert terminal.getvalue() == "a  _retract\n-  --------\n1  true\n2  false\n"
    pipe = io.StringIO()
    with printing(pipe, tmp_path, request, schema={"a": "int64"}) as sink:
        sink.run(2, [rows])
    assert pipe.getvalue() == (
        '{"before":{"a":1},"after":null,"op":"d"}\n{"before":null,"after":{"a":2},"op":"c"}\n'
    )
    with printing(pipe, tmp_path, request, format="json") as sink, pytest.raises(PlanError):
        sink.run(3, [rows])


def test_only_declared_columns_are_written_and_the_event_time_if_asked(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rows = pa.record_batch({"b": [1], "a": [2], "_timestamp": pa.array([5]).cast(pa.timestamp("ns"))})
    pipe = io.StringIO()
    with printing(pipe, tmp_path, request, schema={"a": "double"}) as sink:
        sink.run(1, [rows])
    with printing(pipe, tmp_path, request, schema={"a": "double"}, with_timestamp=True) as sink:
        sink.run(2, [rows])
    assert pipe.getvalue() == '{"a":2.0}\n{"a":2.0,"_timestamp":"1970-01-01T00:00:00.000000005"}\n'


def test_an_output_that_cannot_spell_a_letter_gets_a_question_mark(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    raw = io.BytesIO()
    with printing(io.TextIOWrapper(raw, encoding="ascii"), tmp_path, request) as sink:
        sink.run(1, [pa.record_batch({"a": ["ü"]})])
        assert raw.getvalue() == b'{"a":"?"}\n'


def test_a_closed_pipe_asks_the_run_to_stop_and_python_to_end_quietly(tmp_path: Path) -> None:
    program = f"""
import sys
import pyarrow as pa
from headrace.connectors.stdout import StdoutSink
from headrace.base.errors import OutputClosedError
from tests.support import SinkDriver
from pathlib import Path
sink = SinkDriver(lambda: StdoutSink(), Path({str(tmp_path)!r}))
sys.stdin.read()
try:
    sink.run(1, [pa.record_batch({{"a": [1]}})])
except OutputClosedError as error:
    sys.stderr.write(f"stopped {{error.exit_code}}")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    root = Path(__file__).parents[3]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=writer,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=environment,
        cwd=root,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"stopped 0")
    assert OutputClosedError.retry is False
