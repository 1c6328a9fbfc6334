"""Storage: the same operations on a local directory and on an object store."""

from __future__ import annotations

import errno
import os
import pickle
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError, ExternalError, StateInUseError
from headrace.state.lock import StateLock
from headrace.storage.base import Storage
from headrace.storage.hdfs import HdfsStorage
from headrace.storage.local import LocalStorage
from headrace.storage.object_store import ObjectStorage
from headrace.storage.open import open_storage
from headrace.storage.urls import canonical_url


@pytest.fixture(params=["local", "object"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return open_storage(str(tmp_path / "state"))
    store = pytest.importorskip("obstore.store")
    return ObjectStorage("s3://bucket/state", store=store.MemoryStore())


def test_every_operation_of_the_interface_is_implemented_by_every_storage() -> None:
    assert [kind.__abstractmethods__ for kind in (LocalStorage, ObjectStorage, HdfsStorage)] == [
        frozenset()
    ] * 3


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


def test_a_file_is_read_at_any_position(storage: Storage) -> None:
    storage.write("a/b", b"0123456789")
    with storage.open("a/b") as file:
        assert file.size() == 10
        file.seek(4)
        assert file.read(3) == b"456"
        assert file.read() == b"789"
    with pytest.raises(FileNotFoundError):
        storage.open("a/nothing")


def test_a_move_replaces_the_file_of_the_new_name(storage: Storage) -> None:
    storage.write("staged/x", b"new")
    storage.write("a/x", b"old")
    storage.move("staged/x", "a/x")
    storage.move("a/x", "b/c/x")
    assert storage.list("") == ["b/c/x"]
    assert storage.read("b/c/x") == b"new"
    with pytest.raises(FileNotFoundError):
        storage.move("staged/x", "a/x")


def test_a_directory_is_deleted_with_what_is_in_it(storage: Storage) -> None:
    for path in ("a/b/c", "a/b/d/e", "a/bb"):
        storage.write(path, b"1")
    storage.delete_directory("a/b")
    storage.delete_directory("a/b")
    assert storage.list("") == ["a/bb"]


def test_files_are_listed_with_their_size_and_time(storage: Storage) -> None:
    before = time.time_ns() - 10**9
    storage.write("a/b", b"12")
    storage.write("c", b"345")
    files = sorted(storage.list_files() or ())
    assert [(file.path, file.size) for file in files] == [("a/b", 2), ("c", 3)]
    assert all(before < file.modified < time.time_ns() + 10**9 for file in files)


def test_the_root_of_a_storage_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_bytes(b"{}")
    storage = open_storage(str(tmp_path / "rows.json"))
    assert [(file.path, file.size) for file in storage.list_files() or ()] == [("", 2)]
    assert storage.read("") == b"{}"
    assert open_storage(str(tmp_path / "nothing")).list_files() is None
    with pytest.raises(ConfigurationError, match="is a file, not a directory"):
        storage.check_directory()


def test_an_object_of_the_name_of_the_root_is_a_single_file() -> None:
    store = pytest.importorskip("obstore.store").MemoryStore()
    ObjectStorage("s3://bucket", store=store).write("in/rows.json", b"{}")
    single = ObjectStorage("s3://bucket/in/rows.json", store=store)
    assert [(file.path, file.size) for file in single.list_files() or ()] == [("", 2)]
    assert single.read("") == b"{}"
    assert ObjectStorage("s3://bucket/nothing", store=store).list_files() is None


def test_results_of_a_map_are_in_the_order_of_the_items(storage: Storage) -> None:
    for number in range(20):
        storage.write(f"{number}", b"x" * number)
    assert storage.map(lambda number: storage.size(f"{number}"), range(20)) == list(range(20))


def test_a_failure_names_the_file_and_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    storage = open_storage(str(tmp_path))
    with pytest.raises(ExternalError, match=rf"`{tmp_path}/file/x` cannot be written: File exists") as caught:
        storage.write("file/x", b"")
    assert caught.value.retry
    with pytest.raises(ExternalError, match="file/x` cannot be read: Not a directory"):
        storage.read("file/x")


SYNCED: dict[str, Callable[[Storage, str], object]] = {
    "write": lambda storage, _: storage.write("a/x", b"1"),
    "write_file": lambda storage, source: storage.write_file("a/x", source),
    "create": lambda storage, _: storage.create("a/x", b"1"),
}


def failing_sync(code: int, *, of_directories: bool) -> Callable[[int], None]:
    """An fsync that fails as a broken disk or a simple file system does, for files or for directories."""
    sync = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode) is of_directories:
            raise OSError(code, os.strerror(code))
        sync(handle)

    return fsync


@pytest.mark.parametrize("operation", SYNCED)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EINVAL])
def test_a_file_that_cannot_be_synced_is_named_and_was_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, code: int
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"1")
    storage = open_storage(str(tmp_path / "state"))
    monkeypatch.setattr(os, "fsync", failing_sync(code, of_directories=False))
    with pytest.raises(ExternalError, match=rf"state/a/x` cannot be written: {os.strerror(code)}"):
        SYNCED[operation](storage, str(source))
    assert storage.list("") == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_directory_that_cannot_be_synced_is_an_error_and_the_name_stays_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    storage = open_storage(str(tmp_path / "state"))
    storage.write("a/source", b"1")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing_sync(code, of_directories=True))
        with pytest.raises(ExternalError, match=rf"state/a/x` cannot be written: {os.strerror(code)}"):
            storage.create("a/x", b"1")
        with pytest.raises(ExternalError, match=rf"state/a/y` cannot be written: {os.strerror(code)}"):
            storage.move("a/source", "a/y")
    assert storage.create("a/x", b"2")


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_directories_can_hold_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    storage = open_storage(str(tmp_path / "state"))
    monkeypatch.setattr(os, "fsync", failing_sync(code, of_directories=True))
    assert storage.create("a/x", b"1")
    storage.move("a/x", "a/y")
    assert storage.read("a/y") == b"1"


