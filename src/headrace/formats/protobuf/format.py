"""The Protobuf format: messages of a type that a `.proto` file defines."""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

import numpy as np
import pyarrow as pa
from pydantic import AfterValidator, Field, model_validator

from headrace.base.errors import ConfigurationError, HeadraceError
from headrace.base.options import Options
from headrace.formats._shared.conform import check_columns
from headrace.formats._shared.records import ReadRecords, conform_records, read_groups
from headrace.formats._shared.wire import (
    BYTES,
    content,
    join,
    parts_of,
    read_varint,
    with_lengths,
    without_first,
    zigzag,
)
from headrace.formats.base import Decoded, Format, LineError, Rows, plain_field, plain_name
from headrace.formats.json.write import encode_objects
from headrace.formats.protobuf.columns import files_for
from headrace.formats.protobuf.read import read_messages
from headrace.formats.protobuf.schema import (
    Descriptors,
    arrow_schema,
    compile_files,
    message_of,
    path_of,
)
from headrace.formats.protobuf.write import check_writable, encode_messages
from headrace.formats.raw import COLUMN, check_value_column
from headrace.formats.registry.client import (
    NO_HEADER,
    RegisteredSchema,
    SchemaRegistry,
    header,
    split_headers,
)
from headrace.formats.registry.files import LoadedFile, SchemaFile, load_file

Reader: TypeAlias = Callable[[pa.Array], ReadRecords]


def _compile(value: str) -> LoadedFile:
    """Compile a `.proto` file, given by its path or content."""
    inline = "{" in value
    text = value if inline else load_file(value).decode("utf-8", "replace")
    path = Path(value.removeprefix("file://")).expanduser() if not inline else Path("schema.proto")
    try:
        files = compile_files(text, path.name, {} if inline else path.parent)
    except HeadraceError as error:
        raise ValueError(f"{error.message}; {error.hint}" if error.hint else error.message) from None
    loaded = LoadedFile("schema.proto" if inline else value)
    loaded.content = files.content
    return loaded


class ProtobufOptions(Options):
    """The options of Protobuf."""

    protobuf_descriptor: SchemaFile | None = Field(
        None,
        alias="protobuf.descriptor",
        description="A file with a descriptor set: `protoc --include_imports --descriptor_set_out=FILE`.",
    )
    protobuf_schema: Annotated[str, AfterValidator(_compile)] | None = Field(
        None,
        alias="protobuf.schema",
        description=(
            "A `.proto` file, as a path or its content; imports are resolved relative to it. Without "
            "it, and without a descriptor, the type is derived from the columns."
        ),
    )
    protobuf_message_name: str | None = Field(
        None,
        min_length=1,
        alias="protobuf.message_name",
        description="The message type; needed if the file has several.",
    )
    protobuf_length_delimited: bool = Field(
        default=False,
        alias="protobuf.length_delimited",
        description="Rows are length-prefixed; a message then has any number of rows.",
    )
    protobuf_into_unstructured_json: bool = Field(
        default=False,
        alias="protobuf.into_unstructured_json",
        description="Whether each message is read as JSON, into the column `value`, whatever its type.",
    )
    protobuf_confluent_schema_registry: bool = Field(
        default=False,
        alias="protobuf.confluent_schema_registry",
        description="Whether each message starts with the id of its schema in a schema registry.",
    )

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        if self.protobuf_schema is not None and self.protobuf_descriptor is not None:
            raise ValueError("`protobuf.schema` and `protobuf.descriptor` say the same: leave one out")
        if self.protobuf_confluent_schema_registry and self.protobuf_length_delimited:
            raise ValueError("`protobuf.length_delimited` does not go with a schema registry")
        return self

    @property
    def proto_files(self) -> Descriptors | None:
        """Return the given types."""
        loaded = self.protobuf_schema or self.protobuf_descriptor
        return Descriptors(loaded.content) if isinstance(loaded, LoadedFile) else None


