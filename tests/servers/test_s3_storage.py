"""State on S3, against a real server."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from headrace.base.errors import ConfigurationError, ExternalError
from headrace.base.keys import hash_key, key_range
from headrace.state.config import global_table_config, keyed_table_config
from headrace.state.manager import TableManager
from headrace.state.metadata import OperatorCheckpointMetadata
from headrace.state.tables import GlobalTable, KeyedTable
from headrace.storage.open import open_storage


def test_what_is_written_is_read_listed_and_deleted(s3_url: str) -> None:
    storage = open_storage(s3_url)
    storage.check_writable()
    storage.write("a/one", b"1")
    storage.write("a/b/two", b"22")
    storage.write("a/one", b"replaced")
    assert storage.read("a/one") == b"replaced"
    assert storage.size("a/b/two") == 2
    assert storage.list("a") == ["a/b/two", "a/one"]
    assert storage.children("a") == ["b", "one"]
    assert storage.local_path("a/one") is None
    storage.delete("a/one")
    storage.delete("a/one")
    assert not storage.exists("a/one")
    assert storage.list("a") == ["a/b/two"]
    assert storage.list("nothing") == []
    with pytest.raises(FileNotFoundError):
        storage.read("a/one")


def test_a_name_is_created_once(s3_url: str) -> None:
    storage = open_storage(s3_url)
    assert storage.create("lock", b"first")
    assert not storage.create("lock", b"second")
    assert storage.read("lock") == b"first"


def test_a_large_file_goes_in_parts(s3_url: str, tmp_path: Path) -> None:
    storage = open_storage(s3_url)
    content = os.urandom(24 * 1024 * 1024)
    local = tmp_path / "large"
    local.write_bytes(content)
    storage.write_file("large", str(local))
    assert storage.size("large") == len(content)
    assert storage.read("large") == content


def test_a_storage_can_be_pickled(s3_url: str) -> None:
    open_storage(s3_url).write("x", b"1")
    assert pickle.loads(pickle.dumps(open_storage(s3_url))).read("x") == b"1"


def test_wrong_credentials_are_said_to_be_wrong(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    storage = open_storage(f"{s3_url}/other")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        storage.check_writable()
    with pytest.raises(ExternalError):
        storage.write("x", b"1")


SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})
CONFIGS = (
    keyed_table_config("values", "one row per key", SCHEMA, key=["k"]),
    global_table_config("notes", "what each subtask says"),
)


def subtasks(
    url: str, cache: Path, epoch: int, parallelism: int, restored: OperatorCheckpointMetadata | None
) -> list[TableManager]:
    return [
        TableManager(
            storage=open_storage(url),
            job_id="job",
            operator_id="op",
            subtask=subtask,
            parallelism=parallelism,
            epoch=epoch,
            configs=CONFIGS,
            restored=restored,
            watermark=None,
            cache_dir=str(cache),
        )
        for subtask in range(parallelism)
    ]


def save(managers: list[TableManager], epoch: int) -> OperatorCheckpointMetadata:
    saved = tuple(manager.checkpoint(epoch, 0.0, None) for manager in managers)
    metadata = OperatorCheckpointMetadata(
        job_id="job",
        operator_id="op",
        operator_name="op",
        fingerprint="",
        epoch=epoch,
        parallelism=len(managers),
        table_configs={config.name: config for config in CONFIGS},
        subtasks=saved,
    )
    return OperatorCheckpointMetadata.from_json(json.loads(json.dumps(metadata.to_json())))


def test_state_on_s3_is_restored_at_another_parallelism_by_a_machine_that_never_saw_it(
    s3_url: str, tmp_path: Path
) -> None:
    rows = pa.record_batch({"k": list(range(1000)), "v": [f"value {n}" for n in range(1000)]}, SCHEMA)
    first = subtasks(s3_url, tmp_path / "one", 1, 2, None)
    hashes = hash_key(rows, ["k"])
    for subtask, manager in enumerate(first):
        low, high = key_range(subtask, 2)
        mine = rows.filter(pa.array((hashes >= low) & (hashes <= high)))
        cast(KeyedTable, manager.get("values")).put(mine)
        cast(GlobalTable, manager.get("notes")).insert(f"subtask {subtask}", subtask)
    metadata = save(first, 1)
    assert all(open_storage(s3_url).exists(file.file) for file in metadata.files())

    found: dict[int, str] = {}
    for manager in subtasks(s3_url, tmp_path / "two", 2, 3, metadata):
        for batch in cast(KeyedTable, manager.get("values")).scan():
            part = dict(zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True))
            assert not part.keys() & found.keys()
            found |= part
        assert cast(GlobalTable, manager.get("notes")).get_all() == {"subtask 0": 0, "subtask 1": 1}
    assert found == dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))
