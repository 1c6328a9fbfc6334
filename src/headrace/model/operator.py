"""The extension points of Headrace: operators, sources, lookups, and their contexts.

An operator knows neither Spark nor the clock. Time, state and output come from its context and its
collector. An operator object lives for one epoch of one subtask: what must outlive the epoch goes into
a state table; what is expensive to create and can be created again goes through `ctx.resource`.
"""

from __future__ import annotations

import enum
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import PlanError
from headrace.base.options import Options
from headrace.base.watermarks import Watermark
from headrace.state.config import TableConfig
from headrace.state.generation import Generation
from headrace.state.tables import GlobalTable, KeyedTable, StateTable, TimeTable

T = TypeVar("T")

DEAD_LETTER = "dead_letter"
"""The output of a source for records that cannot be read, if `bad_data` says so."""

BAD_ROWS_OF = "bad_rows."
"""The metric of a source that counts the records of one kind of error begins with this."""

DEAD_LETTERS = pa.schema(
    {
        "record": pa.binary(),
        "content": pa.string(),
        "error": pa.string(),
        "source": pa.string(),
        "position": pa.string(),
        "code": pa.string(),
        "partition": pa.int32(),
        "offset_id": pa.int64(),
        TIMESTAMP: pa.timestamp("ns"),
    }
)
"""The columns of that output: the record as bytes and as a string, why it is bad, its position, the kind of
error (`headrace.base.errors.FAULTS`), and the position as numbers."""


@dataclass(frozen=True)
class TaskInfo:
    """Which subtask of which operator this is, and the key hashes it owns.

    Attributes:
        job_id: the id of the job; it stays the same over all runs on one state directory.
        operator_id: the id of the operator in the plan.
        operator_name: the name of the operator.
        subtask: the number of the subtask, from 0.
        parallelism: the number of subtasks of the operator.
        key_range: the first and the last key hash that the subtask owns.
        epoch: the number of the epoch.

    >>> import headrace as hr
    >>> task = hr.TaskInfo("job-1", "sum_1", "Sum", 0, 2, (0, 2**63 - 1), epoch=7)
    >>> f"{task.operator_id}: subtask {task.subtask} of {task.parallelism} in epoch {task.epoch}"
    'sum_1: subtask 0 of 2 in epoch 7'
    """

    job_id: str
    operator_id: str
    operator_name: str
    subtask: int
    parallelism: int
    key_range: tuple[int, int]
    epoch: int


@dataclass(frozen=True)
class CheckpointBarrier:
    """The end of an epoch: everything before it is in the checkpoint, nothing after it is.

    Attributes:
        epoch: the number of the epoch that ends.
        min_epoch: the oldest epoch whose checkpoint is kept.
        timestamp: the wall clock of the epoch in seconds.
        then_stop: whether the run stops after this epoch.

    >>> import headrace as hr
    >>> hr.CheckpointBarrier(epoch=7, min_epoch=3, timestamp=1_700_000_000.0)
    CheckpointBarrier(epoch=7, min_epoch=3, timestamp=1700000000.0, then_stop=False)
    """

    epoch: int
    min_epoch: int
    timestamp: float
    then_stop: bool = False


class Finish(enum.Enum):
    """How a source finished reading a split.

    FINAL: the source has ended. GRACEFUL: this split is read, the stream continues.
    IMMEDIATE: stop the run now and commit nothing of this epoch.

    >>> import headrace as hr
    >>> [finish.name for finish in hr.Finish]
    ['FINAL', 'GRACEFUL', 'IMMEDIATE']
    """

    FINAL = "final"
    GRACEFUL = "graceful"
    IMMEDIATE = "immediate"


