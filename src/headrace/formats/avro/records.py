"""Read Avro one record at a time: for error messages, and for types that cannot be read by column."""

from __future__ import annotations

import base64
import json
import math
import struct
import uuid
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import MonthDayNano

from headrace.formats._shared.wire import read_varint
from headrace.formats.avro.schema import BRANCHES, LOGICAL, AvroType
from headrace.formats.base import LineError
from headrace.formats.intervals import format_interval
from headrace.formats.json.write import encode_json_values

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""A function that reads the value at an offset, and returns it and the next offset."""

_EXACT = Context(prec=100)
_LARGEST = {"int": 31, "long": 63}


def read_record_of(node: AvroType) -> Callable[[bytes], Any]:
    """Return a reader of a complete message, which raises a LineError with the member that is bad.

    Values are such as Arrow converts to columns; types without an Arrow type become JSON.
    """
    read = _Readers().make(node)

    def read_message(data: bytes) -> Any:
        try:
            value, end = read(data, 0)
        except RecursionError:
            raise LineError("the record is nested too deeply") from None
        if end != len(data):
            raise LineError(f"{len(data) - end} bytes are left after the record")
        return value

    return read_message


class _Readers:
    """Creates readers; those for JSON return JSON values, not yet encoded."""

    def __init__(self) -> None:
        self._nodes: dict[str, AvroType] = {}
        self._named: dict[str, Read] = {}

    def make(self, node: AvroType, *, for_json: bool = False) -> Read:
        if node.logical == BRANCHES and not for_json:
            return self._branches(node)
        if node.kind == "ref" or (node.kind == "union" and node.optional is None):
            read = self._again(node) if node.kind == "ref" else self._union(node, for_json=True)
            return read if for_json else _dumped(read)
        makers = {"record": self._record, "union": self._union, "array": self._array, "map": self._map}
        if node.kind in makers:
            return makers[node.kind](node, for_json=for_json)
        return _json_leaf(node) if for_json else _leaf(node)

    def _again(self, node: AvroType) -> Read:
        """Return a reader of a recursive type, which is created when it is needed."""

        def read(data: bytes, at: int) -> tuple[Any, int]:
            if node.name not in self._named:
                self._named[node.name] = self.make(self._nodes[node.name], for_json=True)
            return self._named[node.name](data, at)

        return read

    def _record(self, node: AvroType, *, for_json: bool) -> Read:
        self._nodes[node.name] = node
        members = [(name, self.make(member, for_json=for_json)) for name, member in node.fields]

        def read(data: bytes, at: int) -> tuple[Any, int]:
            values = {}
            for name, member in members:
                try:
                    values[name], at = member(data, at)
                except LineError as error:
                    raise error.under((name, *error.path)) from None
            return values, at

        return read

    def _union(self, node: AvroType, *, for_json: bool) -> Read:
        return _chosen([self.make(branch, for_json=for_json) for _, branch in node.fields])

    def _branches(self, node: AvroType) -> Read:
        """Return a reader of a union as a struct, with the value in the member of the written type."""

        def member(name: str, branch: AvroType) -> Read:
            read = self.make(branch)
            if branch.kind == "null":
                return read

            def read_member(data: bytes, at: int) -> tuple[Any, int]:
                value, at = read(data, at)
                return {name: value}, at

            return read_member

        return _chosen([member(name, branch) for name, branch in node.fields])

    def _array(self, node: AvroType, *, for_json: bool) -> Read:
        assert node.item is not None
        return _items(self.make(node.item, for_json=for_json))

    def _map(self, node: AvroType, *, for_json: bool) -> Read:
        assert node.item is not None
        key, item = _leaf(AvroType("string")), self.make(node.item, for_json=for_json)

        def entry(data: bytes, at: int) -> tuple[Any, int]:
            name, at = key(data, at)
            value, at = item(data, at)
            return (name, value), at

        entries = _items(entry)

        def read(data: bytes, at: int) -> tuple[Any, int]:
            values, at = entries(data, at)
            return dict(values) if for_json else values, at

        return read


def _chosen(branches: Sequence[Read]) -> Read:
    """Return a reader of a branch number and the value of that branch."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        branch, at = read_long(data, at)
        if not 0 <= branch < len(branches):
            raise LineError(f"a union of {len(branches)} types has no type {branch}")
        return branches[branch](data, at)

    return read


