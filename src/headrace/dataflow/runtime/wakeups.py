"""How a process of a dataflow asks to be attended to: by a resident task, or by an epoch.

A resident task is on the machine of its processes, and has a bell: a pipe with a name. Otherwise a process
touches a file that the driver looks at. Both are in a private directory of the user and belong to one job. A
process on another machine has no such file, and nothing depends on it: the driver then looks after its
processes by the clock alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

from headrace.base.private import private_directory


def _file_of(job_id: str) -> Path:
    return Path(private_directory("wakeups")) / hashlib.sha256(job_id.encode()).hexdigest()[:24]


def _bell_of(job_id: str) -> Path:
    return _file_of(job_id).with_suffix(".bell")


def ring(job_id: str) -> bool:
    """Ring the bell of the resident task; False if there is none."""
    try:
        bell = os.open(_bell_of(job_id), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # nobody has made it, or whoever did has gone
        return False
    try:
        os.write(bell, b"!")
    except OSError:  # it is full, so it is heard
        return True
    finally:
        os.close(bell)
    return True


def wake(job_id: str) -> None:
    """Ask for an epoch, if the driver of the job is on this machine."""
    with contextlib.suppress(OSError):
        now = time.time_ns()
        os.utime(_file_of(job_id), ns=(now, now))  # the kernel's own times are too coarse


class Wakeups:
    """The driver's end, for as long as a job runs."""

    def __init__(self, job_id: str) -> None:
        self._file = _file_of(job_id)
        self._file.touch(mode=0o600)
        self._seen = self._file.stat().st_mtime_ns
        self.are_heard = False
        """Whether a process has asked before: those of this job can reach the driver."""

    def take(self) -> bool:
        """Whether a process has requested an epoch since the last call."""
        try:
            touched = self._file.stat().st_mtime_ns
        except OSError:  # somebody has emptied the directory
            self.are_heard = False
            return False
        if touched == self._seen:
            return False
        self._seen, self.are_heard = touched, True
        return True

    def close(self) -> None:
        """Remove the file."""
        self._file.unlink(missing_ok=True)


class Bell:
    """The bell of a resident task."""

    def __init__(self, job_id: str) -> None:
        path = self._path = _bell_of(job_id)
        path.unlink(missing_ok=True)
        os.mkfifo(path, mode=0o600)
        # Open for writing too: without a writer it would always be readable.
        self._file = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def fileno(self) -> int:
        """The file that can be read when somebody has rung."""
        return self._file

    def take(self) -> None:
        """Forget who has rung: they are attended to now."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._file, 4096)) == 4096:
                pass

    def close(self) -> None:
        """Remove the bell."""
        self._path.unlink(missing_ok=True)
        os.close(self._file)
