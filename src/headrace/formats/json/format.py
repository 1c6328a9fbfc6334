"""The JSON format: one object per row, with every column, including nulls."""

from __future__ import annotations

import functools
import io
import json
import re
from collections.abc import Sequence
from typing import Any, Self

import pyarrow as pa
import pyarrow.json
from pydantic import Field, model_validator

from headrace.base.errors import BadLineError, HeadraceError
from headrace.base.options import Options
from headrace.formats.base import Decoded, Format, Rows, bad_line, split_lines
from headrace.formats.json.connect_schema import connect_schema
from headrace.formats.json.read import JsonReader
from headrace.formats.json.rewrite import reading_of
from headrace.formats.json.schema import Describe, RegisteredJson, any_schema, json_schema
from headrace.formats.json.write import (
    PLAIN,
    DecimalEncoding,
    JsonStyle,
    TimestampFormat,
    encode_json_lines,
    encode_json_values,
    encode_lines,
    encode_objects,
    encode_raw,
    encode_values,
    join_lines,
)
from headrace.formats.raw import check_value_column

__all__ = [
    "PLAIN",
    "JsonFormat",
    "JsonOptions",
    "UnstructuredJsonFormat",
    "decode_json_lines",
    "encode_json_lines",
    "encode_json_values",
    "encode_objects",
    "encode_values",
    "infer_schema",
    "json_format",
]

_NULL_LINE = re.compile(rb"(?:\A|\n)\s*null")
_COLUMN = re.compile(r"Column\(/(.*?)\)")


class JsonOptions(Options):
    """The options of JSON."""

    json_timestamp_format: TimestampFormat | None = Field(
        None,
        alias="json.timestamp_format",
        description=(
            "How timestamps are written: RFC3339 strings, `unix` numbers in the unit of the column (the "
            "default of debezium_json), or `unix_millis`. Strings are read with each. Numbers are read in "
            "the unit of the column, nanoseconds for TIMESTAMP, or in milliseconds with `unix_millis`."
        ),
    )
    json_decimal_encoding: DecimalEncoding | None = Field(
        None,
        alias="json.decimal_encoding",
        description=(
            "How decimals are written: as numbers, strings, or base64 of their bytes. Numbers are read with "
            "each; strings are digits, or base64 with `bytes`, and in debezium_json unless this is set."
        ),
    )
    json_include_schema: bool = Field(
        default=False,
        alias="json.include_schema",
        description='Whether rows are wrapped in `{"schema": …, "payload": …}`, as by Kafka Connect.',
    )
    json_unstructured: bool = Field(
        default=False,
        alias="json.unstructured",
        description="Whether each message is any JSON value, read as a string into the column `value`.",
    )
    json_confluent_schema_registry: bool = Field(
        default=False,
        alias="json.confluent_schema_registry",
        description="Whether each message starts with the id of its schema in a schema registry.",
    )

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if self.json_include_schema and self.json_confluent_schema_registry:
            raise ValueError("`json.include_schema` does not go with `json.confluent_schema_registry`")
        return self

    def style(self, default: JsonStyle) -> JsonStyle:
        """Return the style of values; options that are not set are those of `default`."""
        return JsonStyle(
            self.json_timestamp_format or default.timestamps, self.json_decimal_encoding or default.decimals
        )


class JsonFormat(Format):
    """One JSON object per line or message; with `with_schema`, `{"schema": …, "payload": row}`.

    When reading, a number in a TIMESTAMP column is in the unit of the column, or in milliseconds if the style
    says so; strings are read as ISO 8601.
    """

    def __init__(
        self,
        schema: pa.Schema | None = None,
        *,
        style: JsonStyle = PLAIN,
        with_schema: bool = False,
        drop_bad: bool = False,
    ) -> None:
        super().__init__(schema)
        self._style = style
        self._with_schema = with_schema
        self._drop_bad = drop_bad

    @functools.cached_property
    def _reader(self) -> JsonReader:
        assert self.schema is not None, "reading needs a schema"
        schema = self.schema
        if self._with_schema:
            schema = pa.schema([pa.field("payload", pa.struct(list(schema)), nullable=False)])
        return JsonReader(
            schema,
            reading=reading_of(self._style),
            drop_bad=self._drop_bad,
            finish=_payload if self._with_schema else None,
        )

    def decode(
        self, data: bytes | Sequence[bytes], *, first_line: int = 1, where: str = "JSON lines"
    ) -> Decoded:
        """Decode all lines that are not empty."""
        return self._reader.decode(data, first_line=first_line, where=where)

    def encode(self, rows: Rows) -> bytes:
        """Encode the rows as JSON lines, with every declared column."""
        fields, batch = self.columns(rows)
        if not self._with_schema:
            return encode_lines(fields, batch, self._style)
        schema = json.dumps(connect_schema(fields, self._style), ensure_ascii=False)
        objects = encode_objects(fields, batch, self._style)
        return join_lines(f'{{"schema":{schema},"payload":', objects, "}")


def _payload(messages: pa.Table) -> pa.Table:
    payload = messages.column("payload").combine_chunks()
    return pa.table(payload.flatten(), schema=pa.schema(list(payload.type)))


