"""The calls of an asynchronous function that are on their way, and the rows that wait for them."""

from __future__ import annotations

import asyncio
import collections
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.functions.asynchronous import AsyncFunction, shared_loop

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""How long a call that failed waits before it is made again, in seconds; doubled each time."""


@dataclass(eq=False)
class PendingRow:
    """A row that waits for the results of calls."""

    batch: pa.RecordBatch
    index: int
    stamp: int
    """When it came: rows leave in the order of their stamps, if they are to keep it."""
    arguments: list[tuple[Any, ...] | None]
    """Of each call; None if it is not made, because an argument is NULL."""
    attempts: int = 0
    """How often a call for it has failed."""
    answered: bool = False
    """Whether its calls have ended."""
    done: bool = False
    """Whether it may leave."""
    results: list[Any] = field(default_factory=list)
    failure: tuple[int, Exception, bool] | None = None
    """Which of its calls failed for good, with what, and whether it took too long."""


class PendingCalls:
    """The calls of one epoch, made in the event loop of this process."""

    def __init__(self, function: AsyncFunction) -> None:
        self._function = function.function
        self._timeout = function.options.timeout.total_seconds()
        self._retries = function.options.retries
        self._loop = shared_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: collections.deque[PendingRow] = collections.deque()
        self._news = threading.Event()
        self._told = False
        self.outstanding = 0
        self.retried = 0

    def start(self, rows: Sequence[PendingRow]) -> None:
        """Begin to make the calls of some rows."""
        self.outstanding += len(rows)
        self._loop.call_soon_threadsafe(self._start, rows)

    def _start(self, rows: Sequence[PendingRow]) -> None:
        for row in rows:
            task = self._loop.create_task(self._answer_row(row))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def ended(self, timeout: float | None) -> PendingRow | None:
        """A row whose calls have ended, waited for; None if none has within `timeout` seconds."""
        if not self._ended:
            self._news.clear()
            if not self._ended and not self._news.wait(timeout):
                return None
        if not self._ended:
            return self.ended(timeout)
        self.outstanding -= 1
        return self._ended.popleft()

    def has_ended(self) -> bool:
        """Whether a row need not be waited for."""
        return bool(self._ended)

    def _tell(self) -> None:
        """Wake up the waiting thread, once for all rows that end at the same time."""
        self._told = False
        self._news.set()

    def cancel(self) -> list[PendingRow]:
        """Give up the calls that have not ended; returns the rows whose have."""

        async def give_up() -> None:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(give_up(), self._loop).result()
        rows = []
        while self.has_ended():
            row = self.ended(None)
            if row is not None and row.answered:
                rows.append(row)
        return rows

    async def _answer_row(self, row: PendingRow) -> None:
        try:
            if len(row.arguments) == 1:
                row.results = [await self._answer(row, 0)]
            else:
                calls = [self._answer(row, index) for index in range(len(row.arguments))]
                row.results = await asyncio.gather(*calls)
            row.answered = True
        finally:
            self._ended.append(row)
            if not self._told:
                self._told = True
                self._loop.call_soon(self._tell)

    async def _answer(self, row: PendingRow, index: int) -> Any:
        """The result of one call, with retries."""
        arguments = row.arguments[index]
        if arguments is None:
            return None
        for attempt in itertools.count(row.attempts + 1):
            limit = asyncio.timeout(self._timeout)
            try:
                async with limit:
                    return await self._function(*arguments)
            except Exception as error:  # noqa: BLE001 - told by whoever takes the row
                row.attempts = max(row.attempts, attempt)
                if attempt > self._retries:
                    row.failure = row.failure or (index, error, limit.expired())
                    return None
            self.retried += 1
            await asyncio.sleep(min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE))
        return None
