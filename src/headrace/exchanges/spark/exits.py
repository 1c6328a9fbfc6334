"""How processes of Spark ended: of what signal or exit code, and what that may mean."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from pathlib import Path
from types import FrameType
from typing import Final

from headrace.base.private import process_directory

VARIABLE: Final = "HEADRACE_WORKER_EXITS"
"""Tells the daemon of local workers where to write how they ended."""
_MAX_KEPT: Final = 100


def describe_exit(code: int) -> str:
    """How a process ended, as the end of a sentence; the code is negative for a signal, as Popen's is.

    >>> describe_exit(-9), describe_exit(3), describe_exit(143)
    ('was killed by SIGKILL', 'exited with code 3', 'exited with code 143 after SIGTERM')
    """
    if code < 0:
        return f"was killed by {_signal_name(-code)}"
    # What a shell and Java make of a signal that has ended them.
    return f"exited with code {code}" + (f" after {_signal_name(code - 128)}" if code > 128 else "")


def hint_for_exit(code: int) -> str | None:
    """What may have ended a process in this way, and how to find out."""
    if code in {-signal.SIGKILL, 128 + signal.SIGKILL}:
        return (
            "Linux kills a process in this way when memory runs out (`dmesg` or `journalctl -k` says so): "
            "use less memory, or a machine with more"
        )
    if code in {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE}:
        return "native code has crashed: a library, or a native function or operator"
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exits_directory() -> Path:
    """Return where the daemon of this process's local workers writes how they ended."""
    directory = process_directory() / "worker-exits"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def worker_exit(pid: int, *, within: float) -> int | None:
    """With which code a local worker has ended; None if that is not known within some seconds."""
    path = exits_directory() / str(pid)
    ends = time.monotonic() + within
    while True:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int(path.read_text(encoding="ascii"))
        if time.monotonic() >= ends:
            return None
        time.sleep(0.02)


def record_worker_exits(directory: Path) -> None:
    """Write how each child of this process ends, from the next fork on; the last ones are kept.

    PySpark's daemon tells the system that it does not want to know. So the handler is set anew after each
    fork, where nobody sets another.
    """
    daemon = os.getpid()
    recorded: deque[Path] = deque()

    def reap(_signum: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                path = directory / str(ended[0])
                with contextlib.suppress(OSError):  # a full disk must not end the daemon
                    part = path.with_suffix(".part")
                    part.write_text(str(os.waitstatus_to_exitcode(ended[1])), encoding="ascii")
                    part.rename(path)
                    recorded.append(path)
                    if len(recorded) > _MAX_KEPT:
                        recorded.popleft().unlink(missing_ok=True)

    def watch() -> None:
        if os.getpid() == daemon:
            signal.signal(signal.SIGCHLD, reap)

    os.register_at_fork(after_in_parent=watch)
