"""Directories of this machine that only its user can write to: for copies, sockets, code and Spark's files.

Headrace loads what it finds there: libraries, pickled state, code for the workers. So each directory is
checked before it is used, once per process: it is no symbolic link, it belongs to this user, and nobody else
may write to it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import itertools
import os
import re
import secrets
import shutil
import socket
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from headrace.base.errors import ConfigurationError

_RUN: Final = "run"
_LOGS: Final = "logs"
_LONGEST_ROOT: Final = 30
"""In letters: with the names below it, a socket may have 100."""
_MAX_SCANNED: Final = 1000
_MAX_REMOVED: Final = 100
_LOG_SECONDS: Final = 7 * 24 * 3600
_CREDENTIALS: Final = struct.Struct("3i")

_Setting: TypeAlias = tuple[str | None, ...]

_lock: Final = threading.RLock()
_checked: dict[tuple[_Setting, str], str] = {}
_of_process: dict[tuple[int, Path], Path] = {}
_swept: set[tuple[int, Path]] = set()


def private_directory(name: str) -> str:
    """Return the user's directory for `name`; the first call of a process creates and checks it.

    It is below `$XDG_CACHE_HOME/headrace`, else below `~/.cache/headrace`, else, for a user without a home
    directory, below `headrace-UID` in the directory for temporary files. What is in it may be deleted when
    no process uses it.
    """
    environ = os.environ
    key = (environ.get("XDG_CACHE_HOME"), environ.get("HOME"), environ.get("TMPDIR")), name
    directory = _checked.get(key)
    if directory is None:
        directory = _checked[key] = str(_make_below(private_root(), name))
    return directory


def private_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the directories of this user are."""
    cache = Path(environ.get("XDG_CACHE_HOME", ""))
    if cache.is_absolute():
        return cache / "headrace"
    home = _own_home(environ)
    return _temporary_root(environ) if home is None else home / ".cache" / "headrace"


def scratch_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where files that end with their process are: in TMPDIR if that is set, else with the others."""
    return _temporary_root(environ) if _chosen_tmpdir(environ) else private_root(environ)


def process_directory() -> Path:
    """Return a directory for files that end with this process; it is removed at exit.

    If the process is killed, the next one of this user removes it.
    """
    return _process_directory(scratch_root())


def socket_directory() -> Path | None:
    """Return a directory like `process_directory`, with a path that is short enough for sockets."""
    root = _socket_root()
    return None if root is None else _process_directory(root)


def socket_address(owner: int, name: str) -> Path:
    """Return the path of a socket that others look for by name, and that ends with the process `owner`."""
    root = _socket_root()
    if root is None:
        raise ConfigurationError(
            f"the path of the temporary directory is too long for a socket: {tempfile.gettempdir()}",
            hint="set TMPDIR to a directory with a shorter path",
        )
    return _run_directory(root) / f"{_machine()}-{owner}-{name}.sock"


def socket_addresses(suffix: str, *, owner: int | None = None) -> list[Path]:
    """Return the sockets of this user and machine whose names, see `socket_address`, end with `suffix`.

    With `owner` only those of this process. Those of processes that have ended are removed first.
    """
    root = _socket_root()
    if root is None:
        return []
    return sorted(_run_directory(root).glob(f"{_machine()}-{owner or '*'}-*{suffix}.sock"))


def user_at(connected: socket.socket) -> int:
    """Return the user at the other end of a socket of `socket_address`, as the kernel knows it."""
    if not hasattr(socket, "SO_PEERCRED"):  # then the directory alone keeps others out
        return os.geteuid()
    _, user, _ = _CREDENTIALS.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return int(user)


def log_directory() -> Path:
    """Return a new directory for a log, which may outlive this process; old ones are removed."""
    directory = _make_below(scratch_root(), _LOGS)
    _sweep_once(directory, unused_seconds=_LOG_SECONDS)
    return _make_new(directory)


def make_private(directory: str | Path) -> None:
    """Create a directory that only its owner can use, or check that an existing one is such a directory.

    Raises a ConfigurationError that says what is wrong with it.
    """
    path = Path(directory)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        _check_parents(path)
        status = path.lstat()
        problem = _problem(status)
        if problem is None and status.st_mode & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise ConfigurationError(
            f"the directory {path} cannot be used: {error.strerror}",
            hint="set XDG_CACHE_HOME to a directory of your own that can be written",
        ) from error
    if problem is not None:
        raise _refusal(path, problem)


def _problem(status: os.stat_result) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    if status.st_uid != os.geteuid():
        return f"belongs to another user (number {status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by other users"
    return None


def _check_parents(path: Path) -> None:
    for parent in (path.parent.resolve() / path.name).parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise _refusal(path, f"can be replaced by other users, who may write to {parent}")


def _refusal(path: Path, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"the directory {path} {problem}: what is in it cannot be trusted",
        hint="remove it, or set XDG_CACHE_HOME (and TMPDIR, if you use it) to a directory of your own",
    )


def _own_home(environ: Mapping[str, str]) -> Path | None:
    """The home directory, if it is this user's (under sudo it may not be) and can be written."""
    home = Path(environ.get("HOME", ""))
    if not home.is_absolute():
        return None
    cache = home / ".cache"
    try:
        is_own = home.stat().st_uid == os.geteuid()
    except OSError:
        return None
    return home if is_own and os.access(cache if cache.exists() else home, os.W_OK | os.X_OK) else None


