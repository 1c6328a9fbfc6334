"""State files: damage is found and named, and the cache is only a cache."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.base.errors import ConfigurationError, CorruptStateError
from headrace.state import files
from headrace.state.cache import cache_directory, evict_cache, make_cache
from headrace.state.config import keyed_table_config
from headrace.state.metadata import StateFile
from tests.unit.state.harness import Life

KEYED = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def life(tmp_path: Path) -> Life:
    life = Life(tmp_path, [keyed_table_config("t", "", KEYED, key=["id"])])
    put(life, 1, "a")
    life.commit()
    return life


def put(life: Life, key: int, value: str) -> None:
    table: Any = life.managers[0].get("t")
    table.put(pa.RecordBatch.from_pydict({"id": [key], "v": [value]}, schema=KEYED))


def look(life: Life, key: int) -> str | None:
    table: Any = life.managers[0].get("t")
    found, _ = table.get(pa.RecordBatch.from_pydict({"id": [key]}))
    value: str | None = found.column("v").to_pylist()[0]
    return value


def only_file(life: Life) -> Path:
    assert life.restored is not None
    (file,) = life.restored.files()
    return Path(life.storage.url, file.file)


def cached(life: Life) -> list[str]:
    directory = Path(cache_directory(life.storage.url, life.cache_dir))
    return sorted(path.name for path in directory.iterdir() if not path.is_symlink())


def test_a_state_file_is_plain_parquet_with_hash_and_operation(life: Life) -> None:
    table = pq.read_table(only_file(life))
    assert table.schema.names == ["id", "v", "_key_hash", "_operation"]
    assert only_file(life).name.startswith("table-t-000-")
    assert only_file(life).parent.name == "operator-op"
    assert only_file(life).parent.parent.name == "checkpoint-0000001"


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "empty"])
def test_a_damaged_file_is_named_with_what_was_expected(life: Life, damage: str) -> None:
    path = only_file(life)
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(data[:-7])
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
    problems = life.backend.verify(1)
    assert len(problems) == 1
    assert path.name in problems[0]
    assert life.backend.last_good_epoch(2) is None
    life.wipe_cache()
    with pytest.raises(CorruptStateError) as caught:
        look(life, 1)
    assert path.name in caught.value.message
    assert str(len(data)) in caught.value.message


def test_a_lost_or_broken_cache_is_made_anew(life: Life) -> None:
    (name,) = cached(life)
    directory = Path(cache_directory(life.storage.url, life.cache_dir))
    for content in (b"", b"garbage", (directory / name).read_bytes()[:-20]):
        (directory / name).write_bytes(content)
        life.begin()
        assert look(life, 1) == "a"
    life.wipe_cache()
    assert look(life, 1) == "a"
    assert cached(life) == [name]


def cached_file(life: Life) -> Path:
    (name,) = cached(life)
    return Path(cache_directory(life.storage.url, life.cache_dir), name)


def life_of(directory: Path, value: str) -> Life:
    life = Life(directory, [keyed_table_config("t", "", KEYED, key=["id"])])
    put(life, 1, value)
    life.commit()
    files._verified.clear()  # as in another process
    return life


def test_a_changed_copy_is_made_anew_and_never_read(tmp_path: Path) -> None:
    life = life_of(tmp_path, "a value to find")
    path = cached_file(life)
    data = path.read_bytes()
    assert b"a value to find" in data
    path.write_bytes(data.replace(b"a value to find", b"b value to find"))
    assert look(life, 1) == "a value to find"
    assert path.read_bytes() == data


def test_the_copy_of_another_state_file_is_not_taken(tmp_path: Path) -> None:
    life, other = life_of(tmp_path / "life", "right"), life_of(tmp_path / "other", "wrong")
    cached_file(life).write_bytes(cached_file(other).read_bytes())
    assert look(life, 1) == "right"


def test_a_copy_is_verified_once_in_a_process(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[int] = []

    def count(content: pa.Buffer, file: StateFile) -> bytes:
        verified.append(len(content))
        return trailer(content, file)

    trailer = files._trailer
    monkeypatch.setattr(files, "_trailer", count)
    files._verified.clear()
    for _ in range(3):
        life.begin()
        assert look(life, 1) == "a"
    assert len(verified) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_copy_that_belongs_to_another_user_is_not_read(life: Life) -> None:
    path = cached_file(life)
    os.chown(path, 12345, 12345)
    life.begin()
    assert look(life, 1) == "a"
    assert path.stat().st_uid == os.geteuid()


def test_copies_are_kept_in_the_private_directory_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    directory = Path(make_cache("s3://bucket/state"))
    assert directory.parent == tmp_path / "caches" / "headrace" / "state"
    for path in (directory, directory.parent, directory.parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_planted_directory_for_copies_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "headrace").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "headrace" / "state").symlink_to(tmp_path / "elsewhere")
    for use in (make_cache, cache_directory):
        with pytest.raises(ConfigurationError, match="state is a symbolic link"):
            use("s3://bucket/state")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_cache_holds_only_files_in_use(life: Life) -> None:
    life.compact_after = 2
    for number in range(10):
        put(life, number, "b")
        life.commit()
    assert life.restored is not None
    assert len(cached(life)) == len(life.restored.files())
    evict_cache(life.storage.url, [], cache_dir=life.cache_dir)
    assert cached(life) == []
    assert look(life, 1) == "b"


def test_what_a_task_is_writing_is_not_evicted_from_the_cache(life: Life) -> None:
    directory = Path(make_cache(life.storage.url, life.cache_dir))
    new, left = directory / "new.parquet.tmp", directory / "left.parquet.tmp"
    for path in (new, left):
        path.write_bytes(b"rows")
    os.utime(left, (time.time() - 3660,) * 2)
    evict_cache(life.storage.url, [], cache_dir=life.cache_dir)
    assert new.exists()
    assert not left.exists()


def test_a_new_storage_clears_the_cache_of_those_that_are_gone_or_long_unused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.state.cache._SWEEP_SECONDS", 0)  # as another process, or ten minutes later
    root, hour, week = tmp_path / "cache", 3600, 7 * 24 * 3600
    unused = {"gone": hour + 60, "just gone": hour - 60, "quiet": week - 60, "long quiet": week + 60}
    urls = {name: str(tmp_path / name) for name in unused} | {"remote": "s3://bucket/state"}
    for name in unused:
        Path(urls[name]).mkdir()
    for name, url in urls.items():
        made = Path(make_cache(url, str(root)))
        (made / "run.arrow").write_bytes(b"rows")
        old = time.time() - unused.get(name, hour + 60)
        os.utime(made, (old, old))
    for name in ("gone", "just gone"):
        Path(urls[name]).rmdir()
    new = Path(make_cache(str(tmp_path / "new"), str(root)))
    left = {name for name, url in urls.items() if Path(cache_directory(url, str(root))).exists()}
    assert left == {"just gone", "quiet", "remote"}
    assert new.is_dir()
    assert Path(urls["long quiet"]).is_dir()  # the storage itself is never touched


def test_an_attempt_that_fails_leaves_state_as_it_was(life: Life) -> None:
    put(life, 1, "lost")
    life.managers[0].checkpoint(2, 0.0, None)
    life.begin()
    assert look(life, 1) == "a"
    put(life, 2, "b")
    life.commit()
    assert (look(life, 1), look(life, 2)) == ("a", "b")
