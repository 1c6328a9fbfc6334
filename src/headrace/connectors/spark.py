"""`spark`: whatever Spark itself can read and write, by the name of its format and its options."""

from __future__ import annotations

import importlib.util
import json
import re
import threading
import time as clock
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headrace.base.errors import ConfigurationError, ExternalError, PlanError
from headrace.base.options import Duration, read_settings
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors.base import (
    Connector,
    Delivery,
    RowsSink,
    TimeUnit,
    deliver_once,
    from_ipc,
    to_ipc,
    wall_clock,
    with_event_time,
    without_event_time,
)
from headrace.formats.options import Columns
from headrace.model.operator import (
    Collector,
    Finish,
    Limit,
    Offset,
    OperatorContext,
    SourceContext,
    SourceOperator,
    Split,
)
from headrace.state.received import MANIFEST, last_manifest, log_folder, manifest_numbers, manifest_path
from headrace.state.received import SPARK_LANE as LANE
from headrace.state.references import FileReference, seal, unseal, write_referenced
from headrace.storage.open import open_storage

_STREAMING = "org.apache.spark.sql.execution.streaming"
_CHECKPOINT_MANAGER = "FileSystemBasedCheckpointFileManager"
_REFUSALS = (PySparkException, Py4JJavaError)
AHEAD = 8
"""How many micro-batches may wait to be read before the next one is begun."""

SparkOptions = Annotated[
    dict[str, str],
    BeforeValidator(read_settings),
    PlainSerializer(
        lambda options: dict.fromkeys(options, "***"), return_type=dict[str, str], when_used="json"
    ),
]


