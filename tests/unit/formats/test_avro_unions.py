"""Unions of Avro with several types: structs where a table declares one, else JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from headrace import Pipeline
from headrace.base.errors import ConfigurationError
from headrace.formats.base import JSON_COLUMN
from headrace.testing.in_process import run_in_process
from tests.unit.formats.avro_cases import datums, naive, raw

UNION = [
    "null",
    "long",
    "string",
    {"type": "record", "name": "shop.Order", "fields": [{"name": "x", "type": ["null", "int"]}]},
    {"type": "record", "name": "shop.Refund", "fields": [{"name": "why", "type": ["int", "string"]}]},
]
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "v", "type": UNION}]}
VALUES = [5, "x", None, ("shop.Order", {"x": 1}), ("shop.Refund", {"why": "torn"})]


def messages() -> list[bytes]:
    return datums(SCHEMA, *({"v": value} for value in VALUES))


def test_a_union_that_is_declared_as_a_struct_has_a_member_for_each_type() -> None:
    struct = pa.struct(
        {
            "string": pa.string(),
            "long": pa.int64(),
            "Order": pa.struct({"x": pa.int64()}),
            "shop_Refund": pa.struct({"why": pa.struct({"int": pa.int32(), "string": pa.string()})}),
        }
    )
    nothing: dict[str, Any] = dict.fromkeys(struct.names)
    expected = [
        {**nothing, "long": 5},
        {**nothing, "string": "x"},
        None,
        {**nothing, "Order": {"x": 1}},
        {**nothing, "shop_Refund": {"why": {"int": None, "string": "torn"}}},
    ]
    assert raw(SCHEMA, {"v": struct}).decode(messages()).rows.column("v").to_pylist() == expected
    some = pa.struct({"order": pa.struct({"x": pa.int32()})})
    assert raw(SCHEMA, {"v": some}).decode(messages()).rows.column("v").to_pylist() == [
        {"order": None},
        {"order": None},
        None,
        {"order": {"x": 1}},
        {"order": None},
    ]


@pytest.mark.parametrize("metadata", [None, JSON_COLUMN])
def test_a_union_that_is_declared_as_text_is_json(metadata: dict[bytes, bytes] | None) -> None:
    field = pa.field("v", pa.string(), metadata=metadata)
    assert raw(SCHEMA, [field]).decode(messages()).rows.column("v").to_pylist() == [
        "5",
        '"x"',
        None,
        '{"x":1}',
        '{"why":"torn"}',
    ]


def test_unions_are_found_in_lists_maps_and_structs_and_by_what_they_mean() -> None:
    inner = ["string", {"type": "long", "logicalType": "timestamp-millis"}]
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "items", "type": ["null", {"type": "array", "items": inner}]},
            {"name": "named", "type": {"type": "map", "values": inner}},
        ],
    }
    struct = pa.struct({"string": pa.string(), "timestamp_millis": pa.timestamp("us")})
    at = naive("2026-01-02T03:04:05")
    columns = {
        "items": pa.list_(struct),
        "named": pa.list_(pa.struct({"key": pa.string(), "value": struct})),
    }
    written = datums(schema, {"items": ["a", 1_767_323_045_000], "named": {"k": "b"}})
    assert raw(schema, columns).decode(written).rows.to_pylist() == [
        {
            "items": [
                {"string": "a", "timestamp_millis": None},
                {"string": None, "timestamp_millis": at},
            ],
            "named": [{"key": "k", "value": {"string": "b", "timestamp_millis": None}}],
        }
    ]


def test_a_struct_with_no_member_of_the_union_is_refused_with_the_names() -> None:
    with pytest.raises(ConfigurationError, match="none of its types is a member") as raised:
        raw(SCHEMA, {"v": pa.struct({"text": pa.string()})}).decode([])
    assert str(raised.value.hint).endswith("long, string, shop.Order, shop.Refund")
    with pytest.raises(ConfigurationError, match=r"column `v\.long` is int64 in the schema of the messages"):
        raw(SCHEMA, {"v": pa.struct({"long": pa.bool_()})}).decode([])


def test_a_bad_branch_is_a_bad_record() -> None:
    made = raw(SCHEMA, {"v": pa.struct({"long": pa.int64()})}, drop_bad=True)
    decoded = made.decode([messages()[0], b"\x0e", messages()[1]], first_line=0)
    assert decoded.rows.to_pylist() == [{"v": {"long": 5}}, {"v": {"long": None}}]
    assert [error.line for error in decoded.bad] == [1]
    assert "a union of 5 types has no type 7" in decoded.bad[0].message


def test_a_pipeline_reads_the_members_of_a_union(tmp_path: Path) -> None:
    with (tmp_path / "in.avro").open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(SCHEMA), [{"v": value} for value in VALUES])
    sql = f"""
        CREATE TABLE events (v STRUCT<long BIGINT, "string" TEXT, "Order" STRUCT<x INT>>) WITH (
          connector = 'filesystem', path = '{tmp_path}/in.avro', type = 'source', format = 'avro');
        SELECT v['long'] AS number, v['string'] AS text, v['Order']['x'] AS x FROM events;
    """
    pipeline = Pipeline.from_sql(sql, name="unions", preview=lambda _: ("memory", {}))
    result = run_in_process(pipeline, tmp_path / "state")
    rows = [
        tuple(row[name] for name in ("number", "text", "x"))
        for table in result.rows.values()
        for row in table.to_pylist()
    ]
    assert rows == [
        (5, None, None),
        (None, "x", None),
        (None, None, None),
        (None, None, 1),
        (None, None, None),
    ]
