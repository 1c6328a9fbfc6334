"""The base of sinks whose files span epochs: rows stay in the state until the rolling policy ends a file."""

from __future__ import annotations

import json
import uuid
import zlib
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from headrace.base.columns import TIMESTAMP
from headrace.base.durations import nanoseconds
from headrace.base.options import Duration, Size
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors.base import Connector, refuse_rows
from headrace.connectors.filesystem.parts import TABLE, OpenFiles, StoredPart, forget, to_table
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext
from headrace.state.config import TableConfig

MERGED_PARTS = 16
"""The number of small parts of a file that are merged into one."""
FILES = "files"


class RollingOptions(DeclaredOptions):
    """The rolling policy: when a file is ended and becomes visible."""

    file_size: Size = Field(
        128_000_000,
        ge=1,
        alias="rolling_policy.file_size",
        description="End a file at about this size.",
    )
    interval: Duration = Field(
        timedelta(seconds=30),
        ge=timedelta(0),
        alias="rolling_policy.interval",
        description=(
            "End files at this interval, by the clock: no row stays invisible longer. `0` ends them "
            "with every epoch, which writes small files and saves a shuffle."
        ),
    )
    inactivity_interval: Duration | None = Field(
        None,
        gt=timedelta(0),
        alias="rolling_policy.inactivity_interval",
        description="End a file after this time without rows for it.",
    )
    watermark_expiration: Duration | None = Field(
        None,
        alias="rolling_policy.watermark_expiration",
        description="End a file when the watermark has passed the last of its rows by this time.",
    )
    shuffle_by_partition: bool = Field(
        default=False,
        alias="shuffle_by_partition.enabled",
        description="Whether one subtask writes all files of a directory: fewer and larger files.",
    )
    target_part_size: Size | None = Field(
        None,
        ge=5_000_000,
        alias="multipart.target_part_size",
        description="The part size of multipart uploads to an object store.",
    )
    max_parts: int | None = Field(
        None, ge=1, alias="multipart.max_parts", description="Accepted for compatibility; it has no effect."
    )
    minimum_multipart_size: Size | None = Field(
        None,
        ge=0,
        alias="multipart.minimum_multipart_size",
        description="Accepted for compatibility; it has no effect.",
    )
    version: Literal["v1", "v2"] = Field(
        "v1", alias="sink.version", description="Accepted for compatibility; it has no effect."
    )


class Encoded(NamedTuple):
    """The content of a file, the number of its rows, and whether it has the target size."""

    data: bytes
    rows: int
    full: bool


