"""The task that stays, as a Spark job with one task that lasts as long as the run.

Spark schedules it, and a job that has failed is started again with the next epoch; on a cluster Spark itself
starts a lost task again on another executor, which connects as the first one did.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.base.errors import ConfigurationError, ExternalError, HeadraceError, WorkerError
from headrace.engine.context import EpochContext
from headrace.engine.envelope import Envelope
from headrace.engine.resident import Extension, Onwards
from headrace.engine.stages import StagePlan
from headrace.engine.task import SplitTask
from headrace.exchanges.link import Listener, TaskLink, connect
from headrace.exchanges.serve import Conversation, serve
from headrace.exchanges.spark.masters import is_local
from headrace.exchanges.spark.rdd import RddExchange
from headrace.exchanges.spark.tasks import load_stages, pack_stages
from headrace.model.ahead import Positions

_START_SECONDS = 60.0
"""How long Spark may take to start a task: it waits while all cores are at work."""
_LOOK_SECONDS = 0.2
_END_SECONDS = 3.0
"""How long a task has to end when it is told to, and Spark to say how one has ended that is lost."""
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class _Stay:
    """The task."""

    address: tuple[str, int]
    secret: bytes

    def __call__(self, _partition: int, numbers: Iterable[int]) -> Iterator[Any]:
        for _ in numbers:
            pass  # a worker whose input was not read is not used again
        with contextlib.suppress(ConnectionRefusedError):  # the run is over
            link = connect(self.address, self.secret)
            try:
                serve(link, load_stages)
            finally:
                link.close()
        return iter(())


class SparkTask(RddExchange):
    """A resident task in a Python worker of Spark, as a `ResidentTask`."""

    _listener: Listener | None = None
    _task: Conversation | None = None
    _job: _Job | None = None

    def use(self, stages: StagePlan) -> None:
        """Run these stages from the next epoch on."""
        super().use(stages)
        if self._task is not None:
            with contextlib.suppress(WorkerError):  # it is lost: the next one starts with them
                self._ask("use", self._packed(stages))

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        """Run one epoch and return its control records; starts the task if it does not run."""
        self._cancelled = False
        if self._task is None:
            self._start()
        envelopes: list[Envelope] = self._ask("run", tasks, context)
        return envelopes

    def go_on(self, onwards: Onwards) -> bool:
        """Begin an epoch before it is planned."""
        return bool(self._ask("go_on", onwards))

    def wants_cut(self) -> bool:
        """Whether the epoch should end now; raises a WorkerError if the task is lost."""
        try:
            return self._task is not None and self._task.wants_cut()
        except (EOFError, OSError) as error:
            raise self._lost() from error

    def cut(self) -> Positions | None:
        """End the epoch."""
        positions: Positions | None = self._ask("cut")
        return positions

    def extend(self, extensions: Mapping[str, Extension]) -> bool:
        """Read sources further; False, and nothing is, while the task is behind or the epoch should end."""
        return bool(self._ask("extend", extensions))

    def close(self) -> None:
        """End the task, and its job."""
        task, self._task = self._task, None
        if task is not None:
            task.end()
        if self._listener is not None:
            self._listener.close()
        if self._job is not None and not self._job.wait(_END_SECONDS):
            with contextlib.suppress(Exception):  # Java may have ended
                self.cancel()

    def _start(self) -> None:
        """Start the task, or wait for the one that Spark has started again."""
        stages = self._stages_in_use()
        if self._job is None or self._job.is_over:
            self._open_again()
            if self._preflight is not None:
                self._preflight.check(self._runtime)
            spark = self._runtime.spark
            conf = {} if is_local(spark.master) else dict(spark.getConf().getAll())
            host = conf.get("spark.driver.host", _LOOPBACK)
            if self._listener is None:
                self._listener = _listen(conf.get("spark.driver.bindAddress", host))
            stay = _Stay((host, self._listener.port), self._listener.secret)
            self._job = _Job(spark, stay, group=self._group, description=f"{stages.plan.name}, resident")
        self._task = Conversation(self._accept(self._listener, self._job))
        self._ask("use", self._packed(stages))

    def _accept(self, listener: Listener | None, job: _Job) -> TaskLink:
        deadline = time.monotonic() + _START_SECONDS
        while listener is not None and time.monotonic() < deadline:
            if (link := listener.accept(_LOOK_SECONDS)) is not None:
                return link
            if job.is_over or self._cancelled:
                raise self._lost()
        raise WorkerError(
            f"Spark has not started the resident task within {_START_SECONDS:g} s",
            hint="it takes one core for as long as the run: give Spark one more than others use all the time",
        )

    def _ask(self, what: str, *arguments: Any) -> Any:
        if self._task is None:
            raise WorkerError("the resident task does not run")
        try:
            return self._task.ask(what, *arguments)
        except (EOFError, OSError) as error:
            raise self._lost() from error

    def _lost(self) -> HeadraceError:
        """The error for a task that has ended; the next epoch starts it again."""
        task, self._task, job = self._task, None, self._job
        if task is not None:
            task.hang_up()
        if job is not None and job.wait(_END_SECONDS) and job.error is not None:
            if self._cancelled:
                return ExternalError("the tasks of the epoch were cancelled")
            return self._translate(job.error)
        return WorkerError("the resident task was lost", hint=self._see_log())

    def _packed(self, stages: StagePlan) -> bytes:
        question = None if self._preflight is None else self._preflight.question_for(self._runtime)
        return pack_stages(stages, question)


def _listen(host: str) -> Listener:
    try:
        return Listener(host)
    except OSError as error:
        raise ConfigurationError(
            f"the driver cannot listen on {host}, where its resident task would connect: {error.strerror}",
            hint="set spark.driver.host to an address of this machine that executors reach, and "
            "spark.driver.bindAddress if it listens on another",
        ) from error


class _Job:
    """The Spark job of the resident task, in a separate thread."""

    def __init__(self, spark: Any, stay: _Stay, *, group: str, description: str) -> None:
        self.error: Exception | None = None

        def run() -> None:
            try:
                spark.setJobGroup(group, description, interruptOnCancel=True)
                spark.parallelize([0], 1).mapPartitionsWithIndex(stay).collect()
            except Exception as error:  # noqa: BLE001 - raised by whoever waits for the task
                self.error = error

        self._thread = threading.Thread(target=run, name="headrace-resident", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, seconds: float) -> bool:
        """Wait for its end; whether it has come."""
        self._thread.join(seconds)
        return self.is_over
