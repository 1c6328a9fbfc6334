"""`filesystem`: directories of JSON lines or Parquet files, as a source and as a sink."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from headrace.connectors.base import (
    Connector,
    TimeUnit,
    check_column,
    one_schema,
    report_bad,
    wall_clock,
    with_event_time,
    without_event_time,
)
from headrace.connectors.lines import count_lines, read_blocks, scan_lines
from headrace.connectors.places import Place
from headrace.errors import ConfigurationError, ExternalError, PlanError
from headrace.formats.json import infer_schema
from headrace.formats.options import FileFormatOptions, check_readable, implied_columns
from headrace.formats.parquet import ParquetFormat, check_parquet, read_rows
from headrace.formats.type_text import format_type, parse_type
from headrace.operator import (
    DEAD_LETTER,
    TIMESTAMP,
    ArrowOperator,
    CheckpointBarrier,
    Collector,
    Finish,
    Limit,
    Offset,
    OperatorContext,
    SourceContext,
    SourceOperator,
    Split,
)
from headrace.options import Duration, Names, Size
from headrace.options import Options as DeclaredOptions

LANE = "files"
BATCH_ROWS = 65_536
_WORTH_SPLITTING = 1024 * 1024
_SAMPLE_LINES = 1000
_SKIPPED = 1024 * 1024
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_STAGED = ".staged"


class FileSystemSource(Connector, SourceOperator):
    """Reads every file of a directory once, in the order of their paths; then it is finished.

    The files and their sizes are listed when the pipeline first starts and kept in the offset, together with
    the file and the byte or row that comes next: a resumed pipeline goes on with the next row, every range is
    read alike, and files that come later are not read. Hidden files (`.x`, `_x`) are left out. The tasks of
    an epoch share its files, and large ones among them; every worker must see the files under the same path.
    A compressed file of lines is read by one task, from its beginning in each epoch. Event time is the moment
    of the first start, unless `timestamp_column` names one.
    """

    class Options(FileFormatOptions):
        """The options of the filesystem source."""

        path: str = Field(min_length=1, description="A file or a directory, as a path or a URL.")
        regex_pattern: str | None = Field(
            None,
            alias="source.regex_pattern",
            description="Only files whose path below the directory has a part that matches are read.",
        )
        compression: Literal["none", "zstd", "gzip"] = Field(
            "none", alias="source.compression", description="How files of lines are compressed."
        )
        timestamp_column: str | None = Field(
            None, description="The column with the event time: ISO texts, or numbers in timestamp_unit."
        )
        timestamp_unit: TimeUnit = Field(
            "ns", description="The unit of event times that are numbers: s, ms, us or ns."
        )
        idle_timeout: Duration | None = Field(
            None, description="After this long without rows the files no longer hold the watermark back."
        )

        @model_validator(mode="after")
        def _fits(self) -> Self:
            if self.regex_pattern is not None:
                try:
                    re.compile(self.regex_pattern)
                except re.error as error:
                    raise ValueError(f"option `source.regex_pattern` is not a pattern: {error}") from None
            if self.format == "parquet" and self.compression != "none":
                raise ValueError(
                    "Parquet files say themselves how they are compressed: leave `source.compression`"
                )
            return self

    options: Options

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self.idle_timeout = self.options.idle_timeout
        self._place = Place(self.options.path)

    @property
    def _is_parquet(self) -> bool:
        return self.options.format == "parquet"

    def validate(self) -> None:
        """Refuse a path that is not there, and columns that cannot be read."""
        self._place.files()
        if not self._is_parquet:
            check_readable(self.options)
        column, columns = self.options.timestamp_column, self.options.columns
        if columns is not None and column is not None:
            check_column(column, columns.names, what="filesystem, option `timestamp_column`")

    def initial_offset(self, *, time: float) -> Offset:
        """The beginning of the first file; which files there are is fixed here."""
        self.validate()
        pattern = re.compile(self.options.regex_pattern or "")
        files = [
            {"path": file.path, "size": file.size}
            for file in self._place.files()
            if file.size and (not file.path or pattern.search(file.path))
        ]
        position: dict[str, Any] = {"time": wall_clock(time), "file": 0, "at": 0}
        if self._is_parquet:
            for file in files:
                with self._open_parquet(file) as opened:
                    file["rows"] = opened.metadata.num_rows
            files = [file for file in files if file["rows"]]
        else:
            position["line"] = 1
            position["schema"] = self._infer(files) if self.options.columns is None else None
        return {LANE: {**position, "files": files}}

    def _infer(self, files: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        columns = implied_columns(self.options)
        if columns is None:
            if not files:
                raise ConfigurationError(
                    f"there are no files in `{self._place}` to find out the columns from",
                    hint="declare them with the option `schema`",
                )
            with self._open_lines(files[0], 0) as stream:
                end = scan_lines(stream, 0, None, lines=_SAMPLE_LINES).end
            with self._open_lines(files[0], 0) as stream:
                columns = infer_schema(stream.read(end), where=self._where(files[0]))
        return {field.name: format_type(field.type) for field in columns}

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """`limit.rows` rows further, or the end of the last file."""
        position, left = dict(start[LANE]), limit.rows
        files = position["files"]
        while left > 0 and position["file"] < len(files):
            file = files[position["file"]]
            if self._is_parquet:
                taken = min(left, file["rows"] - position["at"])
                position["at"] += taken
                at_end = position["at"] == file["rows"]
            else:
                with self._open_lines(file, position["at"]) as stream:
                    end = file["size"] if self.options.compression == "none" else None
                    found = scan_lines(stream, position["at"], end, lines=left)
                taken, at_end = found.lines, found.at_end
                position |= {"at": found.end, "line": position["line"] + found.lines}
            left -= taken
            if at_end:
                position |= {"file": position["file"] + 1, "at": 0}
                if not self._is_parquet:
                    position["line"] = 1
        return {LANE: position}

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """Contiguous shares of the files, about alike in size."""
        parts = list(self._parts(start[LANE], end[LANE], parallelism))
        total = sum(part["weight"] for part in parts)
        common = {
            "time": end[LANE]["time"],
            "schema": end[LANE].get("schema"),
            "final": self.is_finished(end),
        }
        shares: dict[int, list[dict[str, Any]]] = {}
        before = 0
        for part in parts:
            share = (before + part["weight"] // 2) * parallelism // max(1, total)
            shares.setdefault(min(share, parallelism - 1), []).append(part)
            before += part["weight"]
        return [Split(LANE, {**common, "parts": share}) for _, share in sorted(shares.items())]

    def _parts(
        self, start: Mapping[str, Any], end: Mapping[str, Any], parallelism: int
    ) -> Iterator[dict[str, Any]]:
        """The ranges of the files between two positions, large ones cut."""
        for index in range(start["file"], min(end["file"] + 1, len(end["files"]))):
            file = end["files"][index]
            first = start["at"] if index == start["file"] else 0
            last = end["at"] if index == end["file"] else None
            if last == first:
                continue
            line = start.get("line", 1) if index == start["file"] else 1
            part = {**file, "from": first, "to": last, "line": line}
            if self._is_parquet:
                yield from _cut_rows(part, parallelism)
            elif self.options.compression == "none":
                yield from self._cut_lines(
                    {**part, "to": file["size"] if last is None else last}, parallelism
                )
            else:
                yield {**part, "weight": file["size"]}

    def _cut_lines(self, part: dict[str, Any], parallelism: int) -> Iterator[dict[str, Any]]:
        first, last, line = part["from"], part["to"], part["line"]
        shares = min(parallelism, max(1, (last - first) // _WORTH_SPLITTING))
        begin = first
        with self._open_lines(part, first) as file:
            for index in range(1, shares + 1):
                target = first + (last - first) * index // shares
                if target <= begin:
                    continue
                file.seek(target - 1)
                stop = scan_lines(file, target - 1, last, lines=1).end
                yield {**part, "from": begin, "to": stop, "line": line, "weight": stop - begin}
                if index < shares:
                    file.seek(begin)
                    line += count_lines(file, begin, stop)
                begin = stop

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Read the files of one share."""
        detail, options = ctx.split.detail, self.options
        for part in detail["parts"]:
            for rows in self._read(part, detail["schema"], ctx, collector):
                if options.timestamp_column is not None:
                    check_column(options.timestamp_column, rows.schema.names, what="filesystem")
                stamped = with_event_time(
                    rows, time=detail["time"], column=options.timestamp_column, unit=options.timestamp_unit
                )
                for batch in stamped.to_batches(max_chunksize=BATCH_ROWS):
                    if batch.num_rows:
                        collector.collect(batch)
        return Finish.FINAL if detail["final"] else Finish.GRACEFUL

    def _read(
        self,
        part: Mapping[str, Any],
        inferred: Mapping[str, str] | None,
        ctx: SourceContext,
        collector: Collector,
    ) -> Iterator[pa.Table]:
        schema, where = self.options.columns, self._where(part)
        if self._is_parquet:
            end = part["rows"] if part["to"] is None else part["to"]
            with self._open_parquet(part) as file:
                yield from read_rows(file, part["from"], end, schema, where=where)
            return
        if schema is None:
            schema = pa.schema([pa.field(name, parse_type(text)) for name, text in (inferred or {}).items()])
        lines = self.options.format_for(schema)
        with self._open_lines(part, part["from"]) as stream:
            for line, block in read_blocks(stream, part["from"], part["to"], line=part["line"], where=where):
                decoded = lines.decode(block, first_line=line, where=where)
                report_bad(ctx, collector, decoded.bad, keep=self.options.bad_data == DEAD_LETTER)
                yield decoded.rows

    def _where(self, file: Mapping[str, Any]) -> str:
        return f"{self._place}/{file['path']}" if file["path"] else str(self._place)

    def _open(self, file: Mapping[str, Any], *, grown: bool = False) -> Any:
        """A file, which must still be what was listed; one of plain lines may have grown."""
        opened = self._place.open(file["path"])
        size = opened.size()
        if size < file["size"] or (size > file["size"] and not grown):
            opened.close()
            raise ExternalError(
                f"`{self._where(file)}` has changed: it had {file['size']} bytes when listed, now {size}",
                hint="put the file back, or start the pipeline anew with another state directory",
                where="filesystem",
            )
        return opened

    def _open_parquet(self, file: Mapping[str, Any]) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self._open(file))
        except pa.ArrowInvalid as error:
            raise ConfigurationError(f"`{self._where(file)}` is not a Parquet file: {error}") from None

    @contextlib.contextmanager
    def _open_lines(self, file: Mapping[str, Any], begin: int) -> Iterator[Any]:
        """The stream of a file's lines, decompressed, from byte `begin` on."""
        compression = self.options.compression
        with self._open(file, grown=compression == "none") as opened:
            if compression == "none":
                opened.seek(begin)
                yield opened
                return
            try:
                with pa.CompressedInputStream(opened, compression) as stream:
                    while begin > 0 and (skipped := stream.read(min(begin, _SKIPPED))):
                        begin -= len(skipped)
                    yield stream
            except OSError as error:
                raise ConfigurationError(
                    f"`{self._where(file)}` cannot be read as {compression}: {error}",
                    hint="say how the files are compressed with `source.compression`",
                ) from None

    def is_finished(self, offset: Offset) -> bool:
        """Whether all files that were listed at the first start have been read."""
        return bool(offset[LANE]["file"] >= len(offset[LANE]["files"]))

    def count(self, start: Offset, end: Offset) -> int | None:
        """Exactly the rows of the range of Parquet files; of lines it is not known."""
        if not self._is_parquet:
            return None
        return _rows_before(end[LANE]) - _rows_before(start[LANE])


