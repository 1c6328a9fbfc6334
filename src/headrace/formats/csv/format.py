"""The CSV format: a line of values for each row, as in RFC 4180."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
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
from headrace.formats.base import Decoded, Format, LineError, Rows, is_text, line_ends, split_lines
from headrace.formats.csv.rows import CsvRowEnds
from headrace.formats.csv.values import is_parsed, read_values
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
                end = int(self._ends(data)[0])
                self.read_head(data[:end].removesuffix(b"\n"), where)
                first_line += data.count(b"\n", 0, end)
                data = data[end:]
            names = self._names(where)
        rows = self._read_together(data, names, *self._count(data, names))
        if rows is not None:
            return Decoded(rows)
        numbered = [entry for entry in self.split_rows(data, first_line) if self._is_row(entry[1], names)]
        return self._read_apart(numbered, names, where)

    def _decode_messages(
        self, messages: Sequence[bytes], names: list[str], first_line: int, where: str
    ) -> Decoded:
        lines = [message.rstrip(b"\r\n") for message in messages]
        blank = self._keeps_blank(names)
        count, closed = len(lines) if blank else sum(map(bool, lines)), not any(map(self._is_open, lines))
        rows = self._read_together(b"\n".join([*lines, b""]), names, count, closed)
        if rows is not None:
            return Decoded(rows, counts=np.ones(len(lines), np.int64) if blank else None)
        numbered = [entry for entry in split_lines(lines, first_line) if self._is_row(entry[1], names)]
        decoded = self._read_apart(numbered, names, where)
        if not blank:
            return decoded
        counts = np.ones(len(lines), np.int64)
        counts[[error.line - first_line for error in decoded.bad]] = 0
        return Decoded(decoded.rows, decoded.bad, counts)

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

    def _is_row(self, line: bytes, names: Sequence[str]) -> bool:
        return bool(line.strip()) or self._keeps_blank(names)

    def _ends(self, data: bytes) -> NDArray[np.int64]:
        return (self.row_ends or line_ends)(data, last=True)

    def _count(self, data: bytes, names: Sequence[str]) -> tuple[int, bool]:
        """Return the number of rows in some lines, and whether all quotes are closed."""
        ends, buffer = self._ends(data), np.frombuffer(data, np.uint8)
        count, closed = len(ends), True
        if not self._keeps_blank(names):
            lengths = np.diff(ends, prepend=0)
            short = ends[lengths <= 2] - lengths[lengths <= 2]
            count -= int(np.isin(buffer[short], [ord("\n"), ord("\r")]).sum())
        quote = self._options.csv_quote.encode()
        if quote and quote in data:
            before = np.searchsorted(np.flatnonzero(buffer == quote[0]), ends)
            closed = not (np.diff(before, prepend=0) % 2).any()
        return count, closed

    def _read_together(self, data: bytes, names: list[str], count: int, closed: bool) -> pa.Table | None:
        """Read all lines or messages at once; None if one cannot be read."""
        if not closed:
            return None
        try:
            data.decode()  # Arrow cannot tell of a row with a wrong number of values that is no text
            texts, odd = self._parse(data, names, typed=True)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return None
        if odd or texts.num_rows != count:
            return None
        rows, wrong = read_values(texts, self._readable())
        return None if wrong else rows

    def _read_apart(self, lines: Sequence[tuple[int, bytes]], names: list[str], where: str) -> Decoded:
        """Read lines separately, and report the error of each bad one."""
        bad: dict[int, LineError] = {}
        left: list[int] = []
        for index, (_, line) in enumerate(lines):
            problem = self._look(line, names)
            if problem is None:
                left.append(index)
            else:
                bad[index] = problem
        texts, odd = self._parse(b"\n".join([*(lines[index][1] for index in left), b""]), names)
        for row, values in odd.items():
            bad[left[row]] = LineError(f"it has {values} values, not {len(names)}")
        left = [index for index in left if index not in bad]
        rows, wrong = read_values(texts, self._readable())
        bad |= {left[index]: error for index, error in wrong.items()}
        errors = [bad[index].at(*lines[index], where) for index in sorted(bad)]
        if errors and not self._drop_bad:
            raise errors[0]
        return Decoded(rows, errors)

    def _look(self, line: bytes, names: Sequence[str]) -> LineError | None:
        """Return why a line is not one row; the number of values is not checked."""
        if self._is_open(line):
            quote = self._options.csv_quote
            return LineError(
                f"a quote ({quote}) is not closed in it",
                hint=f"a value in quotes ends with one, and a quote in it is doubled: {quote * 2}",
            )
        try:
            line.decode()
        except UnicodeDecodeError:
            return LineError("it is not UTF-8")
        if b"\n" in line or b"\r" in line.removesuffix(b"\r"):
            texts, odd = self._parse(line, names)
            return None if texts.num_rows + len(odd) == 1 else LineError("it is more than one row")
        return None

    def _is_open(self, line: bytes) -> bool:
        quote = self._options.csv_quote.encode()
        return bool(quote) and line.count(quote) % 2 == 1

    def _parse(
        self, data: bytes, names: Sequence[str], *, every: bool = False, typed: bool = False
    ) -> tuple[pa.Table, dict[int, int]]:
        """Parse the needed columns; return them, and the rows with a wrong number of values.

        Values are strings, or with `typed` in the types of their columns, if Arrow's parser supports them.
        """
        options = self._options
        odd: dict[int, int] = {}
        columns = [name for name in names if every or name in self._readable().names]

        def skip(row: Any) -> str:
            odd[row.number - 1] = row.actual_columns
            return "skip"

        kinds = dict.fromkeys(names, pa.string())
        if typed:
            kinds |= {column.name: column.type for column in self._readable() if is_parsed(column.type)}
        blank = not every and self._keeps_blank(names)
        if not (data if blank else data.strip()):
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
                column_types=kinds,
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
