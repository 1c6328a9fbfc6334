"""The Avro format: messages that are records of a schema, and files of such records."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from headrace.base.errors import BadLineError, ConfigurationError
from headrace.base.options import Options
from headrace.formats._shared.records import ReadRecords, read_groups
from headrace.formats._shared.wire import BYTES, join, with_lengths, zigzag
from headrace.formats.avro.file import (
    AvroCompression,
    BlockRecords,
    Damage,
    read_all_blocks,
    read_header,
    write_file,
    write_header,
)
from headrace.formats.avro.read import Reader, as_record, block_reader, record_reader
from headrace.formats.avro.schema import AvroType, arrow_schema, parse_schema, schema_of, to_json
from headrace.formats.avro.write import check_writable, encode_records
from headrace.formats.base import Decoded, Format, LineError, Rows, bad_file, bad_row, plain_field, plain_name
from headrace.formats.json.write import PLAIN, encode_objects, encode_values
from headrace.formats.raw import COLUMN, check_value_column
from headrace.formats.registry.client import NO_HEADER, SchemaRegistry, header, split_headers
from headrace.formats.registry.files import SchemaText

Layout = Literal["raw", "registry", "file"]


class AvroOptions(Options):
    """The options of Avro."""

    avro_confluent_schema_registry: bool = Field(
        default=False,
        alias="avro.confluent_schema_registry",
        description="Whether each message starts with the id of its schema in a schema registry.",
    )
    avro_raw_datums: bool = Field(
        default=False,
        alias="avro.raw_datums",
        description=(
            "Whether each message is a bare record; without it, and without a registry, each message "
            "is an Avro file with its schema."
        ),
    )
    avro_schema: SchemaText | None = Field(
        None,
        alias="avro.schema",
        description=(
            "The schema of bare records, and of written ones, as JSON or as the path of a file; by "
            "default it is derived from the columns."
        ),
    )
    avro_into_unstructured_json: bool = Field(
        default=False,
        alias="avro.into_unstructured_json",
        description="Whether each record is read as JSON, into the column `value`, whatever its schema.",
    )


class AvroFileOptions(Options):
    """The options of Avro files."""

    avro_compression: AvroCompression = Field(
        "uncompressed", alias="avro.compression", description="The compression of Avro files."
    )


class AvroFormat(Format):
    """Records of a schema: bare, prefixed with the id of their schema in a registry, or in files."""

    def __init__(
        self,
        schema: pa.Schema | None = None,
        *,
        layout: Layout = "file",
        node: AvroType | None = None,
        registry: SchemaRegistry | None = None,
        unstructured: bool = False,
        compression: AvroCompression = "uncompressed",
        drop_bad: bool = False,
    ) -> None:
        super().__init__(schema)
        self._layout, self._node, self._registry = layout, node, registry
        self._unstructured, self._compression, self._drop_bad = unstructured, compression, drop_bad
        if schema is None:
            return
        if unstructured:
            check_value_column(schema, pa.string(), what="`avro.into_unstructured_json`")

    # ------------------------------------------------------------------------------------------- reading

    @functools.cached_property
    def _reader(self) -> dict[object, Reader]:
        """Return the readers by schema."""
        return {}

    def decode(self, data: bytes | Sequence[bytes], *, first_line: int = 1, where: str = "Avro") -> Decoded:
        """Decode messages, or a complete file."""
        if isinstance(data, bytes):
            if self._layout == "raw":
                self._reader_of(self._own(), "own")  # refuses columns that do not fit the schema
            return self._decode_file(data, where)
        records = self._read(data)
        return records.decoded(data, first_line=first_line, where=where, drop_bad=self._drop_bad)

    def _decode_file(self, data: bytes, where: str) -> Decoded:
        """Decode a complete file; of a damaged one what can be read, and an error for each other part."""
        file = self._read_files([data] if data else [])
        bad: list[tuple[int, BadLineError]] = []
        for begin, damage in file.damage[0] if data else ():
            bad.append((begin, _damaged(damage, begin, where)))
        singly = {row.message for row in file.blocks.bad_rows}
        for row in file.blocks.bad_rows:
            number = file.begins[row.message] + row.row
            bad.append((number, bad_row(number, row.content, row.error, where)))
        whole: dict[int, list[int]] = {}
        for block, error in sorted(file.blocks.bad.items()):
            if block not in singly:
                whole.setdefault(id(error), []).append(block)  # one error may be that of all blocks
        for blocks in whole.values():
            begin, rows = file.begins[blocks[0]], sum(file.rows[block] for block in blocks)
            bad.append((begin, _damaged(Damage(file.blocks.bad[blocks[0]], rows), begin, where)))
        errors = [error for _, error in sorted(bad, key=lambda each: each[0])]
        if errors and not self._drop_bad:
            raise errors[0]
        return Decoded(file.blocks.rows, errors)

    def _read(self, messages: Sequence[bytes]) -> ReadRecords:
        if self._layout == "file":
            return self._read_file_messages(messages)
        records = pa.array(messages, BYTES)
        if self._layout == "raw":
            return self._reader_of(self._own(), "own")(records)
        numbers, records = split_headers(records)
        return read_groups(records, numbers, self._read_registered, empty=self._empty())

    def _own(self) -> AvroType:
        assert self.schema is not None, "reading needs a schema"
        return self._node or schema_of(list(self.schema))

    def _empty(self) -> pa.Table:
        return pa.schema([plain_field(column) for column in self.schema or ()]).empty_table()

    def _read_registered(self, number: int, records: pa.Array) -> ReadRecords:
        if number < 0:
            raise NO_HEADER
        assert self._registry is not None
        if number not in self._reader:
            schema = self._registry.schema(number)
            if schema.kind != "AVRO":
                raise LineError(
                    f"its schema {number} is not one of Avro, but of {schema.kind}", fault="unknown-schema"
                )
            try:
                node = parse_schema(schema.text, list(schema.references.values()))
                return self._reader_of(node, number)(records)
            except ConfigurationError as error:
                raise LineError(
                    f"schema {number}: {error.message}", hint=error.hint, fault="unknown-schema"
                ) from None
        return self._reader[number](records)

    def _reader_of(self, node: AvroType, key: object, *, blocks: bool = False) -> Reader:
        if key not in self._reader:
            make = block_reader if blocks else record_reader
            if self._unstructured:
                columns = arrow_schema(as_record(node))
                read = _as_json(make(node, columns), wrapped=node.kind == "record")
            else:
                read = self._renamed(make(node, self._target_columns(node)))
            self._reader[key] = read
        return self._reader[key]

    def _target_columns(self, node: AvroType) -> pa.Schema:
        """Return the columns under their names in a schema."""
        assert self.schema is not None, "reading needs a schema"
        return pa.schema([column.with_name(_member_name(column.name, node)) for column in self.schema])

    def _renamed(self, read: Reader) -> Reader:
        assert self.schema is not None
        names = self.schema.names

        def renamed(records: pa.Array) -> ReadRecords:
            result = read(records)
            return replace(result, rows=result.rows.rename_columns(names))

        return renamed

    def _read_file_messages(self, messages: Sequence[bytes]) -> ReadRecords:
        """Read messages, each a complete file; of a damaged one no row counts."""
        files = self._read_files(messages, complete_only=True)
        owners, blocks = files.owners, files.blocks
        bad = {index: damage[0][1].error for index, damage in enumerate(files.damage) if damage}
        for block, problem in blocks.bad.items():
            bad.setdefault(owners[block], problem)
        counts = np.bincount(owners, blocks.counts_of(len(owners)), len(messages)).astype(np.int64)
        return ReadRecords(blocks.rows, bad, counts)

    def _read_files(self, files: Sequence[bytes], *, complete_only: bool = False) -> _ReadFiles:
        """Read the blocks of files; `complete_only` leaves out those of damaged ones."""
        arrays: list[bytes] = []
        owners: list[int] = []
        kinds: list[int] = []
        begins: list[int] = []
        rows: list[int] = []
        schemas: dict[str, int] = {}
        damage: list[list[tuple[int, Damage]]] = []
        for index, parts in enumerate(read_all_blocks(files)):
            blocks: list[BlockRecords] = []
            damage.append([])
            at = 0
            for part in parts:
                if isinstance(part, Damage):
                    damage[-1].append((at, part))
                else:
                    blocks.append(part)
                    begins.append(at)
                at += part.rows
            if damage[-1] and complete_only:
                del begins[len(arrays) :]
                continue
            for block in blocks:
                arrays.append(block.array)
                rows.append(block.rows)
                owners.append(index)
                kinds.append(schemas.setdefault(block.schema, len(schemas)))
        names = list(schemas)
        result = read_groups(
            pa.array(arrays, BYTES),
            np.array(kinds, np.int64),
            lambda kind, records: self._read_blocks(names[kind], records),
            empty=self._empty(),
        )
        return _ReadFiles(result, owners, begins, rows, damage)

    def _read_blocks(self, schema: str, records: pa.Array) -> ReadRecords:
        try:
            return self._reader_of(parse_schema(schema), ("file", schema), blocks=True)(records)
        except ConfigurationError as error:
            raise LineError(error.message, hint=error.hint) from None

    # ------------------------------------------------------------------------------------------- writing

    def check(self, schema: pa.Schema) -> None:
        """Raise an error unless rows of this schema can be written."""
        super().check(schema)
        if self._unstructured:
            raise ConfigurationError("`avro.into_unstructured_json` is for reading: leave it out of a sink")

    def _records(self, rows: Rows) -> tuple[AvroType, pa.Array]:
        fields, batch = self.columns(rows)
        node = self._node or schema_of(fields)
        table = pa.Table.from_batches([batch])
        table = table.rename_columns([_member_name(name, node) for name in table.schema.names])
        check_writable(node, table.schema)
        return node, encode_records(node, table)

    def encode(self, rows: Rows) -> bytes:
        """Encode the rows as a file."""
        return write_file(*self._records(rows), self._compression)

    def messages(self, rows: Rows) -> list[bytes]:
        """Encode the rows as messages."""
        node, records = self._records(rows)
        if self._layout == "registry":
            assert self._registry is not None
            records = join(header(self._registry.register("AVRO", json.dumps(to_json(node)))), records)
        elif self._layout == "file":
            head, sync = write_header(node)
            records = join(head + zigzag(1), with_lengths(records, signed=True), sync)
        encoded: list[bytes] = records.to_pylist()
        return encoded


@dataclass(frozen=True)
class _ReadFiles:
    """What was read of some files, block by block."""

    blocks: ReadRecords
    owners: Sequence[int]
    """The file of each block."""
    begins: Sequence[int]
    """The number of records of its file before each block, as far as that is known."""
    rows: Sequence[int]
    damage: Sequence[Sequence[tuple[int, Damage]]]
    """The damage of each file, and the number of records before it."""


def _damaged(damage: Damage, begin: int, where: str) -> BadLineError:
    """Return the error for a part of a file that cannot be read."""
    error, position = damage.error, "the whole file"
    if damage.rows:
        position = f"records {begin} to {begin + damage.rows - 1}"
    elif begin:
        position = f"after {begin} records"
    return bad_file(error.reason, where=where, column=error.column, hint=error.hint, position=position)


def _member_name(column: str, node: AvroType) -> str:
    return column if any(name == column for name, _ in node.fields) else plain_name(column)


def _as_json(read: Reader, *, wrapped: bool) -> Reader:
    """Return a reader that converts each record to JSON: an object, or the value that a record wraps."""

    def read_json(records: pa.Array) -> ReadRecords:
        result = read(records)
        rows = result.rows.combine_chunks()
        columns = [column.combine_chunks() for column in rows.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=rows.schema)
        if wrapped:
            texts = encode_objects(list(rows.schema), batch)
        else:
            texts = encode_values(batch.column(0), rows.schema.field(0), PLAIN)
        return replace(result, rows=pa.table({COLUMN: texts.cast(pa.string())}))

    return read_json


def avro_format(options: Any, schema: pa.Schema | None) -> Format:
    """Return the format for the FormatOptions of a table."""
    registry = options.registry() if options.avro_confluent_schema_registry else None
    layout: Layout = "raw" if options.avro_raw_datums else "file"
    return AvroFormat(
        schema,
        layout=layout if registry is None else "registry",
        node=None if options.avro_schema is None else parse_schema(options.avro_schema),
        registry=registry,
        unstructured=options.avro_into_unstructured_json,
        compression=getattr(options, "avro_compression", "uncompressed"),
        drop_bad=options.drop_bad,
    )


def implied_columns(options: AvroOptions, registry: SchemaRegistry | None) -> pa.Schema | None:
    """Return the columns of the given or registered schema; None if they are in the files."""
    if options.avro_schema is not None:
        return arrow_schema(as_record(parse_schema(options.avro_schema)))
    if options.avro_confluent_schema_registry and registry is not None:
        schema = registry.latest_of_kind("AVRO")
        return arrow_schema(as_record(parse_schema(schema.text, list(schema.references.values()))))
    if options.avro_raw_datums:
        raise ConfigurationError(
            "Avro records without a schema do not say which columns they have",
            hint="declare them with the option `schema`, or give their schema with `avro.schema`",
        )
    return None


def infer_columns(data: bytes, *, where: str) -> pa.Schema:
    """Return the columns of a file, from the schema in its header."""
    try:
        return arrow_schema(as_record(parse_schema(read_header(data).schema)))
    except LineError as error:
        raise ConfigurationError(error.reason, where=where, hint=error.hint) from None
