"""The base of all connectors: options, staged output, event times."""

from __future__ import annotations

import base64
import contextlib
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import (
    BadLineError,
    ConfigurationError,
    CorruptStateError,
    PlanError,
    RefusedError,
    suggest,
)
from headrace.base.options import Options as DeclaredOptions
from headrace.base.options import parse_options
from headrace.base.windows import FIRST_EVENT_TIME, LAST_EVENT_TIME
from headrace.model.operator import (
    BAD_ROWS_OF,
    DEAD_LETTER,
    DEAD_LETTERS,
    ArrowOperator,
    CheckpointBarrier,
    Collector,
    CommitData,
    OperatorContext,
    SourceContext,
)
from headrace.state.references import FileReference, seal, unseal_content, write_referenced

INLINE_LIMIT = 32 * 1024
"""Payloads up to this size are part of the commit data; larger ones are staged in a file."""
_DRIVER_BYTES, _DRIVER_PARTS = 256 * 1024, 2
"""What a driver commits itself: the tasks of a commit cost more than to publish that."""

TIMESTAMP_TYPE = pa.timestamp("ns")

Promise = Literal["exactly once", "at least once", "at most once"]


@dataclass(frozen=True)
class Delivery:
    """A delivery guarantee of a source or a sink, and how it is achieved.

    `how` is one line for the reference, without a full stop. `when` names the options that it depends on.
    """

    promise: Promise
    how: str
    when: str = ""


AnyRows = TypeVar("AnyRows", pa.RecordBatch, pa.Table)


class Connector:
    """Builds a source or a sink from its validated options, or from the same options as keywords.

    `ImpulseSource(message_count=100)` and `ImpulseSource(ImpulseSource.Options(message_count=100))`
    are the same; bad options raise a ConfigurationError that names each of them.
    """

    Options: ClassVar[type[DeclaredOptions]]
    options: Any
    outputs: Sequence[str] | None = ()
    """The names of its other outputs; those with `bad_data = 'dead_letter'` have one for bad records."""
    accepts_updates: bool = False
    """Of a sink: whether it accepts retractions (the column `_retract`)."""
    updates_with: ClassVar[str] = "write format = 'debezium_json'"
    """Of a sink: what to write in SQL so that it accepts them."""
    deliveries: ClassVar[Sequence[Delivery]] = ()
    """The delivery guarantees; several if they depend on options."""
    asked_in_tasks: bool = True
    """Whether the tasks of an epoch contact the external system."""
    asked_in_commits: bool = False
    """Whether the tasks of a commit do: see `commit_shares`."""
    needs_spark_context: ClassVar[bool] = False
    """Whether it uses the SparkContext of the driver, which a run over Spark Connect does not have."""

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        if options is None:
            options = parse_options(self.Options, values, what=type(self).__name__)
        elif values:
            raise ConfigurationError(
                f"{type(self).__name__} takes either an Options object or keywords, not both"
            )
        elif not isinstance(options, self.Options):
            raise ConfigurationError(
                f"{type(self).__name__} takes {type(self).__name__}.Options, got {options!r}",
                hint="give each option by its name",
            )
        self.options = options
        if getattr(options, "bad_data", None) == DEAD_LETTER:
            self.outputs = (*(self.outputs or ()), DEAD_LETTER)

    @classmethod
    def is_updating(cls, options: Mapping[str, Any]) -> bool:
        """Of a source: whether it emits retractions (`_retract`) with these options."""
        return bool(options.get("format") == "debezium_json")

    @classmethod
    def emits_upserts(cls, options: Mapping[str, Any]) -> bool:  # noqa: ARG003 - for those that override it
        """Of a source: whether its rows are the latest of their keys, and `_retract` deletes that of a key.

        SQL makes changes of them (`headrace.operators.latest_rows`).
        """
        return False

    def load_package(self) -> None:
        """Import the optional package that it needs; raises a MissingExtraError if it is not installed."""

    def validate(self) -> None:
        """Check the options on the driver, before anything runs; raises an error for what is wrong."""

    def reach(self) -> str:
        """Contact the external system once, and return a line about it; raises an ExternalError.

        Every run does so before its first epoch, and `headrace connectors test`: whether it answers, takes
        the login and has the table, topic or queue. It is quick, and consumes and changes nothing. One that
        does not answer is asked again by the caller. Not called for a connector that does not have it.
        """
        return ""

    def for_sampling(self) -> Self:
        """Of a source: return a copy that reads a sample and changes nothing in the external system."""
        return self

    def find_columns(self) -> pa.Schema:
        """Of a source without declared columns: find them from a schema or from a sample.

        Contacts the external system for some seconds, and changes nothing. No columns mean that there is no
        data yet; a ConfigurationError means that columns cannot be found.
        """
        raise ConfigurationError("its columns cannot be read from its rows")

    def display(self) -> str:
        """Return the name and the options that are set, on one line."""
        values = self.options.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        inner = ", ".join(f"{name}={value}" for name, value in values.items())
        return f"{type(self).__name__}({inner})"


