"""What the sinks of Delta Lake and Iceberg share: types of columns, files, and the commit of an epoch."""

from __future__ import annotations

import hashlib
import uuid
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds
from pydantic import ConfigDict, Field, model_validator

from headrace.base.errors import ConfigurationError, ExternalError, HeadraceError, PlanError, suggest
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.sql_values import FIRST_DAY, LAST_DAY, day_refusals
from headrace.connectors.base import accept_rows, without_event_time
from headrace.connectors.filesystem.rolling import Encoded, RollingOptions, RollingSink, prepared
from headrace.formats.base import plain_field
from headrace.formats.options import Columns
from headrace.formats.parquet import ParquetFormat, ParquetOptions
from headrace.formats.types import format_type, parse_type
from headrace.model.operator import Collector, OperatorContext

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


def lake_schema(schema: pa.Schema, *, zone: str | None) -> pa.Schema:
    """Return the columns in types that a table can have; timestamps are microseconds in this zone."""
    return pa.schema([pa.field(f.name, _lake_type(plain_field(f).type, zone, f.name)) for f in schema])


def _lake_type(kind: pa.DataType, zone: str | None, column: str) -> pa.DataType:
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", zone)
    if kinds.is_struct(kind):
        return pa.struct([pa.field(f.name, _lake_type(f.type, zone, column)) for f in kind])
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return pa.list_(_lake_type(kind.value_type, zone, column))
    if kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return pa.string()
    if kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind) or kinds.is_binary_view(kind):
        return pa.binary()
    if kinds.is_time(kind) or kinds.is_duration(kind) or kinds.is_interval(kind) or kinds.is_null(kind):
        raise PlanError(
            f"column `{column}` of type {kind} has no type in a table of files",
            hint="cast it to a string or a number",
        )
    return _WIDER.get(kind, kind)


def schema_text(schema: pa.Schema) -> dict[str, str]:
    """Return columns as JSON, for the commit that creates the table; without time zones."""
    return {field.name: format_type(field.type) for field in lake_schema(schema, zone=None)}


def schema_of(text: Mapping[str, str], *, zone: str | None) -> pa.Schema:
    """Parse the columns that `schema_text` wrote."""
    return lake_schema(
        pa.schema([pa.field(name, parse_type(kind)) for name, kind in text.items()]), zone=zone
    )


def fit(rows: pa.Table, schema: pa.Schema, *, table: str) -> pa.Table:
    """Convert rows to the columns of a table; an error names the column that does not fit."""
    for name in rows.schema.names:
        if name not in schema.names:
            raise ConfigurationError(
                f"{table} has no column `{name}`",
                hint=suggest(name, schema.names, listing="its columns are"),
            )
    columns = []
    for field in schema:
        index = rows.schema.get_field_index(field.name)
        column = pa.nulls(rows.num_rows, field.type) if index < 0 else _cast(rows.column(index), field, table)
        if column.null_count and not field.nullable:
            raise ConfigurationError(
                f"column `{field.name}` of {table} may not be null, and {column.null_count} rows have none",
                hint="leave such rows out, or give them a value",
            )
        columns.append(column)
    return pa.table(columns, schema=schema)


def check_fit(columns: pa.Schema, schema: pa.Schema, *, table: str) -> None:
    """Raise an error for declared columns that a table lacks, or has in an incompatible type."""
    fit(pa.schema([plain_field(field) for field in columns]).empty_table(), schema, table=table)


