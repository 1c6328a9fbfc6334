"""CSV: a line of values for each row, as in RFC 4180, with the columns that a table declares."""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pydantic import BeforeValidator, Field

from headrace.errors import ConfigurationError, InternalError, PlanError, near
from headrace.formats.base import (
    RETRACT,
    Decoded,
    Format,
    LineError,
    Rows,
    is_binary,
    is_json,
    is_list,
    is_text,
    plain_field,
    split_lines,
)
from headrace.formats.interval_text import parse_interval
from headrace.formats.json_writer import PLAIN, encode_values, join_lines
from headrace.formats.shapes import shape_rows
from headrace.options import Options

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
    return [one.strip() for one in value.split(",")] if isinstance(value, str) else value


Character = Annotated[str, BeforeValidator(_read_character)]


class CsvOptions(Options):
    """How CSV is read and written."""

    csv_delimiter: Character = Field(
        ",", min_length=1, alias="csv.delimiter", description="What stands between two values."
    )
    csv_quote: Character = Field(
        '"',
        alias="csv.quote",
        description="What stands around values that have a delimiter in them; nothing for no quotes.",
    )
    csv_header: bool = Field(
        default=True,
        alias="csv.header",
        description="Whether the first line of a file names the columns; messages have no such line.",
    )
    csv_null: Annotated[list[str], BeforeValidator(_read_texts)] = Field(
        default=[""],
        min_length=1,
        alias="csv.null",
        description="The texts without quotes that are read as null, with commas; the first is written.",
    )


