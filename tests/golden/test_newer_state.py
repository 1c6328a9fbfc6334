"""A file of the state directory that a newer version wrote is refused, and the message says what to do."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.base.errors import IncompatibleStateError
from headrace.state import inspect
from headrace.state.backend import content_checksum
from headrace.state.metadata import FORMAT
from headrace.state.references import checksum
from headrace.storage.open import open_storage
from headrace.testing.in_process import run_in_process
from tests.golden.old_state.cases import clock_for, load
from tests.golden.test_old_state import directory, unpack

__all__ = ["directory"]

NEWER = FORMAT + 1
STATE = Path("state")


def rewrite(path: Path, change: Callable[[Any], None]) -> None:
    """Change the content of a metadata file, and write its checksum anew."""
    envelope = json.loads(path.read_text())
    change(envelope["metadata"])
    envelope["checksum"] = content_checksum(envelope["metadata"])
    path.write_text(json.dumps(envelope))


def last(pattern: str) -> Path:
    return max(STATE.glob(f"checkpoints/checkpoint-*/{pattern}"))


def newer_checkpoint() -> None:
    path = last("metadata.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": NEWER}))


def newer_checkpoint_of_another_shape() -> None:
    last("metadata.json").write_text(json.dumps({"format": NEWER, "parts": []}))


def newer_operator() -> None:
    path = last("operator-sums.aggregate/metadata.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": NEWER}))


def newer_identity() -> None:
    path = STATE / "pipeline.json"
    content = {**json.loads(path.read_text()), "format": NEWER, "owner": "a field of its own"}
    del content["checksum"], content["pipeline"]
    path.write_text(json.dumps({**content, "checksum": content_checksum(content)}))


def newer_state_files() -> None:
    def rewrite_files(metadata: Any) -> None:
        for subtask in metadata["subtasks"]:
            for file in (file for files in subtask["tables"].values() for file in files):
                path = STATE / file["file"]
                rows = pq.read_table(path)
                marked = {**(rows.schema.metadata or {}), b"headrace.format": str(NEWER).encode()}
                pq.write_table(rows.replace_schema_metadata(marked), path)
                content = path.read_bytes()
                file["bytes"], file["checksum"] = len(content), checksum(content)

    rewrite(last("operator-sums.aggregate/metadata.json"), rewrite_files)


def newer_received_log() -> None:
    path = max(STATE.glob("received/sender/*.arrow"))
    line, _, body = path.read_bytes().partition(b"\n")
    head = {**json.loads(line), "format": NEWER}
    path.write_bytes(json.dumps(head).encode() + b"\n" + body)


def newer_reference() -> None:
    def mark(value: Any) -> None:
        if isinstance(value, dict):
            if "state_file" in value:
                value["format"] = NEWER
            for item in value.values():
                mark(item)
        elif isinstance(value, list):
            for item in value:
                mark(item)

    def rewrite_commit_data(metadata: Any) -> None:
        for subtask in metadata["subtasks"]:
            for name, text in subtask["commit_data"].items():
                value = json.loads(base64.b64decode(text))
                mark(value)
                subtask["commit_data"][name] = base64.b64encode(json.dumps(value).encode()).decode()

    rewrite(last("operator-sink_long_lines/metadata.json"), rewrite_commit_data)


FILES = "checked_files"
NEWER_FILES = {
    "checkpoint": (FILES, newer_checkpoint, "metadata.json"),
    "checkpoint of another shape": (FILES, newer_checkpoint_of_another_shape, "metadata.json"),
    "operator": (FILES, newer_operator, "operator-sums.aggregate/metadata.json"),
    "pipeline.json": (FILES, newer_identity, "pipeline.json"),
    "state file": (FILES, newer_state_files, ".parquet"),
    "received log": ("checked_process", newer_received_log, ".arrow"),
    "staged reference": (FILES, newer_reference, "lines.json"),
}


def files_below(folder: Path) -> dict[str, bytes]:
    """The files of a folder, without what tells who has run."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = [path for path in files if path.name != "lock" and path.parent.name != "generations"]
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.parametrize("what", NEWER_FILES)
@pytest.mark.usefixtures("directory")
def test_a_file_of_a_newer_version_is_refused_with_what_to_do(what: str) -> None:
    name, write, path = NEWER_FILES[what]
    unpack(name, "killed", Path())
    write()
    before = files_below(STATE), files_below(Path("out"))
    with pytest.raises(IncompatibleStateError) as refused:
        run_in_process(load(), "state", parallelism=2, epoch_rows=11, clock=clock_for(name))
    message = str(refused.value)
    assert path in message
    assert f"has format {NEWER}, and this version reads formats up to {FORMAT}" in message
    assert refused.value.hint == "use the version of Headrace that wrote it, or a newer one"
    assert refused.value.exit_code == 2
    assert not refused.value.retry
    after = files_below(STATE), files_below(Path("out"))
    if what not in {"state file", "received log"}:  # they are read by the first epoch, which is not committed
        assert after == before


@pytest.mark.parametrize("what", NEWER_FILES)
@pytest.mark.usefixtures("directory")
def test_neither_verify_nor_repair_guess_at_a_file_of_a_newer_version(what: str) -> None:
    name, write, _ = NEWER_FILES[what]
    unpack(name, "killed", Path())
    storage = open_storage("state")
    # What is removed without the newer file: of checkpoints that the killed run was about to remove.
    strays = set(inspect.repair(storage, dry_run=True).removed)
    write()
    before = files_below(STATE)
    problems = [problem for result in inspect.verify(storage) for problem in result.problems]
    assert any(f"format {NEWER}" in problem for problem in problems)
    removed: set[str] = set()
    with contextlib.suppress(IncompatibleStateError):
        removed = set(inspect.repair(storage).removed)
    assert removed in (set(), strays)
    assert files_below(STATE) == {path: data for path, data in before.items() if path[6:] not in removed}
