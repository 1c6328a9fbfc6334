"""Write Avro records by column: encode each member, then join the bytes of each row."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import ConfigurationError, PlanError
from headrace.formats._shared.conform import check_columns, conform_rows
from headrace.formats._shared.wire import (
    BYTES,
    bytes_array,
    join,
    join_lists,
    offsets_of,
    sized,
    varints,
    with_lengths,
    zigzag,
    zigzags,
)
from headrace.formats.avro.schema import AvroType, arrow_schema
from headrace.formats.base import Path


def check_writable(node: AvroType, columns: pa.Schema) -> None:
    """Raise a ConfigurationError unless these columns can be written as records of the type."""
    if node.kind != "record":
        raise ConfigurationError("rows are written as records: the Avro schema is of another type")
    check_columns(columns, arrow_schema(node), writing=True)
    _check(node, ())


def _check(node: AvroType, path: Path) -> None:
    if node.kind == "ref" or (node.kind == "union" and node.optional is None):
        raise ConfigurationError(
            f"member `{'.'.join(path)}` of the Avro schema cannot be written from a column",
            hint="a union has null and one other type, and no type is inside itself",
        )
    for name, member in node.fields:
        _check(member, path if node.kind == "union" else (*path, name))
    if node.item is not None:
        _check(node.item, path)


def encode_records(node: AvroType, rows: pa.Table) -> pa.Array:
    """Encode each row as a record of the type. Call `check_writable` first."""
    conformed = conform_rows(rows, arrow_schema(node))
    for index, error in conformed.bad.items():
        column = f"column `{error.column}`: " if error.column else ""
        raise PlanError(f"row {index} cannot be written as Avro, {column}{error.reason}")
    columns = [column.combine_chunks() for column in conformed.rows.columns]
    return _members(node, columns, rows.num_rows, ())


def _members(node: AvroType, columns: Sequence[pa.Array], count: int, path: Path) -> pa.Array:
    parts = [
        _encode(member, column, (*path, name))
        for (name, member), column in zip(node.fields, columns, strict=True)
    ]
    return join(*parts) if parts else pa.repeat(pa.scalar(b"", BYTES), count)


def _encode(node: AvroType, column: pa.Array, path: Path) -> pa.Array:
    optional = node.optional
    if optional is not None:
        branches = [branch.kind for _, branch in node.fields]
        null = branches.index("null")
        value = pa.scalar(zigzag(1 - null), BYTES)
        if not column.null_count:
            return join(value, _encode(optional, column, path))
        # The bytes of values that are not there are made of something, and not taken.
        present = column.is_valid()
        encoded = _encode(optional, column.filter(present), path)
        return pc.replace_with_mask(
            pa.repeat(pa.scalar(zigzag(null), BYTES), len(column)), present, join(value, encoded)
        )
    if column.null_count and node.kind != "null":
        raise PlanError(
            f"column `{'.'.join(path)}` has a null, and the Avro schema has no null there",
            hint='let the type be `["null", …]`, or leave out such rows',
        )
    if node.kind == "record":
        return _members(node, column.flatten(), len(column), path)
    if node.kind in ("array", "map"):
        return _encode_items(node, column, path)
    if node.kind == "enum":
        return _encode_enum(node, column, path)
    return _LEAVES[node.kind](node, column)


def _encode_items(node: AvroType, column: pa.Array, path: Path) -> pa.Array:
    assert node.item is not None
    if node.kind == "array":
        items = _encode(node.item, column.flatten(), path)
    else:
        entry = pa.struct([pa.field("key", pa.string()), pa.field("value", column.type.item_type)])
        column = column.cast(pa.list_(entry))
        keys, values = column.flatten().flatten()
        items = join(_encode(AvroType("string"), keys, path), _encode(node.item, values, path))
    counts = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    listed = join(varints(zigzags(counts)), join_lists(column, items), b"\0")
    return pc.if_else(pa.array(counts > 0), listed, pa.scalar(b"\0", BYTES))


def _encode_enum(node: AvroType, column: pa.Array, path: Path) -> pa.Array:
    index = pc.index_in(column, pa.array(node.symbols, pa.string()))
    if index.null_count:
        value = column.filter(index.is_null())[0].as_py()
        raise PlanError(
            f"column `{'.'.join(path)}` has the value `{value}`, which the enum `{node.name}` does not have",
            hint=f"the symbols are {', '.join(node.symbols)}",
        )
    return _integers(node, index)


def _integers(_: AvroType, column: pa.Array) -> pa.Array:
    numbers = column.cast(pa.int32()) if column.type.bit_width == 32 else column
    return varints(zigzags(numbers.cast(pa.int64()).to_numpy(zero_copy_only=False)))


def _floats(node: AvroType, column: pa.Array) -> pa.Array:
    numbers = column.to_numpy(zero_copy_only=False)
    return sized(numbers.astype("<f4" if node.kind == "float" else "<f8"), 4 if node.kind == "float" else 8)


def _bytes(node: AvroType, column: pa.Array) -> pa.Array:
    values = _decimals(column, None) if node.logical == "decimal" else column.cast(BYTES)
    return with_lengths(values, signed=True)


def _fixed(node: AvroType, column: pa.Array) -> pa.Array:
    if node.logical == "decimal":
        return _decimals(column, node.size)
    if node.logical == "uuid":
        return pa.array([uuid.UUID(text).bytes for text in column.to_pylist()], BYTES)
    if node.logical == "duration":
        parts = np.array([tuple(value) for value in column.to_pylist()], np.int64).reshape(-1, 3)
        parts[:, 2] //= 10**6
        return sized(parts.astype("<u4"), 12)
    return column.cast(pa.binary()).cast(BYTES)


def _decimals(column: pa.Array, size: int | None) -> pa.Array:
    """Encode unscaled decimals big-endian, in `size` bytes or as few as possible."""
    width = column.type.bit_width // 8
    data = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, width)
    numbers = data[column.offset : column.offset + len(column), ::-1]
    sign = np.where(numbers[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
    # A leading byte can go if it repeats the sign, and the sign can still be seen in the next one.
    spare = (numbers[:, :-1] == sign) & ((numbers[:, 1:] >= 0x80) == (sign == 0xFF))
    first = np.argmin(np.append(spare, np.zeros((len(numbers), 1), bool), axis=1), axis=1)
    if size is None:
        significant = np.arange(width) >= first[:, None]
        return bytes_array(numbers[significant], offsets_of(width - first))
    if size >= width:
        return sized(np.append(np.repeat(sign, size - width, axis=1), numbers, axis=1), size)
    if len(numbers) and int(first.min()) < width - size:
        raise PlanError(f"a decimal does not fit into the {size} bytes that the Avro schema has for it")
    return sized(numbers[:, width - size :], size)


_LEAVES: Mapping[str, Callable[[AvroType, pa.Array], pa.Array]] = {
    "null": lambda _, column: pa.repeat(pa.scalar(b"", BYTES), len(column)),
    "boolean": lambda _, column: sized(column.to_numpy(zero_copy_only=False).astype(np.uint8), 1),
    "int": _integers,
    "long": _integers,
    "float": _floats,
    "double": _floats,
    "bytes": _bytes,
    "string": _bytes,
    "fixed": _fixed,
}