class SparkTableOptions(DeclaredOptions):
    """What Spark calls what it reads or writes."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    format: str = Field(
        min_length=1, description="The name of the format in Spark, such as `rate`, `delta` or a class."
    )
    options: SparkOptions = Field(
        default={}, repr=False, description="The options of the format, as `name=value,name=value`."
    )
    path: str | None = Field(None, description="The path, for formats that have one.")
    columns: Columns | None = Field(
        None, alias="schema", description="Column → type; by default whatever columns there are."
    )


class SparkSource(Connector, SourceOperator):
    """Reads any streaming source of Spark, in a query of its own beside the pipeline.

    Each micro-batch of that query is written to the state directory by the executors, and epochs read it
    from there: a batch that Spark repeats after a crash is not written again. The query keeps its own
    checkpoint, in the state directory or where `checkpoint` says. It runs only a few batches ahead of the
    epochs. `_timestamp` is the time of the batch, or the column `timestamp_column`.
    """

    needs_spark_context = True
    deliveries = (
        Delivery(
            "exactly once",
            "micro-batches are kept in the state directory under their numbers, if Spark can repeat a batch",
        ),
    )

    class Options(SparkTableOptions):
        """The options of the spark source."""

        checkpoint: str | None = Field(
            None,
            description="Where Spark keeps the query's checkpoint, if the state is not on a file system.",
        )
        bounded: bool = Field(
            default=False,
            description=(
                "Whether to finish, for good, with what is there when the pipeline first starts. For runs "
                "that each read what came since the last one, use `available_now`."
            ),
        )
        trigger: Duration | None = Field(None, description="The shortest time between two micro-batches.")
        timestamp_column: str | None = Field(None, description="The column that is the event time.")
        timestamp_unit: TimeUnit = Field("ns", description="What numbers in that column count.")
        idle_timeout: Duration | None = Field(
            None, description="After this long without rows the source no longer holds the watermark back."
        )

        @model_validator(mode="after")
        def _has_one_trigger(self) -> Self:
            if self.bounded and self.trigger is not None:
                raise ValueError("`trigger` does not go with `bounded`: what is there is read at once")
            return self

    options: Options

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self.idle_timeout = self.options.idle_timeout
        self._log: BatchLog | None = None
        self._query: _Query | None = None
        self._taken = 0
        self._is_limited = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None, "_query": None}

    def display(self) -> str:
        """The format and the path."""
        return f"SparkSource({self.options.format}{f' {self.options.path}' if self.options.path else ''})"

    def open(self, storage: Any, *, job_id: str, node: str) -> None:
        """Know where micro-batches are kept."""
        self._log = BatchLog(storage, node)

    def initial_offset(self, *, time: float) -> Offset:
        """No micro-batch was read."""
        return {LANE: {"batches": 0, "ended": False}}

    def limit_to_available(self, start: Offset, *, time: float) -> Offset:
        """Let Spark read what is there now: the query has the trigger `availableNow`."""
        if self.options.bounded:
            raise ConfigurationError(
                "`bounded` ends the source for good, and after a run with `available_now` the next goes on",
                hint="leave `bounded`",
            )
        self._is_limited = True
        return start

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """The micro-batches that were written by now: as many as the epoch may have rows, at least one.

        The first question starts the query that writes them.
        """
        log, before = self._log, start[LANE]
        assert log is not None, "open comes first"
        if before["ended"]:
            return start
        if self._query is None:
            self._run_query(log, before["batches"])
        if self._is_limited:
            self._await_batch(log, before["batches"] + 1)
        log.raise_failure()
        number, rows, ended = before["batches"], 0, False
        while rows < limit.rows and not ended and (batch := log.find(number + 1)) is not None:
            number, rows, ended = number + 1, rows + batch["rows"], batch["ended"]
        if number == before["batches"]:
            return start
        return {LANE: {"batches": number, "ended": ended}}

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """The files of the micro-batches, each batch shared by as many tasks as it has files."""
        log, final = self._log, end[LANE]["ended"]
        assert log is not None, "open comes first"
        splits = []
        for number in range(start[LANE]["batches"] + 1, end[LANE]["batches"] + 1):
            batch = log.find(number)
            if batch is None:
                raise ExternalError(f"micro-batch {number} of Spark is no longer in the state directory")
            for share in range(min(parallelism, len(batch["files"]))):
                files = batch["files"][share::parallelism]
                splits.append(Split(LANE, {"files": files, "time": batch["time"], "final": final}))
        return splits or [Split(LANE, {"files": [], "time": 0, "final": final})]

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Read some files of a micro-batch."""
        detail, options = ctx.split.detail, self.options
        for file in detail["files"]:
            content = FileReference.from_json(file).read(ctx.storage, what="file of a micro-batch")
            for batch in from_ipc(content):
                rows = pa.Table.from_batches([self._fitted(batch)])
                stamped = with_event_time(
                    rows, time=detail["time"], column=options.timestamp_column, unit=options.timestamp_unit
                )
                for part in stamped.to_batches():
                    if part.num_rows:
                        collector.collect(part)
        return Finish.FINAL if detail["final"] else Finish.GRACEFUL

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.options.columns is None:
            return batch
        missing = [name for name in self.options.columns.names if name not in batch.schema.names]
        if missing:
            raise ConfigurationError(
                f"Spark's {self.options.format} has no column `{missing[0]}`",
                hint=f"the columns are {', '.join(batch.schema.names)}",
            )
        try:
            return batch.select(self.options.columns.names).cast(self.options.columns)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ConfigurationError(
                f"the columns of Spark's {self.options.format} do not fit: {error}",
                hint="declare the columns with the types that Spark gives them",
            ) from None

    def is_finished(self, offset: Offset) -> bool:
        """Whether a bounded source has given all."""
        return bool(offset[LANE]["ended"])

    # ------------------------------------------------------------------------- beside the pipeline

    def _await_batch(self, log: BatchLog, number: int) -> None:
        """Wait until Spark has written a micro-batch, or has read all that is there."""
        query = self._query
        assert query is not None, "the query was started"
        while query.watcher.is_alive() and log.find(number) is None:
            query.watcher.join(0.05)

    def _run_query(self, log: BatchLog, batch_count: int) -> None:
        """Start the query that fills the log, behind the micro-batches that were taken from it before."""
        if SparkContext._active_spark_context is None:  # noqa: SLF001 - there is no public way to ask
            raise PlanError("the spark source needs a pipeline that runs on Spark")
        self._taken = batch_count
        log.clear_failure()
        closed = threading.Event()
        query = self._start(_own_session(), log, closed)
        watcher = threading.Thread(target=self._watch, args=(query, log, closed), daemon=True)
        watcher.start()
        self._query = _Query(query, watcher, closed)

    def close(self) -> None:
        """End the query."""
        query, self._query = self._query, None
        if query is not None:
            query.stop()

    def committed(self, offset: Offset) -> None:
        """Let Spark go on."""
        self._taken = offset[LANE]["batches"]

    def expired(self, offset: Offset) -> None:
        """Remove the micro-batches before the one that was read last, by which the next one is numbered."""
        assert self._log is not None, "open comes first"
        self._log.forget(offset[LANE]["batches"])

    def _start(self, spark: SparkSession, log: BatchLog, closed: threading.Event) -> Any:
        options = self.options
        directory = options.checkpoint or log.local_folder()
        if directory is None:
            raise ConfigurationError(
                "Spark needs a place for the checkpoint of its query",
                hint="name a path that Spark can write to with the option `checkpoint`",
            )
        try:
            writer = (
                self._frame(spark)
                .writeStream.foreachBatch(lambda batch, number: self._keep(batch, number + 1, log, closed))
                .option("checkpointLocation", directory)
            )
            if options.bounded or self._is_limited:
                writer = writer.trigger(availableNow=True)
            elif options.trigger is not None:
                writer = writer.trigger(processingTime=f"{options.trigger.total_seconds()} seconds")
            return writer.start()
        except _REFUSALS as error:
            raise ConfigurationError(
                f"Spark cannot read the format `{options.format}`: {_first_line(error)}",
                hint="check its name and options; one of a package needs it in `spark.jars.packages`",
            ) from None

    def _frame(self, spark: SparkSession) -> DataFrame:
        options = self.options
        reader = spark.readStream.format(options.format).options(**options.options)
        try:
            return reader.load(options.path)
        except _REFUSALS as error:
            if options.columns is None:
                raise
            try:  # files have to be told their columns, most other formats refuse to be
                return reader.schema(from_arrow_schema(options.columns)).load(options.path)
            except _REFUSALS:
                raise error from None

    def _keep(self, frame: DataFrame, number: int, log: BatchLog, closed: threading.Event) -> None:
        while number - self._taken > AHEAD and not closed.is_set():
            closed.wait(0.05)
        if closed.is_set():
            raise InterruptedError("the pipeline ends")
        if log.find(number) is not None:
            return  # Spark repeats what it had not noted down before a crash
        url, folder = log.url, log.files(number)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            filled = [batch for batch in batches if batch.num_rows]
            if filled:
                path = f"{folder}/{uuid.uuid4().hex}.arrow"
                file = write_referenced(open_storage(url), path, to_ipc(filled))
                rows = sum(batch.num_rows for batch in filled)
                yield pa.record_batch({"file": [json.dumps(file.to_json())], "rows": [rows]})

        written = frame.mapInArrow(write, "file string, rows long").collect()
        files = [FileReference.from_json(json.loads(row["file"])) for row in written]
        log.write(number, files, rows=sum(row["rows"] for row in written), ended=False)

    def _watch(self, query: Any, log: BatchLog, closed: threading.Event) -> None:
        """Tell epochs how the query ended, unless the pipeline ended it."""
        while query.isActive and not closed.is_set():
            closed.wait(0.1)
        if closed.is_set():
            return
        problem = query.exception()
        if problem is not None:
            log.fail(_first_line(problem))
        elif not self._is_limited:
            log.write(log.last() + 1, [], rows=0, ended=True)


