"""Intervals as bytes: Arrow neither compares them nor writes them to Parquet."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

INTERVAL: Final = pa.month_day_nano_interval()
_BYTES: Final = pa.binary(16)


def packed_type(kind: pa.DataType) -> pa.DataType:
    """The type with bytes in the place of intervals, also of those inside lists and structs."""
    if kind == INTERVAL:
        return _BYTES
    if pa.types.is_struct(kind):
        return pa.struct([kind.field(i).with_type(packed_type(kind.field(i).type)) for i in range(len(kind))])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(packed_type(kind.value_type)))
    return kind


def packed_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with bytes in the place of intervals."""
    return pa.schema([field.with_type(packed_type(field.type)) for field in schema], schema.metadata)


def with_types(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows with the types of `schema`, which has bytes for intervals, or intervals for bytes."""
    columns = [as_type(column, field.type) for column, field in zip(rows.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array as `kind`, which is its type but for intervals as bytes, or bytes as intervals.

    >>> as_type(as_type(pa.array([pa.MonthDayNano([1, 2, 3]), None]), pa.binary(16)), INTERVAL).to_pylist()
    [MonthDayNano(months=1, days=2, nanoseconds=3), None]
    """
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        children = [as_type(array.field(i), field.type) for i, field in enumerate(fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if pa.types.is_list(kind):
        whole = pa.concat_arrays([array]) if array.offset == 0 else array.take(pa.array(range(len(array))))
        values = as_type(whole.values, kind.value_type)
        return pa.Array.from_buffers(kind, len(whole), whole.buffers()[:2], children=[values])
    return pa.Array.from_buffers(kind, len(array), array.buffers(), offset=array.offset)