class CsvFormat(Format):
    """A line of values for each row; without a header they are in the order of the columns.

    With one, columns are found by their names in it, and others are left out. In a file a row is one line: a
    value cannot have a line break, since files are read in parts. In a message it can.
    """

    def __init__(
        self, schema: pa.Schema | None = None, *, options: CsvOptions | None = None, drop_bad: bool = False
    ) -> None:
        super().__init__(schema)
        self._options = options or CsvOptions()
        self._drop_bad = drop_bad
        self._heads: dict[str, list[str]] = {}
        self.head_lines = int(self._options.csv_header)

    # ------------------------------------------------------------------------------------------- reading

    def decode(self, data: bytes | Sequence[bytes], *, first_line: int = 1, where: str = "CSV") -> Decoded:
        """The rows of all lines that are not empty."""
        names, lines = self._readable().names, None
        if not isinstance(data, bytes):
            lines = [message.rstrip(b"\r\n") for message in data]
            data = b"\n".join(lines)
        elif data and self.head_lines:
            if first_line == 1:
                head, _, data = data.partition(b"\n")
                self.read_head(head, where)
                first_line = 2
            names = self._names(where)
        rows = self._read_together(data, lines, names)
        if rows is not None:
            return Decoded(rows)
        numbered = split_lines(data if lines is None else lines, first_line)
        return self._read_apart([one for one in numbered if one[1].strip()], names, where)

    def read_head(self, head: bytes, where: str) -> None:
        """Learn from the first line of a file in which order it has its columns."""
        schema, head = self._readable(), head.removeprefix(_BOM)
        try:
            _, odd = self._parse(head, ["", ""], every=True)
            texts, _ = self._parse(head, [str(place) for place in range(odd.get(0, 2))], every=True)
        except pa.ArrowInvalid as error:
            raise ConfigurationError(f"the first line cannot be read: {error}", where=where) from None
        names = [str(name).strip() for values in texts.to_pydict().values() for name in values]
        lost = [one for one in schema if one.name not in names]
        if len(lost) == len(schema) or any(not one.nullable for one in lost):
            raise ConfigurationError(
                f"the first line names no column `{lost[0].name}`",
                where=where,
                hint=near(lost[0].name, names)
                or f"it has {', '.join(names)[:200]}; if that is a row, set `csv.header` = false",
            )
        self._heads[where] = names

    def _names(self, where: str) -> list[str]:
        if where not in self._heads:
            raise InternalError(f"the first line of {where} has not been read")
        return self._heads[where]

    def _readable(self) -> pa.Schema:
        assert self.schema is not None, "reading needs a schema"
        for field in self.schema:
            kind = field.type
            if pa.types.is_struct(kind) or is_list(kind) or pa.types.is_map(kind):
                raise ConfigurationError(
                    f"column `{field.name}` of type {kind} cannot be read from CSV",
                    hint="declare it as TEXT or JSON",
                )
        return self.schema

    def _read_together(self, data: bytes, lines: list[bytes] | None, names: list[str]) -> pa.Table | None:
        """The rows of all lines, or of all messages, if each is a row that can be read."""
        if lines is None:
            count, closed = _count_lines(data), not self._open_lines(data)
        else:
            count, closed = sum(map(bool, lines)), not any(map(self._is_open, lines))
        if not closed:
            return None
        try:
            data.decode()  # Arrow cannot tell of a row with a wrong number of values that is no text
            texts, odd = self._parse(data, names, typed=True)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return None
        if odd or texts.num_rows != count:
            return None
        rows, wrong = self._convert(texts)
        return None if wrong else rows

    def _read_apart(self, lines: Sequence[tuple[int, bytes]], names: list[str], where: str) -> Decoded:
        """The rows of the lines that are rows; each of the others is bad for a reason of its own."""
        bad: dict[int, LineError] = {}
        left: list[int] = []
        for place, (_, line) in enumerate(lines):
            problem = self._look(line, names)
            if problem is None:
                left.append(place)
            else:
                bad[place] = problem
        texts, odd = self._parse(b"\n".join(lines[place][1] for place in left), names)
        for row, values in odd.items():
            bad[left[row]] = LineError(f"it has {values} values, not {len(names)}")
        left = [place for place in left if place not in bad]
        rows, wrong = self._convert(texts)
        bad |= {left[place]: error for place, error in wrong.items()}
        errors = [bad[place].at(*lines[place], where) for place in sorted(bad)]
        if errors and not self._drop_bad:
            raise errors[0]
        return Decoded(rows, errors)

    def _look(self, line: bytes, names: Sequence[str]) -> LineError | None:
        """Why a line is not one row; whether it has as many values as it should is not looked at."""
        if self._is_open(line):
            return LineError(
                f"a quote ({self._options.csv_quote}) is not closed in it",
                hint="in a file a row is one line: values with line breaks cannot be read from there",
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

    def _open_lines(self, data: bytes) -> bool:
        """Whether there is a line with a quote that is not closed."""
        quote = self._options.csv_quote.encode()
        if not quote or quote not in data:
            return False
        buffer = np.frombuffer(data, np.uint8)
        quotes, breaks = np.flatnonzero(buffer == quote[0]), np.flatnonzero(buffer == ord("\n"))
        before = np.append(np.searchsorted(quotes, breaks), len(quotes))
        return bool((np.diff(before, prepend=0) % 2).any())

    def _parse(
        self, data: bytes, names: Sequence[str], *, every: bool = False, typed: bool = False
    ) -> tuple[pa.Table, dict[int, int]]:
        """The values that are wanted, and which rows do not have as many as there are names.

        Values are texts; `typed`: in the types of their columns, if Arrow's parser knows them.
        """
        options = self._options
        odd: dict[int, int] = {}
        wanted = [name for name in names if every or name in self._readable().names]

        def skip(row: Any) -> str:
            odd[row.number - 1] = row.actual_columns
            return "skip"

        kinds = dict.fromkeys(names, pa.string())
        if typed:
            kinds |= {one.name: one.type for one in self._readable() if _is_parsed(one.type)}
        if not data.strip():
            return pa.schema([(name, pa.string()) for name in wanted]).empty_table(), odd
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
                invalid_row_handler=skip,
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types=kinds,
                include_columns=wanted,
                null_values=options.csv_null,
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        return table, odd

    def _convert(self, texts: pa.Table) -> tuple[pa.Table, dict[int, LineError]]:
        """The texts in the types of the columns, and why some rows cannot be, by their place."""
        bad: dict[int, LineError] = {}
        for field in self._readable():
            known = texts.schema.field(field.name).type if field.name in texts.schema.names else field.type
            if known == field.type or is_json(field) or is_text(field.type):
                continue
            column = pc.utf8_trim_whitespace(texts.column(field.name))
            read = next((read for test, read in _BY_VALUE if test(field.type)), None)
            if read is not None:
                column = _each(column.to_pylist(), field, read, bad)
            place = texts.schema.get_field_index(field.name)
            texts = texts.set_column(place, pa.field(field.name, column.type), column)
        left = np.arange(texts.num_rows)
        if bad:
            left = np.delete(left, list(bad))
            texts = texts.take(pa.array(left))
        shaped = shape_rows(texts, self._readable())
        return shaped.rows, bad | {int(left[place]): error for place, error in shaped.bad.items()}

    # ------------------------------------------------------------------------------------------- writing

    def head(self, schema: pa.Schema) -> bytes:
        """The line with the names of the columns, if there is to be one."""
        if not self.head_lines:
            return b""
        names = (self.schema or schema).names
        cells = [self._quoted(pa.array([name], _TEXT)) for name in names if name != RETRACT]
        return self._lines(cells)

    def encode(self, rows: Rows) -> bytes:
        """The rows as lines."""
        fields, batch = self.columns(rows)
        if batch.num_rows == 0:
            return b""
        return self._lines([self._cells(batch.column(place), one) for place, one in enumerate(fields)])

    def messages(self, rows: Rows) -> list[bytes]:
        """The rows as messages."""
        fields, batch = self.columns(rows)
        cells = [self._cells(batch.column(place), one) for place, one in enumerate(fields)]
        lines = pc.binary_join_element_wise(*cells, pa.scalar(self._options.csv_delimiter, _TEXT))
        made: list[bytes] = lines.cast(pa.large_binary()).to_pylist()
        return made

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
        """The texts, in quotes where that is needed to read them as they are; `plain` if they are values."""
        delimiter, quote = self._options.csv_delimiter, self._options.csv_quote
        odd = pc.is_in(texts, pa.array(self._options.csv_null, _TEXT))
        if not (plain and delimiter in _NOT_IN_VALUES):
            special = "".join(re.escape(one) for one in (delimiter, quote, "\n", "\r"))
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
    """The columns of a sample: texts that look like times stay texts, columns of nulls become texts."""
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
    kinds = [
        pa.string() if pa.types.is_temporal(kind) or pa.types.is_null(kind) else kind
        for kind in sample.schema.types
    ]
    return pa.schema(list(zip(sample.schema.names, kinds, strict=True)))


def _is_parsed(kind: pa.DataType) -> bool:
    """Whether Arrow's parser of CSV reads the type."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_time(kind)
        or kind in {pa.float32(), pa.float64(), pa.date32()}
        or (pa.types.is_timestamp(kind) and kind.tz is None)
    )


def _count_lines(data: bytes) -> int:
    """How many lines are not empty; those with blanks alone are not counted as empty."""
    breaks = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    lengths = np.diff(np.append(breaks, len(data)), prepend=-1) - 1
    return int((lengths > 0).sum())


def _each(
    texts: Sequence[str | None], field: pa.Field, read: Callable[[str], Any], bad: dict[int, LineError]
) -> pa.Array:
    values: list[Any] = []
    for place, text in enumerate(texts):
        try:
            values.append(None if text is None else read(text))
        except ValueError as error:
            values.append(None)
            bad[place] = LineError(str(error), path=(field.name,))
    return pa.array(values, plain_field(field).type)


def _read_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError(f"`{text}` is not base64") from None


_BY_VALUE: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[str], Any]]] = (
    (is_binary, _read_base64),
    (pa.types.is_interval, parse_interval),
)
