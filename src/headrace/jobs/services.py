"""Checks the external systems of a pipeline before the first epoch, and during long epochs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from types import TracebackType
from typing import Self, TypeVar

from headrace.base.errors import ExternalError, HeadraceError
from headrace.base.retry import Backoff, is_retryable, with_retry
from headrace.base.waits import Wait, Waits
from headrace.connectors.base import Connector
from headrace.engine.chain import load_operator, wrap_failure
from headrace.engine.commits import CommitTask
from headrace.engine.context import EpochContext, JobContext
from headrace.engine.envelope import Envelope
from headrace.engine.exchange import Exchange, ResidentExchange
from headrace.engine.resident import Extension
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask
from headrace.model.ahead import Positions
from headrace.model.operator import Offset
from headrace.model.plan import Plan
from headrace.operators.lookup_join import LookupJoin

T = TypeVar("T")

_log = logging.getLogger("headrace.run")

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
    """Check in parallel that every external system answers and accepts the login; raise the first error.

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
    """Checks one system in a separate thread, because a client may hang in a connection."""

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
    """Raise the first failure, with the messages of the others."""
    if not failures:
        return
    # What has to be changed comes before what may only have to be waited for.
    first, *others = sorted(failures, key=is_retryable)
    messages = {failure.message for failure in others} - {first.message}
    first.message = "\nand ".join([first.message, *sorted(messages)])
    raise first


class ServiceWatch:
    """Logs what a run waits for, from a separate thread.

    Clients on the driver note their waits themselves. Those in tasks run in other processes: when the tasks
    of an epoch take long, the systems they use are asked from here, and a run that is told to stop while one
    of them is away does not wait for its tasks. Nor does it wait for longer than the `graces` of operators,
    which are seconds by what they are called.
    """

    def __init__(
        self, connectors: Mapping[str, Connector], waits: Waits, *, graces: Mapping[str, float] | None = None
    ) -> None:
        self._graces = dict(graces or {})
        self._stopping_since: float | None = None
        self._is_last = False
        self.cut_off = ""
        """Which operators had not ended within their grace when the tasks were cancelled."""
        self._connectors = [connector for connector in connectors.values() if connector.asked_in_tasks]
        self._committing = [connector for connector in connectors.values() if connector.asked_in_commits]
        self._asked_now: Sequence[Connector] = ()
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
    def tasks(
        self, cancel: Callable[[], None], *, is_last: bool = False, commits: bool = False
    ) -> Iterator[None]:
        """Watch tasks for as long as the block lasts; `cancel` ends them.

        Those of the last epoch, in which operators are told that the run stops, keep to their graces alone.
        Those of a commit use other systems, and no grace ends them.
        """
        with self._lock:
            self._began, self._cancel, self._asked = time.monotonic(), cancel, 0.0
            self.cancelled_for, self.cut_off, self._is_last = None, "", is_last or commits
            self._asked_now = self._committing if commits else self._connectors
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
            cancel = self._cancel if stopping and (waits or self._are_overdue(now)) else None
            if cancel is not None:
                self._cancel, self.cancelled_for = None, waits[0] if waits else None
                self.cut_off = "" if waits else ", ".join(f"`{name}`" for name in self._graces)
            every = _ASK_MISSING_EVERY if self._missing or stopping else _ASK_EVERY
            is_due = stopping or now - self._began > _LONG_EPOCH
            if is_due and now - self._asked > every:
                self._asked = now
                for connector in self._asked_now:
                    self._ask(connector)
        if cancel is not None:
            with suppress(Exception):  # the tasks may have ended meanwhile
                cancel()

    def _are_overdue(self, now: float) -> bool:
        """Whether the run was stopped longer ago than the longest grace of an operator."""
        if self._stopping_since is None:
            self._stopping_since = now
        grace = max(self._graces.values(), default=None)
        return grace is not None and not self._is_last and now - self._stopping_since > grace

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


class _CutOffError(ExternalError):
    """Operators were cut off because the run stops; nothing is retried."""

    retry = False


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
        return self._watched(lambda: self._exchange.run(tasks, context), is_last=context.stopping is not None)

    def _watched(self, work: Callable[[], T], *, is_last: bool = False) -> T:
        try:
            with self._watch.tasks(self._exchange.cancel, is_last=is_last):
                return work()
        except ExternalError as error:
            if self._watch.cut_off:
                raise _CutOffError(
                    f"stopped in the middle of an epoch: {self._watch.cut_off} did not finish it in time, as "
                    "when a process takes an event and never asks for the next",
                    hint="the current epoch is not committed: the next run begins with it. A process has its "
                    "`finish_grace_secs` for a stop, and `health_check_timeout` ends one that hangs",
                ) from error
            if self._watch.cancelled_for is None:
                raise
            raise ExternalError(
                f"stopped while {self._watch.cancelled_for}",
                hint="the current epoch is not committed: the next run begins with it",
            ) from error

    def commit(self, tasks: Sequence[CommitTask], job: JobContext) -> list[Envelope]:
        """Let tasks publish their shares of an epoch."""
        try:
            with self._watch.tasks(self._exchange.cancel, commits=True):
                return self._exchange.commit(tasks, job)
        except ExternalError as error:
            if self._watch.cancelled_for is None:
                raise
            raise ExternalError(
                f"stopped while {self._watch.cancelled_for}",
                hint="the epoch is saved: the next run commits it first",
            ) from error

    def check(self) -> None:
        """Raise a WorkerError if no further epoch can run."""
        self._exchange.check()

    def cancel(self) -> None:
        """Cancel the running tasks."""
        self._exchange.cancel()


class WatchedResidentExchange(WatchedExchange):
    """The same for one whose task stays: while it ends an epoch, it is watched too.

    Its commits are not: they run on the driver, where clients note their waits themselves.
    """

    def __init__(self, exchange: ResidentExchange, watch: ServiceWatch) -> None:
        super().__init__(exchange, watch)
        self._resident = exchange

    def commit(self, tasks: Sequence[CommitTask], job: JobContext) -> list[Envelope]:
        """Publish the shares of an epoch."""
        return self._resident.commit(tasks, job)

    @property
    def is_ahead(self) -> bool:
        """Whether the task handles inputs that belong to no epoch yet."""
        return self._resident.is_ahead

    def go_on(self, epoch: int, offsets: Mapping[str, Offset]) -> None:
        """Begin an epoch, from the offsets at which the sealed one before it ended."""
        self._resident.go_on(epoch, offsets)

    def look(self) -> Positions | None:
        """How far the epoch has come, if it should end now."""
        return self._watched(self._resident.look)

    def extend(self, extensions: Mapping[str, Extension]) -> bool:
        """Read sources further; False, and nothing is, while the task is behind or the epoch should end."""
        return self._resident.extend(extensions)

    def end_soon(self) -> None:
        """End the epoch at the next look, though it is not due."""
        self._resident.end_soon()