class RowsSink(Connector, ArrowOperator):
    """A sink that stages the rows of an epoch until the commit on the driver."""

    asked_in_tasks = False

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self._batches: list[pa.RecordBatch] = []

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Buffer the batch until the epoch ends."""
        self._batches.append(batch)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        """Stage the rows of the epoch."""
        ctx.metrics.add("rows", sum(batch.num_rows for batch in self._batches))
        if self._batches:
            payload = to_ipc(self._batches)
            ctx.insert_committing_data("rows", stage(ctx, f"rows-{ctx.task_info.subtask}.arrow", payload))
            self._batches = []

    @staticmethod
    def staged_rows(
        data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext
    ) -> tuple[list[pa.RecordBatch], frozenset[str]]:
        """Return the rows of an epoch in the order of subtasks, and the ids of the staging attempts."""
        batches, attempts = staged_batches(data, "rows", ctx)
        return batches, frozenset(attempts)


def without_event_time(batch: AnyRows) -> AnyRows:
    """Return the rows without the column `_timestamp`."""
    return batch.drop_columns([TIMESTAMP]) if TIMESTAMP in batch.schema.names else batch


def report_bad(
    ctx: SourceContext, collector: Collector, bad: Sequence[BadLineError], *, keep: bool = False
) -> None:
    """Count records that cannot be read; `keep` sends them to the output `dead_letter`.

    Of dropped records the first is logged.
    """
    if not bad:
        return
    ctx.metrics.add("bad_rows", len(bad))
    for fault, count in Counter(error.fault for error in bad).items():
        ctx.metrics.add(BAD_ROWS_OF + fault, count)
    if not keep:
        ctx.report_error(f"dropped {len(bad)} bad rows, such as: {bad[0].message}")
        return
    ctx.metrics.add("dead_letters", len(bad))
    columns = {
        "record": [error.record for error in bad],
        "content": [error.content for error in bad],
        "error": [error.message for error in bad],
        "source": [error.where for error in bad],
        "position": [error.position for error in bad],
        "code": [error.fault for error in bad],
        "partition": [error.partition for error in bad],
        "offset_id": [error.offset for error in bad],
        TIMESTAMP: pa.repeat(pa.scalar(time.time_ns(), pa.int64()), len(bad)).view(TIMESTAMP_TYPE),
    }
    collector.collect(pa.record_batch(columns, schema=DEAD_LETTERS), DEAD_LETTER)


@dataclass(frozen=True)
class Refusal:
    """Rows that the external system would refuse because of a value, and why.

    A sink looks for them in its tasks: a row that fails in the commit fails in every later run too, because
    the commit point of its epoch has passed.
    """

    rows: pa.Array
    """Whether each row is refused."""
    reason: Callable[[int], str]
    """Returns what is wrong with the row of an index, and names its column."""
    hint: str | None = None


def accept_rows(
    rows: AnyRows, refusals: Sequence[Refusal], ctx: OperatorContext, *, where: str, bad_data: str = "fail"
) -> AnyRows:
    """Return the rows that no refusal names; refused rows end the run, or `drop` drops and counts them."""
    refused = [(refusal, pc.fill_null(refusal.rows, False)) for refusal in refusals]
    refused = [(refusal, mask) for refusal, mask in refused if pc.any(mask, min_count=0).as_py()]
    if not refused:
        return rows
    first, mask = refused[0]
    refuse_rows(
        first.reason(pc.index(mask, True).as_py()),
        pc.sum(mask).as_py(),
        ctx,
        where=where,
        bad_data=bad_data,
        hint=first.hint,
    )
    left = rows.filter(pc.invert(mask))
    others = [
        Refusal(other.filter(pc.invert(mask)), _renumbered(refusal.reason, mask), refusal.hint)
        for refusal, other in refused[1:]
    ]
    return accept_rows(left, others, ctx, where=where, bad_data=bad_data)


def _renumbered(reason: Callable[[int], str], dropped: pa.Array) -> Callable[[int], str]:
    """Return the function for rows of which some were dropped."""
    left = pc.indices_nonzero(pc.invert(dropped))
    return lambda index: reason(left[index].as_py())


def refuse_rows(
    reason: str,
    count: int,
    ctx: OperatorContext,
    *,
    where: str,
    bad_data: str = "fail",
    hint: str | None = None,
) -> None:
    """Raise a RefusedError for rows that cannot be written; with `drop`, count and report them instead."""
    if bad_data != "drop":
        raise RefusedError(f"a row cannot be written: {reason}", hint=hint, where=where)
    ctx.metrics.add("bad_rows", count)
    ctx.report_error(f"dropped {count} rows that cannot be written, such as: {reason}")


def bounded_for_good() -> ConfigurationError:
    """Return the error for a source that a run with `available_now` would end for good."""
    return ConfigurationError(
        "`source.bounded` ends the source for good, and after a run with `available_now` the next goes on",
        hint="leave `source.bounded`",
    )


def longer_than(values: pa.Array, most: int) -> pa.Array:
    """Return which strings or binaries have more than this many bytes."""
    return pc.greater(pc.binary_length(values), most)


def excerpt(value: Any) -> str:
    """Return the beginning of a value for a message."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


