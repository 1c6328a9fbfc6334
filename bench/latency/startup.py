"""From the start of a process to its first row on the standard output, and what Headrace does meanwhile."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from bench.latency.processes import HEADRACE, RunFailedError, command, output_of, running

PHASES = Path(__file__).parent / "phases.py"
_ROWS = 1_000


def first_row(engine: str) -> float:
    """Seconds until a fresh process has printed the first row of a small file."""
    with tempfile.TemporaryDirectory() as name:
        folder = _prepare(Path(name))
        return _until_first_row(command(engine, "first", folder), folder)[1]


def phases() -> list[tuple[str, float]]:
    """What `headrace run` does until the first row, one after the other, with the seconds of each."""
    with tempfile.TemporaryDirectory() as name:
        folder = _prepare(Path(name))
        _, *arguments = command(HEADRACE, "first", folder)
        marks = folder / "marks"
        traced = [sys.executable, str(PHASES), str(marks), *arguments]
        begin, _ = _until_first_row(traced, folder)
        lines = [line.split(" ", 1) for line in marks.read_text(encoding="utf-8").splitlines()]
    points = {"start Python": begin}
    for at, what in lines:
        points.setdefault(what, float(at))
    ends = [*points.values()][1:]
    return [(what, end - at) for (what, at), end in zip(points.items(), ends, strict=False)]


def _prepare(folder: Path) -> Path:
    (folder / "in").mkdir()
    rows = (json.dumps({"id": n, "key": n % 100, "created": 1_700_000_000_000_000 + n}) for n in range(_ROWS))
    (folder / "in" / "events.json").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def _until_first_row(arguments: list[str], folder: Path) -> tuple[float, float]:
    """When the process was started, and the seconds until it has printed a row."""
    begin = time.time()
    with running(arguments, folder) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.time() - begin
    if '"id":0' not in line:
        raise RunFailedError(f"{arguments[0]} printed no row but {line!r}; it said\n{output_of(folder)}")
    return begin, seconds
