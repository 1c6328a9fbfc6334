"""Spark's Python workers: their import path, and settings that make them faster."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from headrace.base.position import NOWHERE, WIDTH, keep_position, move_to

T = TypeVar("T")

_VARIABLE, _OURS = "PYTHONSAFEPATH", "headrace"


@contextmanager
def safe_paths() -> Iterator[None]:
    """Keep the working directory off the import path of processes that are started now.

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


_CRASH_DIRECTORY = "PYTHON_FAULTHANDLER_DIR"
"""Where Spark looks for the words of a worker that has ended, in a file with the number of its process."""
POSITION_OF = "headrace worker"
"""Begins the line behind the position, which ends with the number of the process."""


def leave_position() -> None:
    """Make Spark's error name the position of this worker if it ends without a result.

    Spark puts a file of the worker into the message. Python writes the stack of a crash there, if it can: it
    comes behind the position.
    """
    path = Path(os.environ.get(_CRASH_DIRECTORY, os.devnull), str(os.getpid()))
    try:
        keep_position(path)
        # Kept open as long as the process is: a crash is written by its number alone.
        file = os.open(path, os.O_WRONLY)
        os.lseek(file, WIDTH + 1, os.SEEK_SET)
        os.write(file, f"{POSITION_OF} {os.getpid()}\n".encode())
    except OSError:  # Spark does not look for it, or the disk is full
        return
    faulthandler.enable(file)


_tasks_to_freeze = 3
"""Tasks until everything that a worker imports and keeps is there."""


def freeze_loaded(output: Iterable[T]) -> Iterator[T]:
    """Pass on what a task yields; after the first tasks of a worker, freeze the modules it has loaded.

    PySpark collects garbage in all generations after each task. Over the modules of Arrow and DataFusion this
    takes about as long as a small epoch does.
    """
    global _tasks_to_freeze  # noqa: PLW0603 - of this process
    yield from output
    move_to(NOWHERE)
    if _tasks_to_freeze:
        _tasks_to_freeze -= 1
        gc.collect()
        gc.freeze()