class ProtobufFormat(Format):
    """Messages of one type: bare, length-prefixed, or prefixed with the id of their schema in a registry."""

    def __init__(
        self,
        schema: pa.Schema | None = None,
        *,
        files: Descriptors | None = None,
        message_name: str | None = None,
        delimited: bool = False,
        registry: SchemaRegistry | None = None,
        unstructured: bool = False,
        drop_bad: bool = False,
    ) -> None:
        super().__init__(schema)
        self._files, self._message_name = files, message_name
        self._delimited, self._registry = delimited, registry
        self._unstructured, self._drop_bad = unstructured, drop_bad
        if files is not None:
            files.descriptor(message_name)
        if schema is not None and unstructured:
            check_value_column(schema, pa.string(), what="`protobuf.into_unstructured_json`")

    # ------------------------------------------------------------------------------------------- reading

    @functools.cached_property
    def _reader(self) -> dict[object, Reader]:
        """Return the readers by type."""
        return {}

    def decode(
        self, data: bytes | Sequence[bytes], *, first_line: int = 1, where: str = "Protobuf"
    ) -> Decoded:
        """Decode messages, or a complete file."""
        if isinstance(data, bytes):
            messages: Sequence[bytes] = [data] if data else []
            records = self._read_delimited(messages)
        else:
            messages = data
            records = (
                self._read_delimited(messages) if self._delimited else self._read(pa.array(messages, BYTES))
            )
        return records.decoded(messages, first_line=first_line, where=where, drop_bad=self._drop_bad)

    def _read(self, messages: pa.Array) -> ReadRecords:
        if self._registry is None:
            return self._own_reader()(messages)
        numbers, bodies = split_headers(messages)
        data, offsets = parts_of(bodies)
        if (np.diff(offsets) > 0).all() and not data[offsets[:-1]].any():
            # Nearly always: the first type of its schema.
            return read_groups(
                without_first(bodies, 1),
                numbers,
                lambda number, records: self._read_registered(number, (0,), records),
                empty=self._empty(),
            )
        places = [_read_message_path(body) for body in bodies.to_pylist()]
        types: dict[tuple[int, tuple[int, ...] | None], int] = {}
        keys = np.empty(len(messages), np.int64)
        for at, (number, (path, _)) in enumerate(zip(numbers.tolist(), places, strict=True)):
            keys[at] = types.setdefault((number, path), len(types))
        type_keys = list(types)
        bodies = pa.array([body for _, body in places], BYTES)
        return read_groups(
            bodies,
            keys,
            lambda key, records: self._read_registered(*type_keys[key], records),
            empty=self._empty(),
        )

    def _read_registered(self, number: int, path: tuple[int, ...] | None, records: pa.Array) -> ReadRecords:
        if number < 0 or path is None:
            raise NO_HEADER
        assert self._registry is not None
        if self._files is not None:
            return self._own_reader()(records)
        key = (number, path)
        if key not in self._reader:
            schema = self._registry.schema(number)
            if schema.kind != "PROTOBUF":
                raise LineError(
                    f"its schema {number} is not one of Protobuf, but of {schema.kind}",
                    fault="unknown-schema",
                )
            try:
                files = registered_files(schema)
                named = self._message_name
                self._reader[key] = self._make(files, files.descriptor(named) if named else files.at(path))
            except ConfigurationError as error:
                raise LineError(
                    f"schema {number}: {error.message}", hint=error.hint, fault="unknown-schema"
                ) from None
        return self._reader[key](records)

    def _own_reader(self) -> Reader:
        if "own" not in self._reader:
            files, descriptor = self._own(self.schema)
            self._reader["own"] = self._make(files, descriptor)
        return self._reader["own"]

    def _own(self, columns: Any) -> tuple[Descriptors, Any]:
        """Return the given type, or the one derived from the columns."""
        if self._files is not None:
            return self._files, self._files.descriptor(self._message_name)
        files = files_for(list(columns))
        return files, files.descriptor(None)

    def _make(self, files: Descriptors, descriptor: Any) -> Reader:
        message = message_of(descriptor)
        message_schema = arrow_schema(message)
        target = message_schema if self._unstructured else self._target_columns(message_schema)
        check_columns(message_schema, target)

        def read(records: pa.Array) -> ReadRecords:
            table, bad = read_messages(records, message, target.names, files.as_json)
            result = conform_records(table, bad, target, messages=len(records))
            if not self._unstructured:
                assert self.schema is not None
                return replace(result, rows=result.rows.rename_columns(self.schema.names))
            columns = [column.combine_chunks() for column in result.rows.columns]
            batch = pa.RecordBatch.from_arrays(columns, schema=message_schema)
            texts = (
                encode_objects(list(message_schema), batch)
                if columns
                else pa.array(["{}"] * result.rows.num_rows)
            )
            return replace(result, rows=pa.table({COLUMN: texts.cast(pa.string())}))

        return read

    def _target_columns(self, message_schema: pa.Schema) -> pa.Schema:
        assert self.schema is not None, "reading needs a schema"
        return pa.schema(
            [column.with_name(_field_name(column.name, message_schema.names)) for column in self.schema]
        )

    def _empty(self) -> pa.Table:
        return pa.schema([plain_field(column) for column in self.schema or ()]).empty_table()

    def _read_delimited(self, messages: Sequence[bytes]) -> ReadRecords:
        """Read messages with several length-prefixed rows."""
        records, owners = [], []
        bad: dict[int, LineError] = {}
        for index, message in enumerate(messages):
            try:
                for record in split_delimited(message):
                    records.append(record)
                    owners.append(index)
            except LineError as error:
                bad[index] = error
        if self._registry is not None and self._files is None:
            return ReadRecords(self._empty())  # which type they are is told by each message
        result = self._own_reader()(pa.array(records, BYTES))
        for row, problem in result.bad.items():
            bad.setdefault(owners[row], problem)
        counts = np.bincount(owners, result.counts_of(len(records)), len(messages)).astype(np.int64)
        return ReadRecords(result.rows, bad, counts)

    # ------------------------------------------------------------------------------------------- writing

    def check(self, schema: pa.Schema) -> None:
        """Raise an error unless rows of this schema can be written."""
        super().check(schema)
        if self._unstructured:
            raise ConfigurationError(
                "`protobuf.into_unstructured_json` is for reading: leave it out of a sink"
            )

    def _records(self, rows: Rows) -> tuple[Any, pa.Array]:
        fields, batch = self.columns(rows)
        _, descriptor = self._own(fields)
        message = message_of(descriptor)
        names = [field.name for field in message.fields]
        table = pa.Table.from_batches([batch])
        table = table.rename_columns([_field_name(name, names) for name in table.schema.names])
        check_writable(message, table.schema)
        return descriptor, encode_messages(message, table)

    def encode(self, rows: Rows) -> bytes:
        """Encode the rows as a file of length-prefixed messages."""
        return content(with_lengths(self._records(rows)[1])).tobytes()

    def messages(self, rows: Rows) -> list[bytes]:
        """Encode the rows as messages."""
        descriptor, records = self._records(rows)
        if self._registry is not None:
            schema = base64.b64encode(_alone(descriptor.file).serialized_pb).decode()
            number = self._registry.register("PROTOBUF", schema)
            records = join(header(number) + _write_message_path(path_of(descriptor)), records)
        elif self._delimited:
            records = with_lengths(records)
        encoded: list[bytes] = records.to_pylist()
        return encoded