APART = "apart"
"""In the description of staged data: whether each subtask commits its own independently of the others."""


def stage(ctx: OperatorContext, name: str, payload: bytes, **extra: Any) -> bytes:
    """Stage `payload` for the commit; return the commit data for `unstage`.

    Small payloads are part of the commit data. Every attempt has its own `id`, which distinguishes a retried
    commit from a new one. Staged files stay until the engine's cleanup, because a commit may be retried.
    """
    data: dict[str, Any] = {"id": uuid.uuid4().hex, **extra}
    if len(payload) <= INLINE_LIMIT:
        data["inline"] = base64.b64encode(payload).decode()
    else:
        data["file"] = write_referenced(ctx.storage, f"{ctx.staging}/{name}", payload).to_json()
    return json.dumps(data).encode()


def unstage(ctx: OperatorContext, data: bytes) -> tuple[bytes, Mapping[str, Any]]:
    """Return the payload, verified, and the description that were passed to `stage`."""
    described: dict[str, Any] = json.loads(data)
    if "inline" in described:
        return base64.b64decode(described["inline"]), described
    file = described["file"] if "file" in described else described["path"]  # of an earlier version
    return FileReference.from_json(file).read(ctx.storage, what="staged file"), described


def staged_batches(
    data: CommitData, table: str, ctx: OperatorContext
) -> tuple[list[pa.RecordBatch], list[str]]:
    """Return the batches staged as Arrow IPC, in the order of subtasks, and the ids of the attempts."""
    staged = [unstage(ctx, content) for _, content in sorted(data.get(table, {}).items())]
    batches = [batch for payload, _ in staged for batch in from_ipc(payload)]
    return batches, [described["id"] for _, described in staged]


def shares_for_tasks(parts: Sequence[CommitData], table: str) -> Sequence[CommitData]:
    """Return the parts of a commit as shares for tasks; none if the driver commits so little itself."""
    staged = [json.loads(content) for part in parts for content in part.get(table, {}).values()]
    size = sum(_staged_size(described) for described in staged)
    return parts if len(parts) > _DRIVER_PARTS or size > _DRIVER_BYTES else ()


