"""Read any range of a file: lines (perhaps compressed), Parquet or Avro."""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.base.errors import BadLineError, ConfigurationError, ExternalError, RefusedError
from headrace.connectors.filesystem.decompress import Decompressed, is_damage
from headrace.connectors.filesystem.lines import (
    Mark,
    decode_block,
    read_blocks,
    read_sample,
    scan_rows,
    share_rows,
)
from headrace.formats.avro.file import Damage, find_blocks, read_header
from headrace.formats.base import Decoded, LineError, bad_file, plain_field
from headrace.formats.options import FileReadOptions
from headrace.formats.parquet import read_rows
from headrace.storage.base import Storage, error_line, join

BATCH_ROWS = 65_536
WORTH_SPLITTING = 1024 * 1024
_SAMPLE_LINES = 1000

Compression = Literal["auto", "none", "gzip", "zstd", "bz2", "lz4", "brotli"]
_ENDINGS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".lz4": "lz4", ".br": "brotli"}

File = Mapping[str, Any]


class Reached(NamedTuple):
    """The position after some rows of a file, the number of rows, and whether it is the end of the file."""

    at: int
    line: int
    rows: int
    at_end: bool


class Content(ABC):
    """Reads files of one kind.

    A part is a file with the range to read: `from`, `to` (None is its end), and the `line` of `from`.
    """

    counts = False
    """Whether the number of rows of a file is known before they are read, as `rows`."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def where(self, file: File) -> str:
        """Return the address of a file, for messages."""
        return join(self.storage.url, file["path"])

    def measure(self, file: File) -> File | None:
        """Return the file with its metadata, such as the number of rows; None if it is empty."""
        return file if file["size"] else None

    def columns(self, schema: pa.Schema, values: Mapping[str, str | None]) -> pa.Schema:
        """Return the columns to read from a file, without those that its path gives."""
        return pa.schema([field.with_nullable(True) if field.name in values else field for field in schema])

    def sample(self, file: File) -> bytes | None:
        """Return the part of a file to infer columns from; None if each file has its own schema."""
        return None

    @abstractmethod
    def advance(self, file: File, at: int, line: int, *, rows: int) -> Reached:
        """Return the position after the next rows of a file."""

    @abstractmethod
    def weigh(self, part: File) -> int:
        """Return the size of a part, in bytes or rows."""

    def least(self, part: File) -> int:
        """Return the least size for which a separate task pays; by default a part is never divided."""
        return self.weigh(part)

    def cut(self, part: File, cuts: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Divide a part at these sizes, measured from its start."""
        yield dict(part)

    @abstractmethod
    def read(self, part: File, schema: pa.Schema | None) -> Iterator[Decoded]:
        """Yield the rows of a part."""

    def open(self, file: File, *, grown: bool = False) -> Any:
        """Open a file; raises an error if it changed after it was listed. `grown` allows a larger size."""
        try:
            opened = self.storage.open(file["path"])
        except FileNotFoundError as error:
            raise ExternalError(
                f"`{self.where(file)}` cannot be read: {error_line(error)}", where="filesystem"
            ) from None
        size = opened.size()
        if size < file["size"] or (size > file["size"] and not grown):
            opened.close()
            raise ExternalError(
                f"`{self.where(file)}` has changed: it had {file['size']} bytes when listed, now {size}",
                hint="put the file back, or start the pipeline anew with another state directory",
                where="filesystem",
            )
        if "identity" in file and self.identity(file) != file["identity"]:
            opened.close()
            raise changed_file(self.where(file), where="filesystem")
        return opened

    def identity(self, file: File) -> str:
        """Return what changes when the file is replaced by another of its size."""
        return self.storage.identity(file["path"], file["size"])


def changed_file(path: str, *, where: str) -> RefusedError:
    """Return the error for a file that was replaced while it was read."""
    return RefusedError(
        f"`{path}` is another file than the one that was read before: its content has changed",
        hint="put the file back, or start the pipeline anew with another state directory",
        where=where,
    )


