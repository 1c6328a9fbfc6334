"""Storage: atomic files on a directory and on an object store alike."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError, StateInUseError
from headrace.state.lock import StateLock
from headrace.storage.store import ObjectStorage, Storage, open_storage


@pytest.fixture(params=["local", "object"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return open_storage(str(tmp_path / "state"))
    store = pytest.importorskip("obstore.store")
    return ObjectStorage("s3://bucket/state", store=store.MemoryStore())


def test_what_is_written_is_read_listed_and_deleted(storage: Storage, tmp_path: Path) -> None:
    assert storage.list("") == []
    assert storage.children("a") == []
    storage.check_writable()
    storage.write("a/one", b"1")
    storage.write("a/b/two", b"22")
    storage.write("a/one", b"replaced")
    local = tmp_path / "local"
    local.write_bytes(b"333")
    storage.write_file("a/three", str(local))
    assert storage.read("a/one") == b"replaced"
    assert storage.size("a/three") == 3
    assert storage.list("a") == ["a/b/two", "a/one", "a/three"]
    assert storage.children("a") == ["b", "one", "three"]
    storage.delete("a/one")
    storage.delete("a/one")
    assert not storage.exists("a/one")
    assert storage.exists("a/b/two")
    for missing in (storage.read, storage.size):
        with pytest.raises(FileNotFoundError):
            missing("a/one")


def test_a_name_is_created_once(storage: Storage) -> None:
    assert storage.create("x/lock", b"first")
    assert not storage.create("x/lock", b"second")
    assert storage.read("x/lock") == b"first"


def test_a_storage_is_pickled_as_its_address(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    assert pickle.loads(pickle.dumps(storage)) is storage
    assert open_storage(f"file://{tmp_path}/") is storage
    assert open_storage(f"file:{tmp_path}") is storage
    assert storage.local_path("a/b") == str(tmp_path / "a/b")


def test_deleting_the_last_file_of_a_directory_removes_it(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    storage.write("a/b/c", b"")
    storage.write("a/d", b"")
    storage.delete("a/b/c")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["d"]


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"scheme `s4`[\s\S]*s3://"):
        open_storage("s4://bucket/x")


def test_a_file_in_the_place_of_the_directory_is_said_plainly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="is a file"):
        open_storage(str(tmp_path / "file")).check_writable()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        open_storage(str(tmp_path / "file" / "below")).check_writable()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_said_plainly(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="cannot be written"):
        open_storage(str(tmp_path)).check_writable()


HOLDER = """
import sys
from headrace.state.lock import StateLock
from headrace.storage.store import open_storage
lock = StateLock(open_storage(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_directory_is_held_by_one_process_that_is_named(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(StateInUseError, match=f"process {process.pid}"):
            StateLock(storage).acquire()
        process.kill()
    with StateLock(storage):
        pass
