"""The options of formats, the same for every connector with lines or messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import pyarrow as pa
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from headrace.base.errors import ConfigurationError, HeadraceError
from headrace.base.options import Names, Options
from headrace.formats.avro import format as avro
from headrace.formats.avro.format import AvroFileOptions, AvroOptions
from headrace.formats.base import Format
from headrace.formats.csv.format import CsvFormat, CsvOptions, infer_columns
from headrace.formats.framing import Framed
from headrace.formats.json.columns import sample_columns, schema_columns
from headrace.formats.json.debezium import debezium_format
from headrace.formats.json.format import JsonOptions, json_format
from headrace.formats.parquet import ParquetFormat, ParquetOptions
from headrace.formats.protobuf import format as protobuf
from headrace.formats.protobuf.format import ProtobufOptions
from headrace.formats.raw import RawFormat
from headrace.formats.registry.client import SchemaRegistry
from headrace.formats.types import format_type, parse_type

FormatName = Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"]
LineFormatName = Literal["json", "debezium_json", "csv", "raw_string", "raw_bytes"]
FileFormatName = Literal["json", "debezium_json", "csv", "raw_string", "raw_bytes", "parquet", "avro"]

_FORMATS_WITH: Mapping[str, set[str]] = {"avro": {"avro"}, "protobuf": {"protobuf"}, "csv": {"csv"}}
"""The formats that options apply to, by the prefix of their names."""
_EVERY = {"json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes", "parquet"}
_NOT_LINES = {"avro", "protobuf", "parquet"}


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


class CommonOptions(Options):
    """The options that apply to every format."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    format: FormatName = Field(
        "json",
        description=(
            "`json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: "
            "records of a schema; `csv`: comma-separated values; `raw_string`, `raw_bytes`: the "
            "column `value`, unchanged."
        ),
    )
    columns: Columns | None = Field(
        None,
        alias="schema",
        description="Column → type, such as int64, double, string, timestamp; other columns are ignored.",
    )
    primary_key: Names = Field(
        default=[], description="The columns that identify the row of a change (debezium_json)."
    )


class LimitOptions(Options):
    """The limit of what is read at once."""

    max_record_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1,
        description=(
            "The most bytes of a line or a message. A longer one is bad data, of which only the beginning is "
            "reported."
        ),
    )


class ReadOptions(LimitOptions):
    """The options of sources that read lines or messages."""

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
        description="Lines are truncated to this many bytes.",
    )


def _refuse_dead_letter(value: Any) -> Any:
    if value == "dead_letter":
        raise ValueError(
            "'dead_letter' is for sources, whose records that cannot be read have an output of their own; "
            "write 'drop' or 'fail'"
        )
    return value


class DropOptions(Options):
    """The option of sinks and lookups that can go on without a row."""

    bad_data: Annotated[Literal["fail", "drop"], BeforeValidator(_refuse_dead_letter)] = Field(
        "fail",
        description="What to do with rows that have a value that cannot be written or read: end the run, or "
        "drop and count them.",
    )


