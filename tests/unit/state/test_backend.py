"""Checkpoints: one commit point, damage found, nothing in use removed."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import (
    CorruptStateError,
    IncompatibleStateError,
    StateError,
    StateInUseError,
)
from headrace.state.backend import ParquetBackend
from headrace.state.config import keyed_table_config
from headrace.state.metadata import SavedOperator
from headrace.testing.in_process import CrashError
from tests.unit.state.harness import Life, checkpoint

KEYED = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path, [keyed_table_config("t", "", KEYED, key=["id"])], compact_after=3)


def run(life: Life, epochs: int) -> None:
    for _ in range(epochs):
        table: Any = life.managers[0].get("t")
        table.put(pa.RecordBatch.from_pydict({"id": [life.epoch], "v": ["x"]}, schema=KEYED))
        life.commit()


def metadata_file(life: Life, epoch: int) -> Path:
    return Path(life.storage.url, f"checkpoints/checkpoint-{epoch:07}/metadata.json")


def test_a_checkpoint_is_read_back_as_it_was_written(life: Life) -> None:
    assert life.backend.latest_epoch() is None
    run(life, 2)
    assert life.backend.epochs() == [1, 2]
    assert life.backend.load_checkpoint_metadata("job", 2) == checkpoint(2, {"op": 2})
    assert life.backend.is_committed(checkpoint(2, {"op": 2}))
    assert not life.backend.is_committed(checkpoint(3, {"op": 2}))
    assert life.backend.load_operator_metadata("job", SavedOperator("other", 2)) is None
    life.backend.prepare_checkpoint_load(checkpoint(2, {"op": 2}))
    assert metadata_file(life, 2).read_text().startswith('{"format": 2,')


def test_the_second_writer_of_an_epoch_fails(life: Life) -> None:
    run(life, 1)
    assert life.restored is not None
    life.backend.write_checkpoint_metadata(checkpoint(1, {"op": 1}))  # a repeated write of the same
    with pytest.raises(StateInUseError, match="epoch 1"):
        life.backend.write_checkpoint_metadata(replace(checkpoint(1, {"op": 1}), rows_in=5))
    with pytest.raises(StateInUseError, match="epoch 1"):
        life.backend.write_operator_checkpoint_metadata(life.restored)


@pytest.mark.parametrize("damage", ["truncated", "altered", "empty", "list"])
def test_damaged_metadata_is_named(life: Life, damage: str) -> None:
    run(life, 2)
    path = metadata_file(life, 2)
    text = path.read_text()
    contents = {
        "truncated": text[:-30],
        "altered": text.replace('"epoch": 2', '"epoch": 3'),
        "empty": "",
        "list": "[]",
    }
    path.write_text(contents[damage])
    with pytest.raises(CorruptStateError, match=r"checkpoint-0000002/metadata\.json"):
        life.backend.load_checkpoint_metadata("job", 2)
    assert life.backend.last_good_epoch(3) == 1


def test_a_newer_format_is_not_guessed_at(life: Life) -> None:
    run(life, 1)
    path = metadata_file(life, 1)
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(IncompatibleStateError, match="format 99"):
        life.backend.load_checkpoint_metadata("job", 1)


def test_the_state_of_another_job_is_refused(life: Life) -> None:
    run(life, 1)
    with pytest.raises(IncompatibleStateError, match="job `job`"):
        life.backend.load_checkpoint_metadata("another", 1)
    with pytest.raises(StateError, match="no checkpoint of epoch 7"):
        life.backend.load_checkpoint_metadata("job", 7)


def test_cleanup_keeps_the_last_and_everything_they_need(life: Life) -> None:
    for _ in range(12):
        run(life, 1)
        stray = f"checkpoints/checkpoint-{life.epoch:07}/operator-op/table-t-000-stray.parquet"
        life.storage.write(stray, b"left by a failed attempt")
        life.backend.cleanup(3, life.epoch)
        assert len(life.backend.epochs()) == min(3, life.epoch)
        assert [life.backend.verify(epoch) for epoch in life.backend.epochs()] == [
            [] for _ in life.backend.epochs()
        ]
    needed = set().union(*(life.backend.live_files(epoch) for epoch in (10, 11, 12)))
    parquet = {path for path in life.storage.list("") if path.endswith(".parquet")}
    assert {path for path in parquet if "stray" not in path} == needed
    assert len(parquet - needed) == 3  # strays of epochs that are still kept


def test_an_interrupted_cleanup_is_finished_by_the_next_run(life: Life) -> None:
    run(life, 6)
    metadata_file(life, 1).unlink()  # removed first, so the rest is known to be garbage
    metadata_file(life, 2).unlink()
    assert life.backend.epochs() == [3, 4, 5, 6]
    again = ParquetBackend(life.storage, cache_dir=life.cache_dir)
    assert again.cleanup(2, 6) == [3, 4]
    live = again.live_files(5) | again.live_files(6)
    left = {path for path in life.storage.list("") if path.endswith(".parquet")}
    assert left == live
    assert again.cleanup(2, 6) == []
    run(life, 1)


def test_a_cleanup_that_is_cut_off_leaves_only_whole_checkpoints(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(life, 6)
    storage, delete = life.storage, life.storage.delete
    for done in range(40):
        left = done

        def fail(path: str) -> None:
            nonlocal left
            if not left:
                raise CrashError
            left -= 1
            delete(path)

        again = ParquetBackend(storage, cache_dir=life.cache_dir)
        monkeypatch.setattr(storage, "delete", fail)
        with contextlib.suppress(CrashError):
            again.cleanup(1, 6)
        assert [again.verify(epoch) for epoch in again.epochs()] == [[]] * len(again.epochs())
    assert life.backend.epochs() == [6]


def test_cleanup_touches_nothing_while_a_kept_checkpoint_is_unreadable(life: Life) -> None:
    run(life, 4)
    metadata_file(life, 4).write_text("{")
    before = life.storage.list("")
    assert ParquetBackend(life.storage).cleanup(2, 4) == []
    assert life.storage.list("") == before


def test_cleanup_does_not_read_what_the_run_has_written(life: Life) -> None:
    run(life, 6)
    for path in Path(life.storage.url).rglob("metadata*.json"):
        path.write_text("{")
    needed = {f"checkpoints/checkpoint-{epoch:07}" for epoch in (5, 6)}
    assert life.backend.cleanup(2, 6) == [1, 2, 3, 4]
    assert needed <= {"/".join(path.split("/")[:2]) for path in life.storage.list("checkpoints")}
    assert life.restored is not None
    assert all(life.storage.exists(file.file) for file in life.restored.files())


def test_an_operator_that_did_not_change_is_kept_with_its_files(life: Life) -> None:
    run(life, 1)
    for epoch in range(2, 8):
        life.backend.write_checkpoint_metadata(checkpoint(epoch, {"op": 1}))
        life.backend.cleanup(2, epoch)
    assert life.backend.epochs() == [6, 7]
    assert life.backend.verify(7) == []
    assert life.backend.live_files(7)


def test_a_run_can_resume_from_an_older_checkpoint(life: Life) -> None:
    run(life, 5)
    life.backend.discard_after(3)
    assert life.backend.epochs() == [1, 2, 3]
    assert not [path for path in life.storage.list("") if "0000004" in path or "0000005" in path]
    life.restored = life.backend.load_operator_metadata("job", SavedOperator("op", 3))
    life.epoch = 3
    life.begin()
    run(life, 2)
    assert life.backend.epochs() == [1, 2, 3, 4, 5]
    assert life.backend.verify(5) == []
