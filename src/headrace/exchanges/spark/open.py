"""Opens the Spark that a run asks for, and the exchange that runs its epochs there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict

from headrace.base.errors import ConfigurationError
from headrace.base.retry import Backoff, is_retryable, with_retry
from headrace.exchanges.engine import EngineExchange, TaskEngine
from headrace.exchanges.spark.connect_session import ConnectSession, active_session, open_session
from headrace.exchanges.spark.masters import is_connect, is_local
from headrace.exchanges.spark.preflight import Preflight
from headrace.exchanges.spark.session import SparkRequest, SparkRuntime, is_lost, open_spark, using_spark
from headrace.exchanges.spark.usage import SparkUsage, usage_of
from headrace.model.plan import Plan

if TYPE_CHECKING:
    from headrace.exchanges.spark.resident import SparkTask

_log = logging.getLogger("headrace.spark")
_REOPEN_SECONDS = 30.0
"""How long an attempt at an epoch waits for a server that was lost."""
_REOPEN_BACKOFF = Backoff(first=0.5, longest=3.0)


class _Prepared(TypedDict):
    """What an exchange needs besides its Spark."""

    reopen: Callable[[], SparkRuntime]
    preflight: Preflight


def uses_connect(master: str | None) -> bool:
    """Whether a run with this master, or with the active session, goes over Spark Connect."""
    return active_session() is not None if master is None else is_connect(master)


def has_ended(request: SparkRequest, *, within: float) -> bool:
    """Whether the Java that a run uses in this process has ended, or does so within some seconds."""
    return not uses_connect(request.master) and is_lost(within=within)


@contextmanager
def using(request: SparkRequest) -> Iterator[TaskEngine]:
    """Open the Spark that a run asks for, and keep it for as long as the block lasts."""
    if uses_connect(request.master):
        opened = _OpenConnect(request)
        try:
            yield opened
        finally:
            opened.close()
    else:
        with using_spark(request) as runtime:
            yield _OpenContext(request, runtime)


class _OpenContext:
    """A SparkContext of this process."""

    def __init__(self, request: SparkRequest, runtime: SparkRuntime) -> None:
        self._request = request
        self._runtime = runtime
        self.log_file = runtime.log_file

    @property
    def cores(self) -> int:
        return self._runtime.cores

    @property
    def grows(self) -> bool:
        return self._runtime.grows

    @property
    def is_here(self) -> bool:
        return is_local(self._runtime.spark.master)

    def usage(self) -> SparkUsage | None:
        return usage_of(self._runtime.spark)

    def exchange(self, plan: Plan, *, py_files: Sequence[str], preflight: Preflight) -> EngineExchange:
        from headrace.exchanges.spark.rdd import RddExchange

        return RddExchange(self._runtime, **self._prepare(plan, py_files, preflight))

    def resident_task(self, plan: Plan, *, py_files: Sequence[str], preflight: Preflight) -> SparkTask:
        from headrace.exchanges.spark.resident import SparkTask

        return SparkTask(self._runtime, **self._prepare(plan, py_files, preflight))

    def _prepare(self, plan: Plan, py_files: Sequence[str], preflight: Preflight) -> _Prepared:
        """Ship the code and check the workers."""
        from headrace.exchanges.spark.shipping import ship_code

        def reopen() -> SparkRuntime:
            self._runtime = open_spark(self._request)
            ship_code(self._runtime.spark, plan, py_files)
            return self._runtime

        ship_code(self._runtime.spark, plan, py_files)
        preflight.check(self._runtime)
        if self._runtime.is_own and self._runtime.ui_url is not None:
            _log.warning("Spark's web pages are at %s", self._runtime.ui_url)
        return {"reopen": reopen, "preflight": preflight}


class _OpenConnect:
    """A session on a Spark Connect server."""

    log_file = None
    is_here = False

    def __init__(self, request: SparkRequest) -> None:
        self._request = request
        self._session = self._open()

    def _open(self) -> ConnectSession:
        return open_session(self._request.master, self._request.conf)

    @property
    def cores(self) -> int:
        return self._session.cores

    @property
    def grows(self) -> bool:
        return self._session.grows

    def usage(self) -> SparkUsage | None:
        return None  # a client is not told

    def exchange(self, plan: Plan, *, py_files: Sequence[str], preflight: Preflight) -> EngineExchange:
        from headrace.exchanges.spark.connect import ConnectExchange
        from headrace.exchanges.spark.connect_setup import prepare, ship

        with_headrace = prepare(self._session, plan, py_files, preflight=preflight)

        def reopen(lost: ConnectSession) -> ConnectSession:
            # A server that is started again takes as long as Java and Spark do.
            self._session = with_retry(
                self._open,
                is_transient=is_retryable,
                backoff=_REOPEN_BACKOFF,
                deadline=_REOPEN_SECONDS,
                waits_for=f"the Spark Connect server at {lost.address}",
            )
            lost.close()
            ship(self._session, plan, py_files, with_headrace=with_headrace)
            return self._session

        return ConnectExchange(self._session, reopen=reopen, question=preflight.question)

    def resident_task(self, plan: Plan, *, py_files: Sequence[str], preflight: Preflight) -> SparkTask:
        raise ConfigurationError(
            f"`{plan.name}` cannot run resident over Spark Connect: its tasks cannot be reached",
            hint="leave `execution: resident` out, or run on the cluster's own master: spark://host:7077, "
            "yarn or k8s://https://host:6443",
        )

    def close(self) -> None:
        self._session.close()