@dataclass(frozen=True)
class _Query:
    """A running Spark query, the thread that waits for its end, and the event that stops both."""

    query: Any
    watcher: threading.Thread
    closed: threading.Event

    def stop(self) -> None:
        self.closed.set()
        self.query.stop()
        self.watcher.join(5)


def _own_session() -> SparkSession:
    """A session for a query, so that its settings do not change those of the user's."""
    session = SparkSession.builder.getOrCreate().newSession()
    _require_distutils(session)
    package = f"{_STREAMING}.checkpointing" if release_of(session) >= (4, 1) else _STREAMING
    # The query's logs are scratch files of one run: the checkpoint is ours.
    session.conf.set("spark.sql.streaming.checkpointFileManagerClass", f"{package}.{_CHECKPOINT_MANAGER}")
    session.conf.set("spark.sql.streaming.numRecentProgressUpdates", "5")
    return session


def _require_distutils(spark: SparkSession) -> None:
    """Raise a ConfigurationError if PySpark needs a module for Arrow functions that Python no longer has."""
    if release_of(spark) < (4, 0) and importlib.util.find_spec("distutils") is None:
        raise ConfigurationError(
            f"with Spark {spark.version} the spark connector needs `distutils`, which Python 3.12 has not",
            hint="pip install setuptools, on the workers too; or use Spark 4",
        )