def _staged_size(described: Mapping[str, Any]) -> int:
    if "inline" in described:
        return len(described["inline"])
    file = described.get("file")
    size = file.get("bytes") if isinstance(file, dict) else None
    return _DRIVER_BYTES + 1 if size is None else int(size)  # of an earlier version


def by_subtask(data: CommitData, table: str) -> Sequence[CommitData]:
    """Divide staged data by subtask, unless an earlier version staged it to be committed as a whole."""
    staged = sorted(data.get(table, {}).items())
    if not all(json.loads(content).get(APART) for _, content in staged):
        return [data]
    return [{table: {subtask: content}} for subtask, content in staged]


def deliver_once(ctx: OperatorContext, attempts: Sequence[str], deliver: Callable[[], None]) -> None:
    """Deliver the staged data of some attempts, unless an earlier commit completed it."""
    marker = CommitMarker("delivered", ctx)
    if marker.read() == attempts:
        return
    ctx.check_generation()
    deliver()
    marker.write(attempts)


_RECENT_RUNS = 5
"""Of how many runs before it a run looks for the markers by name."""


class CommitMarker:
    """A JSON value that the commits of a sink keep in the state directory, for the next commit.

    Subtasks that commit their own part have a value of their own. Each run writes a file of its own, so that
    one that does not know yet that it was replaced cannot overwrite what its successor has written.
    """

    def __init__(self, folder: str, ctx: OperatorContext) -> None:
        self._storage, self._generation = ctx.storage, ctx.generation
        subtask = ctx.task_info.subtask
        self._folder = f"{folder}/{ctx.task_info.operator_id}" + (f"/subtask-{subtask}" if subtask else "")

    def read(self) -> Any:
        """Return the last value of this run, or else of the run before it; None if there is none."""
        # By name first: a listing may be behind. Other runs may have written nothing, so it is asked as well.
        recent = range(self._generation, max(-1, self._generation - _RECENT_RUNS), -1)
        earlier = [number for number in self._numbers() if number <= self._generation]
        paths = [self._path(number) for number in sorted({*earlier, *recent}, reverse=True)]
        for path in (*paths, f"{self._folder}.json"):  # the last one is of an earlier version
            with contextlib.suppress(FileNotFoundError):
                return self._value(path, self._storage.read(path))
        return None

    def _value(self, path: str, content: bytes) -> Any:
        with contextlib.suppress(ValueError):
            value = json.loads(content)
            if not isinstance(value, dict) or value.keys().isdisjoint({"value", "bytes", "checksum"}):
                return value  # of an earlier version, without a checksum
        about = {"what": "mark of a commit", "where": self._storage.url}
        hint = "remove the file: what it says was sent may then be sent once more"
        head, _ = unseal_content(content, path, hint=hint, **about)
        if "checksum" not in head:
            raise CorruptStateError(
                f"{about['what']} `{path}` is damaged: it has no checksum", where=about["where"], hint=hint
            )
        return head["value"]

    def write(self, value: Any) -> None:
        """Replace the value of this run."""
        self._storage.write(self._path(self._generation), seal({"value": value})[0])
        for number in self._numbers():
            if number < self._generation:
                self._storage.delete(self._path(number))

    def _numbers(self) -> list[int]:
        names = (name.removesuffix(".json") for name in self._storage.children(self._folder))
        return [int(name) for name in names if name.isdigit()]

    def _path(self, generation: int) -> str:
        return f"{self._folder}/{generation:07}.json"


