"""The directory layout of files, `time/column=value/…`, and their names."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import ConfigurationError, PlanError
from headrace.base.options import Names
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors.base import excerpt
from headrace.formats.base import plain_field
from headrace.storage.urls import is_object_store

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The value of a path segment for null and for an empty string."""

LONGEST_NAME = 255
"""The most bytes of a name in a directory."""
_LONGEST_PATH = 4096
_LONGEST_KEY = 1024
"""The most bytes of the key of an object: of S3, Google Cloud Storage and Azure."""
_NAME_ROOM = 100
"""Bytes of a path that stay free for the name of a file, besides its prefix and suffix."""

NameStrategy = Literal["serial", "uuid", "uuid_v7", "ulid"]


class NameOptions(DeclaredOptions):
    """The options for file names."""

    prefix: str | None = Field(
        None, pattern="^[^/]+$", alias="filename.prefix", description="Prefix of file names."
    )
    suffix: str | None = Field(
        None,
        pattern="^[^/]+$",
        alias="filename.suffix",
        description="Extension of file names; by default the name of the format, such as `json`.",
    )
    strategy: NameStrategy = Field(
        "uuid_v7",
        alias="filename.strategy",
        description="How files are named: by epoch and subtask (serial), or by a unique id.",
    )

    def name_file(self, epoch: int, subtask: int, number: int, *, ending: str) -> str:
        """Return the name of a file of one subtask in one epoch."""
        stem = {
            "serial": lambda: f"{epoch:05d}-{subtask:03d}-{number:03d}",
            "uuid": lambda: str(uuid.uuid4()),
            "uuid_v7": _uuid_v7,
            "ulid": _ulid,
        }[self.strategy]()
        name = f"{stem}.{self.suffix or ending}"
        return f"{self.prefix}-{name}" if self.prefix else name


class PartitionOptions(DeclaredOptions):
    """The options for partition directories."""

    time_pattern: str | None = Field(
        None,
        min_length=1,
        alias="partitioning.time_pattern",
        description="A directory for each period of event time, such as `%Y/%m/%d`.",
    )
    partition_fields: Names = Field(
        default=[],
        alias="partitioning.fields",
        description="A directory `column=value` for each value of these columns.",
    )


