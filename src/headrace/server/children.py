"""The processes that run pipelines: started, found again after a restart of the server, ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.server.process import OUTCOME, REQUEST

LOG = "log.txt"
_LOCK = "lock"
_KEPT_RUNS = 5
"""Directories of earlier runs that are kept, for their logs."""


class Children:
    """The processes of jobs: one run of a job has a directory with its lock, its log and its outcome.

    A process holds the lock of its run from before it exists until it is gone, however it ends, so a server
    that has just started knows which of them are at work.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own: dict[int, subprocess.Popen[bytes]] = {}
        """Those that this server has started, which it has to reap."""

    def job_directory(self, job_id: str) -> Path:
        """Where everything of a job's runs is."""
        return self._directory / job_id

    def run_directory(self, job_id: str, run: int) -> Path:
        """Where everything of a run is."""
        return self.job_directory(job_id) / "runs" / f"{run:06}"

    def start(self, job_id: str, run: int, request: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        """Start a run's process in a session of its own."""
        directory = self.run_directory(job_id, run)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = directory / REQUEST
        file.write_text(json.dumps(request), encoding="utf-8")
        lock = os.open(directory / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with (directory / LOG).open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "headrace.server.process", str(directory), str(lock)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=dict(environ),
                    pass_fds=[lock],
                    start_new_session=True,
                )
        finally:
            os.close(lock)  # the process has it too
        self._own[process.pid] = process
        self._forget_old_runs(job_id, run)

    def is_alive(self, job_id: str, run: int) -> bool:
        """Whether the process of a run is at work."""
        try:
            lock = os.open(self.run_directory(job_id, run) / _LOCK, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(lock)

    def pid(self, job_id: str, run: int) -> int | None:
        """The PID of a run's process; None if it has not begun."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((self.run_directory(job_id, run) / _LOCK).read_text(encoding="ascii"))
        return None

    def outcome(self, job_id: str, run: int) -> dict[str, Any] | None:
        """The outcome that the process of a run has written; None if it was killed."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            left: dict[str, Any] = json.loads(
                (self.run_directory(job_id, run) / OUTCOME).read_text(encoding="utf-8")
            )
            return left
        return None

    def exit_code(self, job_id: str, run: int) -> int | None:
        """The exit code of a run's process, if this server has started it."""
        process = self._own.get(self.pid(job_id, run) or -1)
        return None if process is None else process.poll()

    def finish(self, job_id: str, run: int) -> None:
        """Ask the process of a run to end after the current epoch."""
        self._signal(job_id, run, signal.SIGTERM)

    def kill(self, job_id: str, run: int) -> None:
        """End the process of a run and all that it has started, at once."""
        self._signal(job_id, run, signal.SIGKILL, group=True)

    def _signal(self, job_id: str, run: int, number: int, *, group: bool = False) -> None:
        pid = self.pid(job_id, run)
        if pid is not None and self.is_alive(job_id, run):
            with contextlib.suppress(ProcessLookupError):
                if group:
                    os.killpg(pid, number)
                else:
                    os.kill(pid, number)

    def reap(self) -> None:
        """Collect the exit codes of processes that have ended."""
        for pid, process in list(self._own.items()):
            if process.poll() is not None and len(self._own) > _KEPT_RUNS:
                del self._own[pid]

    def remove(self, job_id: str) -> None:
        """Remove everything of a job's runs."""
        shutil.rmtree(self.job_directory(job_id), ignore_errors=True)

    def _forget_old_runs(self, job_id: str, run: int) -> None:
        for directory in self.run_directory(job_id, run).parent.iterdir():
            if directory.name.isdigit() and int(directory.name) <= run - _KEPT_RUNS:
                shutil.rmtree(directory, ignore_errors=True)
