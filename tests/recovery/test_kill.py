"""kill -9 of the driver at every step of the epoch: nothing is lost, nothing comes twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyspark
import pytest

from tests.flows import SECOND, T0
from tests.recovery.victim import ROWS

REPOSITORY = Path(__file__).parents[2]

# Each life resumes what the one before left behind, at another parallelism, and dies at the next step.
ALL_LIVES = [
    ("begin", 2, 2),
    ("tasks", 3, 2),
    ("tasks_done", 4, 1),
    ("operators_written", 4, 3),
    ("metadata_written", 5, 2),
    ("sink_committed:windows-file", 6, 2),
    ("committed", 7, 1),
]
NEWEST_SPARK = max(file.stem for file in (REPOSITORY / "tests/spark/versions").glob("*.txt"))
LIVES = ALL_LIVES if pyspark.__version__.startswith(NEWEST_SPARK) else ALL_LIVES[1::2]
"""Other versions of Spark die at every other step: each life waits for a start of Java."""


def live(
    state: Path, out: Path, parallelism: int, *crash: str, master: str = "local[*]"
) -> subprocess.CompletedProcess[str]:
    arguments = [str(state), str(out), str(parallelism), master, *crash]
    return subprocess.run(
        [sys.executable, "-m", "tests.recovery.victim", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.timeout(1800)  # many lives, each with its own limit
def test_a_driver_killed_at_every_step_of_an_epoch_ends_with_every_row_once(tmp_path: Path) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    out.mkdir()
    for step, epoch, parallelism in LIVES:
        killed = live(state, out, parallelism, step, str(epoch))
        assert killed.returncode == -signal.SIGKILL, (step, killed.stdout, killed.stderr)
    last = live(state, out, 2)
    assert last.returncode == 0, last.stderr
    assert last.stdout.split()[0] == "finished"
    check_rows(out)


def check_rows(out: Path) -> None:
    """Every row of the victim's sinks is there, once."""
    numbers = [json.loads(line) for line in (out / "numbers.jsonl").read_text().splitlines()]
    assert Counter(row["counter"] for row in numbers) == Counter(range(ROWS))
    assert all(row["n"] == row["counter"] // 7 + 1 for row in numbers)
    windows = [json.loads(line) for line in (out / "windows.jsonl").read_text().splitlines()]
    expected: Counter[tuple[int, int]] = Counter()
    for counter in range(ROWS):
        start = (T0 + counter * SECOND) // (10 * SECOND) * 10 * SECOND
        expected[counter % 7, start] += 1
    assert {(row["k"], row["window_start"]): row["n"] for row in windows} == expected
    assert len(windows) == len(expected)
