"""Both sides of the talk with a task that stays: it handles what comes, and answers the driver."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable
from typing import Any

from headrace.base.errors import HeadraceError, InternalError
from headrace.engine.resident import Resident
from headrace.engine.stages import StagePlan
from headrace.exchanges.link import TaskLink

WANTS_CUT = "wants_cut"
"""The task's only message that answers nothing: the epoch should end now."""
END = "end"
"""The driver's last message."""


class Conversation:
    """The driver's side; raises an EOFError or OSError if the task has ended."""

    def __init__(self, link: TaskLink) -> None:
        self._link = link
        self._wanted = False

    def ask(self, what: str, *arguments: Any) -> Any:
        """What the task answers; an error that it answers with is raised."""
        if what == "go_on":
            self._wanted = False
        self._link.send((what, *arguments))
        while (answer := self._take()) is None:
            pass
        kind, content = answer
        if kind == "error":
            raise content
        return content

    def wants_cut(self) -> bool:
        """Whether the task has said that its epoch should end now."""
        while self._link.poll():
            self._take()
        return self._wanted

    def _take(self) -> tuple[str, Any] | None:
        """What the task has sent, if it is an answer."""
        kind, content = self._link.receive()
        if kind == WANTS_CUT:
            self._wanted = True
            return None
        return kind, content

    def end(self) -> None:
        """Tell the task that this was all, and hang up."""
        with contextlib.suppress(OSError):
            self._link.send((END,))
        self.hang_up()

    def hang_up(self) -> None:
        """Close the connection."""
        self._link.close()


def serve(link: TaskLink, load_stages: Callable[[bytes], StagePlan]) -> None:
    """Serve the driver until it hangs up."""
    resident = Resident()
    told = False
    while True:
        if _wait(link, resident):
            try:
                what, *arguments = link.receive()
            except (EOFError, OSError):
                return
            if what == END:
                return
            if what == "use":
                arguments = [load_stages(arguments[0])]
            told = told and what != "go_on"
            link.send(_answer(resident, what, arguments))
            if what != "go_on":
                continue
        # Also right after an epoch has begun: processes may have sent something since the last one.
        resident.step()
        if resident.wants_cut and not told:
            told = True
            link.send((WANTS_CUT, None))


def _answer(resident: Resident, what: str, arguments: list[Any]) -> tuple[str, Any]:
    try:
        return "answer", getattr(resident, what)(*arguments)
    except HeadraceError as error:
        return "error", error
    except Exception as error:  # noqa: BLE001 - the driver decides what a failure means
        return "error", InternalError(f"the resident task failed: {type(error).__name__}: {error}")


def _wait(link: TaskLink, resident: Resident) -> bool:
    """Wait until there is something to do; whether the driver has said something."""
    files = [link.fileno()] + [bell for bell in (resident.fileno(),) if bell is not None]
    # Not `poll`, which waits in whole milliseconds.
    return link.fileno() in select.select(files, (), (), resident.pause)[0]