class UnstructuredJsonFormat(Format):
    """Any JSON value per line or message, as a string in the column `value`."""

    def __init__(
        self, schema: pa.Schema | None = None, *, with_schema: bool = False, drop_bad: bool = False
    ) -> None:
        super().__init__(schema)
        self._with_schema = with_schema
        self._drop_bad = drop_bad

    def decode(
        self, data: bytes | Sequence[bytes], *, first_line: int = 1, where: str = "JSON lines"
    ) -> Decoded:
        """Return each line that is not empty, if it is JSON."""
        values: list[str] = []
        bad: list[BadLineError] = []
        for number, line in split_lines(data, first_line):
            if not line.strip():
                continue
            try:
                values.append(self._value(line))
            except (ValueError, RecursionError) as error:
                problem = bad_line(number, line, f"it is not JSON: {error}", where=where)
                if not self._drop_bad:
                    raise problem from None
                bad.append(problem)
        return Decoded(pa.table({"value": pa.array(values, pa.string())}), bad)

    def _value(self, line: bytes) -> str:
        text = line.decode().strip()
        value = json.loads(text)
        if not self._with_schema:
            return text
        if not isinstance(value, dict) or "payload" not in value:
            raise ValueError("there is no `payload`")
        return json.dumps(value["payload"], separators=(",", ":"), ensure_ascii=False)

    def encode(self, rows: Rows) -> bytes:
        """Encode the strings of `value`, which are JSON already."""
        _, batch = self.columns(rows)
        return join_lines("", encode_raw(batch.column("value")), "")


def json_format(options: Any, schema: pa.Schema | None) -> Format:
    """Return the format for the FormatOptions of a table."""
    inner: Format
    drop = options.drop_bad
    if options.json_unstructured:
        if schema is not None:
            check_value_column(schema, pa.string(), what="`json.unstructured`")
        inner = UnstructuredJsonFormat(schema, with_schema=options.json_include_schema, drop_bad=drop)
        describe: Describe = any_schema
    else:
        style = options.style(PLAIN)
        inner = JsonFormat(
            schema,
            style=style,
            with_schema=options.json_include_schema,
            drop_bad=drop,
        )
        describe = functools.partial(json_schema, style=style)
    registry = options.registry() if options.json_confluent_schema_registry else None
    return inner if registry is None else RegisteredJson(inner, registry, describe=describe, drop_bad=drop)


def decode_json_lines(
    data: bytes, schema: pa.Schema | None = None, *, first_line: int = 1, where: str = "JSON lines"
) -> pa.Table:
    """Decode JSON lines; empty lines are skipped, the last line needs no newline.

    With a schema, its columns are returned in its order, missing ones null, others ignored. Without one it is
    inferred from these lines. A line that does not fit raises a BadLineError with its number (from
    `first_line` on), its content and the column, if one is known.
    """
    if schema is not None and len(schema):
        return JsonFormat(schema).decode(data, first_line=first_line, where=where).rows
    rows = sum(1 for line in data.split(b"\n") if line.strip())
    if rows == 0:
        return pa.table({})
    try:
        table = _infer(data)
    except pa.ArrowInvalid as error:
        raise _find_bad_line(data, first_line, where, str(error)) from None
    if table.num_rows != rows:
        raise _find_bad_line(data, first_line, where, "there is more than one value in the line")
    return table


def infer_schema(data: bytes, *, where: str) -> pa.Schema:
    """Infer the columns of JSON lines: strings that look like times and columns of nulls are strings."""
    sample = decode_json_lines(data, where=where)
    return pa.schema([pa.field(field.name, _as_written(field.type)) for field in sample.schema])


def _as_written(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _as_written(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_as_written(kind.value_type))
    if pa.types.is_temporal(kind) or pa.types.is_null(kind):
        return pa.string()
    return kind


def _infer(data: bytes) -> pa.Table:
    if _NULL_LINE.search(data):  # Arrow's parser crashes
        raise pa.ArrowInvalid("it is not a JSON object")
    return pa.json.read_json(
        io.BytesIO(data),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=max(len(data) + 1, 1024)),
    )


def _find_bad_line(data: bytes, first_line: int, where: str, reason: str) -> HeadraceError:
    numbered = [(i, line) for i, line in enumerate(data.split(b"\n"), first_line) if line.strip()]
    for number, line in numbered:
        try:
            value = json.loads(line)
        except UnicodeDecodeError:
            return _bad_line(number, line, where, "it is not UTF-8")
        except ValueError as error:
            return _bad_line(number, line, where, f"it is not JSON: {error}")
        if not isinstance(value, dict):
            return _bad_line(number, line, where, "it is not a JSON object")
    # Every line is an object, so one does not fit the types: find the first prefix that fails.
    fits, fails = 0, len(numbered)
    while fails - fits > 1:
        middle = (fits + fails) // 2
        try:
            _infer(b"\n".join(line for _, line in numbered[:middle]))
            fits = middle
        except pa.ArrowInvalid as error:
            fails, reason = middle, str(error)
    number, line = numbered[fails - 1]
    return _bad_line(number, line, where, reason)


def _bad_line(number: int, line: bytes, where: str, reason: str) -> BadLineError:
    column = None
    if match := _COLUMN.search(reason):
        column = match.group(1)
        reason = reason.split(match.group(0), 1)[1].strip(" :")
    reason = re.sub(r"^JSON parse error: ", "", reason)
    reason = re.sub(r"\s*in row \d+$", "", reason)
    hint = "correct the line, or name the column's type with the option `schema`" if column else None
    return bad_line(number, line, reason, where=where, column=column, hint=hint)