class Collector(Protocol):
    """Collects the output of an operator or source; the engine passes one to its methods.

    A class of your own with these methods collects the output of an operator in a test.

    >>> import headrace as hr, pyarrow as pa
    >>> class Rows:
    ...     def __init__(self):
    ...         self.batches = []
    ...     def collect(self, batch, output=""):
    ...         self.batches.append(batch)
    ...     def broadcast_watermark(self, watermark):
    ...         pass
    >>> rows: hr.Collector = Rows()
    >>> rows.collect(pa.record_batch({"id": [1, 2]}))
    >>> rows.broadcast_watermark(hr.Watermark(5))
    >>> rows.batches[0].num_rows
    2
    """

    def collect(self, batch: pa.RecordBatch, output: str = "") -> None:
        """Send a batch downstream, or to the readers of one named output.

        Args:
            batch: the rows.
            output: the name of the output; empty for the default output.
        """

    def broadcast_watermark(self, watermark: Watermark) -> None:
        """Send a watermark downstream, for an operator that held one back earlier.

        Args:
            watermark: the event time that downstream operators have reached.
        """


class Metrics:
    """Counters of one operator in one epoch, summed over subtasks by the engine.

    >>> import headrace as hr
    >>> metrics = hr.Metrics()
    >>> metrics.add("rows", 3)
    >>> metrics.add("requests")
    >>> metrics
    Metrics(rows=3, requests=1)
    """

    def __init__(self) -> None:
        self.values: dict[str, int | float] = {}

    def __repr__(self) -> str:
        return f"Metrics({', '.join(f'{name}={value}' for name, value in self.values.items())})"

    def add(self, name: str, amount: float = 1) -> None:
        """Add to the counter `name`.

        Args:
            name: the name of the counter; a new one starts at 0.
            amount: what to add.
        """
        if isinstance(amount, np.generic):
            amount = amount.item()
        self.values[name] = self.values.get(name, 0) + amount


class TableAccess(Protocol):
    """The state tables of one operator in one subtask."""

    def get(self, name: str) -> StateTable: ...

    def insert_committing_data(self, table: str, data: bytes) -> None: ...


_RESOURCES: dict[str, dict[tuple[str, str], Any]] = {}
"""What `resource` made, by job; the job that asked last is the last."""
_RESOURCES_LOCK = threading.Lock()
_JOBS_WITH_RESOURCES = 8
"""How many jobs of a process keep their resources: several may run at once, the others have ended."""


