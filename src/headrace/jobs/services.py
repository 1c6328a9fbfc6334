"""The outside systems of a pipeline: asked before the first epoch, and watched while one does not end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from types import TracebackType
from typing import Self

from headrace.base.errors import ExternalError, HeadraceError
from headrace.base.retry import Backoff, is_retryable, with_retry
from headrace.base.waits import Wait, Waits
from headrace.connectors.base import Connector
from headrace.engine.chain import load_operator, wrap_failure
from headrace.engine.context import EpochContext
from headrace.engine.envelope import Envelope
from headrace.engine.exchange import Exchange
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask
from headrace.model.plan import Plan
from headrace.operators.lookup_join import LookupJoin

_log = logging.getLogger("headrace")

SLOW_SECONDS = 15.0
"""How long a system that has not refused may take to answer before the run goes on without its answer."""
_SILENT_SECONDS = 2.0
_OTHERS_SECONDS = 0.5
_SLICE = 0.1
_BACKOFF = Backoff(first=0.2, longest=1.0)

_LONG_EPOCH = 3.0
"""Seconds after which the systems that tasks use are asked whether they are there."""
_ASK_EVERY, _ASK_MISSING_EVERY = 10.0, 2.0
_TICK = 0.2


def connectors_of(plan: Plan) -> dict[str, Connector]:
    """Return the sources, sinks and lookups of a plan that have an outside system, by node."""
    connectors: dict[str, Connector] = {}
    for node in plan.nodes:
        operator = load_operator(node)
        connector = operator.lookup if isinstance(operator, LookupJoin) else operator
        if isinstance(connector, Connector) and type(connector).reach is not Connector.reach:
            connectors[node.id] = connector
    return connectors


def check_services(
    connectors: Mapping[str, Connector], *, timeout: float, waits: Waits, skip: Collection[str] = ()
) -> None:
    """Ask every outside system at once whether it answers and takes the login; raise what is wrong.

    One that does not answer yet is asked again for `timeout` seconds, which is told. Returns early when the
    run is told to stop, and when one takes longer than that for its answer without an error.
    """
    questions = [_Question(node, connector) for node, connector in connectors.items() if node not in skip]
    with waits.active():
        for question in questions:
            question.ask(timeout)
    began, refused_at = time.monotonic(), None
    while any(question.is_open for question in questions) and not waits.is_stopping:
        waits.tick()
        now = time.monotonic()
        for question in questions:
            if question.is_open and now - began > _SILENT_SECONDS and question.name not in waits:
                waits.failed(question.name, "no answer yet")
        if refused_at is None and any(question.failure is not None for question in questions):
            refused_at = now
        if refused_at is not None and now - refused_at > _OTHERS_SECONDS:
            break
        if now - began > max(timeout, SLOW_SECONDS):
            break
        next((question for question in questions if question.is_open), questions[0]).wait(_SLICE)
    if not waits.is_stopping:
        _raise_failures([question.failure for question in questions if question.failure is not None])
    for question in questions:
        if question.is_open and not waits.is_stopping:
            _log.warning("%s has not answered yet; the run goes on", question.name)
        else:
            waits.answered(question.name)


class _Question:
    """Whether one system answers, asked in a thread: a client may be stuck in a connection."""

    def __init__(self, node: str, connector: Connector) -> None:
        self.name = connector.display()
        self.failure: HeadraceError | None = None
        self._node = node
        self._connector = connector
        self._thread = threading.Thread(name=f"headrace-reach-{node}", daemon=True)

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    def ask(self, timeout: float) -> None:
        self._thread = threading.Thread(
            target=copy_context().run,
            args=(self._run, timeout),
            name=f"headrace-reach-{self._node}",
            daemon=True,
        )
        self._thread.start()

    def _run(self, timeout: float) -> None:
        try:
            with_retry(
                self._connector.reach,
                is_transient=is_retryable,
                backoff=_BACKOFF,
                deadline=timeout,
                waits_for=self.name,
            )
        except Exception as error:  # noqa: BLE001 - raised by the thread that asked
            self.failure = _failure(error, self._node)


def _failure(error: Exception, node: str) -> HeadraceError:
    failure = wrap_failure(error, node, 0, 0)
    failure.where = failure.where or f"operator {node}"
    if is_retryable(failure):
        more = "a server that starts later is waited for with --start-timeout (run.start_timeout)"
        failure.hint = more if failure.hint is None else f"{failure.hint}; {more}"
    return failure


def _raise_failures(failures: Sequence[HeadraceError]) -> None:
    """Raise the first, with what is wrong with the others."""
    if not failures:
        return
    # What has to be changed comes before what may only have to be waited for.
    first, *others = sorted(failures, key=is_retryable)
    messages = {failure.message for failure in others} - {first.message}
    first.message = "\nand ".join([first.message, *sorted(messages)])
    raise first


class ServiceWatch:
    """Tells what a run waits for while it goes on, from a thread of its own.

    Clients on the driver note their waits themselves. Those in tasks run in other processes: when the tasks
    of an epoch take long, the systems they use are asked from here, and a run that is told to stop while one
    of them is away does not wait for its tasks.
    """

    def __init__(self, connectors: Mapping[str, Connector], waits: Waits) -> None:
        self._connectors = [connector for connector in connectors.values() if connector.asked_in_tasks]
        self._waits = waits
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._missing: set[str] = set()
        self._asking: set[str] = set()
        self._asked = 0.0
        self._began: float | None = None
        self._cancel: Callable[[], None] | None = None
        self.cancelled_for: Wait | None = None
        """What the tasks were waiting for when they were cancelled because the run was told to stop."""
        self._thread = threading.Thread(target=self._run, name="headrace-waits", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()

    @contextmanager
    def tasks(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Watch tasks for as long as the block lasts; `cancel` ends them."""
        with self._lock:
            self._began, self._cancel, self._asked = time.monotonic(), cancel, 0.0
            self.cancelled_for = None
        try:
            yield
            with self._lock:
                there, self._missing = self._missing, set()
            for name in there:
                self._waits.answered(name)
        finally:
            with self._lock:
                self._began = self._cancel = None

    def _run(self) -> None:
        while not self._closed.wait(_TICK):
            self._waits.tick()
            self._look()

    def _look(self) -> None:
        with self._lock:
            if self._began is None:
                return
            now, stopping = time.monotonic(), self._waits.is_stopping
            waits = [wait for wait in self._waits.current if wait.name in self._missing]
            cancel = self._cancel if stopping and waits else None
            if cancel is not None:
                self._cancel, self.cancelled_for = None, waits[0]
            every = _ASK_MISSING_EVERY if self._missing or stopping else _ASK_EVERY
            is_due = stopping or now - self._began > _LONG_EPOCH
            if is_due and now - self._asked > every:
                self._asked = now
                for connector in self._connectors:
                    self._ask(connector)
        if cancel is not None:
            with suppress(Exception):  # the tasks may have ended meanwhile
                cancel()

    def _ask(self, connector: Connector) -> None:
        name = connector.display()
        if name in self._asking:
            return
        self._asking.add(name)

        def ask() -> None:
            problem: Exception | None = None
            try:
                connector.reach()
            except Exception as error:  # noqa: BLE001 - the tasks say what is wrong in the end
                problem = error
            with self._lock:
                self._asking.discard(name)
                if self._began is None:
                    return
                if isinstance(problem, ExternalError):
                    self._missing.add(name)
                else:
                    self._missing.discard(name)
            if isinstance(problem, ExternalError):
                self._waits.failed(name, problem)
            else:
                self._waits.answered(name)

        threading.Thread(target=ask, name="headrace-reach", daemon=True).start()


class WatchedExchange:
    """An exchange whose tasks are watched."""

    def __init__(self, exchange: Exchange, watch: ServiceWatch) -> None:
        self._exchange = exchange
        self._watch = watch

    def use(self, stages: StagePlan) -> None:
        """Run these stages from the next epoch on."""
        self._exchange.use(stages)

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run one epoch and return its control records."""
        try:
            with self._watch.tasks(self._exchange.cancel):
                return self._exchange.run(tasks, context)
        except ExternalError as error:
            if self._watch.cancelled_for is None:
                raise
            raise ExternalError(
                f"stopped while {self._watch.cancelled_for}",
                hint="the epoch at work is not committed: the next run begins with it",
            ) from error

    def check(self) -> None:
        """Raise a WorkerError if no further epoch can run."""
        self._exchange.check()

    def cancel(self) -> None:
        """End the tasks at work."""
        self._exchange.cancel()
