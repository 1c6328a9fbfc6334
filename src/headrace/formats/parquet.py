"""The Parquet format: read a range of rows in the declared columns, write files of about a size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from headrace.base.errors import ConfigurationError, suggest
from headrace.base.options import Options, Size
from headrace.formats._shared.refused import convert_accepted
from headrace.formats.base import Decoded, Format, LineError, Rows, bad_row, missing_value, plain_field
from headrace.formats.json.write import encode_json_lines

ParquetCompression = Literal["uncompressed", "snappy", "gzip", "zstd", "lz4", "lz4_raw"]

_BATCH_ROWS = 65_536
_ROW_GROUP_BYTES = 128 * 1024 * 1024


class ParquetOptions(Options):
    """The options of Parquet files."""

    parquet_compression: ParquetCompression = Field(
        "zstd", alias="parquet.compression", description="The compression of Parquet files."
    )
    parquet_row_group_size: Size | None = Field(
        None,
        ge=1,
        alias="parquet.row_group_size",
        description="The approximate uncompressed size of a row group of a Parquet file.",
    )


class ParquetFormat(Format):
    """Rows as complete Parquet files."""

    def __init__(
        self,
        schema: pa.Schema | None = None,
        *,
        compression: ParquetCompression = "zstd",
        row_group_bytes: int | None = None,
    ) -> None:
        super().__init__(schema)
        self._codec = {"uncompressed": "none", "lz4_raw": "lz4"}.get(compression, compression)
        self._row_group_bytes = row_group_bytes or _ROW_GROUP_BYTES

    def decode(
        self, data: bytes | Sequence[bytes], *, first_line: int = 1, where: str = "Parquet"
    ) -> Decoded:
        """Decode complete files."""
        tables: list[pa.Table] = []
        for content in [data] if isinstance(data, bytes) else data:
            with pq.ParquetFile(pa.BufferReader(content)) as file:
                decoded = read_rows(file, 0, file.metadata.num_rows, self.schema, where=where)
                tables += [part.rows for part in decoded]
        return Decoded(pa.concat_tables(tables) if tables else _plain(self.schema).empty_table())

    def encode(self, rows: Rows) -> bytes:
        """Encode the rows as one file."""
        return b"".join(self.files(rows)) or _write(_plain(self.schema).empty_table())

    def files(self, rows: Rows, *, file_bytes: int | None = None) -> Iterator[bytes]:
        """Encode the rows as files; with `file_bytes`, each ends when it reaches that size."""
        _, batch = self.columns(rows)
        table = pa.Table.from_batches([batch])
        row_bytes = max(1, table.nbytes // max(1, table.num_rows))
        # How long a file is shows when a row group is written: groups may not be longer than files.
        group_bytes = min(self._row_group_bytes, file_bytes or self._row_group_bytes)
        group_rows = max(1, group_bytes // row_bytes)
        start = 0
        while start < table.num_rows:
            out = pa.BufferOutputStream()
            with pq.ParquetWriter(out, table.schema, compression=self._codec) as writer:
                while start < table.num_rows and not (file_bytes and out.tell() >= file_bytes):
                    writer.write_table(table.slice(start, group_rows), row_group_size=group_rows)
                    start += group_rows
            yield out.getvalue().to_pybytes()


def _write(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(table, out)
    data: bytes = out.getvalue().to_pybytes()
    return data


def read_rows(
    file: pq.ParquetFile,
    first: int,
    end: int,
    schema: pa.Schema | None,
    *,
    where: str,
    drop_bad: bool = False,
) -> Iterator[Decoded]:
    """Yield the rows from `first` up to `end` of a file, in the columns of `schema`, or all columns.

    With `drop_bad`, errors of rows that do not fit are returned instead of raised.
    """
    groups: list[int] = []
    position = seen = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if not groups:
            position = seen
        if first < seen + rows and seen < end:
            groups.append(group)
        seen += rows
    columns = None if schema is None else _paths(file.schema_arrow, schema)
    if schema is not None and columns == []:
        nothing = pa.table({"": pa.nulls(end - first)})
        yield conform(nothing, schema, first=first, where=where, drop_bad=drop_bad)
        return
    for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False):
        begin, stop = max(first - position, 0), min(end - position, batch.num_rows)
        if begin < stop:
            table = pa.Table.from_batches([batch.slice(begin, stop - begin)])
            table = table.replace_schema_metadata(None)
            if schema is None:
                yield Decoded(table)
            else:
                yield conform(table, schema, first=position + begin, where=where, drop_bad=drop_bad)
        position += batch.num_rows
        if position >= end:
            break  # what is left of the group is not decoded


def _paths(file_schema: pa.Schema, target: pa.Schema) -> list[str]:
    """Return the paths of the columns and fields to read from a file."""
    return [
        path
        for column in target
        if column.name in file_schema.names
        for path in _inside(file_schema.field(column.name), column)
    ]


def _inside(column: pa.Field, target: pa.Field) -> list[str]:
    if not (pa.types.is_struct(column.type) and pa.types.is_struct(target.type)):
        return [column.name]
    members = {part.name: part for part in column.type}
    inner = [
        path
        for member in target.type
        if member.name in members
        for path in _inside(members[member.name], member)
    ]
    # Without any of the fields, the others still tell whether there is a value.
    return [f"{column.name}.{path}" for path in inner] or [column.name]


def conform(
    table: pa.Table, schema: pa.Schema, *, first: int = 0, where: str, drop_bad: bool = False
) -> Decoded:
    """Convert rows to the columns of `schema`, missing ones null; rows are numbered from `first`.

    Raises a ConfigurationError for a type that cannot be converted to the declared one.
    """
    errors: dict[int, LineError] = {}
    columns = []
    for field in schema:
        column, refused = _fit(table, field, where)
        columns.append(column)
        errors = refused | errors
    rows = pa.table(columns, schema=_plain(schema))
    if not errors:
        return Decoded(rows)
    indices = sorted(errors) if drop_bad else [min(errors)]
    contents = encode_json_lines(table.take(pa.array(indices))).decode().rstrip("\n").split("\n")
    bad = [
        bad_row(first + index, content, errors[index], where)
        for index, content in zip(indices, contents, strict=True)
    ]
    if not drop_bad:
        raise bad[0]
    good = np.ones(table.num_rows, np.bool_)
    good[list(errors)] = False
    return Decoded(rows.filter(pa.array(good)), bad)


def _fit(table: pa.Table, field: pa.Field, where: str) -> tuple[Any, dict[int, LineError]]:
    """Return a column in the type of a field; values that do not fit are null, with an error by row."""
    kind = plain_field(field).type
    if field.name not in table.schema.names:
        if not field.nullable:
            raise ConfigurationError(
                f"column `{field.name}` is NOT NULL, and the file does not have it",
                where=where,
                hint=suggest(field.name, table.schema.names),
            )
        return pa.nulls(table.num_rows, kind), {}
    column, errors = table.column(field.name), {}
    if column.null_count and not field.nullable:
        missing = missing_value((field.name,))
        nulls = column.is_null().combine_chunks().to_numpy(zero_copy_only=False)
        errors = dict.fromkeys(np.flatnonzero(nulls).tolist(), missing)
    if column.type == kind:
        return column, errors
    try:
        converted, refused = convert_accepted(column.combine_chunks(), lambda values: values.cast(kind))
    except (pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise ConfigurationError(
            f"column `{field.name}` is {column.type} and cannot be read as {kind}: {error}",
            where=where,
            hint="declare the column with the type it has in the file",
        ) from None
    errors |= {index: LineError(str(error), path=(field.name,)) for index, error in refused.items()}
    return converted, errors


def _plain(schema: pa.Schema | None) -> pa.Schema:
    return pa.schema([plain_field(field) for field in schema or ()])


def check_parquet(schema: pa.Schema) -> None:
    """Raise an error for columns of types that Parquet does not have."""
    for field in schema:
        try:
            pq.write_table(pa.schema([plain_field(field)]).empty_table(), pa.BufferOutputStream())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise ConfigurationError(
                f"column `{field.name}` of type {field.type} cannot be written to Parquet: {error}",
                hint="cast it to a text or a number",
            ) from None