class RollingSink(Connector, ArrowOperator):
    """Collects rows over epochs, and passes the rows of a file to the connector.

    At the end of an epoch each subtask decides, by the epoch's own clock, which files are due. They are
    staged where no reader looks, and published by the commit. Rows of other files are written to the state
    storage, and the checkpoint refers to them. At the end of the data, and when the run is stopped, all files
    are due. A connector implements `part`, `encode` and `put`.
    """

    options: Any
    packed: float = 1.0
    """The assumed ratio of file size to memory size, until it is measured."""

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self._batches: list[pa.RecordBatch] = []
        self._ending = False
        pauses = [self.options.interval]
        if self.options.inactivity_interval is not None:
            pauses.append(self.options.inactivity_interval / 2)
        self.tick_interval = min(pauses) if self._rolls else None

    # ------------------------------------------------------------------------ what a connector says

    @abstractmethod
    def check(self, schema: pa.Schema) -> None:
        """Raise a PlanError unless rows of this schema can be written."""

    @abstractmethod
    def part(self, rows: pa.Table, ctx: OperatorContext) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of each directory, with the columns to write."""

    def problem_of(self, directory: str) -> str | None:
        """Say why files cannot be written to a directory of `part`; None if they can."""
        return None

    @abstractmethod
    def encode(self, rows: pa.Table) -> Iterator[Encoded]:
        """Encode the rows as files of about `file_size`."""

    @abstractmethod
    def put(self, directory: str, data: bytes, number: int, ctx: OperatorContext) -> Any:
        """Stage a file where readers do not see it; return the commit data that publishes it, as JSON."""

    # ------------------------------------------------------------------------ what the engine asks

    @property
    def _rolls(self) -> bool:
        return bool(self.options.interval)

    @property
    def stateless(self) -> bool:
        """Whether files end with every epoch; then no shuffle is needed."""
        return not self._rolls

    def tables(self) -> Sequence[TableConfig]:
        """Declare the state table with the rows that are not in a file yet."""
        return [TABLE] if self._rolls else []

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Keep the rows until the epoch ends."""
        self.check(batch.schema)
        ctx.metrics.add("rows", batch.num_rows)
        if batch.num_rows:
            self._batches.append(batch)

    def handle_stop(self, final: bool, ctx: OperatorContext, collector: Collector) -> None:
        """End all files."""
        self._ending = True

    def on_close(self, final: bool, ctx: OperatorContext, collector: Collector) -> None:
        """End all files after the last row."""
        self._ending = self._ending or final

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        """Write the files that are due, and store the other rows in the state."""
        batches, self._batches = self._batches, []
        rows = self._parted(to_table(batches), ctx) if batches else {}
        latest = _latest(batches)
        files: list[Any] = []
        keep = None
        if self._rolls:
            waiting = OpenFiles(ctx, barrier.min_epoch)
            keep = waiting.keep_from
            self._roll(rows, latest, waiting, files, ctx)
            waiting.save()
        else:
            for directory, table in rows.items():
                self._write(directory, table, files, ctx)
        ctx.metrics.add("files", len(files))
        if files:
            data = {"id": uuid.uuid4().hex, "files": files, "keep": keep}
            ctx.insert_committing_data(FILES, json.dumps(data).encode())

    # ------------------------------------------------------------------------ files

    def _parted(self, rows: pa.Table, ctx: OperatorContext) -> dict[str, pa.Table]:
        """Return the rows of each directory that can be written to; others are refused here, in the task."""
        parts: dict[str, pa.Table] = {}
        for directory, part in self.part(rows, ctx):
            problem = self.problem_of(directory)
            if problem is None:
                parts[directory] = part
                continue
            refuse_rows(
                problem,
                part.num_rows,
                ctx,
                where=self.options.path,
                bad_data=getattr(self.options, "bad_data", "fail"),
                hint="leave such rows out, shorten the value, or partition by another column",
            )
        return parts

    def _roll(
        self,
        rows: Mapping[str, pa.Table],
        latest: int | None,
        waiting: OpenFiles,
        files: list[Any],
        ctx: OperatorContext,
    ) -> None:
        mine: dict[str, list[StoredPart]] = defaultdict(list)
        for part in waiting.all:
            if self._is_mine(part.directory, part.subtask, ctx):
                mine[part.directory].append(part)
        for directory in [*mine, *(name for name in rows if name not in mine)]:
            parts, new = mine.get(directory, []), rows.get(directory)
            opened = min([part.opened for part in parts], default=ctx.time)
            event_times = [part.latest for part in parts if part.latest is not None]
            newest = max(
                [*event_times, *([latest] if new is not None and latest is not None else [])], default=None
            )
            last = ctx.time if new is not None else max(part.last for part in parts)
            if self._is_due(opened, last, newest, ctx):
                self._write(directory, _together(waiting, parts, new), files, ctx, waiting)
                waiting.close(parts)
                continue
            if self._is_full(parts, new, waiting):
                table = _together(waiting, parts, new)
                rest = self._write(directory, table, files, ctx, waiting, everything=False)
                if rest.num_rows < table.num_rows:
                    waiting.close(parts)
                    if rest.num_rows:
                        waiting.add(directory, rest, opened=opened, last=last, latest=newest)
                    continue
            if small := _worth_merging(parts):
                waiting.merge(small)
            if new is not None:
                waiting.add(directory, new, opened=ctx.time, last=ctx.time, latest=latest)

    def _is_mine(self, directory: str, subtask: int, ctx: OperatorContext) -> bool:
        """Whether this subtask writes the files of a part: its own, or those of its directories."""
        owner = zlib.crc32(directory.encode()) if self.options.shuffle_by_partition else subtask
        return owner % ctx.task_info.parallelism == ctx.task_info.subtask

    def _is_due(self, opened: float, last: float, latest: int | None, ctx: OperatorContext) -> bool:
        options = self.options
        seconds = options.interval.total_seconds()
        if self._ending or int(opened / seconds) < int(ctx.time / seconds):
            return True
        quiet: timedelta | None = options.inactivity_interval
        if quiet is not None and ctx.time - last >= quiet.total_seconds():
            return True
        late: timedelta | None = options.watermark_expiration
        mark = None if ctx.watermark is None else ctx.watermark.time
        return (
            late is not None
            and mark is not None
            and latest is not None
            and mark >= latest + nanoseconds(late)
        )

    def _is_full(self, parts: Sequence[StoredPart], new: pa.Table | None, waiting: OpenFiles) -> bool:
        size = sum(part.bytes for part in parts) + (0 if new is None else new.nbytes)
        return bool(size * waiting.ratio(self.packed) >= self.options.file_size)

    def _write(
        self,
        directory: str,
        rows: pa.Table,
        files: list[Any],
        ctx: OperatorContext,
        waiting: OpenFiles | None = None,
        *,
        everything: bool = True,
    ) -> pa.Table:
        """Write rows to files, all of them or only full files; return the remaining rows."""
        length = done = 0
        for file in self.encode(rows):
            length += len(file.data)
            if everything or file.full:
                files.append(self.put(directory, file.data, len(files), ctx))
                done += file.rows
        if waiting is not None and rows.nbytes:
            waiting.learn(length / rows.nbytes)
        return rows.slice(done)

    def forget(self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext) -> None:
        """Remove the parts that no checkpoint needs any more; called at the end of a commit."""
        keeps = [json.loads(staged)["keep"] for staged in data.get(FILES, {}).values()]
        if keeps and None not in keeps:
            forget(ctx, min(*keeps, epoch))


def prepared(data: Mapping[str, Mapping[int, bytes]]) -> list[Any]:
    """Return what `put` returned for the files of an epoch, in the order of subtasks."""
    return [file for _, staged in sorted(data.get(FILES, {}).items()) for file in json.loads(staged)["files"]]


def _together(waiting: OpenFiles, parts: Sequence[StoredPart], new: pa.Table | None) -> pa.Table:
    fresh = [] if new is None else new.to_batches()
    return to_table([*waiting.read(parts), *fresh])


def _worth_merging(parts: Sequence[StoredPart]) -> list[StoredPart]:
    """Return the parts of a directory to merge: of a level with many parts, and all levels below."""
    counts: dict[int, int] = defaultdict(int)
    for part in parts:
        counts[part.level] += 1
    many = [level for level, count in counts.items() if count >= MERGED_PARTS]
    return [part for part in parts if part.level <= max(many)] if many else []


def _latest(batches: Sequence[pa.RecordBatch]) -> int | None:
    times = [pc.max(batch.column(TIMESTAMP)) for batch in batches if TIMESTAMP in batch.schema.names]
    event_times = [time.cast(pa.int64()).as_py() for time in times if time.is_valid]
    return max(event_times, default=None)