@dataclass
class OperatorContext:
    """The context of an operator while it runs, created by the engine.

    Attributes:
        task_info: which subtask of which operator this is.
        tables: the state tables of the operator; `global_table`, `time_table` and `keyed_table` read them.
        inputs: how many inputs the operator has.
        watermark: the watermark of the inputs; None before there is one.
        last_present_watermark: the last event time that they reached; it never decreases.
        metrics: the counters of the operator.
        errors: the messages of `report_error`.

    >>> import headrace as hr, pyarrow as pa, tempfile
    >>> from headrace.testing.in_process import run_in_process
    >>> sales = pa.schema([("_timestamp", pa.timestamp("ns")), ("shop", pa.string())])
    >>> class Journal(hr.ArrowOperator):
    ...     def tables(self):
    ...         shops = pa.schema([("shop", pa.string())])
    ...         return [
    ...             hr.global_table_config("last", "the size of the last batch"),
    ...             hr.keyed_table_config("shops", "shops so far", shops, key=["shop"]),
    ...             hr.timestamp_table_config("sales", "sales of an hour", "1h", schema=sales),
    ...         ]
    ...     def process_batch(self, batch, ctx, collector):
    ...         ctx.global_table("last").insert("rows", batch.num_rows)
    ...         ctx.keyed_table("shops").put(batch.select(["shop"]))
    ...         ctx.time_table("sales").insert(batch.select(["_timestamp", "shop"]))
    ...         addresses = ctx.resource("addresses", lambda: {"mill": "Mill Lane 1"})
    ...         if not addresses.keys() >= set(batch.column("shop").to_pylist()):
    ...             ctx.report_error("a shop has no address")
    ...         ctx.metrics.add("sales", batch.num_rows)
    ...         collector.collect(batch)
    ...     def handle_checkpoint(self, barrier, ctx, collector):
    ...         ctx.insert_committing_data("journal", str(ctx.task_info.epoch).encode())
    ...     def handle_commit(self, epoch, data, ctx):
    ...         ctx.check_generation()
    ...         print("committed", data["journal"])
    >>> pipeline = hr.Pipeline()
    >>> stream = pipeline.source("memory", rows=[{"shop": "mill"}, {"shop": "weir"}])
    >>> stream.key_by("shop").apply(Journal(), id="journal").sink("blackhole")
    Stream(journal)
    >>> result = run_in_process(pipeline, tempfile.mkdtemp(), parallelism=1)
    committed {0: b'1'}
    >>> result.metrics["journal"]["sales"], result.errors
    (2.0, ('a shop has no address',))
    """

    task_info: TaskInfo
    tables: TableAccess
    inputs: int = 1
    watermark: Watermark | None = None
    last_present_watermark: int | None = None
    time: float = 0.0
    """The wall clock of the epoch in seconds: the same for every subtask and every replay."""
    staging: str = ""
    """A path below the state directory, unique to this task attempt, for the staged output of a sink."""
    version: str = ""
    """Changes when the operator's code or options do: a `resource` of another version is not reused."""
    storage: Any = None
    """The storage that the state directory is on (`headrace.storage.base.Storage`)."""
    metrics: Metrics = field(default_factory=Metrics)
    errors: list[str] = field(default_factory=list)
    ended_inputs: frozenset[int] = frozenset()
    """The inputs that have ended; known from `handle_watermark` on."""
    over: bool = False
    """Set by an operator with `ends_run` when it has nothing left to do."""
    stop_requested: bool = False
    """Set by an operator to stop the run after this epoch, as a user would."""
    claim: Generation | None = None
    """The claim of this run to the state directory; only `handle_commit` has one."""

    def __repr__(self) -> str:
        return f"OperatorContext({_place(self.task_info)}, watermark: {self.watermark or 'none'})"

    def global_table(self, name: str) -> GlobalTable:
        """The table declared with `global_table_config`.

        Args:
            name: the name that `tables()` declares.

        Returns:
            The table of this subtask.

        Raises:
            TypeError: the table was declared with another kind.
        """
        return _expect(self.tables.get(name), GlobalTable, name)

    def time_table(self, name: str) -> TimeTable:
        """The table declared with `timestamp_table_config`.

        Args:
            name: the name that `tables()` declares.

        Returns:
            The table of this subtask.

        Raises:
            TypeError: the table was declared with another kind.
        """
        return _expect(self.tables.get(name), TimeTable, name)

    def keyed_table(self, name: str) -> KeyedTable:
        """The table declared with `keyed_table_config`.

        Args:
            name: the name that `tables()` declares.

        Returns:
            The table of this subtask.

        Raises:
            TypeError: the table was declared with another kind.
        """
        return _expect(self.tables.get(name), KeyedTable, name)

    @property
    def generation(self) -> int:
        """The number of this run among all that ever used the state directory; for `handle_commit`.

        A sink with transactions writes it with the rows, and refuses to write if a greater one is there.
        """
        return 0 if self.claim is None else self.claim.number

    @property
    def run_id(self) -> str:
        """What tells this run from all others, also where a state directory was restored from a copy."""
        return "" if self.claim is None else self.claim.run_id

    def check_generation(self, *, every: float = 0.0) -> None:
        """Check, in `handle_commit`, that no other run has taken over the state directory.

        The engine checks before each `handle_commit`. A sink without transactions calls it again right before
        rows become visible, and between parts, because the run may have been suspended meanwhile.

        Args:
            every: reuse the last result for this many seconds, so that it can be called for each row.

        Raises:
            ReplacedError: another run has taken over; this one must not publish anything.
        """
        if self.claim is not None:
            self.claim.check(every=every)

    def insert_committing_data(self, table: str, data: bytes) -> None:
        """Pass `data` to `handle_commit` once the epoch is past its commit point.

        Args:
            table: the key of the data in `handle_commit`.
            data: what to publish, or where it is staged.
        """
        self.tables.insert_committing_data(table, data)

    def report_error(self, message: str) -> None:
        """Report a problem that does not stop the run; it is counted and logged.

        Args:
            message: what happened.
        """
        self.errors.append(message)

    def resource(self, name: str, make: Callable[[], T]) -> T:
        """A connection, a model, a compiled plan: created once per Python worker and operator.

        Args:
            name: a name, unique within the operator.
            make: creates it.

        Returns:
            The resource, created now or in an earlier epoch.
        """
        job, key = self.task_info.job_id, (f"{self.task_info.operator_id}/{self.version}", name)
        dropped = []
        with _RESOURCES_LOCK:
            resources = _RESOURCES[job] = _RESOURCES.pop(job, {})
            while len(_RESOURCES) > _JOBS_WITH_RESOURCES:
                dropped.append(_RESOURCES.pop(next(iter(_RESOURCES))))
        if key not in resources:
            resources[key] = make()
        value: T = resources[key]
        return value


