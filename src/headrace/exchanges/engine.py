"""What runs the tasks of a pipeline, once it is there: a Spark, or this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.engine.exchange import Exchange
from headrace.exchanges.resident import ResidentTask
from headrace.exchanges.spark.preflight import Preflight
from headrace.exchanges.spark.usage import SparkUsage
from headrace.model.plan import Plan


class EngineExchange(Exchange, Protocol):
    """An exchange of an engine."""

    @property
    def log_file(self) -> str | None:
        """Where the engine's log is, if it is here."""


class EngineTask(ResidentTask, Protocol):
    """A task that stays on an engine."""

    @property
    def log_file(self) -> str | None:
        """Where the engine's log is, if it is here."""


class TaskEngine(Protocol):
    """What runs tasks, for one run."""

    @property
    def cores(self) -> int:
        """How many tasks it runs at once."""

    @property
    def grows(self) -> bool:
        """Whether it has more cores when there are more tasks."""

    @property
    def is_here(self) -> bool:
        """Whether its tasks run on this machine."""

    @property
    def log_file(self) -> str | None:
        """Where its log is, if it is here."""

    def usage(self) -> SparkUsage | None:
        """How busy it is, if it tells; may be asked in any thread, may take long and fail."""

    def exchange(self, plan: Plan, *, py_files: Sequence[str], preflight: Preflight) -> EngineExchange:
        """Bring the code of a plan to where tasks run, check that they can, and return what runs its epochs.

        Returns early when the run is told to stop.
        """

    def resident_task(self, plan: Plan, *, py_files: Sequence[str], preflight: Preflight) -> EngineTask:
        """The same for a task that stays."""