def _chosen_tmpdir(environ: Mapping[str, str]) -> Path | None:
    directory = Path(environ.get("TMPDIR", ""))
    return directory if directory.is_absolute() and directory.is_dir() else None


def _temporary_root(environ: Mapping[str, str]) -> Path:
    return Path(_chosen_tmpdir(environ) or tempfile.gettempdir(), f"headrace-{os.geteuid()}")


def _socket_root() -> Path | None:
    for root in (scratch_root(), _temporary_root(os.environ), _temporary_root({"TMPDIR": "/tmp"})):  # noqa: S108 - checked
        if len(os.fsencode(root)) <= _LONGEST_ROOT and root.parent.is_dir():
            return root
    return None


def _make_below(root: Path, name: str) -> Path:
    make_private(root)
    directory = root / name
    make_private(directory)
    return directory


def _run_directory(root: Path) -> Path:
    directory = _make_below(root, _RUN)
    _sweep_once(directory)
    return directory


def _process_directory(root: Path) -> Path:
    key = os.getpid(), root
    with _lock:
        directory = _of_process.get(key)
        if directory is None or not directory.is_dir():
            directory = _of_process[key] = _make_new(_run_directory(root))
        return directory


def _make_new(parent: Path) -> Path:
    directory = parent / f"{_machine()}-{os.getpid()}-{secrets.token_hex(4)}"
    directory.mkdir(mode=0o700)
    return directory


@functools.cache
def _machine() -> str:
    """A short name for this host and its numbers of processes: a directory may be shared with others."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return hashlib.sha256(f"{socket.gethostname()}\0{namespace}".encode()).hexdigest()[:6]


def _sweep_once(directory: Path, *, unused_seconds: float = 0.0) -> None:
    """Remove the files that ended processes of this machine have left behind."""
    key = os.getpid(), directory
    if key in _swept:
        return
    _swept.add(key)
    removed = 0
    own_name = re.compile(rf"{_machine()}-(\d+)-.+")
    with os.scandir(directory) as entries:
        for entry in itertools.islice(entries, _MAX_SCANNED):
            match = own_name.fullmatch(entry.name)
            if match is None or _is_alive(int(match[1])):
                continue
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.geteuid() and time.time() - status.st_mtime >= unused_seconds:
                    _remove(entry)
                    removed += 1
            if removed == _MAX_REMOVED:
                return


def _remove(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path, ignore_errors=True)
    else:
        Path(entry.path).unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _remove_own() -> None:
    for (pid, _), directory in _of_process.items():
        if pid == os.getpid():
            shutil.rmtree(directory, ignore_errors=True)


# Here and not where a directory is made: what is registered first is called last, when Spark has ended.
atexit.register(_remove_own)
