"""Reads the annotations of a user's function as Arrow types, and converts values of these types.

bool, int (64 bits), float, str, bytes, datetime, date, time, timedelta, Decimal (38 digits, 10 of them after
the point), list[X], X | None; a NamedTuple, a dataclass or a TypedDict for a STRUCT; `Annotated[X,
arrow_type]` for any other Arrow type; and pyarrow's arrays, such as `pa.Int64Array`, for whole columns. Times
have the microseconds of Python.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

Convert: TypeAlias = Callable[[Any], Any]

_TYPES: Mapping[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.datetime: pa.timestamp("ns"),
    dt.date: pa.date32(),
    dt.time: pa.time64("ns"),
    dt.timedelta: pa.duration("ns"),
    Decimal: pa.decimal128(38, 10),
}
_ARRAYS: Mapping[Any, pa.DataType] = {
    pa.BooleanArray: pa.bool_(),
    pa.Int8Array: pa.int8(),
    pa.Int16Array: pa.int16(),
    pa.Int32Array: pa.int32(),
    pa.Int64Array: pa.int64(),
    pa.UInt8Array: pa.uint8(),
    pa.UInt16Array: pa.uint16(),
    pa.UInt32Array: pa.uint32(),
    pa.UInt64Array: pa.uint64(),
    pa.FloatArray: pa.float32(),
    pa.DoubleArray: pa.float64(),
    pa.StringArray: pa.string(),
    pa.BinaryArray: pa.binary(),
    pa.Date32Array: pa.date32(),
    pa.TimestampArray: pa.timestamp("ns"),
    pa.DurationArray: pa.duration("ns"),
}
TYPES_TEXT = (
    "bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, list[X], X | None, "
    "and a NamedTuple, dataclass or TypedDict of these"
)


@dataclass(frozen=True)
class Annotation:
    """An annotation as a type, whether it may be NULL, and the items of a list."""

    kind: pa.DataType
    nullable: bool = False
    items: Annotation | None = None
    load: Convert | None = None
    """Converts a value of Arrow to the one that the function takes; None if they are the same."""
    dump: Convert | None = None
    """Converts a result of the function to a value for Arrow; None if they are the same."""
    is_array: bool = False
    """Whether it stands for a whole column."""


def read_annotation(annotation: Any) -> Annotation | None:
    """The type of an annotation; None if there is no such type in SQL."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        members = [member for member in arguments if member is not types.NoneType]
        inner = read_annotation(members[0]) if len(members) == 1 else None
        return inner and replace(inner, nullable=True)
    if origin is typing.Annotated:
        return _annotated(arguments)
    if origin is list:
        return _list_of(read_annotation(arguments[0]))
    if not isinstance(annotation, type):
        return None
    if annotation in _ARRAYS:
        return Annotation(_ARRAYS[annotation], nullable=True, is_array=True)
    if annotation in _TYPES:
        return Annotation(_TYPES[annotation])
    return _struct(annotation)


def _annotated(arguments: Sequence[Any]) -> Annotation | None:
    declared = [annotation for annotation in arguments[1:] if isinstance(annotation, pa.DataType)]
    if not declared:
        return read_annotation(arguments[0])
    if isinstance(arguments[0], type) and issubclass(arguments[0], pa.Array):
        return Annotation(declared[0], nullable=True, is_array=True)
    return Annotation(declared[0], types.NoneType in typing.get_args(arguments[0]))


def _list_of(items: Annotation | None) -> Annotation | None:
    if items is None or items.is_array:
        return None
    return Annotation(
        pa.list_(items.kind), items=items, load=_for_each(items.load), dump=_for_each(items.dump)
    )


def _for_each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: None if values is None else [convert(value) for value in values]


def struct_fields(kind: type) -> Mapping[str, Any] | None:
    """The fields of a class that is a STRUCT, with their annotations; None if it is not one."""
    is_named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    if is_named_tuple or dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        return typing.get_type_hints(kind, include_extras=True)
    return None


def _struct(kind: type) -> Annotation | None:
    hints = struct_fields(kind)
    if not hints:
        return None
    fields = {name: read_annotation(hint) for name, hint in hints.items()}
    supported = {name: field for name, field in fields.items() if field is not None and not field.is_array}
    if len(supported) != len(fields):
        return None
    loads = {name: field.load for name, field in supported.items() if field.load is not None}
    dumps = {name: field.dump for name, field in supported.items() if field.dump is not None}

    def load(value: Any) -> Any:
        if value is None:
            return None
        if loads:
            value = {name: loads[name](item) if name in loads else item for name, item in value.items()}
        return value if typing.is_typeddict(kind) else kind(**value)

    def dump(value: Any) -> Any:
        if value is None:
            return None
        items = value if isinstance(value, dict) else {name: getattr(value, name) for name in supported}
        return {name: dumps[name](item) if name in dumps else item for name, item in items.items()}

    plain = typing.is_typeddict(kind)
    return Annotation(
        pa.struct([(name, field.kind) for name, field in supported.items()]),
        load=None if plain and not loads else load,
        dump=None if plain and not dumps else dump,
    )


def python_type(kind: pa.DataType) -> pa.DataType:
    """The type with the precision of Python's values: microseconds, not nanoseconds."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_struct(kind):
        return pa.struct([(kind.field(i).name, python_type(kind.field(i).type)) for i in range(len(kind))])
    return pa.list_(python_type(kind.value_type)) if pa.types.is_list(kind) else kind


def to_python(column: pa.Array, load: Convert | None = None) -> list[Any]:
    """The values of a column as a function takes them."""
    kind = python_type(column.type)
    if kind != column.type:
        column = column.cast(kind, safe=False)
    values: list[Any] = column.to_pylist()
    return values if load is None else [load(value) for value in values]
