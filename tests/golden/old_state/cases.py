"""What the generator of old states and the test that resumes them have in common."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

import headrace as hr
from headrace.testing.in_process import ManualClock

HERE = Path(__file__).parent
RESULTS = "expected.json"
PROCESSES = ("process", "checked_process", "claimed_process")
"""Cases whose messages a process sends."""
CASES = sorted(folder.name for folder in HERE.iterdir() if list(folder.glob("pipeline.*")))


def lay_out(name: str, directory: Path) -> None:
    """Copy the pipeline of a case and its inputs; its outputs have a directory `out`."""
    for file in (HERE / name).iterdir():
        if file.is_file() and file.name != RESULTS and not file.name.endswith(".tar.gz"):
            shutil.copy(file, directory / file.name)
    (directory / "out").mkdir()


def load() -> hr.Pipeline:
    """The pipeline of the case in the working directory."""
    (file,) = Path().glob("pipeline.*")
    return hr.load_pipeline(str(file))


def clock_for(name: str) -> Callable[[], float]:
    """Processes live in real time; for the others time passes only while nothing is new."""
    return time.time if name in PROCESSES else ManualClock()


def read_rows(out: Path) -> dict[str, list[str]]:
    """The rows of each output as sorted JSON strings; of a changelog, the rows that it leads to."""
    results: dict[str, Counter[str]] = {}
    for file in sorted(path for path in out.rglob("*") if path.is_file()):
        rows = results.setdefault(file.relative_to(out).parts[0], Counter())
        if file.suffix == ".parquet":
            rows.update(map(_text, pq.read_table(file).to_pylist()))
            continue
        for line in file.read_text().splitlines():
            row = json.loads(line)
            if "op" not in row:
                rows[_text(row)] += 1
                continue
            if row["before"] is not None:
                rows[_text(row["before"])] -= 1
            if row["after"] is not None:
                rows[_text(row["after"])] += 1
    assert all(count >= 0 for rows in results.values() for count in rows.values()), results
    return {name: sorted(rows.elements()) for name, rows in results.items()}


def _text(row: object) -> str:
    return json.dumps(row, sort_keys=True)
