"""The `filesystem` sink: write files of lines, Parquet or Avro to a directory or an object store."""

from __future__ import annotations

import contextlib
import gzip
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from headrace.base.errors import ConfigurationError
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors.base import Delivery, check_column, without_event_time
from headrace.connectors.filesystem.layout import (
    LONGEST_NAME,
    NameOptions,
    PartitionOptions,
    directory_problem,
    split_rows,
)
from headrace.connectors.filesystem.rolling import Encoded, RollingOptions, RollingSink, prepared
from headrace.formats.base import RowEnds, line_ends
from headrace.formats.options import FileWriteOptions
from headrace.formats.parquet import ParquetFormat, check_parquet
from headrace.model.operator import OperatorContext
from headrace.storage.options import StorageOptions

STAGED = ".staged"
_ENDINGS = {"debezium_json": "json", "raw_string": "txt", "raw_bytes": "bin"}
_PACKED = {"parquet": 0.3, "avro": 0.7}


class FileSystemSink(RollingSink):
    """Writes rows to new files of a directory; a file becomes visible when it is complete.

    Rows are collected over epochs until the rolling policy ends their file: by default at about 128 MB, and
    every 30 seconds, by the clock. Until then they are part of the state. At the end of the data, and when
    the run is stopped, all of them are written.

    A file that is due is staged in the hidden directory `.staged` and renamed after the commit point, in one
    step. A commit that is retried after a crash renames the remaining files, so every row is in exactly one
    file. Staged files of failed attempts are removed by a later commit. Subtasks write in parallel, each its
    own files; all must see the directory under the same path. With `partitioning`, files are in directories
    such as `2026/11/15/country=DE`; the columns stay in the files.
    """

    class Options(
        FileWriteOptions,
        NameOptions,
        PartitionOptions,
        RollingOptions,
        StorageOptions,
    ):
        """The options of the filesystem sink."""

        path: str = Field(min_length=1, description="The directory to write to, as a path or a URL.")
        with_timestamp: bool = Field(
            default=False, description="Whether to write the event time column `_timestamp` too."
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
    deliveries = (
        Delivery("exactly once", "files are staged, and renamed after the commit point, each in one step"),
    )

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self._directory = self.options.open_storage(part_size=self.options.target_part_size)
        self._format = self.options.format_for(self.options.columns)
        self.packed = _PACKED.get(self.options.format, 1.0)

    @property
    def accepts_updates(self) -> bool:  # type: ignore[override]
        """Whether the format can express retractions."""
        return self._format.updating

    def validate(self) -> None:
        """Raise an error for a directory that cannot be written, and for types without a Parquet type."""
        self._directory.check_directory()
        if self.options.format == "parquet" and self.options.columns is not None:
            check_parquet(self.options.columns)

    def reach(self) -> str:
        """Look for the directory, and return a line about it."""
        return "the directory is there" if self._directory.is_there() else "the directory is not there yet"

    def claims(self) -> Sequence[str]:
        """Return the directory: a reader could not tell the files of two sinks, nor a cleanup."""
        return [f"the files in {self._directory.url}"]

    def check(self, schema: pa.Schema) -> None:
        """Raise an error for rows that the format cannot write."""
        self._format.check(schema)

    def part(self, rows: pa.Table, ctx: OperatorContext) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of each directory, by time and by columns."""
        for directory, part in split_rows(rows, self.options.partition_fields, self.options.time_pattern):
            own = self.options.with_timestamp or self.options.columns is not None
            yield directory, part if own else without_event_time(part)

    def problem_of(self, directory: str) -> str | None:
        """Say why files cannot be written to a directory; None if they can."""
        return directory_problem(directory, self._directory.url, names=self.options)

    def encode(self, rows: pa.Table) -> Iterator[Encoded]:
        """Encode the rows as files of about `file_size`."""
        size = self.options.file_size
        if isinstance(self._format, ParquetFormat):
            for data in self._format.files(rows, file_bytes=size):
                yield Encoded(data, pq.read_metadata(pa.BufferReader(data)).num_rows, len(data) >= size)
            return
        if self.options.format == "avro":
            yield from self._encode_unsplittable(rows, size)
        elif self.options.json_compression == "gzip":
            yield from self._encode_packed(rows, size)
        else:
            head = self._format.head(rows.schema)
            for data, count in _cut(self._format.encode(rows), size, self._format.row_ends):
                yield Encoded(head + data, count, len(data) >= size)

    def _encode_unsplittable(self, rows: pa.Table, size: int) -> Iterator[Encoded]:
        """Yield files of a format that cannot be divided: each of as many rows as should fit."""
        encoded = self._format.encode(rows)
        count = rows.num_rows if len(encoded) <= size else max(1, rows.num_rows * size // len(encoded))
        for begin in range(0, rows.num_rows, count):
            part = rows.slice(begin, count)
            data = encoded if count == rows.num_rows else self._format.encode(part)
            yield Encoded(data, part.num_rows, len(encoded) >= size and part.num_rows == count)

    def _encode_packed(self, rows: pa.Table, size: int) -> Iterator[Encoded]:
        """Yield compressed files; the rows of a file are estimated from the compressed size of all."""
        head, lines = self._format.head(rows.schema), self._format.encode(rows)
        packed = gzip.compress(head + lines, mtime=0)
        if len(packed) <= size:
            yield Encoded(packed, rows.num_rows, len(packed) == size)
            return
        share = size * len(lines) // len(packed)
        for data, count in _cut(lines, share, self._format.row_ends):
            yield Encoded(gzip.compress(head + data, mtime=0), count, len(data) >= share)

    def put(self, directory: str, data: bytes, number: int, ctx: OperatorContext) -> Any:
        """Stage a file in the hidden directory; return its staged and its final name."""
        info, options = ctx.task_info, self.options
        source = f"{_staging(ctx)}/{info.epoch}/{uuid.uuid4().hex}"
        self._directory.write(source, data)
        ending = _ENDINGS.get(options.format, options.format)
        if options.json_compression == "gzip" and options.format not in {"parquet", "avro"}:
            ending += ".gz"
        name = options.name_file(info.epoch, info.subtask, number, ending=ending)
        if len(name.encode()) > LONGEST_NAME:
            raise ConfigurationError(
                f"the file name `{name}` has more than {LONGEST_NAME} bytes",
                hint="shorten `filename.prefix` or `filename.suffix`",
            )
        return [source, f"{directory}/{name}" if directory else name]

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext
    ) -> None:
        """Rename the staged files, and remove other files that were staged up to this epoch.

        A successor of this run has renamed the same files before it goes on: nothing is left to rename then.
        """
        self._directory.map(self._show, prepared(data))
        strays = [
            path
            for name in self._directory.children(_staging(ctx))
            if name.isdigit() and int(name) <= epoch
            for path in self._directory.list(f"{_staging(ctx)}/{name}")
        ]
        # Listed before: what a successor has staged meanwhile is not among them.
        ctx.check_generation()
        self._directory.map(self._directory.delete, strays)
        self.forget(epoch, data, ctx)

    def _show(self, file: Sequence[str]) -> None:
        source, target = file
        # A file that is gone was moved by an earlier commit of this epoch, perhaps by a run that is replaced.
        with contextlib.suppress(FileNotFoundError):
            if not self._directory.exists(source):
                return
            if self._directory.exists(target) and not self._same(source, target):
                raise ConfigurationError(
                    f"`{self._directory.url}/{target}` is there already, written by another run",
                    hint="move that file away and go on, or begin anew with `filename.strategy` = 'uuid'",
                )
            self._directory.move(source, target)

    def _same(self, source: str, target: str) -> bool:
        """Whether a move in an object store was interrupted between the copy and the removal."""
        return not self._directory.is_local and self._directory.read(source) == self._directory.read(target)


def _staging(ctx: OperatorContext) -> str:
    return f"{STAGED}/{quote(ctx.task_info.job_id, safe='')}-{quote(ctx.task_info.operator_id, safe='')}"


def _cut(lines: bytes, size: int, row_ends: RowEnds | None) -> Iterator[tuple[bytes, int]]:
    """Divide lines into pieces that end with the row in which they reach `size`, with their rows' number."""
    ends = (row_ends or line_ends)(lines, last=True)
    begin = first = 0
    while begin < len(lines):
        last = min(int(np.searchsorted(ends, begin + size)), len(ends) - 1)
        end = int(ends[last])
        yield lines[begin:end], last + 1 - first
        begin, first = end, last + 1
