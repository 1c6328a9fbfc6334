"""The base of sources that read immutable files: listing, offsets, splits."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pydantic import Field

from headrace.base.errors import PlanError
from headrace.base.options import Duration
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors.base import (
    Connector,
    TimeUnit,
    check_column,
    report_bad,
    wall_clock,
    with_event_time,
)
from headrace.connectors.filesystem.content import Content
from headrace.connectors.filesystem.layout import fill
from headrace.connectors.filesystem.listing import File, Listing
from headrace.formats.types import parse_type
from headrace.model.operator import (
    DEAD_LETTER,
    Collector,
    Finish,
    Limit,
    Offset,
    SourceContext,
    SourceOperator,
    Split,
)
from headrace.storage.options import StorageOptions

LANE = "files"
_GATHERED_ROWS = 262_144
_GATHERED_BYTES = 32 * 1024 * 1024


class FilesOptions(StorageOptions):
    """The options that sources of files share."""

    watch_interval: Duration | None = Field(
        None,
        gt=timedelta(0),
        alias="source.watch_interval",
        description=(
            "Look for new files at this interval and never end; without it the existing files are read "
            "once, or those that came since the last run by one with `available_now`."
        ),
    )
    timestamp_column: str | None = Field(
        None, description="The column with the event time: ISO 8601 strings, or numbers in timestamp_unit."
    )
    timestamp_unit: TimeUnit = Field(
        "ns", description="The unit of event times that are numbers: s, ms, us or ns."
    )
    idle_timeout: Duration | None = Field(
        None, description="After this long without rows the files no longer hold the watermark back."
    )


class FilesSource(Connector, SourceOperator):
    """Reads files one after the other; a connector implements `discover` and sets `content`.

    The offset holds the listed files (`Listing`), the number of the next file, and the byte or row in it.
    Further state of `discover` is in `more`. A position inside a file has the file's `identity`: one that is
    replaced while it is read is an error.
    """

    options: Any
    content: Content
    lag_unit = "files"
    remembers = False
    """Whether `discover` needs the paths of all files that were ever listed."""

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        assert isinstance(self.options, FilesOptions)
        self.idle_timeout = self.options.idle_timeout
        self._state_storage: Any = None
        self._folder = ""
        self._discovered_at: float | None = None
        self._listed: tuple[int, set[str]] = (-1, set())
        self._is_limited = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_state_storage": None, "_discovered_at": None, "_listed": (-1, set())}

    # ------------------------------------------------------------------------ what a connector says

    @abstractmethod
    def discover(self, more: Mapping[str, Any] | None, listed: set[str]) -> tuple[list[File], dict[str, Any]]:
        """Return the new files, and the state for the next call; at the first call `more` is None."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """The declared columns."""

    def infer(self, files: Sequence[File]) -> dict[str, str] | None:
        """Return the columns to store in the offset if they are inferred at the first start: name → type."""
        return None

    def find_columns(self) -> pa.Schema:
        """Return the columns that `infer` finds."""
        self.validate()
        return read_columns(self.infer(self.first()) or {})

    def first(self) -> Sequence[File]:
        """Return a file to infer the columns from, if one is needed."""
        return ()

    def values(self, file: Mapping[str, Any]) -> Mapping[str, str | None]:
        """Return the values that all rows of a file share, such as those of its path: column → string."""
        return {}

    # ------------------------------------------------------------------------ offsets

    def open(self, storage: Any, *, job_id: str, node: str) -> None:
        """Take the state storage, in which long listings are stored."""
        self._state_storage, self._folder = storage, f"listed/{node}"

    def initial_offset(self, *, time: float) -> Offset:
        """List the files, and return the start of the first one."""
        self.validate()
        files, more = self.discover(None, set())
        position = {
            "time": wall_clock(time),
            "first": 0,
            "pages": [],
            "file": 0,
            "at": 0,
            "line": 1,
            "more": more,
            "schema": self.infer(files) if self.schema is None else None,
        }
        return {LANE: {**position, **self._listing(position).add(files)}}

    def _listing(self, position: Mapping[str, Any]) -> Listing:
        return Listing(position, self._state_storage, self._folder)

    def limit_to_available(self, start: Offset, *, time: float) -> Offset:
        """List the files that are new since the last run; none that come later are read by this one."""
        position = dict(start[LANE])
        if self.remembers and position["first"]:
            raise PlanError(
                "an earlier run has forgotten the files that it read: it ran without `available_now`, and "
                "without `source.watch_interval`",
                hint="begin with another state directory, and read it with `--available-now` from the first "
                "run on",
            )
        self._discover(position, time)
        self._is_limited = True
        return {LANE: position}

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """Return the position `limit.rows` rows further, or the end of the last file."""
        position, left = dict(start[LANE]), limit.rows
        self._find_new(position, limit.time)
        listing = self._listing(position)
        while left > 0 and (file := listing.get(position["file"])) is not None:
            file = with_identity(file, position)
            reached = self.content.advance(file, position["at"], position["line"], rows=left)
            left -= reached.rows
            position |= {"at": reached.at, "line": reached.line}
            if reached.at_end:
                position |= {"file": position["file"] + 1, "at": 0, "line": 1}
                position.pop("identity", None)
            elif "identity" not in position:
                position["identity"] = self.content.identity(file)
        follows = self._is_limited or self.options.watch_interval is not None
        if position != start[LANE] and not (self.remembers and follows):
            position |= listing.without_before(start[LANE]["file"])
        return {LANE: position}

    def _find_new(self, position: dict[str, Any], now: float) -> None:
        interval = self.options.watch_interval
        if (
            interval is None
            or self._is_limited
            or (self._discovered_at is not None and now < self._discovered_at + interval.total_seconds())
        ):
            return
        self._discover(position, now)

    def _discover(self, position: dict[str, Any], now: float) -> None:
        listing = self._listing(position)
        if self.remembers and self._listed[0] != listing.end:
            self._listed = (listing.end, listing.paths())
        files, more = self.discover(position["more"], self._listed[1])
        self._discovered_at = now
        if files:
            position |= listing.add(files)
            self._listed = (listing.end + len(files), self._listed[1] | {file["path"] for file in files})
        if more != position["more"]:
            position["more"] = more

    def lag(self, offset: Offset, *, time: float) -> Mapping[str, int]:
        """Return how many of the listed files are not read to their end."""
        position = offset[LANE]
        return {LANE: self._listing(position).end - position["file"]}

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """Return splits of about equal size, each a contiguous range of files."""
        parts = [
            (part, weight := self.content.weigh(part), min(self.content.least(part), weight))
            for part in self._parts(start[LANE], end[LANE])
        ]
        total = sum(weight for _, weight, _ in parts)
        tasks = max(1, min(parallelism, sum(weight // max(1, least) for _, weight, least in parts)))
        bounds = [total * index // tasks for index in range(1, tasks)]
        common = {
            "time": end[LANE]["time"],
            "schema": end[LANE]["schema"],
            "final": self.is_finished(end),
        }
        shares: list[list[dict[str, Any]]] = [[] for _ in range(tasks)]
        before = 0
        for part, weight, least in parts:
            cuts = [0, *(_cut_at(bound - before, weight, least) for bound in bounds), weight]
            # One for each share that is not empty, or fewer if rows are long.
            pieces = self.content.cut(part, sorted({cut for cut in cuts if 0 < cut < weight}))
            for share, (begin, stop) in zip(shares, itertools.pairwise(cuts), strict=True):
                if begin < stop:
                    share.extend(itertools.islice(pieces, 1))
            before += weight
        return [Split(LANE, {**common, "parts": share}) for share in shares if share]

    def _parts(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the ranges of the files between two positions."""
        for number, file in self._between(start, end, end["file"]):
            first = start["at"] if number == start["file"] else 0
            last = end["at"] if number == end["file"] else None
            if last != first:
                line = start["line"] if number == start["file"] else 1
                inside = start if first else end if last is not None else {}
                yield {**with_identity(file, inside), "from": first, "to": last, "line": line}

    def _between(
        self, start: Mapping[str, Any], end: Mapping[str, Any], last: int
    ) -> Iterator[tuple[int, File]]:
        """Yield the files from `start` to `last`; those that `end` no longer lists are in `start`."""
        yield from self._listing(start).between(start["file"], min(last, end["first"] - 1))
        yield from self._listing(end).between(start["file"], last)

    def is_finished(self, offset: Offset) -> bool:
        """Whether all files that were listed at the first start have been read, and no others are read."""
        position = offset[LANE]
        if self._is_limited:
            return False
        return self.options.watch_interval is None and position["file"] >= self._listing(position).end

    def count(self, start: Offset, end: Offset) -> int | None:
        """Return the number of rows in a range: exact for files that store it."""
        if not self.content.counts:
            return None
        first, last = start[LANE], end[LANE]
        rows = sum(file["rows"] for _, file in self._between(first, last, last["file"] - 1))
        return int(last["at"] - first["at"] + rows)

    # ------------------------------------------------------------------------ rows

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Read the files of one split."""
        detail, options = ctx.split.detail, self.options
        schema = self.schema
        if schema is None and detail["schema"] is not None:
            schema = read_columns(detail["schema"])
        for part in detail["parts"]:
            for rows in gathered(self._read(part, schema, ctx, collector)):
                if options.timestamp_column is not None:
                    check_column(options.timestamp_column, rows.schema.names, what="filesystem")
                stamped = with_event_time(
                    rows,
                    time=part.get("time", detail["time"]),
                    column=options.timestamp_column,
                    unit=options.timestamp_unit,
                )
                for batch in stamped.combine_chunks().to_batches(max_chunksize=_GATHERED_ROWS):
                    collector.collect(batch)
        return Finish.FINAL if detail["final"] else Finish.GRACEFUL

    def _read(
        self, part: File, schema: pa.Schema | None, ctx: SourceContext, collector: Collector
    ) -> Iterator[pa.Table]:
        values, where = self.values(part), self.content.where(part)
        keep = getattr(self.options, "bad_data", None) == DEAD_LETTER
        inside = None if schema is None else self.content.columns(schema, values)
        for decoded in self.content.read(part, inside):
            report_bad(ctx, collector, decoded.bad, keep=keep)
            yield fill(decoded.rows, values, schema, where=where)


def with_identity(file: File, position: Mapping[str, Any]) -> File:
    """Return the file with the identity that it has in a position inside of it; older positions have none."""
    return {**file, "identity": position["identity"]} if "identity" in position else file


def _cut_at(target: int, weight: int, least: int) -> int:
    """Return where to divide a part: at the target, or at its end if less than half of `least` were left."""
    if 2 * target < least:
        return 0
    return weight if 2 * (weight - target) <= least else target


def gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows in fewer, larger tables: each batch has a cost."""
    waiting: list[pa.Table] = []
    for table in tables:
        if not table.num_rows:
            continue
        if waiting and (
            table.schema != waiting[0].schema
            or sum(part.num_rows for part in waiting) + table.num_rows > _GATHERED_ROWS
            or sum(part.nbytes for part in waiting) + table.nbytes > _GATHERED_BYTES
        ):
            yield pa.concat_tables(waiting)
            waiting = []
        waiting.append(table)
    if waiting:
        yield pa.concat_tables(waiting)


def read_columns(types: Mapping[str, str]) -> pa.Schema:
    """Parse the columns of an offset."""
    return pa.schema([pa.field(name, parse_type(text)) for name, text in types.items()])
