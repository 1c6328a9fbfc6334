"""Finds values that a database would refuse, in the tasks of a sink, before they are staged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.base import Refusal, excerpt
from headrace.formats.base import is_json

NUL = "\0"
_ESCAPED_NUL = "\\u0000"
_DAY_SECONDS = 24 * 3600
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6}
_LAST_INT64 = 2**63 - 1
FIRST_DAY = (date(1, 1, 1) - date(1970, 1, 1)).days
"""The first day of the year 1, counted from 1970."""
LAST_DAY = (date(9999, 12, 31) - date(1970, 1, 1)).days
"""The last day that Python has."""


def nul_refusals(rows: pa.RecordBatch, fields: pa.Schema) -> Iterator[Refusal]:
    """Yield a refusal for each column with a NUL character in a string, at any depth."""
    for name in rows.schema.names:
        column, index = _plain(rows.column(name)), fields.get_field_index(name)
        in_json = index >= 0 and is_json(fields.field(index))
        if not any(_has_nul(texts, in_json=in_json) for texts in _texts(column)):
            continue
        yield Refusal(
            pa.array([_holds_nul(value, in_json=in_json) for value in column.to_pylist()], pa.bool_()),
            lambda _, name=name: f"column `{name}` holds a string with a NUL character",  # type: ignore[misc]
            hint=f"leave it out: replace({name}, chr(0), '')",
        )


def _has_nul(texts: pa.Array, *, in_json: bool) -> bool:
    patterns = (NUL, _ESCAPED_NUL) if in_json else (NUL,)
    return any(
        pc.any(pc.match_substring(texts, pattern), min_count=0).as_py() is True for pattern in patterns
    )


def _plain(column: pa.Array) -> pa.Array:
    if isinstance(column.type, pa.BaseExtensionType):
        return _plain(column.storage)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _texts(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the string arrays of a column, nested ones too."""
    column = _plain(column)
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield column
    elif pa.types.is_string_view(kind):
        yield column.cast(pa.large_string())
    elif pa.types.is_struct(kind):
        for child in column.flatten():
            yield from _texts(child)
    elif pa.types.is_map(kind):
        yield from _texts(column.keys)
        yield from _texts(column.items)
    elif pa.types.is_nested(kind):
        yield from _texts(column.flatten())


def _holds_nul(value: Any, *, in_json: bool) -> bool:
    if isinstance(value, str):
        if NUL in value or not in_json or _ESCAPED_NUL not in value:
            return NUL in value
        try:
            return _holds_nul(json.loads(value), in_json=False)
        except ValueError:
            return False
    if isinstance(value, dict):
        return any(_holds_nul(part, in_json=in_json) for pair in value.items() for part in pair)
    return isinstance(value, list | tuple) and any(_holds_nul(part, in_json=in_json) for part in value)


def day_refusals(
    rows: pa.RecordBatch, first_day: int, last_day: int, *, of: str = "the database"
) -> Iterator[Refusal]:
    """Yield a refusal for each column with dates or times outside of these days, counted from 1970.

    `of` is what does not have them. Fields of structs are columns too.
    """
    for name, column in _columns(zip(rows.schema.names, rows.columns, strict=True)):
        kind = column.type
        if pa.types.is_timestamp(kind) and kind.unit != "ns":  # nanoseconds reach from 1677 to 2262
            unit = _DAY_SECONDS * _PER_SECOND[kind.unit]
            numbers = column.cast(pa.int64())
        elif pa.types.is_date(kind):
            unit = 1 if pa.types.is_date32(kind) else _DAY_SECONDS * _PER_SECOND["ms"]
            numbers = column.cast(pa.int32()).cast(pa.int64()) if unit == 1 else column.cast(pa.int64())
        else:
            continue
        first, end = max(first_day * unit, -_LAST_INT64), min((last_day + 1) * unit, _LAST_INT64)
        yield Refusal(
            pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, end)),
            lambda row, name=name, numbers=numbers, kind=kind: (  # type: ignore[misc]
                f"column `{name}` holds a time that {of} does not have: "
                f"{excerpt(numbers[row].as_py())} as {kind}"
            ),
            hint="leave such rows out, or replace the value",
        )


def _columns(columns: Iterable[tuple[str, pa.Array]]) -> Iterator[tuple[str, pa.Array]]:
    """Yield columns, and in place of a struct its fields."""
    for name, column in columns:
        if pa.types.is_struct(column.type):
            names = [f"{name}.{field.name}" for field in column.type]
            yield from _columns(zip(names, column.flatten(), strict=True))
        else:
            yield name, column


def not_finite_refusals(rows: pa.RecordBatch, *, infinity: bool) -> Iterator[Refusal]:
    """Yield a refusal for each column with NaN, or, unless the database has it, infinity."""
    for name in rows.schema.names:
        column = _plain(rows.column(name))
        if not pa.types.is_floating(column.type):
            continue
        yield Refusal(
            pc.is_nan(column) if infinity else pc.invert(pc.is_finite(column)),
            lambda row, name=name, column=column: (  # type: ignore[misc]
                f"column `{name}` holds {column[row].as_py()}, which the database does not have"
            ),
            hint="leave such rows out, or replace the value",
        )