def modes(root: Path) -> set[tuple[str, int]]:
    kinds = {True: "directory", False: "file"}
    return {(kinds[path.is_dir()], stat.S_IMODE(path.stat().st_mode)) for path in [root, *root.rglob("*")]}


def fill(storage: Storage, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"1")
    source.chmod(0o644)
    storage.check_writable()
    storage.write("a/b/written", b"1")
    storage.create("c/created", b"1")
    storage.write_file("d/moved", str(source))
    with StateLock(storage):
        pass


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
def test_state_is_for_its_owner_only(tmp_path: Path) -> None:
    fill(open_storage(str(tmp_path / "parent" / "state")), tmp_path)
    assert modes(tmp_path / "parent" / "state") == {("directory", 0o700), ("file", 0o600)}


@pytest.mark.usefixtures("usual_umask")
def test_the_permissions_of_an_existing_state_directory_are_left_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    fill(open_storage(str(state)), tmp_path)
    assert modes(state) == {("directory", 0o755), ("directory", 0o700), ("file", 0o600)}


def test_a_state_directory_that_a_group_may_write_to_is_shared_with_that_group(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        state = tmp_path / "state"
        state.mkdir()
        state.chmod(0o770)
        fill(open_storage(str(state)), tmp_path)
        assert modes(state) == {("directory", 0o770), ("file", 0o660)}
    finally:
        os.umask(before)


@pytest.mark.usefixtures("usual_umask")
def test_the_umask_decides_who_may_read_output(tmp_path: Path) -> None:
    output = open_storage(str(tmp_path / "output"), private=False)
    output.write("a/x", b"1")
    assert modes(tmp_path / "output") == {("directory", 0o755), ("file", 0o644)}


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("s3a://bucket/x/", "s3://bucket/x"),
        ("S3://Bucket/x", "s3://Bucket/x"),
        ("file:///data/a%20b", "/data/a b"),
        ("/data/../x/", "/x"),
        ("/a:b/c", "/a:b/c"),
        ("hdfs://host/x", "hdfs://host/x"),
    ],
)
def test_an_address_has_one_spelling(url: str, canonical: str) -> None:
    assert canonical_url(url) == canonical
    assert canonical_url(canonical) == canonical


def test_above_a_link_is_above_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    storage = open_storage(f"{tmp_path}/link/../state")
    storage.write("x", b"")
    assert (tmp_path / "a" / "state" / "x").exists()


def test_a_storage_with_options_is_pickled_with_them() -> None:
    pytest.importorskip("obstore")
    storage = open_storage("s3://bucket/x", {"aws_region": "eu-1"}, part_size=5_000_000)
    assert pickle.loads(pickle.dumps(storage)) is storage
    assert open_storage("s3://bucket/x", {"aws_region": "eu-2"}) is not storage
    assert "eu-1" not in repr(storage)


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
from headrace.storage.open import open_storage
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
