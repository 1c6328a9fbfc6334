"""Convert columns with the types of a message schema to the columns that a table declares."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import ConfigurationError, suggest
from headrace.formats._shared.refused import convert_accepted
from headrace.formats.base import (
    LineError,
    Path,
    is_binary,
    is_json,
    is_list,
    is_text,
    missing_value,
    plain_field,
)
from headrace.formats.json.write import PLAIN, encode_values

Test = Callable[[pa.DataType], bool]
_NUMBERS: Sequence[Test] = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
_TIMES: Sequence[Test] = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_time, pa.types.is_duration)
_FITS: Sequence[tuple[Test, Sequence[Test]]] = (
    (is_text, (is_text, is_binary, pa.types.is_boolean, *_NUMBERS, *_TIMES[:3])),
    (is_binary, (is_text, is_binary)),
    (pa.types.is_integer, (*_NUMBERS, *_TIMES)),
    (pa.types.is_floating, _NUMBERS),
    (pa.types.is_decimal, (is_text, *_NUMBERS)),
    (pa.types.is_boolean, (pa.types.is_boolean,)),
    (pa.types.is_timestamp, (pa.types.is_timestamp, pa.types.is_date)),
    (pa.types.is_date, (is_text, pa.types.is_timestamp, pa.types.is_date)),
    (pa.types.is_time, (is_text, pa.types.is_time)),
    (pa.types.is_duration, (pa.types.is_duration, pa.types.is_integer)),
    (pa.types.is_interval, (pa.types.is_interval,)),
)
"""Which types a type can be converted to. A number in a time column counts in the unit of the column."""


_NOTHING = pa.field("", pa.null())
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_NAMES = {"s": "second", "ms": "millisecond", "us": "microsecond"}


@dataclass(frozen=True)
class ConformedRows:
    """The rows that fit, and the errors of the others by index."""

    rows: pa.Table
    bad: dict[int, LineError] = field(default_factory=dict)


def check_columns(columns: pa.Schema, target: pa.Schema, *, writing: bool = False) -> None:
    """Raise a ConfigurationError unless columns can be converted to the target columns.

    The target is a table, or, for `writing`, the schema of the messages.
    """
    try:
        _check_members(list(columns), list(target), ())
    except _MismatchError as error:
        name, have, want = error.args
        if writing:
            raise ConfigurationError(
                f"column `{name}` is {have}, and {want} in the schema of the messages",
                hint="cast it to that type",
            ) from None
        raise ConfigurationError(
            f"column `{name}` is {have} in the schema of the messages, and is declared as {want}",
            hint="declare it with the type it has there, or as JSON",
        ) from None


class _MismatchError(Exception):
    """A column, its type, and the type that it should have."""


def conform_rows(rows: pa.Table, target: pa.Schema) -> ConformedRows:
    """Convert rows to the target columns, by name; missing ones are null. Call `check_columns` first."""
    schema = pa.schema([plain_field(column) for column in target])
    if not len(schema):
        return ConformedRows(rows.select([]))
    sources = [_source(rows, want) for want in target]
    columns: list[pa.Array] = []
    unfit: list[int] = []
    bad: dict[int, LineError] = {}
    for index, ((have, column), want) in enumerate(zip(sources, target, strict=True)):
        try:
            columns.append(_fit(column, have, want, (want.name,)))
            continue
        except LineError:
            pass
        if pa.types.is_nested(column.type) or is_json(want):
            bad = _refused(column, have, want, (want.name,)) | bad
            unfit.append(index)
            columns.append(column)
        else:
            converted, errors = _convert(column, have, want, (want.name,))
            bad = errors | bad
            columns.append(converted)
    if bad:
        good = np.ones(rows.num_rows, np.bool_)
        good[list(bad)] = False
        columns = [column.filter(pa.array(good)) for column in columns]
        for index in unfit:
            want = target.field(index)
            columns[index] = _fit(columns[index], sources[index][0], want, (want.name,))
    return ConformedRows(pa.table(columns, schema=schema), bad)


def conform_values(column: pa.Array, target: pa.Field) -> pa.Array:
    """Convert values to the type of a target column; raises a LineError unless all fit or are null."""
    return _fit(column, pa.field(target.name, column.type), target.with_nullable(True), (target.name,))


def conform_column(column: pa.Array, target: pa.Field) -> tuple[pa.Array, dict[int, LineError]]:
    """Convert values to the type of a target column; those that do not fit are null, with an error."""
    return _convert(column, pa.field(target.name, column.type), target.with_nullable(True), (target.name,))


def _convert(
    column: pa.Array, have: pa.Field, want: pa.Field, path: Path
) -> tuple[pa.Array, dict[int, LineError]]:
    missing: dict[int, LineError] = {}
    if column.null_count and not want.nullable:
        nulls = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        missing = dict.fromkeys(nulls.tolist(), missing_value(path))
    convert = functools.partial(_fit, have=have, want=want.with_nullable(True), path=path)
    converted, errors = convert_accepted(column, convert)
    return converted, {**missing, **errors}  # type: ignore[dict-item]


def _source(rows: pa.Table, want: pa.Field) -> tuple[pa.Field, pa.Array]:
    """Return the field and the values of a target column; nulls if the rows do not have it."""
    if want.name not in rows.schema.names:
        return _NOTHING, pa.nulls(rows.num_rows)
    return rows.schema.field(want.name), rows.column(want.name).combine_chunks()


def _refused(column: pa.Array, have: pa.Field, want: pa.Field, path: Path) -> dict[int, LineError]:
    """Return the error of each row that does not fit, by index."""
    refused: dict[int, LineError] = {}
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if not want.nullable:
        refused = dict.fromkeys(np.flatnonzero(~valid).tolist(), missing_value(path))
    plain = plain_field(want).type
    if is_json(want) or pa.types.is_null(column.type):
        return refused
    if pa.types.is_struct(plain) and pa.types.is_struct(column.type):
        members = dict(zip((field.name for field in have.type), column.flatten(), strict=True))
        for target in want.type:
            field = have.type.field(target.name) if target.name in members else _NOTHING
            values = members.get(target.name, pa.nulls(len(column)))
            errors = _refused(values, field, target, (*path, target.name))
            refused = {index: error for index, error in errors.items() if valid[index]} | refused
        return refused
    if is_list(plain) or pa.types.is_map(plain):
        return _refused_items(column, have, want, path) | refused
    return _convert(column, have, want, path)[1]


def _refused_items(column: pa.Array, have: pa.Field, want: pa.Field, path: Path) -> dict[int, LineError]:
    column, item = _as_list(column, have.type)
    values = column.flatten()
    parents = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
    if is_list(want.type):
        errors = _refused(values, item, want.type.value_field, path)
    else:
        keys, items = values.flatten()
        errors = _refused(items, have.type.item_field, want.type.item_field, path) | _refused(
            keys, have.type.key_field, want.type.key_field, path
        )
    refused: dict[int, LineError] = {}
    for index in sorted(errors):
        refused.setdefault(int(parents[index]), errors[index])
    return refused


def _check_members(fields: Sequence[pa.Field], target: Sequence[pa.Field], path: Path) -> None:
    by_name = {column.name: column for column in fields}
    for column in target:
        below = (*path, column.name)
        if column.name in by_name:
            _check(by_name[column.name], column, below)
        elif not column.nullable:
            raise ConfigurationError(
                f"column `{'.'.join(below)}` is NOT NULL, and the schema of the messages does not have it",
                hint=suggest(column.name, by_name, listing="the schema has") or "the schema has no fields",
            )


def _check(source: pa.Field, target: pa.Field, path: Path) -> None:
    have, want = _plain_type(source.type), target.type
    if is_json(target) or have == want or pa.types.is_null(have):
        return
    if pa.types.is_struct(have) and pa.types.is_struct(want):
        _check_members(list(have), list(want), path)
    elif is_list(have) and is_list(want):
        _check(have.value_field, want.value_field, path)
    elif pa.types.is_map(have) and pa.types.is_map(want):
        _check(have.key_field, want.key_field, path)
        _check(have.item_field, want.item_field, path)
    elif pa.types.is_map(have) and is_list(want) and pa.types.is_struct(want.value_type):
        _check_members([have.key_field, have.item_field], list(want.value_type), path)
    elif not any(is_have(have) and any(fits(want) for fits in fitting) for is_have, fitting in _FITS):
        raise _MismatchError(".".join(path), have, want)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _fit(column: pa.Array, have: pa.Field, want: pa.Field, path: Path) -> pa.Array:
    if column.null_count and not want.nullable:
        raise missing_value(path)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_json(want) and is_text(column.type):
        return column.cast(pa.string())  # JSON is written as a text where there is no type for it
    if is_json(want):
        texts = encode_values(column, have, PLAIN).cast(pa.string())
        return pc.if_else(column.is_valid(), texts, None) if column.null_count else texts
    plain = plain_field(want).type
    if column.type == want.type == plain and not _has_struct(plain):
        return column
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), plain)
    if pa.types.is_struct(plain):
        return _fit_struct(column, list(have.type), list(want.type), path)
    if is_list(plain) or pa.types.is_map(plain):
        return _fit_list(column, have.type, want.type, path).cast(plain)
    return _cast(column, plain, path)


def _has_struct(kind: pa.DataType) -> bool:
    """Whether a type contains structs: the members of a null struct are undefined, and become null."""
    return any(
        pa.types.is_struct(kind) or _has_struct(kind.field(index).type) for index in range(kind.num_fields)
    )


def _fit_struct(column: pa.Array, have: list[pa.Field], want: list[pa.Field], path: Path) -> pa.Array:
    members = {field.name: (field, values) for field, values in zip(have, column.flatten(), strict=True)}
    children, valid = [], column.is_valid()
    for target in want:
        (field, values), below = (
            members.get(target.name, (_NOTHING, pa.nulls(len(column)))),
            (*path, target.name),
        )
        if column.null_count and not target.nullable:
            # Below a null struct nothing is missing: only rows that have one are looked at.
            _fit(values.filter(valid), field, target, below)
        children.append(
            _fit(values, field, target.with_nullable(target.nullable or bool(column.null_count)), below)
        )
    if not children:
        return column.cast(pa.struct([]))
    fields = [plain_field(target) for target in want]
    return pa.StructArray.from_arrays(children, fields=fields, mask=column.is_null())


def _fit_list(column: pa.Array, have: pa.DataType, want: pa.DataType, path: Path) -> pa.Array:
    column, item = _as_list(column, have)
    values, offsets, missing = column.flatten(), _offsets(column), column.is_null()
    if is_list(want):
        return pa.ListArray.from_arrays(offsets, _fit(values, item, want.value_field, path), mask=missing)
    keys, items = values.flatten()
    keys = _fit(keys, have.key_field, want.key_field, path)
    items = _fit(items, have.item_field, want.item_field, path)
    return pa.MapArray.from_arrays(offsets, keys, items, mask=missing)


def _as_list(column: pa.Array, have: pa.DataType) -> tuple[pa.Array, pa.Field]:
    """Return lists, also of the entries of maps, and the field of their items."""
    if not pa.types.is_map(have):
        return column, have.value_field
    entry = pa.struct([have.key_field.with_name("key"), have.item_field.with_name("value")])
    return column.cast(pa.list_(entry)), pa.field("item", entry)


def _offsets(lists: pa.Array) -> pa.Array:
    """Return the offset of each list in the values of `flatten`."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int32())
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def _cast(column: pa.Array, want: pa.DataType, path: Path) -> pa.Array:
    have = column.type
    try:
        if pa.types.is_timestamp(have) and pa.types.is_timestamp(want):
            # All are instants in UTC; digits that the column does not have are cut off.
            instants = column.cast(pa.int64()).cast(pa.timestamp(have.unit))
            if _DIGITS[want.unit] < _DIGITS[have.unit]:
                instants = pc.floor_temporal(instants, unit=_NAMES[want.unit])
            return instants.cast(want)
        if pa.types.is_time(want) and is_text(have):
            clock = pc.binary_join_element_wise("1970-01-01T", column.cast(pa.string()), "")
            return (
                clock.cast(pa.timestamp("ns")).cast(pa.int64()).cast(pa.time64("ns")).cast(want, safe=False)
            )
        if pa.types.is_time(have) and pa.types.is_time(want):
            return column.cast(want, safe=False)
        if is_text(have) and pa.types.is_timestamp(want):
            return read_instants(column, want)
        if pa.types.is_integer(have) and pa.types.is_temporal(want):
            column = column.cast(pa.int32() if want.bit_width == 32 else pa.int64())
        return column.cast(want)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        message = f"{str(column[0].as_py())[:60]!r} is not a value of type {want}" if len(column) == 1 else ""
        raise LineError(message or str(error), path=path) from None


_ZONE = r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"


def read_instants(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse ISO 8601 strings as timestamps; without a zone they are UTC."""
    zoned = pa.timestamp(kind.unit, "UTC")
    with _other_zone():
        return texts.cast(kind)
    with _other_zone():
        return texts.cast(zoned).cast(kind)
    has_zone = pc.match_substring_regex(texts, _ZONE)
    local = pc.if_else(has_zone, None, texts).cast(kind)
    return pc.coalesce(pc.if_else(has_zone, texts, None).cast(zoned).cast(kind), local)


@contextlib.contextmanager
def _other_zone() -> Iterator[None]:
    """Suppress the error for a time with a zone where none is expected, or without one."""
    try:
        yield
    except pa.ArrowInvalid as error:
        if "zone offset" not in str(error):
            raise
