"""What Spark's Python processes may import: their directory comes last, not first."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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


def look_here_last() -> None:
    """In such a process: look in its directory last; what it starts looks there first again."""
    if os.environ.get(_VARIABLE) == _OURS:
        del os.environ[_VARIABLE]
        sys.path.append(os.getcwd())  # noqa: PTH109 - as Python itself puts it there
