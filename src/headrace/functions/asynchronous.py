"""User-defined asynchronous functions: many calls run concurrently."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import pyarrow as pa
from pydantic import Field

from headrace.base.errors import ExpressionError
from headrace.base.options import Duration, Options
from headrace.functions.user_function import ColumnFunction


class AsyncOptions(Options):
    """How an asynchronous function is called."""

    ordered: bool = Field(
        False, description="Whether rows leave in the order they came in, or as they are answered."
    )
    timeout: Duration = Field(
        timedelta(seconds=5),
        gt=timedelta(0),
        description="How long one call may take; and how long the end of an epoch waits for calls.",
    )
    max_in_flight: int = Field(
        1000,
        ge=1,
        alias="allowed_in_flight",
        description="How many calls of one subtask are on their way, and how many rows wait at most.",
    )
    retries: int = Field(3, ge=0, description="How often a call that failed or took too long is made again.")
    on_error: Literal["fail", "null"] = Field(
        "fail", description="What a call that failed for good does: end the run, or give NULL."
    )


@dataclass(frozen=True)
class AsyncFunction(ColumnFunction):
    """An `async def` of the user; the operator `AsyncCall` calls it."""

    options: AsyncOptions = field(default_factory=AsyncOptions, compare=False)

    def call(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Raise an error: it is registered with DataFusion for its types, and never called there."""
        raise ExpressionError(f"udf `{self.name}` is asynchronous and cannot be called here")


@functools.lru_cache(maxsize=1)
def _loop_of(process: int) -> asyncio.AbstractEventLoop:  # noqa: ARG001 - a forked process starts its own
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="headrace-async", daemon=True).start()
    return loop


def shared_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process, in a thread of its own.

    All calls of all epochs use it, so that a client can be created once and reused.
    """
    return _loop_of(os.getpid())
