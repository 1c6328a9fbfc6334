"""Types, and messages that the library for Protobuf has written, for the tests of Protobuf."""

from __future__ import annotations

import functools
import random
from typing import Any

import pyarrow as pa

from headrace.formats.protobuf.schema import WRAPPERS, Descriptors, ProtoField, ProtoMessage, compile_files
from headrace.formats.protobuf.text import load_protobuf

THREE = """
syntax = "proto3";
package t;  // a comment
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/duration.proto";
import 'google/protobuf/struct.proto';
option java_package = "a;b";

enum Color {
  option allow_alias = true;
  RED = 0; GREEN = 1; BLUE = 7 [deprecated = true]; MINT = 1; NEGATIVE = -2;
}

/* Another { comment. */
message Place {
  string city = 1;
  optional string zip = 2;
  repeated int32 zones = 3;
  reserved 4, 10 to 20;
  reserved "old";
}

message Row {
  int64 id = 1 [(my.option) = { a: "]" }, json_name = "ID"];
  optional string name = 2;
  double price = 3;
  google.protobuf.Timestamp at = 4;
  bool flag = 5;
  google.protobuf.Int32Value quantity = 6;
  Place place = 7;
  Color color = 8;
  repeated string tags = 9;
  map<string, int64> counts = 10;
  repeated Place places = 11;
  oneof choice { string a = 12; int32 b = 13; t.Place p = 14; Color c = 30; }
  sint64 s = 15;
  fixed64 f = 16;
  sfixed32 g = 17;
  bytes blob = 18;
  uint64 u = 19;
  uint32 u4 = 20;
  float ratio = 21;
  repeated sint32 packed = 22;
  map<int32, Place> by_number = 23;
  google.protobuf.Duration lasts = 24;
  repeated Color colors = 25;
  repeated double doubles = 26;
  repeated uint64 loose = 27 [packed = false];
  sint32 s4 = 28;
  Inner.Deep deep = 29;
  message Inner { message Deep { fixed32 x = 1; sfixed64 y = 2; } }
}

message Tree { int32 v = 1; repeated Tree kids = 2; }
message Free { google.protobuf.Struct any = 1; google.protobuf.StringValue text = 2; Tree tree = 3; }

service Rows { rpc Get(Row) returns (Place) { option deadline = 5; } }
"""
TWO = """
syntax = "proto2";
message Old {
  required int32 a = 1;
  optional string b = 2 [default = "h\\"ey"];
  optional int64 n = 3 [default = -42];
  repeated int32 r = 4;
  repeated group Part = 5 { optional int32 x = 1; optional group Core = 2 { optional string y = 1; } }
  enum E { ONE = 1; TWO = 2; }
  optional E e = 6 [default = TWO];
  optional E plain = 7;
  repeated E many = 8 [packed = true];
  extensions 100 to 200;
  extend Old { optional int32 more = 100; }
}
"""


@functools.cache
def three() -> Descriptors:
    return compile_files(THREE, "three.proto", {})


@functools.cache
def two() -> Descriptors:
    return compile_files(TWO, "two.proto", {})


def files_with(name: str) -> Descriptors:
    return two() if name == "Old" else three()


def made(name: str) -> Any:
    """The class of a message."""
    return load_protobuf("message_factory").GetMessageClass(files_with(name).descriptor(name))