def _dumped(read: Read) -> Read:
    def text(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read(data, at)
        return None if value is None else json.dumps(value, separators=(",", ":"), ensure_ascii=False), at

    return text


def _items(item: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        while True:
            count, at = _count(data, at)
            if not count:
                return values, at
            for _ in range(count):
                value, at = item(data, at)
                values.append(value)

    return read


def _count(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of items of a block; a negative one is followed by its size."""
    count, at = read_long(data, at)
    if count < 0:
        count = -count
        _, at = read_long(data, at)
    # An item takes a byte at least, but for types without content: a number that is far off is a mistake.
    if count > max(len(data) - at, 0) + 1_000_000:
        raise LineError(f"{count} items do not fit into the {len(data) - at} bytes that are left")
    return count, at


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at an offset, and the next offset."""
    value, at = read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the length-prefixed bytes at an offset, and the next offset."""
    size, at = read_long(data, at)
    return _take(data, at, size)


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size < 0 or at + size > len(data):
        raise LineError(f"{size} bytes do not fit into the {len(data) - at} that are left")
    return data[at : at + size], at + size


def _enum(node: AvroType) -> Read:
    symbols = node.symbols

    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = read_long(data, at)
        if not 0 <= index < len(symbols):
            raise LineError(f"an enum of {len(symbols)} symbols has no symbol {index}")
        return symbols[index], at

    return read


def _fixed(node: AvroType) -> Read:
    meaning = _meaning(node)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        value, at = _take(data, at, node.size)
        return meaning(value), at

    return read


def _meaning(node: AvroType) -> Callable[[bytes], Any]:
    if node.logical == "decimal":

        def number(value: bytes) -> Decimal:
            return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-node.scale, _EXACT)

        return number
    if node.logical == "duration":
        # Months, days and milliseconds.
        return lambda value: tuple(
            map(math.prod, zip(struct.unpack("<3I", value), (1, 1, 10**6), strict=True))
        )
    return (lambda value: str(uuid.UUID(bytes=value))) if node.logical == "uuid" else bytes


def _json_leaf(node: AvroType) -> Read:
    leaf = _leaf(node)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        value, at = leaf(data, at)
        return _json_value(value, node), at

    return read


def _json_value(value: Any, node: AvroType) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, tuple):
        return format_interval(MonthDayNano(value))
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if node.logical in LOGICAL:
        kind = LOGICAL[node.logical][1]
        return json.loads(encode_json_values(pa.array([value], kind))[0].as_py())
    return value


def _leaf(node: AvroType) -> Read:
    if node.kind in ("enum", "fixed"):
        return _enum(node) if node.kind == "enum" else _fixed(node)
    if node.kind == "null":
        return lambda _, at: (None, at)
    if node.kind in ("int", "long"):
        return _integer(node)
    if node.kind in ("float", "double"):
        size, form = (4, "<f") if node.kind == "float" else (8, "<d")

        def real(data: bytes, at: int) -> tuple[Any, int]:
            value, at = _take(data, at, size)
            return struct.unpack(form, value)[0], at

        return real
    if node.kind == "boolean":

        def truth(data: bytes, at: int) -> tuple[Any, int]:
            value, at = _take(data, at, 1)
            return value != b"\0", at

        return truth
    meaning = _meaning(node) if node.kind == "bytes" else _text

    def text(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read_bytes(data, at)
        return meaning(value), at

    return text


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise LineError("a text is not UTF-8") from None


def _integer(node: AvroType) -> Read:
    bits = _LARGEST[node.kind]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read_long(data, at)
        if not -(2**bits) <= value < 2**bits:
            raise LineError(f"{value} is out of the range of {node.kind}")
        return value, at

    return read
