"""Generations: which run of a pipeline owns a state directory.

    generations/generation-0000007.json    the seventh run that was started, and where it took up the state

A run claims the next number by creating its file, which only one can. The greatest number owns the directory:
a run that finds a greater one than its own has been replaced, and publishes nothing any more. A lock cannot
do that on an object store, where nobody notices that its holder has died or was only asleep.

The numbers follow each other, and so do epochs: whatever a listing shows, files beyond it are looked for by
name. A listing may therefore be behind.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.base.errors import CorruptStateError, ReplacedError, StateInUseError
from headrace.storage.base import Storage

_log = logging.getLogger("headrace.state")

FOLDER = "generations"
_NAME = re.compile(r"generation-(\d+)\.json")
_KEPT = 20
"""How many files of earlier generations stay, to tell who has run."""
_ATTEMPTS = 100


class Start(NamedTuple):
    """The checkpoint that a run started from; epoch 0 if there was none."""

    epoch: int
    generation: int | None
    """Which run had written it; None if that was not recorded."""
    oldest: int = 1
    """The oldest epoch that a run may go back to: earlier checkpoints are being removed, or were."""


@dataclass
class Generation:
    """The claim of one run to a state directory."""

    storage: Storage
    number: int
    run_id: str
    _checked: float = field(default=float("-inf"), compare=False, repr=False)

    @classmethod
    def claim(cls, storage: Storage, run_id: str) -> Generation:
        """Claim the next generation: every earlier run is replaced from now on."""
        data = _content(run_id)
        earlier = generations(storage)
        first = max(earlier, default=0) + 1
        for number in range(first, first + _ATTEMPTS):
            path = _path(number)
            # A store may report a conflict with our own write, when it retried one whose answer was lost.
            if storage.create(path, data) or storage.read(path) == data:
                _check_conditions(storage, path, data)
                for old in earlier[:-_KEPT]:
                    storage.delete(_path(old))
                return cls(storage, number, run_id)
        raise StateInUseError(
            f"{_ATTEMPTS} other runs have taken over the state directory `{storage.url}` in the same moment",
            hint="one state directory serves one run of one pipeline; stop the others",
        )

    @property
    def path(self) -> str:
        """The file that is this run's claim."""
        return _path(self.number)

    def start_from(self, start: Start) -> None:
        """Record the checkpoint that this run starts from: later ones of earlier generations do not count.

        A run that does not know yet that it was replaced may still write one. Its sinks never commit it.
        """
        self.storage.write(_path(self.number), _content(self.run_id, start))

    def check(self, *, every: float = 0.0) -> None:
        """Raise a ReplacedError if another run has claimed the state directory since.

        `every` is for how many seconds the last answer is good enough. They pass while this process, or the
        machine, is suspended.
        """
        now = _elapsed()
        if now - self._checked < every:
            return
        self._check_now()
        self._checked = now

    def _check_now(self) -> None:
        # By name, not by a listing, which may be behind. The oldest files are removed first, so a run whose
        # own file is gone was replaced long ago.
        if self.storage.exists(_path(self.number + 1)) or not self.storage.exists(_path(self.number)):
            newest = max(generations(self.storage), default=0)
            raise ReplacedError(
                f"{_describe(self.storage, newest)} has taken over the state directory `{self.storage.url}`",
                hint="this run ends and publishes nothing more; the other one goes on",
            )


def _elapsed() -> float:
    """Return the seconds since the machine was started; where that is known, also those it was asleep for."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def generations(storage: Storage) -> list[int]:
    """Return the generations that a state directory remembers, oldest first."""
    matches = (_NAME.fullmatch(name) for name in storage.children(FOLDER))
    listed = sorted(int(match[1]) for match in matches if match)
    newest = listed[-1] if listed else 0
    last = last_number(newest, lambda number: storage.exists(_path(number)))
    return [*listed, *range(newest + 1, last + 1)]


def last_number(listed: int, exists: Callable[[int], bool]) -> int:
    """Return the last of files with consecutive numbers, from the last one that a listing shows."""
    while exists(listed + 1):
        listed += 1
    return listed


def start_of(storage: Storage, number: int) -> Start | None:
    """Return the checkpoint that a generation started from; None if it has none yet."""
    try:
        claim = json.loads(storage.read(_path(number)))
        epoch, writer = claim.get("start"), claim.get("start_generation")
        if epoch is None:
            return None
        return Start(int(epoch), None if writer is None else int(writer), int(claim.get("oldest", 1)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError):
        raise CorruptStateError(f"`{_path(number)}` is damaged", where=storage.url) from None


def _path(number: int) -> str:
    return f"{FOLDER}/generation-{number:07}.json"


def _content(run_id: str, start: Start | None = None) -> bytes:
    claim: dict[str, object] = {"run_id": run_id, "pid": os.getpid(), "host": socket.gethostname()}
    claim["start"] = None if start is None else start.epoch
    if start is not None:
        claim["start_generation"], claim["oldest"] = start.generation, start.oldest
    return json.dumps(claim).encode()


def _check_conditions(storage: Storage, path: str, data: bytes) -> None:
    """Warn if the store cannot create a file atomically, or writes over one that it was only to create."""
    if not storage.creates_atomically or (not storage.is_local and storage.create(path, data)):
        _log.warning(
            "%s does not support conditional writes: two runs that start in the same moment cannot be kept "
            "apart, so make sure that only one runs on this state directory",
            storage.url,
        )


def _describe(storage: Storage, number: int) -> str:
    try:
        claim = json.loads(storage.read(_path(number)))
        return f"another run, process {claim['pid']} on {claim['host']},"
    except (OSError, ValueError, KeyError, TypeError):
        return "another run"