def fill(message: Any, rand: random.Random, depth: int = 0) -> Any:
    """A message with any values in some of its fields."""
    for field in message.DESCRIPTOR.fields:
        if rand.random() < 0.4 or (field.message_type is not None and depth > 2):
            continue
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), inner, rand, depth)
        elif inner is not None and inner.full_name == "google.protobuf.Struct":
            getattr(message, field.name).update({"a": rand.random(), "b": ["x", None]})
        elif inner is not None and field.is_repeated:
            for _ in range(rand.randrange(3)):
                fill(getattr(message, field.name).add(), rand, depth + 1)
        elif inner is not None:
            value = getattr(message, field.name)
            value.SetInParent()
            if inner.full_name in {"google.protobuf.Timestamp", "google.protobuf.Duration"}:
                value.seconds, value.nanos = rand.randrange(10**9), rand.randrange(10**9)
                if inner.full_name == "google.protobuf.Duration" and rand.random() < 0.5:
                    value.seconds, value.nanos = -value.seconds, -value.nanos
            else:
                fill(value, rand, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend([_any(field, rand) for _ in range(rand.randrange(5))])
        else:
            setattr(message, field.name, _any(field, rand))
    return message


def _fill_map(entries: Any, entry: Any, rand: random.Random, depth: int) -> None:
    key, value = entry.fields
    for _ in range(rand.randrange(3)):
        at = rand.choice(["a", "b", ""]) if key.type == key.TYPE_STRING else rand.randrange(-5, 5)
        if value.message_type is not None:
            fill(entries[at], rand, depth + 1)
        else:
            entries[at] = _any(value, rand)


def _any(field: Any, rand: random.Random) -> Any:
    if field.type == field.TYPE_ENUM:
        return rand.choice([value.number for value in field.enum_type.values])
    if field.type == field.TYPE_STRING:
        return rand.choice(["", "a", "üx" * rand.randrange(5), "x" * rand.randrange(200)])
    if field.type == field.TYPE_BYTES:
        return rand.randbytes(rand.randrange(20))
    if field.type == field.TYPE_BOOL:
        return rand.random() < 0.5
    if field.type in {field.TYPE_DOUBLE, field.TYPE_FLOAT}:
        return float(rand.randrange(-1000, 1000))
    names = {number: name for name, number in vars(type(field)).items() if name.startswith("TYPE_")}
    name = names[field.type]
    bits, signed = (64 if "64" in name else 32), not name.startswith(("TYPE_UINT", "TYPE_FIXED"))
    number = rand.getrandbits(min(rand.choice([1, 7, 8, 14, 31, 63]), bits - signed))
    return -number - 1 if signed and rand.random() < 0.3 else number


def expected(message: ProtoMessage, value: Any) -> dict[str, Any]:
    """The values of a message as a row has them, by the library."""
    row: dict[str, Any] = {}
    for one in message.fields:
        if one.kind == "map":
            assert one.message is not None
            entries = getattr(value, one.name).items()
            row[one.name] = {key: _value(one.message.fields[1], item) for key, item in entries}
        elif one.repeated:
            row[one.name] = [_value(one, item) for item in getattr(value, one.name)]
        elif one.presence and not value.HasField(one.name):
            row[one.name] = one.default
        else:
            row[one.name] = _value(one, getattr(value, one.name))
    return row


def _value(one: ProtoField, value: Any) -> Any:
    if one.message is None:
        return one.values.get(value, str(value)) if one.kind == "enum" else value
    if one.message.free:
        return load_protobuf("json_format").MessageToJson(
            value, preserving_proto_field_name=True, indent=None
        )
    if one.message.name in {"google.protobuf.Timestamp", "google.protobuf.Duration"}:
        return value.seconds * 10**9 + value.nanos
    return value.value if one.message.name in WRAPPERS else expected(one.message, value)


def values(column: pa.Array) -> list[Any]:
    """The values of a column, as `expected` has them."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return list(column.cast(pa.int64()).to_pylist())
    if pa.types.is_struct(kind):
        rows = zip(*(values(child) for child in column.flatten()), strict=True)
        names = [field.name for field in kind]
        valid = column.is_valid().to_pylist()
        return [
            dict(zip(names, row, strict=True)) if ok else None for row, ok in zip(rows, valid, strict=True)
        ]
    if pa.types.is_map(kind):
        entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        lists = values(column.cast(pa.list_(entry)))
        return [None if one is None else {item["key"]: item["value"] for item in one} for one in lists]
    if pa.types.is_list(kind):
        items = iter(values(column.flatten()))
        lengths = column.value_lengths().to_pylist()
        return [None if size is None else [next(items) for _ in range(size)] for size in lengths]
    return list(column.to_pylist())


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    columns = [values(column.combine_chunks()) for column in table.columns]
    return [dict(zip(table.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
