"""What is in a file: lines, perhaps compressed, or the rows of Parquet, and how any range of them is read."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors.lines import read_blocks, scan_rows, share_rows
from headrace.connectors.places import Place
from headrace.errors import ConfigurationError, ExternalError
from headrace.formats.avro_file import find_blocks, read_header
from headrace.formats.base import Decoded, LineError
from headrace.formats.options import FileFormatOptions
from headrace.formats.parquet import read_rows

BATCH_ROWS = 65_536
WORTH_SPLITTING = 1024 * 1024
_SAMPLE_LINES = 1000
_SKIPPED = 1024 * 1024

Compression = Literal["auto", "none", "gzip", "zstd", "bz2", "lz4", "brotli"]
_ENDINGS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".lz4": "lz4", ".br": "brotli"}

File = Mapping[str, Any]


class Reached(NamedTuple):
    """How far some rows of a file go: the byte or row, the line, how many rows, and whether it is the end."""

    at: int
    line: int
    rows: int
    at_end: bool


class Content(ABC):
    """How files of one kind are read.

    A part is a file with the range that is read: `from`, `to` (None is its end), and the `line` of `from`.
    """

    counts = False
    """Whether the number of rows of a file is known before they are read, as `rows`."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def where(self, file: File) -> str:
        """The file in the words of a person."""
        return f"{self.place}/{file['path']}" if file["path"] else str(self.place)

    def measure(self, file: File) -> File | None:
        """The file with what has to be known before it is read; None if there is nothing in it."""
        return file if file["size"] else None

    def columns(self, schema: pa.Schema, values: Mapping[str, str | None]) -> pa.Schema:
        """The columns to look for in a file whose path has these values: there they may be missing."""
        return pa.schema([field.with_nullable(True) if field.name in values else field for field in schema])

    def sample(self, file: File) -> bytes | None:
        """What of a file tells the columns of undeclared rows; None if that is found out as they are read."""
        return None

    @abstractmethod
    def advance(self, file: File, at: int, line: int, *, rows: int) -> Reached:
        """Where the next rows of a file end."""

    @abstractmethod
    def cut(self, part: File, shares: int) -> Iterator[dict[str, Any]]:
        """Shares of a part, each with a `weight`."""

    @abstractmethod
    def read(self, part: File, schema: pa.Schema | None) -> Iterator[Decoded]:
        """The rows of a part."""

    def open(self, file: File, *, grown: bool = False) -> Any:
        """A file, which must still be what was listed; one of plain lines may have grown."""
        opened = self.place.open(file["path"])
        size = opened.size()
        if size < file["size"] or (size > file["size"] and not grown):
            opened.close()
            raise ExternalError(
                f"`{self.where(file)}` has changed: it had {file['size']} bytes when listed, now {size}",
                hint="put the file back, or start the pipeline anew with another state directory",
                where="filesystem",
            )
        return opened