def release_of(spark: SparkSession) -> tuple[int, int]:
    """The first two numbers of Spark's version: of the Spark that runs, which may be another than PySpark."""
    major, minor = spark.version.split(".")[:2]
    return int(major), int(minor)


def _frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """The rows as a DataFrame of Spark."""
    if release_of(spark) >= (4, 0):
        return spark.createDataFrame(rows)
    # Before 4.0 Spark takes Arrow only from a function.
    # A time without a zone is one of the session's, as it is since 4.0.
    zone = spark.conf.get("spark.sql.session.timeZone")
    for index, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is None:
            rows = rows.set_column(index, field.name, pc.assume_timezone(rows[field.name], zone))
    schema = from_arrow_schema(rows.schema)
    message = to_ipc(rows.cast(to_arrow_schema(schema), safe=False).to_batches())

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for content in batch["rows"].to_pylist():
                yield from from_ipc(content)

    return spark.createDataFrame([(message,)], "rows binary").mapInArrow(read, schema)


class BatchLog:
    """The micro-batches of a query, numbered from 1: a manifest for each, and the files it names."""

    def __init__(self, storage: Any, node: str) -> None:
        self._storage = storage
        self._node, self._folder = node, log_folder(node)
        self._first: int | None = None
        """The oldest micro-batch that is there, once it is known."""

    @property
    def url(self) -> str:
        """The storage, for other processes."""
        return str(self._storage.url)

    def local_folder(self) -> str | None:
        """Where Spark can keep a checkpoint beside the log, if the storage is a file system."""
        path = self._storage.local_path(f"{self._folder}/query")
        return None if path is None else f"file://{path}"

    def files(self, number: int) -> str:
        """The folder of the files of a micro-batch."""
        return f"{self._folder}/files/{number:010}"

    def _manifest(self, number: int) -> str:
        return manifest_path(self._node, number)

    def find(self, number: int) -> dict[str, Any] | None:
        """The content of a manifest; None if the micro-batch does not exist."""
        path = self._manifest(number)
        return unseal(self._storage, path, what=MANIFEST)[0] if self._storage.exists(path) else None

    def last(self) -> int:
        """The number of the newest micro-batch; 0 if there is none."""
        return last_manifest(self._storage, self._node)

    def write(self, number: int, files: Sequence[FileReference], *, rows: int, ended: bool) -> None:
        """Keep a manifest, once."""
        references = [file.to_json() for file in files]
        manifest = {"files": references, "rows": rows, "ended": ended, "time": wall_clock(clock.time())}
        self._storage.create(self._manifest(number), seal(manifest)[0])

    def forget(self, end: int) -> None:
        """Remove the micro-batches before `end`, which no epoch will read again."""
        if self._first is None:  # earlier runs may have left some
            self._first = min(manifest_numbers(self._storage, self._node), default=end)
        for number in range(self._first, end):
            # Not only what the manifest names: an attempt that a crash cut short has left files too.
            for path in [*self._storage.list(self.files(number)), self._manifest(number)]:
                self._storage.delete(path)
        self._first = max(self._first, end)

    def fail(self, message: str) -> None:
        """Note why the query has ended."""
        self._storage.write(f"{self._folder}/failure.txt", message.encode())

    def clear_failure(self) -> None:
        """A new query has begun."""
        self._storage.delete(f"{self._folder}/failure.txt")

    def raise_failure(self) -> None:
        """Raise an ExternalError if the query has failed."""
        path = f"{self._folder}/failure.txt"
        if self._storage.exists(path):
            raise ExternalError(
                f"Spark's query has ended: {self._storage.read(path).decode()}", where="spark"
            )