def _place(task: TaskInfo) -> str:
    return f"{task.operator_id}, subtask {task.subtask} of {task.parallelism}, epoch {task.epoch}"


_SHOWN_CHARACTERS = 80
"""How much of one option is shown."""


def _describe(operator: object) -> str:
    """The class and the declared options that are set, without those that are never displayed.

    No other attribute is shown: it may be a secret. A user's class need not have called `__init__`, and its
    options need not be JSON, so whatever fails here leaves the name alone.
    """
    kind = type(operator).__name__
    try:
        options = getattr(operator, "options", None)
        if not isinstance(options, Options):
            return f"{kind}()"
        hidden = {name for name, field in type(options).model_fields.items() if not field.repr}
        values = options.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=hidden)
    except Exception:  # noqa: BLE001 - a repr never raises
        return f"{kind}()"
    texts = [f"{name}={value!r}" for name, value in values.items()]
    shown = [t if len(t) <= _SHOWN_CHARACTERS else f"{t[: _SHOWN_CHARACTERS - 1]}…" for t in texts]
    return f"{kind}({', '.join(shown)})"


def _expect(table: StateTable, kind: type[T], name: str) -> T:
    if not isinstance(table, kind):
        raise TypeError(f"table `{name}` is a {type(table).__name__}, not a {kind.__name__}")
    return table


CommitData = Mapping[str, Mapping[int, bytes]]
"""What an operator has prepared in an epoch: table → subtask → what it gave to `insert_committing_data`."""