def split_rows(
    rows: pa.Table, fields: Sequence[str], time_pattern: str | None = None
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each directory, in the order in which the directories appear."""
    keys = _directories(rows, fields, time_pattern)
    if keys is None:
        yield "", rows
        return
    coded = keys.dictionary_encode()
    if len(coded.dictionary) == 1:
        yield coded.dictionary[0].as_py(), rows
        return
    codes = coded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(coded.dictionary)), side="right")
    begin = 0
    for directory, end in zip(coded.dictionary.to_pylist(), ends.tolist(), strict=True):
        yield directory, rows.take(pa.array(order[begin:end]))
        begin = end


def _directories(rows: pa.Table, fields: Sequence[str], time_pattern: str | None) -> pa.Array | None:
    levels: list[pa.Array] = []
    if time_pattern is not None:
        times = rows.column(TIMESTAMP).combine_chunks()
        seconds = pc.floor_temporal(times, unit="second").cast(pa.timestamp("s"))
        levels.append(pc.strftime(seconds, format=time_pattern))
    for name in fields:
        if name not in rows.schema.names:
            raise PlanError(f"there is no column `{name}` to partition by")
        values = _partition_values(rows.column(name).combine_chunks(), name)
        levels.append(pc.binary_join_element_wise(pa.scalar(f"{quote(name)}="), values, ""))
    return pc.binary_join_element_wise(*levels, "/") if levels else None


def _partition_values(column: pa.Array, name: str) -> pa.Array:
    """Return values as path segments; special characters are escaped as %XX."""
    try:
        texts = column.cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        raise PlanError(f"column `{name}` of type {column.type} cannot name directories") from None
    coded = texts.dictionary_encode()
    values = [quote(value, safe=" :+,@") or NO_VALUE for value in coded.dictionary.to_pylist()]
    named = pa.DictionaryArray.from_arrays(coded.indices, pa.array(values, pa.string())).dictionary_decode()
    return pc.fill_null(named, NO_VALUE)


def directory_problem(directory: str, root: str, *, names: NameOptions) -> str | None:
    """Say why files cannot be written to a directory below `root`; None if they can."""
    in_objects = is_object_store(root)
    for segment in directory.split("/"):
        if not in_objects and len(segment.encode()) > LONGEST_NAME:
            column, equals, value = segment.partition("=")
            what = (
                f"column `{unquote(column)}`: the value `{excerpt(unquote(value))}`" if equals else "its time"
            )
            return f"{what} makes a directory name of {len(segment)} bytes, of at most {LONGEST_NAME}"
    inside = root.partition("://")[2].partition("/")[2] if in_objects else root
    room = _NAME_ROOM + len(f"{names.prefix or ''}{names.suffix or ''}".encode())
    longest, length = _LONGEST_KEY if in_objects else _LONGEST_PATH, len(f"{inside}/{directory}/".encode())
    if length + room > longest:
        columns = ", ".join(
            f"`{unquote(part.partition('=')[0])}`" for part in directory.split("/") if "=" in part
        )
        return (
            f"columns {columns}: their values make a path of {length} bytes, of at most {longest} with the "
            "name of the file"
        )
    return None


def path_values(path: str) -> dict[str, str | None]:
    """Return the partition values in a path: column → string, None for null.

    >>> path_values("2026/day=3/k=a%2Fb/x.json")
    {'day': '3', 'k': 'a/b'}
    """
    values: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals and name:
            values[unquote(name)] = None if value == NO_VALUE else unquote(value)
    return values


def fill(
    rows: pa.Table, values: Mapping[str, str | None], schema: pa.Schema | None, *, where: str
) -> pa.Table:
    """Add the partition values of the path to rows that do not have them.

    Without declared columns every value of the path becomes a column, of strings if the file has none.
    """
    for name, text in values.items():
        declared = None if schema is None else schema.get_field_index(name)
        if declared == -1:
            continue
        index = rows.schema.get_field_index(name)
        field = (
            plain_field(schema.field(declared))
            if schema is not None
            else rows.schema.field(index)
            if index >= 0
            else pa.field(name, pa.string())
        )
        value = _value(text, field, where=where)
        if index < 0:
            rows = rows.append_column(field, pa.repeat(value, rows.num_rows))
        elif rows.column(index).null_count and value.is_valid:
            rows = rows.set_column(index, field, pc.fill_null(rows.column(index), value))
        if schema is not None and not schema.field(declared).nullable and rows.column(name).null_count:
            raise ConfigurationError(
                f"column `{name}` is null in the path, and is declared NOT NULL", where=where
            )
    if schema is None:
        return rows
    names = [*schema.names, *(name for name in (RETRACT,) if name in rows.schema.names)]
    return rows if rows.schema.names == names else rows.select(names)


def _value(text: str | None, field: pa.Field, *, where: str) -> pa.Scalar:
    try:
        return pa.scalar(text, pa.string()).cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ConfigurationError(
            f"column `{field.name}`: `{text}` in the path cannot be read as {field.type}: {error}",
            where=where,
            hint="declare the column with a type that fits the names of the directories",
        ) from None


def _uuid_v7() -> str:
    """Return a time-ordered UUID (RFC 9562)."""
    stamp = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    bits = stamp << 80 | 7 << 76 | (random >> 62 & 0xFFF) << 64 | 2 << 62 | random & (1 << 62) - 1
    return str(uuid.UUID(int=bits))


def _ulid() -> str:
    bits = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[bits >> shift & 31] for shift in range(125, -1, -5))