class SparkSink(RowsSink):
    """Writes the rows of an epoch with Spark, by the name of a format and its options.

    Rows are written by the commit, on the cluster. A commit that a crash cuts short is repeated. In options,
    `{epoch}` and `{job}` stand for the number of the epoch and the name of the job: some formats can tell a
    repeated write by such a pair, as Delta does with `txnAppId={job},txnVersion={epoch}`.
    """

    needs_spark_context = True
    deliveries = (
        Delivery(
            "at least once", "an epoch is written by its commit; one that a crash cuts short is written again"
        ),
    )

    class Options(SparkTableOptions):
        """The options of the spark sink."""

        mode: Literal["append", "overwrite"] = Field(
            "append", description="Whether rows are added, or what is there is replaced by each epoch."
        )
        table: str | None = Field(None, description="A table of Spark's catalog, instead of a path.")
        columns: Columns | None = Field(None, alias="schema", description="The columns that are written.")

        @model_validator(mode="after")
        def _has_one_place(self) -> Self:
            if self.path is not None and self.table is not None:
                raise ValueError("it takes `path` or `table`, not both")
            return self

    options: Options

    def display(self) -> str:
        """The format and the place."""
        target = self.options.table or self.options.path
        return f"SparkSink({self.options.format}{f' {target}' if target else ''})"

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext
    ) -> None:
        """Write the rows of the epoch, unless that was done before."""
        batches, attempts = self.staged_rows(data, ctx)
        if batches:
            deliver_once(ctx, sorted(attempts), lambda: self._save(batches, epoch, ctx))

    def _save(self, batches: Sequence[pa.RecordBatch], epoch: int, ctx: OperatorContext) -> None:
        if SparkContext._active_spark_context is None:  # noqa: SLF001 - there is no public way to ask
            raise PlanError("the spark sink needs a pipeline that runs on Spark")
        spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        rows = without_event_time(pa.Table.from_batches(batches))
        if self.options.columns is not None:
            rows = rows.select(self.options.columns.names).cast(self.options.columns)
        names = {"{epoch}": str(epoch), "{job}": ctx.task_info.job_id}
        ctx.check_generation()
        _require_distutils(spark)
        try:
            writer = _frame_of(spark, rows).write.format(self.options.format).mode(self.options.mode)
            writer = writer.options(
                **{name: _filled(text, names) for name, text in self.options.options.items()}
            )
            if self.options.table is not None:
                writer.saveAsTable(self.options.table)
            else:
                writer.save(self.options.path)
        except _REFUSALS as error:
            raise ExternalError(
                f"Spark cannot write the format `{self.options.format}`: {_first_line(error)}", where="spark"
            ) from None


def _filled(text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text


def _first_line(error: BaseException) -> str:
    text = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    # Of a function of Python's that Spark has called, the end of its traceback says what happened.
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Warning): ", line)]
    if lines and "Traceback" in lines[0] and raised:
        return raised[-1][:500]
    return lines[0][:500] if lines else type(error).__name__