class ParquetContent(Content):
    """Rows of Parquet files; positions are numbers of rows."""

    counts = True

    def measure(self, file: File) -> File | None:
        """The file with the number of its rows."""
        if not file["size"]:
            return None
        with self._open(file) as opened:
            rows = opened.metadata.num_rows
        return {**file, "rows": rows} if rows else None

    def advance(self, file: File, at: int, line: int, *, rows: int) -> Reached:
        """`rows` rows further, or the end of the file."""
        taken = min(rows, file["rows"] - at)
        return Reached(at + taken, line, taken, at + taken == file["rows"])

    def cut(self, part: File, shares: int) -> Iterator[dict[str, Any]]:
        """Ranges of rows, each worth a task."""
        first, last = part["from"], part["rows"] if part["to"] is None else part["to"]
        shares = min(shares, max(1, (last - first) // BATCH_ROWS))
        for index in range(shares):
            begin, end = (first + (last - first) * i // shares for i in (index, index + 1))
            yield {**part, "from": begin, "to": end, "weight": end - begin}

    def read(self, part: File, schema: pa.Schema | None) -> Iterator[Decoded]:
        """The rows of a range."""
        end = part["rows"] if part["to"] is None else part["to"]
        with self._open(part) as file:
            for rows in read_rows(file, part["from"], end, schema, where=self.where(part)):
                yield Decoded(rows)

    def _open(self, file: File) -> pq.ParquetFile:
        opened = self.open(file)
        try:
            return pq.ParquetFile(opened, pre_buffer=not self.place.is_local)
        except pa.ArrowInvalid as error:
            opened.close()
            raise ConfigurationError(f"`{self.where(file)}` is not a Parquet file: {error}") from None


class LineContent(Content):
    """Lines of text; positions are bytes of the text, decompressed."""

    def __init__(self, place: Place, options: FileFormatOptions, compression: Compression) -> None:
        super().__init__(place)
        self._options = options
        self._compression = compression
        plain = options.format_for(None)
        self._head_lines, self._row_ends = plain.head_lines, plain.row_ends

    def columns(self, schema: pa.Schema, values: Mapping[str, str | None]) -> pa.Schema:
        """Lines of CSV without names have their columns by order: those of the path are not among them."""
        if self._options.format == "csv" and not self._head_lines:
            return pa.schema([field for field in schema if field.name not in values])
        return super().columns(schema, values)

    def sample(self, file: File) -> bytes:
        """The first lines of a file."""
        with self._open(file, 0) as stream:
            end = scan_rows(stream, 0, None, rows=_SAMPLE_LINES, row_ends=self._row_ends).end
        with self._open(file, 0) as stream:
            return bytes(stream.read(end))

    def codec(self, file: File) -> str | None:
        """How a file is compressed; None if it is not."""
        if self._compression != "auto":
            return None if self._compression == "none" else self._compression
        path = (file["path"] or str(self.place)).lower()
        return next((codec for ending, codec in _ENDINGS.items() if path.endswith(ending)), None)

    def advance(self, file: File, at: int, line: int, *, rows: int) -> Reached:
        """Where the next `rows` rows end."""
        head = 0 if at else self._head_lines
        with self._open(file, at) as stream:
            end = file["size"] if self.codec(file) is None else None
            found = scan_rows(stream, at, end, rows=rows + head, row_ends=self._row_ends)
        return Reached(found.end, line + found.lines, max(0, found.rows - head), found.at_end)

    def cut(self, part: File, shares: int) -> Iterator[dict[str, Any]]:
        """Ranges of whole lines; a compressed file is read from its beginning, by one task."""
        if self.codec(part) is not None:
            yield {**part, "weight": part["size"]}
            return
        first, last, line = part["from"], part["size"] if part["to"] is None else part["to"], part["line"]
        shares = min(shares, max(1, (last - first) // WORTH_SPLITTING))
        with self._open(part, first) as file:
            for share in share_rows(file, first, last, line=line, shares=shares, row_ends=self._row_ends):
                begin, stop = share.begin, share.end
                yield {**part, "from": begin, "to": stop, "line": share.line, "weight": stop - begin}

    def read(self, part: File, schema: pa.Schema | None) -> Iterator[Decoded]:
        """The rows of a range of lines."""
        where, lines = self.where(part), self._options.format_for(schema)
        if part["from"] and lines.head_lines:
            with self._open(part, 0) as stream:
                end = scan_rows(stream, 0, None, rows=lines.head_lines, row_ends=self._row_ends).end
            with self._open(part, 0) as stream:
                lines.read_head(stream.read(end).rstrip(b"\r\n"), where)
        with self._open(part, part["from"]) as stream:
            first, last, number = part["from"], part["to"], part["line"]
            blocks = read_blocks(stream, first, last, line=number, where=where, row_ends=self._row_ends)
            for line, block in blocks:
                yield lines.decode(block, first_line=line, where=where)

    @contextlib.contextmanager
    def _open(self, file: File, begin: int) -> Iterator[Any]:
        """The stream of a file's lines, decompressed, from byte `begin` on."""
        codec = self.codec(file)
        with self.open(file, grown=codec is None) as opened:
            if codec is None:
                opened.seek(begin)
                yield opened
                return
            try:
                with pa.CompressedInputStream(opened, codec) as stream:
                    while begin > 0 and (skipped := stream.read(min(begin, _SKIPPED))):
                        begin -= len(skipped)
                    yield stream
            except OSError as error:
                raise ConfigurationError(
                    f"`{self.where(file)}` cannot be read as {codec}: {error}",
                    hint="say how the files are compressed with `source.compression`",
                ) from None


class AvroContent(Content):
    """Avro files, each with its schema; a file is read whole, in one epoch and by one task."""

    counts = True

    def __init__(self, place: Place, options: FileFormatOptions) -> None:
        super().__init__(place)
        self._options = options

    def _read(self, file: File) -> bytes:
        with self.open(file) as opened:
            return bytes(opened.read())

    def measure(self, file: File) -> File | None:
        """The file with the number of its records."""
        if not file["size"]:
            return None
        data = self._read(file)
        try:
            rows = sum(block.rows for block in find_blocks(read_header(data), data))
        except LineError as error:
            if self._options.bad_data == "fail":
                raise ConfigurationError(f"`{self.where(file)}`: {error}", hint=error.hint) from None
            rows = 1  # what can be read of it is, and what cannot be is told
        return {**file, "rows": rows} if rows else None

    def sample(self, file: File) -> bytes:
        """The file, which begins with its schema."""
        return self._read(file)

    def advance(self, file: File, at: int, line: int, *, rows: int) -> Reached:
        """The end of the file."""
        return Reached(file["rows"], line, file["rows"], at_end=True)

    def cut(self, part: File, shares: int) -> Iterator[dict[str, Any]]:
        """The file."""
        yield {**part, "weight": part["rows"]}

    def read(self, part: File, schema: pa.Schema | None) -> Iterator[Decoded]:
        """All rows of the file."""
        yield self._options.format_for(schema).decode(self._read(part), where=self.where(part))
