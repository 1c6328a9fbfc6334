"""Spark's Python processes: what they may import, and what they need not look at again and again."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_VARIABLE, _OURS = "PYTHONSAFEPATH", "headrace"


@contextmanager
def safe_paths() -> Iterator[None]:
    """Let processes that are started now not look for modules in the directory they are started in.

    Python would look there first, and a file such as `types.py` or `operator.py` beside a pipeline would be
    taken for the module of Python's own.
    """
    if os.environ.get(_VARIABLE):
        yield
        return
    os.environ[_VARIABLE] = _OURS
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)


def append_to_sys_path() -> None:
    """Search the working directory last for modules, in a process started with `safe_paths`.

    What such a process starts itself searches there first again.
    """
    if os.environ.get(_VARIABLE) == _OURS:
        del os.environ[_VARIABLE]
        sys.path.append(os.getcwd())  # noqa: PTH109 - as Python itself puts it there


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""The numbers of parameters of the C library on Linux."""
_LARGE, _KEPT, _ARENAS = 32 * 1024 * 1024, 64 * 1024 * 1024, 2
_CHOSEN = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}
"""Variables by which somebody has chosen other values."""


def keep_memory() -> None:
    """Let this process keep memory that it has freed, up to some megabytes for each of a few threads.

    Blocks of lines and the arrays made of them are large enough that the C library returns them to the system
    at once; to get the same memory again costs more than to fill it.
    """
    if sys.platform != "linux" or _CHOSEN & os.environ.keys():
        return
    set_parameter = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    set_parameter(_MMAP_THRESHOLD, _LARGE)
    set_parameter(_TRIM_THRESHOLD, _KEPT)
    set_parameter(_ARENA_MAX, _ARENAS)


_tasks_to_freeze = 3
"""Tasks until everything that a worker imports and keeps is there."""


def freeze_loaded(output: Iterable[T]) -> Iterator[T]:
    """Pass on what a task yields; after the first tasks of a worker, freeze the modules it has loaded.

    PySpark collects garbage in all generations after each task. Over the modules of Arrow and DataFusion this
    takes about as long as a small epoch does.
    """
    global _tasks_to_freeze  # noqa: PLW0603 - of this process
    yield from output
    if _tasks_to_freeze:
        _tasks_to_freeze -= 1
        gc.collect()
        gc.freeze()
