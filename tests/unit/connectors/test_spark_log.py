"""The log of the micro-batches that Spark has read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.base.errors import CorruptStateError
from headrace.connectors.spark import BatchLog
from headrace.state.metadata import CheckpointMetadata
from headrace.state.references import FileReference, write_referenced
from headrace.state.verify import FileChecks, Verification
from headrace.storage.open import open_storage


def test_what_a_crash_left_beside_a_micro_batch_is_forgotten_with_it(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    log = BatchLog(storage, "numbers")
    for number in (1, 2, 3):
        named, orphaned = (f"{log.files(number)}/{name}.arrow" for name in ("named", "orphaned"))
        storage.write(named, b"")
        storage.write(orphaned, b"")
        log.write(number, [FileReference.of(named, b"")], rows=1, ended=False)
    log.forget(3)
    assert log.find(1) is log.find(2) is None
    assert storage.list(log.files(1)) == storage.list(log.files(2)) == []
    assert len(storage.list(log.files(3))) == 2
    assert log.find(3) is not None
    log.forget(0)
    BatchLog(storage, "numbers").forget(2)
    assert log.find(3) is not None


def checkpoint(batches: int) -> CheckpointMetadata:
    return CheckpointMetadata(
        job_id="j",
        pipeline="p",
        epoch=1,
        min_epoch=1,
        parallelism=1,
        start_time=0,
        finish_time=0,
        offsets={"sources": {"numbers": {"spark": {"batches": batches, "ended": False}}}},
        operators={},
    )


def verify(path: Path, batches: int) -> Verification:
    checks = FileChecks(open_storage(str(path)))
    checks.check_checkpoint(checkpoint(batches), [], with_state=True)
    return checks.end()


def test_micro_batches_that_are_not_read_yet_are_verified(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    log = BatchLog(storage, "numbers")
    files = [write_referenced(storage, f"{log.files(number)}/a.arrow", b"rows") for number in (1, 2, 3)]
    for number, file in enumerate(files, 1):
        log.write(number, [file], rows=1, ended=False)
    assert verify(tmp_path, 1).files["received"] == 4  # two manifests, and a file of each
    storage.write(files[0].path, b"ROWS")
    assert verify(tmp_path, 1).problems == ()
    storage.write(files[2].path, b"ROWS")
    (problem,) = verify(tmp_path, 1).problems
    assert f"`{files[2].path}` is damaged" in problem


def test_a_damaged_manifest_of_a_micro_batch_is_named(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    log = BatchLog(storage, "numbers")
    log.write(1, [], rows=17, ended=False)
    (path,) = storage.list("received/numbers/batches/")
    storage.write(path, storage.read(path).replace(b"17", b"16"))
    with pytest.raises(CorruptStateError, match=f"`{path}` is damaged"):
        log.find(1)


def test_a_manifest_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    manifest = {"files": ["received/numbers/files/1/a.arrow"], "rows": 1, "ended": False, "time": 0}
    storage.write("received/numbers/batches/0000000001.json", json.dumps(manifest).encode())
    storage.write(manifest["files"][0], b"rows")  # type: ignore[index]
    assert BatchLog(storage, "numbers").find(1) == manifest
    assert verify(tmp_path, 0).unchecked == 2