def _rows_before(position: Mapping[str, Any]) -> int:
    done: list[int] = [file["rows"] for file in position["files"][: position["file"]]]
    return int(position["at"]) + sum(done)


def _cut_rows(part: dict[str, Any], parallelism: int) -> Iterator[dict[str, Any]]:
    first, last = part["from"], part["rows"] if part["to"] is None else part["to"]
    shares = min(parallelism, max(1, (last - first) // BATCH_ROWS))
    for index in range(shares):
        begin, end = (first + (last - first) * i // shares for i in (index, index + 1))
        yield {**part, "from": begin, "to": end, "weight": end - begin}


class FileSystemSink(Connector, ArrowOperator):
    """Writes rows to new files of a directory; a file appears whole, when its epoch is committed.

    Every subtask writes the rows of an epoch to staged files in the hidden directory `.staged`. After the
    commit point the driver renames them, in one step each; a commit that is repeated after a crash renames
    what is left, so every row is in exactly one file. What attempts that did not count have staged goes with
    the next commit. Any number of subtasks write at once; all must see the directory under the same path.

    A file holds rows of one epoch and one subtask. It is never open longer than an epoch, which is within
    every `rolling_policy` of time, and `rolling_policy.file_size` cuts the rows of an epoch into several
    files. Small files of several epochs are not merged. With `partitioning`, files lie in directories such as
    `2026/11/15/country=DE`; the columns stay in the files.
    """

    class Options(FileFormatOptions):
        """The options of the filesystem sink."""

        path: str = Field(min_length=1, description="The directory to write to, as a path or a URL.")
        with_timestamp: bool = Field(
            default=False, description="Whether to write the event time column `_timestamp` too."
        )
        file_size: Size | None = Field(
            None, ge=1, alias="rolling_policy.file_size", description="End a file when it is about this long."
        )
        interval: Duration | None = Field(
            None,
            alias="rolling_policy.interval",
            description="End a file after this time; files are ended with every epoch anyway.",
        )
        inactivity_interval: Duration | None = Field(
            None,
            alias="rolling_policy.inactivity_interval",
            description="End a file after this time without rows; files are ended with every epoch anyway.",
        )
        watermark_expiration: Duration | None = Field(
            None,
            alias="rolling_policy.watermark_expiration",
            description="End a file when event time has passed it; files are ended with every epoch anyway.",
        )
        prefix: str | None = Field(
            None, pattern="^[^/]+$", alias="filename.prefix", description="What file names begin with."
        )
        suffix: str | None = Field(
            None,
            pattern="^[^/]+$",
            alias="filename.suffix",
            description="What file names end with; by default json, json.gz, txt, bin or parquet.",
        )
        strategy: Literal["serial", "uuid", "uuid_v7", "ulid"] = Field(
            "uuid_v7",
            alias="filename.strategy",
            description="How files are named: by epoch and subtask (serial), or by ids of their own.",
        )
        time_pattern: str | None = Field(
            None,
            min_length=1,
            alias="partitioning.time_pattern",
            description="A directory for each time, by event time, such as `%Y/%m/%d`.",
        )
        partition_fields: Names = Field(
            default=[],
            alias="partitioning.fields",
            description="A directory `column=value` for each value of these columns.",
        )
        shuffle_by_partition: bool = Field(
            default=False,
            alias="shuffle_by_partition.enabled",
            description="Accepted for compatibility; every subtask writes files for its rows of a directory.",
        )
        target_part_size: Size | None = Field(
            None,
            ge=5_000_000,
            alias="multipart.target_part_size",
            description="Accepted for compatibility; files are written in one piece.",
        )
        max_parts: int | None = Field(
            None,
            ge=1,
            alias="multipart.max_parts",
            description="Accepted for compatibility; files are written in one piece.",
        )
        minimum_multipart_size: Size | None = Field(
            None,
            ge=0,
            alias="multipart.minimum_multipart_size",
            description="Accepted for compatibility; files are written in one piece.",
        )
        version: Literal["v1", "v2"] = Field(
            "v1", alias="sink.version", description="Accepted for compatibility; it has no effect."
        )

        @model_validator(mode="after")
        def _fits(self) -> Self:
            if self.with_timestamp and self.columns is not None:
                raise ValueError("name `_timestamp` among the columns instead of `with_timestamp`")
            if self.columns is not None:
                for name in self.partition_fields:
                    try:
                        check_column(name, self.columns.names, what="option `partitioning.fields`")
                    except ConfigurationError as error:
                        raise ValueError(f"{error.message}; {error.hint}") from None
            return self

    options: Options

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self._place = Place(self.options.path)
        self._format = self.options.format_for(self.options.columns)
        self._batches: list[pa.RecordBatch] = []

    @property
    def accepts_updates(self) -> bool:  # type: ignore[override]
        """Whether the format can tell that a row takes back an earlier one."""
        return self._format.updating

    def validate(self) -> None:
        """Refuse a directory that cannot be written, and columns that Parquet does not have."""
        self._place.check_writable()
        if self.options.format == "parquet" and self.options.columns is not None:
            check_parquet(self.options.columns)

    def claims(self) -> Sequence[str]:
        """With serial names the directory: two sinks would give their files the same names."""
        return [f"the files in {self._place}"] if self.options.strategy == "serial" else []

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Keep the rows until the epoch ends."""
        self._format.check(batch.schema)
        ctx.metrics.add("rows", batch.num_rows)
        if batch.num_rows:
            self._batches.append(batch)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        """Stage the files of the epoch."""
        batches, self._batches = self._batches, []
        if not batches:
            return
        task, attempt = ctx.task_info, uuid.uuid4().hex
        staged: list[list[str]] = []
        for directory, rows in self._partitions(pa.Table.from_batches(one_schema(batches))):
            for data in self._encode(rows):
                source = f"{_staging(ctx)}/{task.epoch}/{attempt}-{len(staged)}"
                self._place.write(source, data)
                name = self._name(task.epoch, task.subtask, len(staged))
                staged.append([source, f"{directory}/{name}" if directory else name])
        ctx.metrics.add("files", len(staged))
        ctx.insert_committing_data("files", json.dumps({"id": attempt, "files": staged}).encode())

    def _partitions(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """The rows of each directory, in the order in which the directories appear."""
        keys = self._directories(rows)
        if not self.options.with_timestamp and self.options.columns is None:
            rows = without_event_time(rows)
        if keys is None:
            yield "", rows
            return
        coded = keys.dictionary_encode()
        codes = coded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        ends = np.searchsorted(codes[order], np.arange(len(coded.dictionary)), side="right")
        begin = 0
        for directory, end in zip(coded.dictionary.to_pylist(), ends.tolist(), strict=True):
            yield directory, rows.take(pa.array(order[begin:end]))
            begin = end

    def _directories(self, rows: pa.Table) -> pa.Array | None:
        levels: list[pa.Array] = []
        if self.options.time_pattern is not None:
            times = rows.column(TIMESTAMP).combine_chunks()
            seconds = pc.floor_temporal(times, unit="second").cast(pa.timestamp("s"))
            levels.append(pc.strftime(seconds, format=self.options.time_pattern))
        for name in self.options.partition_fields:
            if name not in rows.schema.names:
                raise PlanError(f"there is no column `{name}` to partition by")
            values = _partition_values(rows.column(name).combine_chunks(), name)
            levels.append(pc.binary_join_element_wise(pa.scalar(f"{quote(name)}="), values, ""))
        return pc.binary_join_element_wise(*levels, "/") if levels else None

    def _encode(self, rows: pa.Table) -> Iterator[bytes]:
        size = self.options.file_size
        if isinstance(self._format, ParquetFormat):
            yield from self._format.files(rows, file_bytes=size)
            return
        for data in _cut(self._format.encode(rows), size):
            yield gzip.compress(data, mtime=0) if self.options.json_compression == "gzip" else data

    def _name(self, epoch: int, subtask: int, number: int) -> str:
        options = self.options
        name = {
            "serial": lambda: f"{epoch:05d}-{subtask:03d}-{number:03d}",
            "uuid": lambda: str(uuid.uuid4()),
            "uuid_v7": _uuid_v7,
            "ulid": _ulid,
        }[options.strategy]()
        ending = options.suffix or _ENDINGS[options.format]
        if options.suffix is None and options.json_compression == "gzip" and options.format != "parquet":
            ending += ".gz"
        return f"{options.prefix}-{name}.{ending}" if options.prefix else f"{name}.{ending}"

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext
    ) -> None:
        """Give the staged files their names, and remove what else was staged up to this epoch."""
        for _, staged in sorted(data.get("files", {}).items()):
            for source, target in json.loads(staged)["files"]:
                if not self._place.exists(source):
                    continue  # an earlier commit of this epoch came this far
                if self.options.strategy == "serial" and self._place.exists(target):
                    raise ConfigurationError(
                        f"`{self._place}/{target}` is there already, written by another run",
                        hint="write to an empty directory, or let `filename.strategy` be uuid",
                    )
                self._place.move(source, target)
        for name in self._place.children(_staging(ctx)):
            if name.isdigit() and int(name) <= epoch:
                self._place.remove(f"{_staging(ctx)}/{name}")


_ENDINGS = {
    "json": "json",
    "debezium_json": "json",
    "raw_string": "txt",
    "raw_bytes": "bin",
    "parquet": "parquet",
}


def _staging(ctx: OperatorContext) -> str:
    return f"{_STAGED}/{quote(ctx.task_info.job_id, safe='')}-{quote(ctx.task_info.operator_id, safe='')}"


def _partition_values(column: pa.Array, name: str) -> pa.Array:
    """Values as parts of a path; what has a meaning in paths is written as %XX."""
    try:
        texts = column.cast(pa.string())
    except pa.ArrowNotImplementedError:
        raise PlanError(f"column `{name}` of type {column.type} cannot name directories") from None
    coded = texts.dictionary_encode()
    values = [quote(value, safe=" :+,@") or _NO_VALUE for value in coded.dictionary.to_pylist()]
    named = pa.DictionaryArray.from_arrays(coded.indices, pa.array(values, pa.string())).dictionary_decode()
    return pc.fill_null(named, _NO_VALUE)


def _cut(lines: bytes, size: int | None) -> Iterator[bytes]:
    """Whole lines in pieces that end with the line in which they become `size` long."""
    begin = 0
    while size is not None and len(lines) - begin > size:
        end = lines.find(b"\n", begin + size - 1) + 1
        yield lines[begin:end]
        begin = end
    if begin < len(lines):
        yield lines[begin:]


def _uuid_v7() -> str:
    """An id whose order is the order of time, as RFC 9562 has it."""
    stamp = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    bits = stamp << 80 | 7 << 76 | (random >> 62 & 0xFFF) << 64 | 2 << 62 | random & (1 << 62) - 1
    return str(uuid.UUID(int=bits))


def _ulid() -> str:
    bits = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[bits >> shift & 31] for shift in range(125, -1, -5))