def to_ipc(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Write batches as one Arrow IPC stream; missing columns are null."""
    batches = unify_schemas(batches)
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return out.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unify_schemas(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """Return the batches with one schema; missing columns are null."""
    if all(batch.schema == batches[0].schema for batch in batches):
        return batches
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    try:
        return pa.concat_tables(tables, promote_options="permissive").to_batches()  # type: ignore[no-any-return]
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise PlanError(
            f"rows of different shapes reach one sink: {error}",
            hint="bring them to the same column types before the sink, or use a sink for each",
        ) from error


def from_ipc(data: bytes) -> list[pa.RecordBatch]:
    """Read the batches of an Arrow IPC stream."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return list(reader)


TimeUnit = Literal["s", "ms", "us", "ns"]
_PER_SECOND: Mapping[TimeUnit, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def read_event_time(column: pa.ChunkedArray, name: str, *, unit: TimeUnit = "ns") -> pa.ChunkedArray:
    """Convert a column to event times, `timestamp[ns]` in UTC: timestamps, dates, ISO strings, numbers."""
    kind = column.type
    try:
        if pa.types.is_integer(kind):
            times = column.cast(pa.int64()).cast(pa.timestamp(unit)).cast(TIMESTAMP_TYPE)
        elif pa.types.is_floating(kind):
            factor = 10**9 // _PER_SECOND[unit]
            times = pc.round(pc.multiply(column, float(factor))).cast(pa.int64()).cast(TIMESTAMP_TYPE)
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            times = _read_texts(column)
        elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            times = column.cast(TIMESTAMP_TYPE)
        else:
            raise ConfigurationError(
                f"column `{name}` has the type {kind} and cannot be an event time",
                hint="an event time is a timestamp, a date, an ISO text or a number",
            )
    except pa.ArrowInvalid as error:
        raise ConfigurationError(
            f"column `{name}` cannot be read as event times: {error}",
            hint="write times as `2026-11-15T10:00:00`, or as numbers and name their unit",
        ) from None
    if times.null_count:
        row = pc.index(pc.is_null(times), True).as_py()
        raise ConfigurationError(f"column `{name}` has no event time in row {row}: the value is null")
    if len(times):
        bounds = pc.min_max(times.cast(pa.int64())).as_py()
        if bounds["min"] < FIRST_EVENT_TIME or bounds["max"] > LAST_EVENT_TIME:
            raise ConfigurationError(
                f"column `{name}` has an event time outside of the years 1678 to 2261, where windows lie",
                hint="leave such rows out, or correct the time and its unit",
            )
    return times


def _read_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(TIMESTAMP_TYPE)
    except pa.ArrowInvalid:
        # Texts with a zone (`…Z`, `…+02:00`) are instants; without a zone they are taken as UTC.
        return column.cast(pa.timestamp("ns", "UTC")).cast(TIMESTAMP_TYPE)


def with_event_time(
    rows: pa.Table, *, time: int, column: str | None = None, unit: TimeUnit = "ns"
) -> pa.Table:
    """Add `_timestamp`: from `column`, from a column of that name, or `time` for all rows."""
    source, field = column or TIMESTAMP, pa.field(TIMESTAMP, TIMESTAMP_TYPE)
    if source not in rows.schema.names:
        times = pa.repeat(pa.scalar(time, pa.int64()), rows.num_rows).view(TIMESTAMP_TYPE)
        return rows.append_column(field, times)
    times = read_event_time(rows.column(source), source, unit=unit)
    if TIMESTAMP in rows.schema.names:
        return rows.set_column(rows.schema.get_field_index(TIMESTAMP), field, times)
    return rows.append_column(field, times)


def parse_instant(value: Any) -> int:
    """Parse an ISO string, a datetime or a number as nanoseconds since 1970 UTC."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        if value.strip().lstrip("-").isdigit():
            return int(value)
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise ValueError("write a time as `2026-11-15T10:00:00`") from None
    if not isinstance(value, datetime):
        raise ValueError("write a time as `2026-11-15T10:00:00`")  # noqa: TRY004 - pydantic wants it
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    since: timedelta = value - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1) * 1_000


def wall_clock(time: float) -> int:
    """Convert wall clock seconds to nanoseconds, with microsecond precision."""
    return round(time * 1_000_000) * 1_000


def check_column(name: str, columns: Sequence[str], *, what: str) -> None:
    """Raise a ConfigurationError with similar names unless `name` is one of `columns`."""
    if name not in columns:
        raise ConfigurationError(
            f"{what}: there is no column `{name}`",
            hint=suggest(name, columns, listing="the columns are"),
        )