def _cast(column: pa.ChunkedArray, field: pa.Field, table: str) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    try:
        # A timestamp loses what is shorter than the table can tell; anything else must keep its value.
        return column.cast(field.type, safe=not kinds.is_timestamp(column.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ConfigurationError(
            f"column `{field.name}` is {column.type}, and {field.type} in {table}: {error}",
            hint="cast it to the type that the table has",
        ) from None


def _commit_id(data: Mapping[str, Mapping[int, bytes]]) -> str:
    """Return an id of the staged data of an epoch: a retried commit has the same id."""
    checksum = hashlib.sha256()
    for name, parts in sorted(data.items()):
        for subtask, staged in sorted(parts.items()):
            checksum.update(f"{name}/{subtask}/{len(staged)}/".encode())
            checksum.update(staged)
    return checksum.hexdigest()[:32]


class LakeOptions(RollingOptions, ParquetOptions):
    """The options that the sinks of table formats share."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    format: Literal["parquet"] = Field("parquet", description="The format of the files.")
    columns: Columns | None = Field(
        None,
        alias="schema",
        description=(
            "Column → type of the rows; other columns are ignored. Without it all columns are written."
        ),
    )
    with_timestamp: bool = Field(
        default=False, description="Whether to write the event time column `_timestamp` too."
    )

    @model_validator(mode="after")
    def _declares_time_once(self) -> Self:
        if self.with_timestamp and self.columns is not None:
            raise ValueError("name `_timestamp` among the columns instead of `with_timestamp`")
        return self


class LakeSink(RollingSink):
    """Appends Parquet files to a table; those of an epoch become visible in one change of it, once.

    Files are written where no reader of the table looks. The commit adds them all at once, under an id that a
    retried commit has again. A connector implements `part`, `put`, `add_files` and `write_error`.
    """

    packed = 0.3
    updates_with = "write it to `postgres`, or as changes to `filesystem` with format = 'debezium_json'"
    zone: str | None
    """The time zone of timestamps in a new table."""

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self._format = ParquetFormat(
            compression=self.options.parquet_compression,
            row_group_bytes=self.options.parquet_row_group_size,
        )

    @property
    @abstractmethod
    def table_label(self) -> str:
        """The table in messages, such as "the table `orders`"."""

    @abstractmethod
    def add_files(self, epoch: int, files: list[Any], commit_id: str, ctx: OperatorContext) -> None:
        """Add files to the table in one change that names the commit, unless an earlier attempt did."""

    @abstractmethod
    def write_error(self, error: Exception) -> ExternalError:
        """Convert an error of the client library to one that names the table."""

    def check_declared_columns(self, existing: pa.Schema | None) -> None:
        """Raise an error if the declared columns do not fit the table; None if there is none yet."""
        if self.options.columns is None:
            return
        if existing is None:
            lake_schema(self.options.columns, zone=self.zone)
        else:
            check_fit(self.options.columns, existing, table=self.table_label)

    def check(self, schema: pa.Schema) -> None:
        """Raise an error for rows with retractions, or without a declared column."""
        ParquetFormat(self.options.columns).check(schema)

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Keep the rows until the epoch ends; the libraries of tables know the years from 1 to 9999."""
        refused = list(day_refusals(batch, FIRST_DAY, LAST_DAY, of=self.table_label))
        super().process_batch(accept_rows(batch, refused, ctx, where=self.display()), ctx, collector)

    def columns_to_write(self, rows: pa.Table) -> pa.Table:
        """Return the columns to write: the declared ones, or all but the event time."""
        if self.options.columns is not None:
            return rows.select(self.options.columns.names)
        return rows if self.options.with_timestamp else without_event_time(rows)

    def encode(self, rows: pa.Table) -> Iterator[Encoded]:
        """Encode the rows as Parquet files."""
        size = self.options.file_size
        for data in self._format.files(rows, file_bytes=size):
            yield Encoded(data, pq.read_metadata(pa.BufferReader(data)).num_rows, len(data) >= size)

    def file_name(self, number: int, ctx: OperatorContext) -> str:
        """Return the name of a new file of this task."""
        info = ctx.task_info
        name: str = self.options.name_file(info.epoch, info.subtask, number, ending="parquet")
        # Another run may have used a serial name: a file of a table is never overwritten.
        return f"{uuid.uuid4().hex}-{name}" if self.options.strategy == "serial" else name

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext
    ) -> None:
        """Add the files of the epoch to the table, unless an earlier commit did."""
        files = prepared(data)
        try:
            if files:
                self.add_files(epoch, files, _commit_id(data), ctx)
        except HeadraceError:
            raise
        except Exception as error:
            raise self.write_error(error) from error
        self.forget(epoch, data, ctx)