class ParquetContent(Content):
    """Reads Parquet files; positions are numbers of rows.

    With `drop_bad` a file that is not Parquet is one bad record, and so is a damaged row group.
    """

    counts = True

    def __init__(self, storage: Storage, *, drop_bad: bool = False) -> None:
        super().__init__(storage)
        self._drop_bad = drop_bad

    def measure(self, file: File) -> File | None:
        """Return the file with the number of its rows."""
        if not file["size"]:
            return None
        try:
            with self._open(file) as opened:
                rows = opened.metadata.num_rows
        except _BrokenError as error:
            if not self._drop_bad:
                raise ConfigurationError(f"`{self.where(file)}` is not a Parquet file: {error}") from None
            return {**file, "rows": 1, "broken": str(error)}
        return {**file, "rows": rows} if rows else None

    def advance(self, file: File, at: int, line: int, *, rows: int) -> Reached:
        """Return the position `rows` further, or the end of the file."""
        count = min(rows, file["rows"] - at)
        return Reached(at + count, line, count, at + count == file["rows"])

    def weigh(self, part: File) -> int:
        """Return the number of rows."""
        return int((part["rows"] if part["to"] is None else part["to"]) - part["from"])

    def least(self, part: File) -> int:
        """Return the number of rows of a batch."""
        return BATCH_ROWS

    def cut(self, part: File, cuts: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Divide a part into ranges of rows."""
        for begin, end in itertools.pairwise((0, *cuts, self.weigh(part))):
            yield {**part, "from": part["from"] + begin, "to": part["from"] + end}

    def read(self, part: File, schema: pa.Schema | None) -> Iterator[Decoded]:
        """Yield the rows of a range."""
        where, end = self.where(part), part["rows"] if part["to"] is None else part["to"]
        if "broken" in part:
            yield _bad(schema, bad_file(f"it is not a Parquet file: {part['broken']}", where=where))
            return
        try:
            with self._open(part) as file:
                for begin, stop in _groups(file, part["from"], end):
                    yield from self._read_group(file, begin, stop, schema, where)
        except _BrokenError as error:  # it has changed since it was listed
            raise ExternalError(f"`{where}` is not a Parquet file: {error}", where="filesystem") from None

    def _read_group(
        self, file: pq.ParquetFile, begin: int, end: int, schema: pa.Schema | None, where: str
    ) -> Iterator[Decoded]:
        """Yield the rows of one row group; damage in it does not affect other groups."""
        try:
            yield from read_rows(file, begin, end, schema, where=where, drop_bad=self._drop_bad)
        except OSError as error:
            if not is_damage(error):
                raise
            position = f"in rows {begin} to {end - 1}"
            bad = bad_file(f"it is damaged {position}: {error}", where=where, position=position)
            if not self._drop_bad:
                raise bad from None
            yield _bad(schema, bad)

    def _open(self, file: File) -> pq.ParquetFile:
        opened = self.open(file)
        try:
            return pq.ParquetFile(opened, pre_buffer=not self.storage.is_local)
        except (pa.ArrowInvalid, OSError) as error:
            opened.close()
            if not is_damage(error):
                raise
            raise _BrokenError(str(error).strip()) from None


class _BrokenError(Exception):
    """A file is not Parquet, or its metadata is damaged."""


def _bad(schema: pa.Schema | None, error: BadLineError) -> Decoded:
    fields = [plain_field(field) for field in schema or ()]
    return Decoded(pa.schema(fields).empty_table(), [error])


def _groups(file: pq.ParquetFile, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the range of rows from `first` up to `end` in each row group."""
    seen = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        begin, stop = max(first, seen), min(end, seen + rows)
        if begin < stop:
            yield begin, stop
        seen += rows


class LineContent(Content):
    """Reads lines of text; positions are bytes of the decompressed text."""

    def __init__(self, storage: Storage, options: FileReadOptions, compression: Compression) -> None:
        super().__init__(storage)
        self._options = options
        self._compression = compression
        plain = options.format_for(None)
        self._head_lines, self._row_ends = plain.head_lines, plain.row_ends
        self._marks: dict[tuple[str, int], Sequence[Mark]] = {}
        """By path and byte: line numbers that `advance` recorded, for `cut`."""

    def columns(self, schema: pa.Schema, values: Mapping[str, str | None]) -> pa.Schema:
        """Return the columns to read; those of the path are not in CSV lines without a header."""
        if self._options.format == "csv" and not self._head_lines:
            return pa.schema([field for field in schema if field.name not in values])
        return super().columns(schema, values)

    def sample(self, file: File) -> bytes:
        """Return the first lines of a file."""
        with self._open(file, 0) as stream:
            end = scan_rows(stream, 0, None, rows=_SAMPLE_LINES, row_ends=self._row_ends).end
        with self._open(file, 0) as stream:
            return read_sample(stream, end, limit=self._options.max_record_bytes)

    def codec(self, file: File) -> str | None:
        """Return the compression of a file; None if it is not compressed."""
        if self._compression != "auto":
            return None if self._compression == "none" else self._compression
        path = (file["path"] or self.storage.url).lower()
        return next((codec for ending, codec in _ENDINGS.items() if path.endswith(ending)), None)

    def advance(self, file: File, at: int, line: int, *, rows: int) -> Reached:
        """Return the position after the next `rows` rows."""
        head = 0 if at else self._head_lines
        end = file["size"] if self.codec(file) is None else None
        with self._open(file, at) as stream:
            scanned = scan_rows(stream, at, end, rows=rows + head, row_ends=self._row_ends)
        if end is not None and scanned.end - at >= 2 * WORTH_SPLITTING:
            self._marks[file["path"], at] = scanned.marks
        return Reached(scanned.end, line + scanned.lines, max(0, scanned.rows - head), scanned.at_end)

    def weigh(self, part: File) -> int:
        """Return the number of bytes; of a compressed file always its whole size."""
        if self.codec(part) is not None:
            return int(part["size"])
        return int((part["size"] if part["to"] is None else part["to"]) - part["from"])

    def least(self, part: File) -> int:
        """Return a megabyte; a compressed file is read by one task, from its beginning."""
        return WORTH_SPLITTING if self.codec(part) is None else self.weigh(part)

    def cut(self, part: File, cuts: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Divide a part into ranges of complete lines."""
        if self.codec(part) is not None:
            yield dict(part)
            return
        first, line = part["from"], part["line"]
        last, targets = first + self.weigh(part), [first + cut_at for cut_at in cuts]
        marks = self._marks.pop((part["path"], first), ())
        if not targets:
            yield {**part, "to": last}
            return
        with self._open(part, first) as file:
            for share in share_rows(
                file, first, last, line=line, targets=targets, row_ends=self._row_ends, marks=marks
            ):
                yield {**part, "from": share.begin, "to": share.end, "line": share.line}

    def read(self, part: File, schema: pa.Schema | None) -> Iterator[Decoded]:
        """Yield the rows of a range of lines."""
        where, lines = self.where(part), self._options.format_for(schema)
        if part["from"] and lines.head_lines:
            with self._open(part, 0) as stream:
                end = scan_rows(stream, 0, None, rows=lines.head_lines, row_ends=self._row_ends).end
            with self._open(part, 0) as stream:
                lines.read_head(stream.read(end).rstrip(b"\r\n"), where)
        with self._open(part, part["from"]) as stream:
            first, last, number = part["from"], part["to"], part["line"]
            limit, drop_bad = self._options.max_record_bytes, self._options.bad_data != "fail"
            blocks = read_blocks(
                stream, first, last, line=number, where=where, limit=limit, row_ends=self._row_ends
            )
            for line, block in blocks:
                complete = block
                if isinstance(block, bytes) and getattr(stream, "damage", None) is not None:
                    complete = block[: block.rfind(b"\n") + 1]
                yield decode_block(lines, complete, line=line, where=where, limit=limit, drop_bad=drop_bad)
            damage = getattr(stream, "damage", None)
            if last is None and damage is not None:
                yield _bad(schema, self._damaged(part, damage))

    def _damaged(self, file: File, reason: str) -> BadLineError:
        return bad_file(
            f"it is damaged: {reason}",
            where=self.where(file),
            hint="choose `bad_data` = 'drop' or 'dead_letter' to read what comes before the damage",
            position="after the last line that could be read",
        )

    @contextlib.contextmanager
    def _open(self, file: File, begin: int) -> Iterator[Any]:
        """Yield a stream of the decompressed file from byte `begin` on."""
        codec = self.codec(file)
        if codec is None:
            with self.open(file, grown=True) as opened:
                opened.seek(begin)
                yield opened
            return
        with Decompressed(lambda: self.open(file), codec) as stream:
            stream.skip(begin)
            yield stream
            if stream.damage is not None and self._options.bad_data == "fail":
                if stream.position:
                    raise self._damaged(file, stream.damage)
                raise ConfigurationError(
                    f"`{self.where(file)}` cannot be read as {codec}: {stream.damage}",
                    hint="say how the files are compressed with `source.compression`",
                )


class AvroContent(Content):
    """Reads Avro files, each with its own schema; a file is read in one epoch and by one task."""

    counts = True

    def __init__(self, storage: Storage, options: FileReadOptions) -> None:
        super().__init__(storage)
        self._options = options

    def _read(self, file: File) -> bytes:
        with self.open(file) as opened:
            return bytes(opened.read())

    def measure(self, file: File) -> File | None:
        """Return the file with the number of its records."""
        if not file["size"]:
            return None
        data = self._read(file)
        try:
            rows = 0
            for block in find_blocks(read_header(data), data):
                if isinstance(block, Damage):
                    raise block.error
                rows += block.rows
        except LineError as error:
            if self._options.bad_data == "fail":
                raise ConfigurationError(f"`{self.where(file)}`: {error}", hint=error.hint) from None
            rows = 1  # what can be read of it is, and what cannot be is told
        return {**file, "rows": rows} if rows else None

    def sample(self, file: File) -> bytes:
        """Return the file, which starts with its schema."""
        return self._read(file)

    def advance(self, file: File, at: int, line: int, *, rows: int) -> Reached:
        """Return the end of the file."""
        return Reached(file["rows"], line, file["rows"], at_end=True)

    def weigh(self, part: File) -> int:
        """Return the number of rows."""
        return int(part["rows"])

    def read(self, part: File, schema: pa.Schema | None) -> Iterator[Decoded]:
        """Yield all rows of the file."""
        yield self._options.format_for(schema).decode(self._read(part), where=self.where(part))
