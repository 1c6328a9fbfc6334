"""Handles Ctrl-C and SIGTERM at any moment of a command: a message and an exit code, no traceback.

It is the first thing that a command imports, so it imports as little as possible itself.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any, NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_received: int | None = None
"""The signal that has interrupted the command."""


def end_at_once_on_signals() -> None:
    """Let Ctrl-C and SIGTERM end this process at once: there is nothing yet, or nothing left, to put away."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` and shells ask for
            signal.signal(number, end_at_once)


def end_at_once(number: int, _frame: FrameType | None) -> NoReturn:
    """End this process now, with a message."""
    try:
        # Without buffers, locks and exit handlers, whose owner may be what hangs.
        os.write(2, b"\ninterrupted\n")
    finally:
        os._exit(128 + number)


def exit_code_of_signal() -> int | None:
    """The exit code of a command that was interrupted: 128 and the number of the signal; else None."""
    return None if _received is None else 128 + _received


class Interruptible:
    """A block in which the first signal raises a KeyboardInterrupt, and a second one ends the process.

    Whatever the block makes of the interrupt, it leaves as a KeyboardInterrupt.
    """

    def __enter__(self) -> None:
        global _received  # noqa: PLW0603 - signals come to the process
        _received = None
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self._hook = sys.unraisablehook
        sys.unraisablehook = self._tell_unraisable
        self._set({n: h if h is signal.SIG_IGN else _interrupt for n, h in self._handlers.items()})

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._set(self._handlers)
        sys.unraisablehook = self._hook
        if error is not None and _received is not None:
            raise KeyboardInterrupt from None

    def _set(self, handlers: dict[signal.Signals, Any]) -> None:
        import threading

        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _tell_unraisable(self, unraisable: Any) -> None:
        # The interrupt came while Python called a destructor, which cannot pass it on.
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            end_at_once((exit_code_of_signal() or 130) - 128, None)
        self._hook(unraisable)


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    global _received  # noqa: PLW0603 - signals come to the process
    _received = number
    end_at_once_on_signals()
    raise KeyboardInterrupt
