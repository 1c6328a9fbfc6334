"""What runs a unit of a dataflow: the contract between the scheduler and an operator, library or process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]
"""What dora gives an operator: `type` (INPUT, INPUT_CLOSED, STOP, RELOAD, ERROR), `id`, `kind`, and for
INPUT `value`, a pyarrow array, and `metadata` with its `timestamp`."""

Send = Callable[[str, Any, Mapping[str, Any] | None], None]
"""`send(output, data, metadata)`: what a unit sends; raises for what cannot be sent."""

Log = Callable[[str, str], None]
"""`log(stream, line)`: a line that a unit printed (`stdout`, `stderr`) or logged (its level, as `info`)."""

STOP_GRACE = 10.0
"""Seconds that a process has to end after it was told to stop."""

CONTINUE, STOP, STOP_ALL = 0, 1, 2
"""What a unit wants after an event, the values of dora's `DoraStatus`."""


class Host(ABC):
    """Runs one unit. Events come one after the other, from one thread.

    `start` comes first, with what `snapshot` gave at the end of an earlier epoch, or with None in a new
    dataflow. What the unit raises comes out of these methods as it is.
    """

    send: Send
    """What the unit sends with; known before `start`."""
    at_once: int = 1
    """How many events it may be given in one call; more than one where a call costs more than an event."""
    lives_alone: bool = False
    """Whether it can send, and end, while it has no event to handle."""

    @property
    def has_sent(self) -> bool:
        """Whether it has sent something, or ended, and nobody has taken notice yet."""
        return False

    @abstractmethod
    def start(self, state: bytes | None) -> None:
        """Make the unit ready, as it was when `state` was taken."""

    @abstractmethod
    def handle(self, events: Sequence[Event], send: Send) -> int:
        """Give the events to the unit in their order; returns CONTINUE, STOP or STOP_ALL.

        All that the unit sends while it handles them goes to `send`. After STOP or STOP_ALL the rest of
        the events is not handled. A unit that lives by itself (`lives_alone`) is given no events at times:
        what it has sent since, and its end, come out of that.
        """

    @abstractmethod
    def snapshot(self) -> bytes | None:
        """Everything the unit has to remember; None for one whose memory cannot be saved."""

    def finish(self, send: Send) -> None:
        """The unit gets no more events: let it end, and pass on what it still sends."""

    def restart(self) -> None:
        """Restart after a failure, with as much of its state as it has."""
        self.close()
        self.start(None)

    def close(self) -> None:
        """The unit is over: let go of what it holds."""
