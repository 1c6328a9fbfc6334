"""The parallelism that a run shall go on with, from any thread to its epoch loop."""

from __future__ import annotations

import threading
import time

from headrace.base.call_site import call_site
from headrace.base.errors import UserError


class Rescaling:
    """Where any thread asks for another parallelism, and the epoch loop finds it between two epochs.

    A later request replaces one that has not been taken yet. `parallelism` is the one in effect.
    """

    def __init__(self, parallelism: int) -> None:
        self.parallelism = parallelism
        self._changed = threading.Condition()
        self._wanted: int | None = None
        self._is_closed = False

    def request(self, parallelism: object) -> None:
        """Ask for another parallelism, from the next epoch on; raises a UserError if it is not one."""
        if isinstance(parallelism, bool) or not isinstance(parallelism, int) or parallelism < 1:
            raise UserError(
                f"a parallelism is a whole number greater than zero, got {parallelism!r}",
                hint="such as 4",
                where=call_site(),
            )
        with self._changed:
            self._wanted = parallelism

    def take(self) -> int | None:
        """The requested parallelism, if it is not in effect yet; otherwise None."""
        with self._changed:
            if self._wanted == self.parallelism:
                self._wanted = None
            return self._wanted

    def settle(self, parallelism: int) -> None:
        """Tell those who wait that a parallelism is in effect."""
        with self._changed:
            self.parallelism = parallelism
            if self._wanted == parallelism:
                self._wanted = None
            self._changed.notify_all()

    def close(self) -> None:
        """Tell those who wait that the run is over."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def wait(self, parallelism: int, timeout: float | None = None) -> bool:
        """Wait until a parallelism is in effect.

        Returns whether it is; not if the run is over, another one was asked for instead, or `timeout` seconds
        have passed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self._wanted == parallelism != self.parallelism and not self._is_closed:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            return self.parallelism == parallelism