class FormatOptions(CsvOptions, ProtobufOptions, AvroOptions, JsonOptions, CommonOptions):
    """The options of all formats, with the same names in SQL, YAML and Python."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        framing, max_length = self._framing
        if max_length is not None and framing is None:
            raise ValueError("`framing.newline.max_length` needs `framing` = 'newline'")
        if framing is not None and (self.format in _NOT_LINES or self.names_schemas):
            raise ValueError(
                "`framing` = 'newline' is for messages of lines: not for avro, protobuf or registries"
            )
        self._check_unused()
        if self.names_schemas and self.registry() is None:
            raise ValueError(
                f"`{self._prefix}.confluent_schema_registry` needs `schema_registry.endpoint`, "
                "which the connectors `kafka` and `confluent` have"
            )
        if self.columns is not None:
            try:
                self.format_for(self.columns)
            except HeadraceError as error:
                raise ValueError(f"{error.message}; {error.hint}" if error.hint else error.message) from None
        return self

    def _check_unused(self) -> None:
        """Raise an error for options of formats other than the chosen one."""
        for name in sorted(self.model_fields_set):
            field = type(self).model_fields[name]
            option = field.alias or name
            formats = _FORMATS_WITH.get(option.partition(".")[0])
            if formats is None or self.format in formats or self.format not in _EVERY:
                continue
            if getattr(self, name) != field.get_default(call_default_factory=True):
                raise ValueError(f"`{option}` does not go with the format {self.format}")
        if self.json_unstructured and self.format != "json":
            raise ValueError(f"`json.unstructured` does not go with the format {self.format}")

    @property
    def _framing(self) -> tuple[str | None, int | None]:
        return getattr(self, "framing", None), getattr(self, "framing_max_length", None)

    @property
    def drop_bad(self) -> bool:
        """Whether rows that cannot be read do not end the run."""
        return getattr(self, "bad_data", "fail") != "fail"

    @property
    def _prefix(self) -> str:
        return "json" if self.format == "debezium_json" else self.format

    @property
    def names_schemas(self) -> bool:
        """Whether messages start with the id of their schema in a registry."""
        return bool(getattr(self, f"{self._prefix}_confluent_schema_registry", False))

    @property
    def unstructured(self) -> bool:
        """Whether messages are read as JSON into the column `value`, whatever their schema."""
        return bool(
            self.json_unstructured or self.avro_into_unstructured_json or self.protobuf_into_unstructured_json
        )

    def registry(self) -> SchemaRegistry | None:
        """Return the schema registry of the messages; connectors with a registry override it."""
        return None

    def format_for(self, schema: pa.Schema | None) -> Format:
        """Return the format for rows with these columns; None writes all columns."""
        inner = _MAKERS.get(self.format, _MAKERS["json"])(self, schema)
        framing, max_length = self._framing
        return inner if framing is None else Framed(inner, max_length)


class LineFormatOptions(FormatOptions):
    """The options of formats for files of lines."""

    format: LineFormatName = Field(
        "json",
        description=(
            "`json`: an object for each row; `debezium_json`: changes of rows; `csv`: comma-separated "
            "values; `raw_string`, `raw_bytes`: the column `value`, unchanged."
        ),
    )


class FileFormatOptions(FormatOptions):
    """The options of formats for files."""

    format: FileFormatName = Field(  # type: ignore[assignment]
        "json",
        description="In lines `json`, `debezium_json`, `csv`, `raw_string`, `raw_bytes`; `parquet`; `avro`.",
    )

    @model_validator(mode="after")
    def _are_files(self) -> Self:
        if self.avro_raw_datums or self.avro_confluent_schema_registry:
            raise ValueError("files of Avro have their schema: leave `avro.raw_datums` and registries out")
        return self


class FileReadOptions(ReadOptions, FileFormatOptions):
    """The options of files that a source reads."""


class FileWriteOptions(DropOptions, FileFormatOptions, AvroFileOptions, ParquetOptions):
    """The options of files that a sink writes."""

    json_compression: Literal["uncompressed", "gzip"] = Field(
        "uncompressed",
        alias="json.compression",
        description="The compression of files of lines that a sink writes.",
    )


_Maker = Callable[[Any, "pa.Schema | None"], Format]


def _raw(kind: pa.DataType) -> _Maker:
    return lambda options, schema: RawFormat(schema, kind=kind, drop_bad=options.drop_bad)


_MAKERS: Mapping[str, _Maker] = {
    "json": json_format,
    "debezium_json": debezium_format,
    "avro": avro.avro_format,
    "protobuf": protobuf.protobuf_format,
    "csv": lambda options, schema: CsvFormat(schema, options=options, drop_bad=options.drop_bad),
    "raw_string": _raw(pa.string()),
    "raw_bytes": _raw(pa.binary()),
    "parquet": lambda options, schema: ParquetFormat(
        schema,
        compression=getattr(options, "parquet_compression", "zstd"),
        row_group_bytes=getattr(options, "parquet_row_group_size", None),
    ),
}


def check_readable(options: FormatOptions) -> None:
    """Raise an error for columns that cannot be read, and for changes without a primary key."""
    if options.format == "debezium_json" and not options.primary_key:
        raise ConfigurationError(
            "the format `debezium_json` needs a primary key to read changes",
            hint="declare a column as PRIMARY KEY, or name the columns with the option `primary_key`",
        )
    if options.columns is not None:
        options.format_for(options.columns).decode(b"")


def implied_columns(options: FormatOptions) -> pa.Schema | None:
    """Return the columns that follow from the format alone; None if they have to be inferred from rows."""
    if options.format in {"raw_string", "raw_bytes"} or options.unstructured:
        return pa.schema({"value": pa.binary() if options.format == "raw_bytes" else pa.string()})
    if options.json_confluent_schema_registry and (registry := options.registry()) is not None:
        return schema_columns(registry.latest_of_kind("JSON"), changes=options.format == "debezium_json")
    if options.format == "avro":
        return avro.implied_columns(options, options.registry())
    if options.format == "protobuf":
        return protobuf.implied_columns(options, options.registry())
    return None


def infer_from(options: FormatOptions, sample: bytes | Sequence[bytes], *, where: str) -> pa.Schema:
    """Return the columns of undeclared rows: from their format alone, or else from a sample.

    The sample is the beginning of a file, or some messages.
    """
    columns = implied_columns(options)
    if columns is not None:
        return columns
    is_file = isinstance(sample, bytes)
    if options.format == "csv":
        if not is_file:  # messages have no line with names
            options = options.model_copy(update={"csv_header": False})
        lines = sample if isinstance(sample, bytes) else b"\n".join(sample)
        return infer_columns(lines, options, where=where) if lines.strip() else pa.schema([])
    if options.format == "avro":
        first = sample if isinstance(sample, bytes) else next(iter(sample), b"")
        return avro.infer_columns(first, where=where) if first else pa.schema([])
    return sample_columns(options, sample, where=where)
