"""The process of a pipeline: what it logs, and what it leaves when it cannot run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.server.process import OUTCOME, REQUEST
from headrace.server.program import StoredProgram

WRONG = "CREATE TABLE n (counter BIGINT) WITH (connector = 'impulse'); SELECT contour, other FROM n"


def run_process(folder: Path, **log: object) -> subprocess.CompletedProcess[str]:
    """Run the process of a pipeline whose query has mistakes: it ends before Spark would start."""
    request = {
        "program": StoredProgram("wrong", "sql", WRONG).to_json(),
        "folder": str(folder / "program"),
        "state_dir": None,
        "parallelism": 1,
        "epoch_target": "1s",
        "allow_drop": False,
        "from_epoch": None,
        "master": None,
        "conf": None,
        "log": log,
    }
    (folder / REQUEST).write_text(json.dumps(request))
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
    try:
        return subprocess.run(
            [sys.executable, "-m", "headrace.server.process", str(folder), str(lock)],
            capture_output=True,
            text=True,
            check=False,
            pass_fds=[lock],
            timeout=120,
        )
    finally:
        os.close(lock)


def test_a_mistake_of_the_user_is_its_outcome_and_not_worth_another_try(tmp_path: Path) -> None:
    done = run_process(tmp_path, format="text", level={})
    assert done.returncode == 2
    assert "there is no column `contour`" in done.stderr
    outcome = json.loads((tmp_path / OUTCOME).read_text())
    assert (outcome["state"], outcome["error"]["domain"], outcome["error"]["retry"]) == (
        "failed",
        "user",
        False,
    )


@pytest.mark.parametrize("level", [{}, {"": "warning", "engine": "debug"}])
def test_as_json_every_line_names_the_pipeline(tmp_path: Path, level: dict[str, str]) -> None:
    done = run_process(tmp_path, format="json", level=level)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    errors = [line for line in lines if line["level"] == "error"]
    assert [line["message"] for line in errors] == [
        "there is no column `contour`",
        "there is no column `other`",
    ]
    assert all(line["pipeline"] == "wrong" and line["time"] and line["area"] for line in lines)
