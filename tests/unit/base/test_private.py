"""Private directories: nothing is used that another user could have put there, and nothing stays for ever."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.base import private
from headrace.base.errors import ConfigurationError
from headrace.base.private import (
    log_directory,
    make_private,
    private_directory,
    private_root,
    process_directory,
    socket_address,
    socket_directory,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TMPDIR", raising=False)
    return tmp_path / "headrace"


def mode(path: str | Path) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def test_a_private_directory_is_for_its_owner_only(cache: Path) -> None:
    directory = private_directory("state")
    assert directory == str(cache / "state")
    assert [mode(directory), mode(cache)] == [0o700, 0o700]


def test_it_is_in_the_cache_of_the_user_else_in_the_directory_for_temporary_files(tmp_path: Path) -> None:
    home, temporary = str(tmp_path), {"TMPDIR": str(tmp_path)}
    assert private_root({"XDG_CACHE_HOME": "/x", "HOME": home}) == Path("/x/headrace")
    assert private_root({"XDG_CACHE_HOME": "relative", "HOME": home}) == tmp_path / ".cache" / "headrace"
    for homeless in ({}, {"HOME": "/nonexistent"}, {"HOME": ""}):
        assert private_root(homeless | temporary) == tmp_path / f"headrace-{os.geteuid()}"


@needs_root
def test_the_home_directory_of_another_user_is_not_used(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 12345, 12345)
    assert private_root({"HOME": str(home), "TMPDIR": str(tmp_path)}) == tmp_path / f"headrace-{os.geteuid()}"


def test_an_existing_directory_that_others_may_read_is_closed_to_them(cache: Path) -> None:
    cache.mkdir(mode=0o755)
    private_directory("state")
    assert mode(cache) == 0o700


@pytest.mark.parametrize("planted", ["link", "file", "writable", "open parent"])
def test_a_directory_that_others_could_have_filled_is_refused(
    cache: Path, tmp_path: Path, planted: str
) -> None:
    if planted == "link":
        (tmp_path / "elsewhere").mkdir()
        cache.symlink_to(tmp_path / "elsewhere")
    elif planted == "file":
        cache.touch()
    elif planted == "writable":
        cache.mkdir()
        cache.chmod(0o770)
    else:
        tmp_path.chmod(0o777)
    with pytest.raises(ConfigurationError, match=f"{cache} .*cannot be trusted") as caught:
        private_directory("state")
    assert caught.value.hint is not None
    assert "XDG_CACHE_HOME" in caught.value.hint


@needs_root
def test_a_directory_of_another_user_is_refused(cache: Path) -> None:
    cache.mkdir(mode=0o700)
    os.chown(cache, 12345, 12345)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        private_directory("state")


def test_a_directory_that_cannot_be_made_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be used: File exists"):
        make_private(tmp_path / "file" / "below")


def test_a_process_has_one_directory_with_its_number_in_the_name(cache: Path) -> None:
    directory = process_directory()
    assert directory == process_directory()
    assert directory.parent == cache / "run"
    assert f"-{os.getpid()}-" in directory.name
    assert mode(directory) == 0o700


def test_files_that_end_with_their_process_are_in_tmpdir_if_it_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert process_directory().parent == tmp_path / f"headrace-{os.geteuid()}" / "run"


def test_a_socket_finds_room_however_long_the_path_of_the_cache_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("long" * 30)))
    directory = socket_directory()
    assert directory is not None
    assert len(str(directory)) + len("/.00000000-0000-0000-0000-000000000000.sock") <= 101
    address = socket_address(os.getpid(), "0" * 16)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
    address.unlink()
    directory.rmdir()


KILLED = """
import os, signal
from headrace.base.private import log_directory, process_directory, socket_address
(process_directory() / "spark").mkdir()
(process_directory() / "spark" / "block").write_text("rows")
log_directory()
(process_directory().parent / f"{socket_address(os.getpid(), 'keeper').name}").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""
ENDED = "from headrace.base.private import process_directory; process_directory()"


def test_what_a_killed_process_has_left_is_removed_by_the_next(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "_swept", set())
    subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert len(list((cache / "run").iterdir())) == 2
    others = [
        cache / "run" / name for name in ("000000-1-other-machine", "notes", f"{private._machine()}-1-x")
    ]
    for other in others:
        other.mkdir()
    directory = process_directory()
    assert sorted((cache / "run").iterdir()) == sorted([*others, directory])


def test_the_log_of_a_killed_process_stays_for_a_week(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-c", KILLED], check=False)
    (left,) = (cache / "logs").iterdir()
    monkeypatch.setattr(private, "_swept", set())
    log_directory()
    assert left.exists()
    os.utime(left, (0, 0))
    monkeypatch.setattr(private, "_swept", set())
    log_directory()
    assert not left.exists()


def test_a_process_that_ends_leaves_nothing(cache: Path) -> None:
    subprocess.run([sys.executable, "-c", ENDED], check=True)
    assert list((cache / "run").iterdir()) == []


@needs_root
def test_what_belongs_to_another_user_is_never_removed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_swept", set())
    subprocess.run([sys.executable, "-c", KILLED], check=False)
    for left in (cache / "run").iterdir():
        os.chown(left, 12345, 12345)
    process_directory()
    assert len(list((cache / "run").iterdir())) == 3
