"""What units print and log: lines with their unit, kept until the epoch that they belong to is committed."""

from __future__ import annotations

import io
import itertools
import json
import logging
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.dataflow.runtime.hosts import Log

LOGGER = "headrace.dataflow"
"""The logger that the lines of committed epochs go to; a record has the attribute `printed`."""

LINES = "\0lines"
"""The output under which a source sends what its process printed."""

LEVELS = {
    "stdout": logging.INFO,
    "stderr": logging.INFO,
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
"""What each stream counts as for Python's logging."""

_ORDER = ("stdout", "trace", "debug", "info", "warn", "error")
"""The levels of dora; what is merely printed is below all that is logged."""


_NAMES = {"stdout": "stdout", "stderr": "stdout", "warning": "WARN"}
"""Levels as dora writes them; the others in capitals."""


@dataclass(frozen=True)
class Line:
    """One line that a unit printed (`stdout`, `stderr`) or that was logged for it (a level)."""

    unit: str
    stream: str
    text: str
    time: float

    @property
    def level(self) -> int:
        return LEVELS.get(self.stream, logging.INFO)

    def reaches(self, level: str | None) -> bool:
        """Whether it is at least of a level of dora's; everything is, without one."""
        own = {"stderr": "stdout", "warning": "warn"}.get(self.stream, self.stream)
        return level is None or _ORDER.index(own) >= _ORDER.index(level.lower())

    def to_json(self) -> str:
        """The line as an entry of a log, with dora's keys."""
        at = datetime.fromtimestamp(self.time, UTC).isoformat()
        level = _NAMES.get(self.stream, self.stream.upper())
        entry = {"timestamp": at, "level": level, "node_id": self.unit, "message": self.text}
        return json.dumps(entry, ensure_ascii=False)


def encode_lines(lines: list[Line]) -> bytes:
    """Lines for the commit of an epoch."""
    return json.dumps([list(asdict(line).values()) for line in lines]).encode()


def decode_lines(data: bytes) -> list[Line]:
    """What `encode_lines` made."""
    return [Line(*values) for values in json.loads(data)]


_recent: deque[tuple[int, Line]] = deque(maxlen=10_000)
_numbers = itertools.count(1)


def recent_lines(after: int = 0) -> dict[str, Any]:
    """The last lines that were published in this process, behind that number, and the number of the last."""
    lines = [(number, line) for number, line in list(_recent) if number > after]
    return {
        "last": lines[-1][0] if lines else after,
        "lines": [list(asdict(line).values()) for _, line in lines],
    }


def publish(lines: list[Line]) -> None:
    """Pass lines to the logger: the command line, a test or the user's handler receives them."""
    logger = logging.getLogger(LOGGER)
    for line in lines:
        _recent.append((next(_numbers), line))
        logger.log(line.level, "%s: %s", line.unit, line.text, extra={"printed": line})


class _Stream(io.TextIOBase):
    """Replaces sys.stdout: hands complete lines to the running unit."""

    def __init__(self, name: str, capture: Capture) -> None:
        self._name = name
        self._capture = capture

    def write(self, text: str) -> int:
        self._capture.write(self._name, text)
        return len(text)

    def writable(self) -> bool:
        return True


class Capture:
    """Captures what Python code prints, for the unit that is running."""

    def __init__(self) -> None:
        self._at_work: list[Log] = []
        self._parts: dict[tuple[Log, str], str] = {}

    def enter(self, log: Log) -> None:
        """Attribute what is printed from now on to this unit."""
        self._at_work.append(log)

    def leave(self) -> None:
        """Attribute what is printed to the caller of the unit again."""
        self._at_work.pop()

    def write(self, stream: str, text: str) -> None:
        """Pass on whole lines; the rest waits for its end."""
        if not self._at_work:
            (sys.__stdout__ if stream == "stdout" else sys.__stderr__).write(text)  # type: ignore[union-attr]
            return
        log = self._at_work[-1]
        *lines, rest = (self._parts.pop((log, stream), "") + text).split("\n")
        for line in lines:
            log(stream, line)
        if rest:
            self._parts[log, stream] = rest

    def share(self, other: Capture) -> None:
        """Share the state of another capture: only one can replace sys.stdout."""
        self._at_work, self._parts = other._at_work, other._parts

    def flush(self) -> None:
        """Pass on lines that have no end yet."""
        for (log, stream), rest in list(self._parts.items()):
            log(stream, rest)
        self._parts.clear()

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Capture what is printed within the context."""
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _Stream("stdout", self), _Stream("stderr", self)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            self.flush()