class ArrowOperator(ABC):
    """An operator over Arrow record batches. Only `process_batch` must be implemented.

    In every epoch and subtask the engine calls, in this order: `on_start`; `process_batch` (or
    `process_batch_index`) for each batch; `handle_watermark` when the inputs' watermark is known;
    `handle_tick` when `tick_interval` has passed; `on_close(True)` after the last row of bounded
    inputs; `handle_checkpoint`. Tables are saved after that. `handle_commit` runs once the checkpoint is
    durable, on the driver or in tasks (see `commit_shares`), and again after a crash: it must be
    idempotent.

    An operator without tables, ticks and watermark handling is chained into the task of the source, if
    there is no shuffle before it.

    >>> import headrace as hr, pyarrow.compute as pc
    >>> class Large(hr.ArrowOperator):
    ...     def process_batch(self, batch, ctx, collector):
    ...         collector.collect(batch.filter(pc.field("amount") > 4))
    >>> Large()
    Large()
    >>> from headrace.testing.in_process import run_in_process
    >>> import tempfile
    >>> pipeline = hr.Pipeline()
    >>> sales = pipeline.source("memory", rows=[{"amount": 3}, {"amount": 5}])
    >>> sales.apply(Large(), id="large").sink("memory", name="large")
    Stream(large)
    >>> run_in_process(pipeline, tempfile.mkdtemp()).rows["large"].column("amount").to_pylist()
    [5]
    """

    tick_interval: timedelta | None = None
    max_parallelism: int | None = None
    ends_run: bool = False
    """Whether it sets `ctx.over` when it is done; the run ends when all such operators are done."""
    stop_grace: float | None = None
    """Seconds that it has for the current epoch once the run is told to stop. Then the epoch is aborted: it
    is not committed, and the next run starts with it. None, the default, is no limit."""
    outputs: Sequence[str] | None = None
    """Its named outputs, for `collector.collect(batch, name)`; None if they are not declared: then
    `stream.output` accepts any name."""

    def __repr__(self) -> str:
        return _describe(self)

    @property
    def name(self) -> str:
        """The operator's name in plans, ids and messages."""
        return type(self).__name__

    @property
    def stateless(self) -> bool:
        """Whether it may run inside the task of a source, before any shuffle."""
        kind = type(self)
        return not (
            self.tables()
            or self.tick_interval is not None
            or self.max_parallelism is not None
            or kind.handle_watermark is not ArrowOperator.handle_watermark
            or kind.on_close is not ArrowOperator.on_close
            or kind.handle_stop is not ArrowOperator.handle_stop
        )

    def validate(self) -> None:
        """Check the configuration; called on the driver before anything runs.

        Raises:
            UserError: the configuration is invalid.
        """

    def tables(self) -> Sequence[TableConfig]:
        """The state tables this operator uses.

        Returns:
            The declarations, made by `keyed_table_config` and similar functions.
        """
        return ()

    def claims(self) -> Sequence[str]:
        """Targets that only one sink of a pipeline may write, such as a file; a second sink is refused.

        Returns:
            Names, such as URLs.
        """
        return ()

    def on_start(self, ctx: OperatorContext) -> None:
        """Called before the first batch of an epoch; state is readable.

        Args:
            ctx: state tables, time and counters of the subtask.
        """

    @abstractmethod
    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Process one batch.

        Args:
            batch: the rows; event time is in the column `_timestamp`.
            ctx: state tables, time and counters of the subtask.
            collector: takes the output.
        """

    def process_batch_index(
        self,
        index: int,
        total: int,
        batch: pa.RecordBatch,
        ctx: OperatorContext,
        collector: Collector,
    ) -> None:
        """Process one batch of input `index` of `total`; by default `process_batch` handles all inputs.

        Args:
            index: the index of the input, from 0.
            total: the number of inputs.
            batch: the rows; event time is in the column `_timestamp`.
            ctx: state tables, time and counters of the subtask.
            collector: takes the output.
        """
        self.process_batch(batch, ctx, collector)

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: Collector
    ) -> Watermark | None:
        """Event time has reached `watermark`.

        Args:
            watermark: the minimum of the inputs' watermarks, or idle.
            ctx: state tables, time and counters of the subtask.
            collector: takes the output.

        Returns:
            The watermark to forward, or None to hold it back.
        """
        return watermark

    def handle_tick(self, n: int, ctx: OperatorContext, collector: Collector) -> None:
        """The clock has passed tick number `n` of `tick_interval`; missed ticks are skipped.

        Args:
            n: the number of the tick.
            ctx: state tables, time and counters of the subtask.
            collector: takes the output.
        """

    def handle_stop(self, final: bool, ctx: OperatorContext, collector: Collector) -> None:
        """Called in the last epoch of a run that stops.

        A later run resumes from here, unless an operator ended the pipeline for good.

        Args:
            final: whether an operator did.
            ctx: state tables, time and counters of the subtask.
            collector: takes the output.
        """

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        """The epoch ends: write what must survive into tables; rows may still be emitted.

        Args:
            barrier: the epoch that ends.
            ctx: state tables, time and counters of the subtask.
            collector: takes the output.
        """

    def handle_commit(self, epoch: int, data: CommitData, ctx: OperatorContext) -> None:
        """Publish the staged output of an epoch. Must be idempotent.

        Args:
            epoch: the number of the epoch.
            data: the data passed to `ctx.insert_committing_data`: {table: {subtask: bytes}}.
            ctx: the generation of the run, the storage and the time.
        """

    def commit_shares(self, data: CommitData) -> Sequence[CommitData]:
        """Divide the commit of an epoch among tasks, which run in parallel; called on the driver.

        `handle_commit` is then called with one share in each task. At the start of a run it may be called
        with all data in one process, to complete an interrupted commit. A share may be committed twice at the
        same time, because a task attempt that seemed lost may still be running.

        Args:
            data: the commit data of all subtasks of the epoch.

        Returns:
            The shares; empty, the default, to commit on the driver.
        """
        return ()

    def on_close(self, final: bool, ctx: OperatorContext, collector: Collector) -> None:
        """The inputs have ended (`final`), or this subtask's share of the epoch has (not `final`).

        Rows may be collected only when `final`.

        Args:
            final: whether the inputs have ended.
            ctx: state tables, time and counters of the subtask.
            collector: takes the output.
        """

    def migrate_table(self, table: str, version: int, rows: pa.Table) -> pa.Table:
        """Convert rows of an older version of a table to the declared version.

        For a global table the rows have the columns `key` and `value`, both JSON as bytes.

        Args:
            table: the name of the table.
            version: the version of the saved rows.
            rows: the saved rows.

        Returns:
            The rows with the declared columns.

        Raises:
            NotImplementedError: the version cannot be migrated; the run is refused.
        """
        raise NotImplementedError

    def display(self) -> str:
        """One line about this operator for plans.

        Returns:
            The line, without secrets.
        """
        return self.name

    def state_signature(self) -> str:
        """A description of everything that its stored rows depend on, such as its SQL.

        State with another signature is refused.

        Returns:
            The signature; empty by default.
        """
        return ""

    def details(self) -> Mapping[str, str]:
        """More about this operator for plans, such as the SQL that it computes.

        Returns:
            Labels → values.
        """
        return {}


Offset = dict[str, Any]
"""The position of a source: lane → position, JSON. A lane is a stream with an order of its own,
such as a Kafka partition; the watermark of a source is the minimum over its lanes."""


@dataclass(frozen=True)
class Split:
    """A part of one lane that one task reads, with everything that `run` needs, as JSON.

    Args:
        lane: the lane of the split.
        detail: what to read, such as the first and the last position.

    >>> import headrace as hr
    >>> hr.Split("partition-0", {"first": 10, "end": 20})
    Split(lane='partition-0', detail={'first': 10, 'end': 20})
    """

    lane: str
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class Limit:
    """How much an epoch may read from a source.

    Attributes:
        rows: about how many rows.
        time: the wall clock in seconds.

    >>> import headrace as hr
    >>> hr.Limit(rows=1000, time=1_700_000_000.0)
    Limit(rows=1000, time=1700000000.0)
    """

    rows: int
    time: float


@dataclass
class SourceContext:
    """The context of a source while it reads one split, created by the engine.

    Attributes:
        task_info: which subtask of which source this is.
        split: what to read.
        metrics: the counters of the source.
        errors: the messages of `report_error`.

    >>> import headrace as hr
    >>> task = hr.TaskInfo("job-1", "numbers", "Numbers", 0, 2, (0, 2**64 - 1), epoch=7)
    >>> ctx = hr.SourceContext(task, hr.Split("0", {"first": 10, "end": 20}))
    >>> ctx
    SourceContext(numbers, subtask 0 of 2, epoch 7, split of lane 0)
    >>> ctx.report_error("one record was skipped")
    >>> ctx.errors
    ['one record was skipped']
    """

    task_info: TaskInfo
    split: Split
    storage: Any = None
    """The storage that the state directory is on (`headrace.storage.base.Storage`)."""
    metrics: Metrics = field(default_factory=Metrics)
    errors: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"SourceContext({_place(self.task_info)}, split of lane {self.split.lane})"

    def report_error(self, message: str) -> None:
        """Report a problem that does not stop the run; it is counted and logged.

        Args:
            message: what happened.
        """
        self.errors.append(message)


class SourceOperator(ABC):
    """A source described by offsets, so that any range can be read again, anywhere.

    The same range of offsets must give the same rows. `splits` divides the range between two offsets; `run`
    reads one split in one task. The splits of a lane are in the order of the lane.

    >>> import headrace as hr, pyarrow as pa
    >>> class Numbers(hr.SourceOperator):
    ...     def initial_offset(self, *, time) -> hr.Offset:
    ...         return {"0": 0}
    ...     def latest_offset(self, start, limit, *, parallelism):
    ...         return {"0": min(start["0"] + limit.rows, 5)}
    ...     def splits(self, start, end, *, parallelism):
    ...         return [hr.Split("0", {"first": start["0"], "end": end["0"]})]
    ...     def run(self, ctx, collector):
    ...         numbers = list(range(ctx.split.detail["first"], ctx.split.detail["end"]))
    ...         times = pa.array(numbers, pa.timestamp("ns"))
    ...         collector.collect(pa.record_batch({"number": numbers, "_timestamp": times}))
    ...         return hr.Finish.FINAL if ctx.split.detail["end"] == 5 else hr.Finish.GRACEFUL
    ...     def is_finished(self, offset):
    ...         return offset["0"] == 5
    >>> from headrace.testing.in_process import run_in_process
    >>> import tempfile
    >>> pipeline = hr.Pipeline()
    >>> pipeline.source(Numbers(), id="numbers").sink("memory", name="rows")
    Stream(numbers)
    >>> run_in_process(pipeline, tempfile.mkdtemp()).rows["rows"].column("number").to_pylist()
    [0, 1, 2, 3, 4]
    """

    def __repr__(self) -> str:
        return _describe(self)

    def validate(self) -> None:
        """Check the configuration; called on the driver before anything runs.

        Raises:
            UserError: the configuration is invalid.
        """

    idle_timeout: timedelta | None = None
    """After this long without new rows a lane no longer holds the watermark back."""
    outputs: Sequence[str] | None = None
    """Its named outputs; None if they are not declared: then `stream.output` accepts any name."""

    @property
    def name(self) -> str:
        """The source's name in plans, ids and messages."""
        return type(self).__name__

    def claims(self) -> Sequence[str]:
        """What no sink of the same pipeline may write, because this source reads it, such as a file.

        Returns:
            Names, such as URLs.
        """
        return ()

    def open(self, storage: Any, *, job_id: str, node: str) -> None:
        """Called once on the driver, before the first offset is requested.

        A source that cannot be replayed starts to receive here, and logs what it receives in `storage`, the
        storage of the state directory, until it is committed.

        Args:
            storage: the storage that the state directory is on.
            job_id: the id of the job.
            node: the id of the source in the plan.
        """

    claim: Generation | None = None
    """The claim of this run to the state directory; set in the process that plans epochs, before `open`."""

    def check_generation(self) -> None:
        """Check, in the process that plans epochs, that no other run has taken over the state directory.

        The engine checks before each call of a source's method. A source that removes external objects of an
        earlier run, such as a replication slot, lists them first, then calls this, and then removes what it
        listed: so it never removes objects of its successor.

        Raises:
            ReplacedError: another run has taken over; this one must not change anything.
        """
        if self.claim is not None:
            self.claim.check()

    def close(self) -> None:
        """Stop receiving, because the process that plans epochs ends."""

    @abstractmethod
    def initial_offset(self, *, time: float) -> Offset:
        """Where a new pipeline starts reading.

        Args:
            time: the wall clock in seconds.

        Returns:
            The first position of every lane.
        """

    @abstractmethod
    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """The offset up to which one epoch reads.

        Args:
            start: where the epoch begins.
            limit: how much it may read.
            parallelism: how many tasks share it.

        Returns:
            The end of the epoch; `start` itself if there is no new data.
        """

    def limit_to_available(self, start: Offset, *, time: float) -> Offset:
        """Limit the run to the data that is available now, for `available_now`.

        From then on `latest_offset` returns its `start` once that data is read, and `is_finished` is true
        only for a bounded source. Called once, before the first epoch, in the process that plans epochs.

        Args:
            start: where the run starts: the initial offset, or where the last run stopped.
            time: the wall clock in seconds.

        Returns:
            Where the run starts; it differs from `start` if the limit is stored in the offset.

        Raises:
            UserError: the source does not know its end.
        """
        raise PlanError(
            f"{self.name} cannot say where what is there now ends, as a run with `available_now` has to know",
            hint="run without it, and end the run with `--stop-after 30s` or `--max-epochs`; "
            "a source of your own implements `limit_to_available`",
        )

    @abstractmethod
    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """Divide the range from `start` to `end` into splits.

        Args:
            start: where the range begins.
            end: where it ends.
            parallelism: the approximate number of splits.

        Returns:
            The splits; those of one lane in its order.
        """

    @abstractmethod
    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Read `ctx.split` and collect its batches, each with a `_timestamp` column.

        Args:
            ctx: the split, and the counters of the task.
            collector: takes the batches.

        Returns:
            How the reading ended.
        """

    def is_finished(self, offset: Offset) -> bool:
        """Whether `offset` is the end of a bounded source.

        Args:
            offset: a position of every lane.

        Returns:
            True at the end of a bounded source.
        """
        return False

    def count(self, start: Offset, end: Offset) -> int | None:
        """The number of rows in the range, if it is known without reading.

        Args:
            start: where the range begins.
            end: where it ends.

        Returns:
            The number of rows; None if it is not known.
        """
        return None

    lag_unit: Literal["rows", "bytes", "files"] = "rows"
    """What `lag` counts."""

    def lag(self, offset: Offset, *, time: float) -> Mapping[str, int]:
        """The amount of unread data after `offset`, as far as the source knows.

        Called on the driver after each `latest_offset`: it must not call a server.

        Args:
            offset: a position of every lane.
            time: the wall clock in seconds.

        Returns:
            The amount by lane, in `lag_unit`; empty if it is not known.
        """
        return {}

    def on_start(self, ctx: SourceContext) -> None:
        """Called before `run`, in the task that reads.

        Args:
            ctx: the split, and the counters of the task.
        """

    def on_close(self, ctx: SourceContext, collector: Collector) -> None:
        """Called after `run`, in the task that reads.

        Args:
            ctx: the split, and the counters of the task.
            collector: takes further batches.
        """

    def committed(self, offset: Offset) -> None:
        """The epoch that ends at `offset` is durable; called on the driver, may be repeated.

        Args:
            offset: a position of every lane.
        """

    def expired(self, offset: Offset) -> None:
        """No run starts before `offset` any more; called on the driver after `committed`, may be repeated.

        It is the offset of the oldest checkpoint that is kept: data that a source has stored for earlier
        ranges can be deleted.

        Args:
            offset: a position of every lane.
        """

    def display(self) -> str:
        """One line about this source for plans.

        Returns:
            The line, without secrets.
        """
        return self.name


CACHE_BYTES = 8 * 1024 * 1024
"""The default size of a worker's cache of lookup results, in bytes."""