def _field_name(column: str, names: Sequence[str]) -> str:
    return column if column in names else plain_name(column)


def _alone(file: Any) -> Any:
    """Return a file that imports only well-known types."""
    for dependency in file.dependencies:
        if not dependency.name.startswith("google/protobuf/"):
            raise ConfigurationError(
                f"`{file.name}` imports `{dependency.name}` and cannot be registered for that reason",
                hint="put both into one file",
            )
    return file


def split_delimited(data: bytes) -> Iterator[bytes]:
    """Yield the records of a sequence of length-prefixed ones."""
    at = 0
    while at < len(data):
        size, at = read_varint(data, at)
        if at + size > len(data):
            raise LineError(f"a record of {size} bytes does not fit into the {len(data) - at} that are left")
        yield data[at : at + size]
        at += size


def registered_files(schema: RegisteredSchema) -> Descriptors:
    """Compile the types of a registered schema."""
    return compile_files(schema.text, "registered.proto", schema.references)


def _read_message_path(body: bytes) -> tuple[tuple[int, ...] | None, bytes]:
    """Return the path of a message's type in its schema, and the message; None if it has no path."""
    if body[:1] == b"\0":
        return (0,), body[1:]
    try:
        count, at = read_varint(body)
        path = []
        for _ in range(min(count >> 1, len(body))):
            index, at = read_varint(body, at)
            path.append(index >> 1)
    except LineError:
        return None, body
    return (tuple(path), body[at:]) if path and count & 1 == 0 else (None, body)


def _write_message_path(path: Sequence[int]) -> bytes:
    return b"\0" if list(path) == [0] else b"".join(map(zigzag, (len(path), *path)))


def protobuf_format(options: Any, schema: pa.Schema | None) -> Format:
    """Return the format for the FormatOptions of a table."""
    return ProtobufFormat(
        schema,
        files=options.proto_files,
        message_name=options.protobuf_message_name,
        delimited=options.protobuf_length_delimited,
        registry=options.registry() if options.protobuf_confluent_schema_registry else None,
        unstructured=options.protobuf_into_unstructured_json,
        drop_bad=options.drop_bad,
    )


def implied_columns(options: ProtobufOptions, registry: SchemaRegistry | None) -> pa.Schema:
    """Return the fields of the given or registered type."""
    files = options.proto_files
    if files is None and options.protobuf_confluent_schema_registry and registry is not None:
        files = registered_files(registry.latest_of_kind("PROTOBUF"))
    if files is None:
        raise ConfigurationError(
            "Protobuf messages do not say which columns they have",
            hint="declare them with the option `schema`, or give `protobuf.schema`",
        )
    return arrow_schema(files.message(options.protobuf_message_name))
