"""Commits in tasks on Spark: who runs them, and workers that die in the middle of one."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.connectors.base import by_subtask, stage, unstage
from headrace.model.operator import CommitData
from tests import flows


class Published(hr.ArrowOperator):
    """Publishes a file for each subtask and epoch; may end its worker before it does so, or right after."""

    def __init__(self, folder: Path, *, dies: str = "") -> None:
        self.folder = folder
        self.dies = dies
        self._numbers: list[int] = []

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        self._numbers += batch.column("counter").to_pylist()

    def handle_checkpoint(
        self, barrier: hr.CheckpointBarrier, ctx: hr.OperatorContext, collector: hr.Collector
    ) -> None:
        if self._numbers:
            payload = json.dumps(self._numbers).encode()
            ctx.insert_committing_data("numbers", stage(ctx, "numbers", payload, apart=True))

    def commit_shares(self, data: CommitData) -> Sequence[CommitData]:
        return by_subtask(data, "numbers")

    def handle_commit(self, epoch: int, data: CommitData, ctx: hr.OperatorContext) -> None:
        ((subtask, content),) = data["numbers"].items()
        self._die("before", epoch)
        ctx.check_generation()
        payload = {"pid": os.getpid(), "numbers": json.loads(unstage(ctx, content)[0])}
        part = self.folder / f"part-{os.getpid()}"
        part.write_text(json.dumps(payload))
        part.replace(self.folder / f"{epoch}-{subtask}.json")
        self._die("after", epoch)

    def _die(self, moment: str, epoch: int) -> None:
        mark = self.folder / "died"
        if self.dies == moment and epoch == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def pipeline(folder: Path, dies: str = "") -> hr.Pipeline:
    folder.mkdir()
    numbers = hr.Pipeline("numbers")
    rows = numbers.source(flows.impulse(150)).map(flows.keyed(3)).key_by("k")
    rows.sink(Published(folder, dies=dies), id="sink")
    return numbers


def check(folder: Path) -> None:
    parts = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    assert Counter(n for part in parts for n in part["numbers"]) == Counter(range(150))
    assert os.getpid() not in {part["pid"] for part in parts}


@pytest.mark.parametrize("dies", ["", "before", "after"])
def test_subtasks_commit_in_workers_and_one_that_dies_costs_no_row(tmp_path: Path, dies: str) -> None:
    out = tmp_path / "out"
    result = pipeline(out, dies).run(tmp_path / "state", parallelism=2, epoch_rows=50)
    assert result.reason == "finished"
    assert (out / "died").exists() == bool(dies)
    check(out)