class Lookup(ABC):
    """An external table that rows are joined with by its key, in its current state.

    It must pickle: connections and copies that serve many requests go through `ctx.resource`.
    """

    cache_bytes: int = CACHE_BYTES
    """The default size of the cache of its results in bytes; 0 where a lookup costs next to nothing."""

    @property
    @abstractmethod
    def key(self) -> str:
        """The column that rows are found by."""

    @property
    @abstractmethod
    def columns(self) -> pa.Schema:
        """The columns of its rows, the key among them."""

    def validate(self) -> None:
        """Called on the driver before anything runs: raise a UserError for what cannot work."""

    @abstractmethod
    def lookup(self, keys: pa.Array, ctx: OperatorContext) -> pa.Table:
        """The rows of these keys with all columns, in any order; keys without a row are left out.

        The keys are distinct, of the key column's type, and not null; of several rows with one key the last
        counts. A failure of the external system raises an ExternalError, and the epoch is retried.
        """

    def display(self) -> str:
        """The table on one line, for plans."""
        return type(self).__name__


def key_values(keys: pa.Array) -> list[Any]:
    """Keys as values for a dict: equal keys have equal values, instants and floats too.

    >>> key_values(pa.array(["a", "b"]))
    ['a', 'b']
    """
    kind = keys.type
    if pa.types.is_floating(kind):
        numbers = keys.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0  # -0.0 and 0.0 are one key
        return np.where(np.isnan(numbers), np.nan, numbers).view(np.int64).tolist()  # type: ignore[no-any-return]
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        keys = keys.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    return keys.to_pylist()  # type: ignore[no-any-return]
