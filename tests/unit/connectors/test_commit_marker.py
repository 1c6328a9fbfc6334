"""What the commits of a sink keep in the state directory is verified when it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.errors import CorruptStateError
from headrace.connectors.base import CommitMarker
from headrace.connectors.blackhole import BlackholeSink
from headrace.model.operator import OperatorContext
from headrace.storage.open import open_storage
from tests.support import EpochTables, SinkDriver


def context(folder: Path) -> OperatorContext:
    driver = SinkDriver(BlackholeSink, folder)
    return driver._context(EpochTables(BlackholeSink(), {}), 1, 0, 1)


@pytest.mark.parametrize("value", [["a", "b"], {"batch": "x", "end": 12}, None, "text"])
def test_what_was_written_is_read(tmp_path: Path, value: object) -> None:
    CommitMarker("sent", context(tmp_path)).write(value)
    assert CommitMarker("sent", context(tmp_path)).read() == value


def test_any_damaged_byte_is_found_and_the_file_is_named(tmp_path: Path) -> None:
    ctx, storage = context(tmp_path), open_storage(str(tmp_path))
    CommitMarker("sent", ctx).write({"batch": "x", "end": 12})
    (path,) = storage.list("sent/")
    content = storage.read(path)
    for place in range(len(content) - 1):
        damaged = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        storage.write(path, damaged)
        with pytest.raises(CorruptStateError, match=f"mark of a commit `{path}` is damaged"):
            CommitMarker("sent", ctx).read()


@pytest.mark.parametrize(
    ("content", "value"), [(b'["a"]', ["a"]), (b'{"batch": "x", "end": 3}', {"batch": "x", "end": 3})]
)
def test_a_mark_of_an_earlier_version_is_read(tmp_path: Path, content: bytes, value: object) -> None:
    ctx, storage = context(tmp_path), open_storage(str(tmp_path))
    storage.write(f"sent/{ctx.task_info.operator_id}.json", content)
    assert CommitMarker("sent", ctx).read() == value
