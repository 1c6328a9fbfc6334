"""Convert CSV strings to the types of the declared columns."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats._shared.conform import conform_column, conform_rows, conform_values
from headrace.formats.base import LineError, is_binary, is_json, is_list, is_text, plain_field
from headrace.formats.intervals import parse_interval
from headrace.formats.json.read import JsonReader


def read_values(
    texts: pa.Table, schema: pa.Schema, *, nulls: Sequence[str]
) -> tuple[pa.Table, dict[int, LineError]]:
    """Convert strings to the types of the columns; return the rows, and the errors of bad ones by index.

    `nulls` are read as NULL in columns of numbers and times also where they are in quotes.
    """
    bad: dict[int, LineError] = {}
    for field in schema:
        parsed = texts.schema.field(field.name).type if field.name in texts.schema.names else field.type
        if parsed == field.type or is_json(field) or is_text(field.type):
            continue
        column = texts.column(field.name).combine_chunks()
        read = next((read for test, read in _BY_VALUE if test(field.type)), None)
        if pa.types.is_struct(field.type) or is_list(field.type):
            column = _read_json(pc.utf8_trim_whitespace(column).to_pylist(), field, bad)
        elif read is not None:
            column = _each(pc.utf8_trim_whitespace(column).to_pylist(), field, read, bad)
        else:
            column = _convert(column, field, nulls, bad)
        index = texts.schema.get_field_index(field.name)
        texts = texts.set_column(index, pa.field(field.name, column.type), column)
    good = np.ones(texts.num_rows, np.bool_)
    if bad:
        good[list(bad)] = False
        texts = texts.filter(pa.array(good))
    conformed = conform_rows(texts, schema)
    left = np.flatnonzero(good)
    return conformed.rows, bad | {int(left[index]): error for index, error in conformed.bad.items()}


def _convert(texts: pa.Array, field: pa.Field, nulls: Sequence[str], bad: dict[int, LineError]) -> pa.Array:
    """Convert strings to a type that Arrow parses; `nulls` count also in quotes."""
    with contextlib.suppress(LineError):
        return conform_values(texts, field)  # mostly there is no white space around them
    texts = pc.ascii_trim_whitespace(texts)
    nothing = pa.scalar(None, texts.type)
    texts = pc.if_else(pc.is_in(texts, pa.array(nulls, texts.type)), nothing, texts)
    column, errors = conform_column(texts, field)
    for index, error in errors.items():
        bad.setdefault(index, error)
    return column


def _read_json(texts: Sequence[str | None], field: pa.Field, bad: dict[int, LineError]) -> pa.Array:
    """Read lists and structs, which are written as JSON."""
    name = json.dumps(field.name).encode()
    objects: dict[int, bytes] = {}
    for index, text in enumerate(texts):
        if text is None:
            continue
        try:
            json.loads(text)  # else `1, "x": 2` would become two members
        except (ValueError, RecursionError) as error:
            bad[index] = LineError(f"it is not JSON: {error}", path=(field.name,))
        else:
            objects[index] = b"{%b:%b}" % (name, text.encode())
    indices = list(objects)
    rows, wrong = JsonReader(pa.schema([field])).read(list(objects.values()))
    bad |= {indices[number]: error for number, error in wrong.items()}
    where = dict(zip((index for index in indices if index not in bad), range(len(indices)), strict=False))
    column = rows.column(0).combine_chunks()
    return column.take(pa.array([where.get(index) for index in range(len(texts))], pa.int64()))


def _each(
    texts: Sequence[str | None], field: pa.Field, read: Callable[[str], Any], bad: dict[int, LineError]
) -> pa.Array:
    values: list[Any] = []
    for index, text in enumerate(texts):
        try:
            values.append(None if text is None else read(text))
        except ValueError as error:
            values.append(None)
            bad[index] = LineError(str(error), path=(field.name,))
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
