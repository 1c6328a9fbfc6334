"""Every file that a checkpoint refers to has a checksum: a damaged one is named and never published."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import CorruptStateError
from headrace.connectors.base import stage, unstage
from headrace.connectors.filesystem import listing
from headrace.connectors.filesystem.listing import Listing
from headrace.connectors.postgres import snapshot as postgres_snapshot
from headrace.connectors.postgres.snapshot import Snapshot
from headrace.model.operator import OperatorContext
from headrace.state.backend import ParquetBackend
from headrace.state.metadata import CheckpointMetadata
from headrace.state.verify import FileChecks
from headrace.storage.open import open_storage
from headrace.testing.in_process import CrashError, ManualClock, run_in_process
from tests.support import task
from tests.unit.connectors import rolling

TEXT = "x" * 400
ROWS = 600


def flip(path: Path, position: int | None = None) -> None:
    """Change one bit of a file, in the middle unless told."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if position is None else position] ^= 4
    path.write_bytes(bytes(data))


def lose(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES = [flip, lose, cut]


def crash_at(step: str, at: int) -> Callable[[str, int], None]:
    def crash(name: str, epoch: int) -> None:
        if (name, epoch) == (step, at):
            raise CrashError

    return crash


def to_lines(folder: Path) -> hr.Pipeline:
    """Rows whose staged payload is larger than what commit data holds."""
    pipeline = hr.Pipeline("staged")
    rows = [{"n": n, "text": TEXT, "_timestamp": n * 10**9} for n in range(ROWS)]
    pipeline.source("memory", rows=rows, id="rows").sink(
        "single_file", path=str(folder / "out.jsonl"), id="out"
    )
    return pipeline


def staged(state: Path, epoch: int) -> Path:
    (path,) = (
        path
        for path in (state / f"checkpoints/checkpoint-{epoch:07}").rglob("*")
        if path.is_file() and "staged-" in str(path)
    )
    return path


def crash_before_commit(folder: Path) -> Path:
    """The state of a run that was killed after the commit point of epoch 3, before its sink committed."""
    with pytest.raises(CrashError):
        run_in_process(
            to_lines(folder), folder / "state", epoch_rows=100, on_step=crash_at("metadata_written", 3)
        )
    return folder / "state"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_staged_file_is_named_with_the_last_whole_checkpoint(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    state = crash_before_commit(tmp_path)
    path, before = staged(state, 3), (tmp_path / "out.jsonl").read_text()
    damage(path)
    with pytest.raises(
        CorruptStateError, match=r"staged file `checkpoints/checkpoint-0000003/.*` is"
    ) as error:
        run_in_process(to_lines(tmp_path), state, epoch_rows=100)
    assert "--from-epoch 2" in str(error.value.hint)
    assert (tmp_path / "out.jsonl").read_text() == before
    run_in_process(to_lines(tmp_path), state, epoch_rows=100, from_epoch=2)
    written = [json.loads(line)["n"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert written == list(range(ROWS))


def test_an_epoch_with_a_damaged_staged_file_is_refused_before_newer_checkpoints_go(tmp_path: Path) -> None:
    state = crash_before_commit(tmp_path)
    flip(staged(state, 2))
    with pytest.raises(CorruptStateError, match="staged file") as error:
        run_in_process(to_lines(tmp_path), state, epoch_rows=100, from_epoch=2)
    assert "--from-epoch 1" in str(error.value.hint)
    assert ParquetBackend(open_storage(str(state))).epochs() == [1, 2, 3]
    run_in_process(to_lines(tmp_path), state, epoch_rows=100)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == ROWS


def test_a_file_that_was_staged_without_a_checksum_is_read(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    ctx = OperatorContext(task_info=task(), tables=None, staging="staged", storage=storage)  # type: ignore[arg-type]
    described = json.loads(stage(ctx, "rows", b"r" * 40_000))
    old = {"id": described["id"], "path": described["file"]["state_file"]}
    assert unstage(ctx, json.dumps(old).encode())[0] == b"r" * 40_000
    flip(tmp_path / "staged/rows")
    with pytest.raises(CorruptStateError, match="staged file `staged/rows` is damaged"):
        unstage(ctx, json.dumps(described).encode())


def waiting(folder: Path) -> hr.Pipeline:
    return rolling.pipeline("filesystem", path=str(folder / "out"), **{"rolling_policy.interval": "6s"})


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_of_waiting_rows_is_named_with_the_last_whole_checkpoint(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    clock, state = ManualClock(), tmp_path / "state"
    assert rolling.run_into_crash(waiting(tmp_path), state, clock, "committed", 3)
    (path, *_) = sorted((state / "staged/out/0000000002").iterdir())
    damage(path)
    backend = ParquetBackend(open_storage(str(state)))
    assert [bool(backend.verify(epoch)) for epoch in (1, 2, 3)] == [False, True, True]
    with pytest.raises(
        CorruptStateError, match=re.escape(f"`staged/out/0000000002/{path.name}` is")
    ) as error:
        rolling.run(waiting(tmp_path), state, clock)
    assert "--from-epoch 1 " in str(error.value.hint)
    with pytest.raises(CorruptStateError, match="waiting rows") as error:
        rolling.run(waiting(tmp_path), state, clock, from_epoch=2)
    assert "--from-epoch 1 " in str(error.value.hint)
    rolling.run(waiting(tmp_path), state, clock, from_epoch=1)
    written = [
        json.loads(line)["n"]
        for file in (tmp_path / "out").rglob("*.json")
        if ".staged" not in file.parts
        for line in file.read_text().splitlines()
    ]
    assert sorted(written) == list(range(rolling.ROWS))


def test_a_damaged_page_of_a_listing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 2)
    storage = open_storage(str(tmp_path))
    files = [{"path": f"{n}.json", "size": n} for n in range(3)]
    added = Listing({"pages": [], "first": 0}, storage, "listings/op").add(files)
    page = added["pages"][0]
    old = [{"name": page["name"], "files": 2}, *added["pages"][1:]]  # of an earlier version
    flip(tmp_path / page["name"], 10)
    checks = FileChecks(storage)
    checks.check_checkpoint(_checkpoint({"files": added}), [], with_state=True)
    assert len(checks.end().problems) == checks.end().files["sources"] == 1
    for pages in (added["pages"], old):
        with pytest.raises(CorruptStateError, match=r"list of files to read `listings/op/.*` is damaged"):
            Listing({"pages": pages, "first": 0}, storage, "listings/op").get(0)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("000001.arrow", damage) for damage in DAMAGES),
        # Without an index the snapshot counts as read and removed.
        *(("index.json", damage) for damage in (flip, cut)),
    ],
)
def test_a_damaged_file_of_a_snapshot_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], name: str
) -> None:
    monkeypatch.setattr(postgres_snapshot, "FILE_ROWS", 4)
    storage = open_storage(str(tmp_path))
    snapshot, folder = Snapshot.create(storage, "node", check=lambda: None)
    _, index = snapshot.write(pa.table({"n": range(first, first + 4)}) for first in (0, 4))
    damage(tmp_path / folder / name)
    with pytest.raises(CorruptStateError, match=f"`{folder}/{name}` is"):
        list(Snapshot(storage, folder, index).read(0, 8))
    checks = FileChecks(storage)
    checks.check_checkpoint(_checkpoint({"tables": {"snapshot": {"index": index}}}), [], with_state=True)
    verification = checks.end()
    assert len(verification.problems) == 1
    assert verification.files["sources"] == (1 if name == "index.json" else 3)


def _checkpoint(offset: dict[str, Any]) -> CheckpointMetadata:
    return CheckpointMetadata(
        job_id="j",
        pipeline="p",
        epoch=1,
        min_epoch=1,
        parallelism=1,
        start_time=0,
        finish_time=0,
        offsets={"sources": {"rows": offset}},
        operators={},
    )
