"""Convert columns with the types of a message schema to the columns that a table declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import ConfigurationError, suggest
from headrace.formats.base import LineError, Path, is_binary, is_json, is_list, is_text, plain_field
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
    try:
        return ConformedRows(_conform(rows, target, schema))
    except LineError as error:
        if rows.num_rows == 1:
            return ConformedRows(schema.empty_table(), {0: error})
    # Some rows do not fit: the halves tell which.
    half = rows.num_rows // 2
    first, second = conform_rows(rows.slice(0, half), target), conform_rows(rows.slice(half), target)
    bad = first.bad | {half + index: error for index, error in second.bad.items()}
    return ConformedRows(pa.concat_tables([first.rows, second.rows]), bad)


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


def _conform(rows: pa.Table, target: pa.Schema, schema: pa.Schema) -> pa.Table:
    columns = []
    for want in target:
        have, column = _NOTHING, pa.nulls(rows.num_rows)
        if want.name in rows.schema.names:
            have, column = rows.schema.field(want.name), rows.column(want.name).combine_chunks()
        columns.append(_fit(column, have, want, (want.name,)))
    return pa.table(columns, schema=schema) if columns else rows.select([])


def _fit(column: pa.Array, have: pa.Field, want: pa.Field, path: Path) -> pa.Array:
    if column.null_count and not want.nullable:
        raise LineError("the value is missing, and the column is NOT NULL", path=path)
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
    if pa.types.is_map(have):
        entry = pa.struct([have.key_field.with_name("key"), have.item_field.with_name("value")])
        column, item = column.cast(pa.list_(entry)), pa.field("item", entry)
    else:
        item = have.value_field
    values, offsets, missing = column.flatten(), _offsets(column), column.is_null()
    if is_list(want):
        return pa.ListArray.from_arrays(offsets, _fit(values, item, want.value_field, path), mask=missing)
    keys, items = values.flatten()
    keys = _fit(keys, have.key_field, want.key_field, path)
    items = _fit(items, have.item_field, want.item_field, path)
    return pa.MapArray.from_arrays(offsets, keys, items, mask=missing)


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


def read_instants(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse ISO 8601 strings as timestamps; without a zone they are UTC."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        # An error for each text is slow: the first tells whether they have a zone.
        texts.drop_null()[:1].cast(pa.timestamp(kind.unit, "UTC"))
        return texts.cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
