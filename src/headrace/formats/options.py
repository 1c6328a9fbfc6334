"""The options of formats, the same for every connector that has lines or messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import pyarrow as pa
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from headrace.errors import ConfigurationError, HeadraceError
from headrace.formats.base import Decoded, Format, Rows, split_lines
from headrace.formats.debezium import DEBEZIUM, DebeziumFormat
from headrace.formats.json import (
    PLAIN,
    DecimalEncoding,
    JsonFormat,
    JsonStyle,
    TimestampFormat,
    UnstructuredJsonFormat,
)
from headrace.formats.parquet import ParquetCompression, ParquetFormat
from headrace.formats.raw import RawFormat, check_value_column
from headrace.formats.type_text import format_type, parse_type
from headrace.options import Names, Options, Size

FormatName = Literal["json", "debezium_json", "raw_string", "raw_bytes"]
FileFormatName = Literal["json", "debezium_json", "raw_string", "raw_bytes", "parquet"]


def _read_schema(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    fields = []
    for name, text in value.items():
        try:
            fields.append(pa.field(str(name), parse_type(str(text))))
        except HeadraceError as error:
            raise ValueError(f"column `{name}`: {error.message}; {error.hint}") from error
    return pa.schema(fields)


def _show_schema(schema: pa.Schema | None) -> dict[str, str] | None:
    return None if schema is None else {field.name: format_type(field.type) for field in schema}


Columns = Annotated[
    pa.Schema,
    BeforeValidator(_read_schema),
    PlainSerializer(_show_schema, return_type=dict[str, str], when_used="json"),
]
"""An option that takes column → type, such as `{"a": "int64"}`, or an Arrow schema."""


class FormatOptions(Options):
    """How rows are written as bytes, by the names that SQL, YAML and Python share."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    format: FormatName = Field(
        "json",
        description=(
            "`json`: an object for each row; `debezium_json`: changes of rows; `raw_string` and `raw_bytes`: "
            "the column `value` as it is."
        ),
    )
    json_timestamp_format: TimestampFormat | None = Field(
        None,
        alias="json.timestamp_format",
        description=(
            "How timestamps are written: RFC3339 texts, or unix_millis, as debezium_json does by default. "
            "Numbers that are read count in the unit of the column, nanoseconds by default."
        ),
    )
    json_decimal_encoding: DecimalEncoding | None = Field(
        None,
        alias="json.decimal_encoding",
        description=(
            "Decimals as numbers, texts, or the base64 of their bytes, as debezium_json has them by default."
        ),
    )
    json_include_schema: bool = Field(
        default=False,
        alias="json.include_schema",
        description='Whether rows stand in `{"schema": …, "payload": …}`, as Kafka Connect writes them.',
    )
    json_unstructured: bool = Field(
        default=False,
        alias="json.unstructured",
        description="Whether each message is one JSON value of any shape, as a text in the column `value`.",
    )
    bad_data: Literal["fail", "drop", "dead_letter"] = Field(
        "fail",
        description=(
            "What to do with rows that cannot be read: end the run, drop and count them, or send them to the "
            "output `dead_letter` (in SQL: `dead_letter_table`)."
        ),
    )
    framing: Literal["newline"] | None = Field(
        None, description="`newline`: a message holds several rows, one in each line."
    )
    framing_max_length: int | None = Field(
        None,
        ge=1,
        alias="framing.newline.max_length",
        description="Lines are cut to this many bytes.",
    )
    columns: Columns | None = Field(
        None,
        alias="schema",
        description="Column → type, such as int64, double, string, timestamp; other columns are left out.",
    )
    primary_key: Names = Field(
        default=[], description="The columns that tell which row a change of debezium_json is about."
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.framing_max_length is not None and self.framing is None:
            raise ValueError("`framing.newline.max_length` needs `framing` = 'newline'")
        if self.json_unstructured and self.format != "json":
            raise ValueError(f"`json.unstructured` does not go with the format {self.format}")
        if self.columns is not None:
            try:
                self.format_for(self.columns)
            except HeadraceError as error:
                raise ValueError(f"{error.message}; {error.hint}" if error.hint else error.message) from None
        return self

    def format_for(self, schema: pa.Schema | None) -> Format:
        """The format for rows with these columns; None writes whatever columns there are."""
        drop = self.bad_data != "fail"
        made: Format
        if self.format in {"raw_string", "raw_bytes"}:
            kind = pa.string() if self.format == "raw_string" else pa.binary()
            made = RawFormat(schema, kind=kind, drop_bad=drop)
        elif self.json_unstructured:
            if schema is not None:
                check_value_column(schema, pa.string(), what="`json.unstructured`")
            made = UnstructuredJsonFormat(schema, with_schema=self.json_include_schema, drop_bad=drop)
        elif self.format == "debezium_json":
            made = DebeziumFormat(
                schema,
                primary_key=self.primary_key,
                style=self._style(DEBEZIUM),
                with_schema=self.json_include_schema,
                drop_bad=drop,
            )
        else:
            made = JsonFormat(
                schema, style=self._style(PLAIN), with_schema=self.json_include_schema, drop_bad=drop
            )
        return made if self.framing is None else _Framed(made, self.framing_max_length)

    def _style(self, default: JsonStyle) -> JsonStyle:
        return JsonStyle(
            self.json_timestamp_format or default.timestamps, self.json_decimal_encoding or default.decimals
        )


class FileFormatOptions(FormatOptions):
    """The options of formats that whole files can have."""

    format: FileFormatName = Field(  # type: ignore[assignment]
        "json",
        description="`json`, `debezium_json`, `raw_string` or `raw_bytes` in lines, or `parquet`.",
    )
    json_compression: Literal["uncompressed", "gzip"] = Field(
        "uncompressed", alias="json.compression", description="How files of lines are compressed by a sink."
    )
    parquet_compression: ParquetCompression = Field(
        "zstd", alias="parquet.compression", description="How Parquet files are compressed."
    )
    parquet_row_group_size: Size | None = Field(
        None,
        ge=1,
        alias="parquet.row_group_size",
        description="About how many bytes of rows a row group of a Parquet file holds, uncompressed.",
    )

    def format_for(self, schema: pa.Schema | None) -> Format:
        """The format for rows with these columns; None writes whatever columns there are."""
        if self.format == "parquet":
            return ParquetFormat(
                schema, compression=self.parquet_compression, row_group_bytes=self.parquet_row_group_size
            )
        return super().format_for(schema)


class _Framed(Format):
    """A format whose messages hold a row in each line; lines may be cut to a length."""

    def __init__(self, inner: Format, max_length: int | None) -> None:
        super().__init__(inner.schema)
        self.updating = inner.updating
        self._inner = inner
        self._max_length = max_length

    def decode(self, data: bytes | Sequence[bytes], *, first_line: int = 1, where: str = "input") -> Decoded:
        """The rows of every line of every message."""
        messages = [data] if isinstance(data, bytes) else data
        lines = [line[: self._max_length] for message in messages for _, line in split_lines(message)]
        return self._inner.decode(lines, first_line=first_line, where=where)

    def encode(self, rows: Rows) -> bytes:
        """The rows as lines."""
        return self._inner.encode(rows)


def check_readable(options: FormatOptions) -> None:
    """Refuse columns that cannot be read, and changes of rows without a key that tells the rows apart."""
    if options.columns is not None:
        if options.format == "debezium_json" and not options.primary_key:
            raise ConfigurationError(
                "the format `debezium_json` needs a primary key to read changes",
                hint="declare a column as PRIMARY KEY, or name the columns with the option `primary_key`",
            )
        options.format_for(options.columns).decode(b"")


def implied_columns(options: FormatOptions) -> pa.Schema | None:
    """The columns that undeclared rows have by their format alone; None if the rows have to tell."""
    if options.format in {"raw_string", "raw_bytes"} or options.json_unstructured:
        return pa.schema({"value": pa.binary() if options.format == "raw_bytes" else pa.string()})
    if options.format == "debezium_json" or options.json_include_schema:
        raise ConfigurationError(
            "the columns can only be found out from plain JSON lines",
            hint="declare them with the option `schema`",
        )
    return None
