"""The CSV format: a line of values for each row, as in RFC 4180."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from headrace.base.columns import RETRACT
from headrace.base.errors import ConfigurationError, InternalError, PlanError, suggest
from headrace.base.options import Options
from headrace.formats._shared.records import ReadRecords
from headrace.formats._shared.spans import Spans
from headrace.formats.base import Decoded, Format, LineError, Rows, is_text, line_ends
from headrace.formats.csv.rows import CsvRowEnds
from headrace.formats.csv.values import read_values
from headrace.formats.json.write import PLAIN, encode_values, join_lines

_TEXT = pa.large_string()
_NOT_IN_VALUES = {",", ";", "\t", "|"}
_BOM = b"\xef\xbb\xbf"


def _read_character(value: Any) -> Any:
    if isinstance(value, str):
        value = {"\\t": "\t", "tab": "\t"}.get(value.lower(), value)
        if len(value.encode()) > 1 or value in {"\n", "\r"}:
            raise ValueError("write one character, such as `;`, or `\\t` for a tab")
    return value


def _read_texts(value: Any) -> Any:
    return [text.strip() for text in value.split(",")] if isinstance(value, str) else value


Character = Annotated[str, BeforeValidator(_read_character)]


class CsvOptions(Options):
    """The options of CSV."""

    csv_delimiter: Character = Field(
        ",", min_length=1, alias="csv.delimiter", description="The delimiter between values."
    )
    csv_quote: Character = Field(
        '"',
        alias="csv.quote",
        description="Encloses values that contain a delimiter; empty for no quoting.",
    )
    csv_header: bool = Field(
        default=True,
        alias="csv.header",
        description="Whether the first line of a file names the columns; messages have no header.",
    )
    csv_null: Annotated[list[str], BeforeValidator(_read_texts)] = Field(
        default=[""],
        min_length=1,
        alias="csv.null",
        description="Unquoted strings that are read as NULL, comma-separated; the first is used for writing.",
    )


class CsvFormat(Format):
    """A line of values for each row; without a header they are in the order of the columns.

    With a header, columns are found by name, and others are ignored. A quoted value may contain line breaks;
    in a file such a row has at most 1 MiB. An empty line is skipped, except in a table of one column, where
    it is an empty value.
    """

    def __init__(
        self, schema: pa.Schema | None = None, *, options: CsvOptions | None = None, drop_bad: bool = False
    ) -> None:
        super().__init__(schema)
        self._options = options or CsvOptions()
        self._drop_bad = drop_bad
        self._heads: dict[str, list[str]] = {}
        self.head_lines = int(self._options.csv_header)
        if self._options.csv_quote:
            self.row_ends = CsvRowEnds(self._options.csv_delimiter, self._options.csv_quote)

    # ------------------------------------------------------------------------------------------- reading

    def decode(self, data: bytes | Sequence[bytes], *, first_line: int = 1, where: str = "CSV") -> Decoded:
        """Decode all lines, or messages, that are not empty."""
        names = self._readable().names
        if not isinstance(data, bytes):
            return self._decode_messages(data, names, first_line, where)
        if data and self.head_lines:
            if first_line == 1:
                end = self._head_end(data)
                self.read_head(data[:end].removesuffix(b"\n"), where)
                first_line += data.count(b"\n", 0, end)
                data = data[end:]
            names = self._names(where)
        ends, text = self._ends(data), _is_text(data)
        read = (
            self._read(data, names, self._count(data, ends, names))
            if text and self._closed(data, ends)
            else None
        )
        if read is not None and not read.bad:
            return Decoded(read.rows)
        lines = Spans.of_rows(data, ends)
        filled = self._filled(lines, names)
        lines = lines.take(filled)
        read = read or self._read_most(lines, names)
        numbers = filled + first_line if self._one_line_each(data) else lines.lines(first_line)
        return self._decoded(read, lines, numbers, where)

    def _decode_messages(
        self, messages: Sequence[bytes], names: list[str], first_line: int, where: str
    ) -> Decoded:
        lines = [message.rstrip(b"\r\n") for message in messages]
        blank, data = self._keeps_blank(names), b"\n".join([*lines, b""])
        read = None
        if _is_text(data) and not any(map(self._is_open, lines)):
            read = self._read(data, names, len(lines) if blank else sum(map(bool, lines)))
        if read is not None and not read.bad:
            return Decoded(read.rows, counts=np.ones(len(lines), np.int64) if blank else None)
        spans = Spans.of_messages(lines)
        filled = self._filled(spans, names)
        spans = spans.take(filled)
        read = read or self._read_most(spans, names)
        decoded = self._decoded(read, spans, filled + first_line, where)
        if not blank:
            return decoded
        counts = np.ones(len(lines), np.int64)
        counts[list(read.bad)] = 0
        return Decoded(decoded.rows, decoded.bad, counts)

    def _decoded(self, read: ReadRecords, lines: Spans, numbers: NDArray[np.int64], where: str) -> Decoded:
        bad = [
            read.bad[index].at(int(numbers[index]), lines[index], where)
            for index in sorted(read.bad)
            if lines[index].strip()  # a line of white space is no row
        ]
        if bad and not self._drop_bad:
            raise bad[0]
        return Decoded(read.rows, bad)

    def _head_end(self, data: bytes) -> int:
        end = data.find(b"\n") + 1
        quote = self._options.csv_quote.encode()
        return int(self._ends(data)[0]) if not end or (quote and quote in data[:end]) else end

    def read_head(self, head: bytes, where: str) -> None:
        """Read the order of the columns from the first line of a file."""
        schema, head = self._readable(), head.removeprefix(_BOM)
        try:
            _, odd = self._parse(head, ["", ""], every=True)
            texts, _ = self._parse(head, [str(index) for index in range(odd.get(0, 2))], every=True)
        except pa.ArrowInvalid as error:
            raise ConfigurationError(f"the first line cannot be read: {error}", where=where) from None
        names = [str(name).strip() for values in texts.to_pydict().values() for name in values]
        lost = [column for column in schema if column.name not in names]
        if len(lost) == len(schema) or any(not column.nullable for column in lost):
            raise ConfigurationError(
                f"the first line names no column `{lost[0].name}`",
                where=where,
                hint=suggest(lost[0].name, names)
                or f"it has {', '.join(names)[:200]}; if that is a row, set `csv.header` = false",
            )
        _check_once([name for name in names if name in schema.names], where)
        # Columns that are not wanted may share a name.
        self._heads[where] = [
            name if name in schema.names else f"{index}\0" for index, name in enumerate(names)
        ]

    def _names(self, where: str) -> list[str]:
        if where not in self._heads:
            raise InternalError(f"the first line of {where} has not been read")
        return self._heads[where]

    def _readable(self) -> pa.Schema:
        assert self.schema is not None, "reading needs a schema"
        for field in self.schema:
            if pa.types.is_map(field.type):
                raise ConfigurationError(
                    f"column `{field.name}` of type {field.type} cannot be read from CSV",
                    hint="declare it as TEXT or JSON",
                )
        return self.schema

    def _keeps_blank(self, names: Sequence[str]) -> bool:
        """Whether an empty line is a row: in a table of one column it is an empty value."""
        if len(names) != 1:
            return False
        return "" not in self._options.csv_null or self._readable().field(names[0]).nullable

    def _ends(self, data: bytes) -> NDArray[np.int64]:
        return (self.row_ends or line_ends)(data, last=True)

    def _filled(self, lines: Spans, names: Sequence[str]) -> NDArray[np.int64]:
        """Return which lines Arrow does not skip as empty."""
        if self._keeps_blank(names):
            return np.arange(len(lines))
        lengths = lines.ends - lines.begins
        first = np.frombuffer(lines.data, np.uint8).take(lines.begins, mode="clip")
        return np.flatnonzero((lengths > 1) | ((lengths == 1) & (first != ord("\r"))))

    def _count(self, data: bytes, ends: NDArray[np.int64], names: Sequence[str]) -> int:
        """Return the number of rows with these ends."""
        if self._keeps_blank(names):
            return len(ends)
        lengths = np.diff(ends, prepend=0)
        short = ends[lengths <= 2] - lengths[lengths <= 2]
        return len(ends) - int(np.isin(np.frombuffer(data, np.uint8)[short], [ord("\n"), ord("\r")]).sum())

    def _one_line_each(self, data: bytes) -> bool:
        quote = self._options.csv_quote.encode()
        return not quote or quote not in data

    def _closed(self, data: bytes, ends: NDArray[np.int64]) -> bool:
        """Whether all quotes are closed in their rows."""
        if self._one_line_each(data):
            return True
        quotes = np.frombuffer(data, np.uint8) == ord(self._options.csv_quote)
        before = np.searchsorted(np.flatnonzero(quotes), ends)
        return not (np.diff(before, prepend=0) % 2).any()

    def _read(self, data: bytes, names: list[str], count: int) -> ReadRecords | None:
        """Read all lines or messages at once; None if one of them is more than one row."""
        texts, odd = self._parse(data, names)
        if texts.num_rows + len(odd) != count:
            return None
        bad = {row: LineError(f"it has {values} values, not {len(names)}") for row, values in odd.items()}
        rows, wrong = read_values(texts, self._readable(), nulls=self._options.csv_null)
        if wrong:
            left = np.delete(np.arange(count), list(odd))
            bad |= {int(left[index]): error for index, error in wrong.items()}
        return ReadRecords(rows, bad)

    def _read_most(self, lines: Spans, names: list[str]) -> ReadRecords:
        """Read all lines together, except those that are not UTF-8 or not one row."""
        bad = dict.fromkeys(lines.not_utf8().tolist(), LineError("it is not UTF-8"))
        if quote := self._options.csv_quote:
            error = LineError(
                f"a quote ({quote}) is not closed in it",
                hint=f"a value in quotes ends with one, and a quote in it is doubled: {quote * 2}",
            )
            bad |= dict.fromkeys(np.flatnonzero(lines.count(quote.encode()) % 2).tolist(), error)
        left = np.delete(np.arange(len(lines)), list(bad))
        read = self._read(lines.take(left).joined(), names, len(left))
        if read is None:
            several = LineError("it is more than one row")
            bad |= dict.fromkeys(self._several(lines, left, names), several)
            left = np.delete(np.arange(len(lines)), list(bad))
            read = self._read(lines.take(left).joined(), names, len(left))
        if read is None:
            raise InternalError("lines of CSV are not the rows that were found in them")
        return ReadRecords(read.rows, bad | {int(left[index]): why for index, why in read.bad.items()})

    def _several(self, lines: Spans, left: NDArray[np.int64], names: Sequence[str]) -> Iterator[int]:
        """Yield which of the lines with a line break in them are more than one row."""
        inner = lines.count(b"\n") + lines.count(b"\r")
        for index in left[inner[left] > 0].tolist():
            line = lines[index]
            if b"\n" in line or b"\r" in line.removesuffix(b"\r"):
                texts, odd = self._parse(line, names)
                if texts.num_rows + len(odd) != 1:
                    yield index

    def _is_open(self, line: bytes) -> bool:
        quote = self._options.csv_quote.encode()
        return bool(quote) and line.count(quote) % 2 == 1

    def _parse(
        self, data: bytes, names: Sequence[str], *, every: bool = False
    ) -> tuple[pa.Table, dict[int, int]]:
        """Parse the needed columns as strings; return them, and the rows with a wrong number of values."""
        options = self._options
        odd: dict[int, int] = {}
        columns = [name for name in names if every or name in self._readable().names]

        def skip(row: Any) -> str:
            odd[row.number - 1] = row.actual_columns
            return "skip"

        blank = not every and self._keeps_blank(names)
        if not data or (not blank and data.isspace()):
            return pa.schema([(name, pa.string()) for name in columns]).empty_table(), odd
        if not data.endswith(b"\n"):
            data += b"\n"  # without it, Arrow takes an empty value at the end for one in quotes
        table = pa.csv.read_csv(
            io.BytesIO(data),
            read_options=pa.csv.ReadOptions(
                column_names=list(names), use_threads=False, block_size=max(len(data) + 1, 1024)
            ),
            parse_options=pa.csv.ParseOptions(
                delimiter=options.csv_delimiter,
                quote_char=options.csv_quote or False,
                newlines_in_values=True,
                ignore_empty_lines=not blank,
                invalid_row_handler=skip,
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                include_columns=columns,
                null_values=options.csv_null,
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        return table, odd

    # ------------------------------------------------------------------------------------------- writing

    def head(self, schema: pa.Schema) -> bytes:
        """Return the header line, if there is one."""
        if not self.head_lines:
            return b""
        names = (self.schema or schema).names
        cells = [self._quoted(pa.array([name], _TEXT)) for name in names if name != RETRACT]
        return self._lines(cells)

    def encode(self, rows: Rows) -> bytes:
        """Encode the rows as lines."""
        fields, batch = self.columns(rows)
        if batch.num_rows == 0:
            return b""
        return self._lines([self._cells(batch.column(index), field) for index, field in enumerate(fields)])

    def messages(self, rows: Rows) -> list[bytes]:
        """Encode the rows as messages."""
        fields, batch = self.columns(rows)
        cells = [self._cells(batch.column(index), field) for index, field in enumerate(fields)]
        lines = pc.binary_join_element_wise(*cells, pa.scalar(self._options.csv_delimiter, _TEXT))
        encoded: list[bytes] = lines.cast(pa.large_binary()).to_pylist()
        return encoded

    def _lines(self, cells: Sequence[pa.Array]) -> bytes:
        lines = pc.binary_join_element_wise(*cells, pa.scalar(self._options.csv_delimiter, _TEXT))
        return join_lines("", lines, "")

    def _cells(self, column: pa.Array, field: pa.Field) -> pa.Array:
        if is_text(column.type):
            texts = self._quoted(column.cast(_TEXT))
        else:
            texts = encode_values(column, field, PLAIN)
            nested, exact = pa.types.is_nested(column.type), pa.types.is_integer(column.type)
            if not nested and not exact:
                texts = pc.utf8_trim(texts, characters='"')
            texts = self._quoted(texts, plain=not nested)
        null = pa.scalar(self._options.csv_null[0], _TEXT)
        return pc.if_else(column.is_valid(), texts, null) if column.null_count else texts

    def _quoted(self, texts: pa.Array, *, plain: bool = False) -> pa.Array:
        """Quote strings where needed to read them back; `plain` for values that are not strings."""
        delimiter, quote = self._options.csv_delimiter, self._options.csv_quote
        odd = pc.is_in(texts, pa.array(self._options.csv_null, _TEXT))
        if not (plain and delimiter in _NOT_IN_VALUES):
            special = "".join(re.escape(character) for character in (delimiter, quote, "\n", "\r"))
            odd = pc.or_(odd, pc.fill_null(pc.match_substring_regex(texts, f"[{special}]|^\\s|\\s$"), False))
        if not pc.any(odd).as_py():
            return texts
        if not quote:
            value = texts.filter(odd)[0].as_py()
            raise PlanError(
                f"the value {value!r} cannot be written as CSV without quotes",
                hint="set `csv.quote`, or another `csv.delimiter` or `csv.null`",
            )
        mark = pa.scalar(quote, _TEXT)
        inside = pc.replace_substring(texts, quote, quote * 2)
        return pc.if_else(odd, pc.binary_join_element_wise(mark, inside, mark, pa.scalar("", _TEXT)), texts)


def _is_text(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()  # Arrow cannot tell of a row with a wrong number of values that is no text
    except UnicodeDecodeError:
        return False
    return True


def infer_columns(data: bytes, options: CsvOptions, *, where: str) -> pa.Schema:
    """Infer the columns of a sample: strings that look like times stay strings, as do columns of nulls."""
    try:
        sample = pa.csv.read_csv(
            io.BytesIO(data),
            read_options=pa.csv.ReadOptions(
                use_threads=False,
                block_size=max(len(data) + 1, 1024),
                autogenerate_column_names=not options.csv_header,
            ),
            parse_options=pa.csv.ParseOptions(
                delimiter=options.csv_delimiter,
                quote_char=options.csv_quote or False,
                newlines_in_values=True,
                invalid_row_handler=lambda _: "skip",
            ),
            convert_options=pa.csv.ConvertOptions(null_values=options.csv_null, strings_can_be_null=True),
        )
    except pa.ArrowInvalid as error:
        raise ConfigurationError(
            f"the columns cannot be found out: {error}",
            where=where,
            hint="declare them with the option `schema`",
        ) from None
    _check_once(sample.schema.names, where)
    kinds = [
        pa.string() if pa.types.is_temporal(kind) or pa.types.is_null(kind) else kind
        for kind in sample.schema.types
    ]
    return pa.schema(list(zip(sample.schema.names, kinds, strict=True)))


def _check_once(names: Sequence[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(
                f"the first line names the column `{name}` {names.count(name)} times",
                where=where,
                hint="rename all but one of them, or declare only columns that are named once",
            )
