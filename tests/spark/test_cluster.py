"""Real executors in other processes, a module of the user's shipped to them, one of them killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

MODULE = """
import pyarrow as pa
import pyarrow.compute as pc
import headrace as hr
from users_helper import FACTOR


class Double(hr.ArrowOperator):
    def process_batch(self, batch, ctx, collector):
        doubled = pc.multiply(batch.column("counter"), FACTOR)
        collector.collect(batch.append_column("doubled", doubled))
"""


@pytest.mark.slow
def test_a_killed_executor_costs_no_row_and_repeats_none(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "users_operators.py").write_text(MODULE)
    (modules / "users_helper.py").write_text("FACTOR = 2\n")
    out = tmp_path / "out.jsonl"
    job = subprocess.run(
        [sys.executable, "-m", "tests.spark.cluster_job", str(tmp_path / "state"), str(out), str(modules)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert job.returncode == 0, job.stderr
    assert job.stdout.split() == ["finished", "6", "1"]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(row["counter"] for row in rows) == list(range(600))
    assert all(row["doubled"] == 2 * row["counter"] for row in rows)
    assert all(row["n"] == row["counter"] // 11 + 1 for row in rows)
