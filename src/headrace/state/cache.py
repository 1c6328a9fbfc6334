"""The local cache of state files, and its eviction.

Each storage has its own directory, in one that only this user can write to. Everything in it can be created
again from the storage, so anything may be deleted at any time: copies of unused files, and directories
without a write for a week, or for an hour if their storage no longer exists.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import time
from collections.abc import Iterable
from typing import Final

from headrace.base.private import make_private, private_directory
from headrace.storage.urls import canonical_url

_STORAGE: Final = "storage"
"""A link to the storage, if it is a directory of this machine."""
_UNUSED_SECONDS: Final = 7 * 24 * 3600
_WRITTEN_SECONDS: Final = 3600
_GONE_SECONDS: Final = 3600
"""Not at once: a container may share the directory and not see the storage of another container."""
_SWEEP_SECONDS: Final = 600
"""How often a process looks for unused directories, which takes a moment where there are thousands."""

_swept: Final[dict[str, float]] = {}
"""When this process has looked through a directory."""


def cache_directory(storage_url: str, cache_dir: str | None = None) -> str:
    """Return the cache directory of this machine for one storage."""
    root = private_directory("state") if cache_dir is None else _checked_root(cache_dir)
    return os.path.join(root, hashlib.sha256(canonical_url(storage_url).encode()).hexdigest()[:24])


@functools.cache
def _checked_root(cache_dir: str) -> str:
    if os.path.lexists(cache_dir):
        make_private(cache_dir)
    return cache_dir


def make_cache(storage_url: str, cache_dir: str | None = None) -> str:
    """Create the cache directory of one storage, and remove unused ones of others; return it."""
    directory = cache_directory(storage_url, cache_dir)
    if not os.path.isdir(directory):
        root = os.path.dirname(directory)
        make_private(os.path.dirname(root) if cache_dir is None else root)
        make_private(root)
        make_private(directory)
        storage = canonical_url(storage_url)
        if os.path.isabs(storage):
            with contextlib.suppress(OSError):
                os.symlink(storage, os.path.join(directory, _STORAGE))
        _sweep(root)
    return directory


def cached_name(file: str, version: str) -> str:
    """Return the name of the copy of a file; `version` identifies its content and order."""
    return f"{_stem(file)}-{version}.arrow"


def evict_cache(storage_url: str, live_files: Iterable[str], *, cache_dir: str | None = None) -> None:
    """Remove the copies of every file that is not among `live_files`, and what killed tasks left."""
    directory = cache_directory(storage_url, cache_dir)
    live = {_stem(file) for file in live_files} | {_STORAGE}
    for name in _names(directory):
        path = os.path.join(directory, name)
        if name.partition("-")[0] not in live and not _is_being_written(path):
            _remove(path)


def _is_being_written(path: str) -> bool:
    """Whether a task may still write this file; one that was killed left it an hour ago or longer."""
    try:
        return path.endswith(".tmp") and time.time() - os.stat(path).st_mtime < _WRITTEN_SECONDS
    except FileNotFoundError:
        return False


def drop_cached(storage_url: str, files: Iterable[str], *, cache_dir: str | None = None) -> None:
    """Remove the copies of files that are no longer used."""
    directory = cache_directory(storage_url, cache_dir)
    dead = {_stem(file) for file in files}
    if dead:
        for name in _names(directory):
            if name.partition("-")[0] in dead:
                _remove(os.path.join(directory, name))


def _sweep(root: str) -> None:
    now = time.monotonic()
    if now - _swept.get(root, -_SWEEP_SECONDS) < _SWEEP_SECONDS:
        return
    _swept[root] = now
    for name in _names(root):
        directory = os.path.join(root, name)
        link = os.path.join(directory, _STORAGE)
        with contextlib.suppress(FileNotFoundError):
            is_orphan = os.path.islink(link) and not os.path.exists(link)
            unused = time.time() - os.stat(directory).st_mtime
            if unused > (_GONE_SECONDS if is_orphan else _UNUSED_SECONDS):
                shutil.rmtree(directory, ignore_errors=True)


def _stem(file: str) -> str:
    return hashlib.sha256(file.encode()).hexdigest()[:32]


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
