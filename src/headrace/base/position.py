"""What this process is doing, in a file that is still there when it has died.

A process that is killed, crashes or exits in the middle of an operator says nothing about it. Its position is
kept in memory that it shares with a file, so that to note it costs no system call.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

WIDTH: Final = 240
"""How many bytes of the file a position takes."""

_file: mmap.mmap | None = None
_position = b" " * WIDTH
NOWHERE: Final = _position
"""The position of a process that does nothing."""


def keep_position(path: Path) -> None:
    """Keep the position of this process in the first bytes of a file, followed by the end of a line."""
    global _file  # noqa: PLW0603 - of this process
    with path.open("r+b") as file:
        file.write(_position + b"\n")
        file.flush()
        _file = mmap.mmap(file.fileno(), WIDTH)


def position_label(text: str) -> bytes:
    """Return the string as `move_to` takes it: one line, as long as all others."""
    line = " ".join(text.split()).encode()[:WIDTH]
    return line.decode(errors="ignore").encode().ljust(WIDTH)


def move_to(label: bytes) -> bytes:
    """Note that this process is at `label` now, and return where it was."""
    global _position
    before, _position = _position, label
    if _file is not None:
        _file[:] = label
    return before
