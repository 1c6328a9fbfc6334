"""Rows, and messages that fastavro has written, for the tests of Avro."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa

from headrace.formats.avro.format import AvroFormat
from headrace.formats.avro.schema import parse_schema
from headrace.formats.base import JSON_COLUMN


def naive(text: str) -> datetime:
    """A moment in UTC, as Arrow has it: without a zone."""
    return datetime.fromisoformat(text)


COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("small", pa.int16()),
        pa.field("price", pa.float64()),
        pa.field("ratio", pa.float32()),
        pa.field("at", pa.timestamp("ns")),
        pa.field("at_ms", pa.timestamp("ms")),
        pa.field("flag", pa.bool_()),
        pa.field("cost", pa.decimal128(20, 3)),
        pa.field("day", pa.date32()),
        pa.field("clock", pa.time64("ns")),
        pa.field("blob", pa.binary()),
        pa.field(
            "place", pa.struct([pa.field("city", pa.string()), pa.field("zones", pa.list_(pa.int32()))])
        ),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
        pa.field("details", pa.string(), metadata=JSON_COLUMN),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "name": "ä",
        "small": -3,
        "price": 0.1,
        "ratio": 0.5,
        "at": naive("2026-01-02T03:04:05.678901"),
        "at_ms": naive("1969-12-31T23:59:59.999"),
        "flag": True,
        "cost": Decimal("-12345678901234567.891"),
        "day": date(1969, 1, 1),
        "clock": time(1, 2, 3, 4),
        "blob": b"\x00\xff",
        "place": {"city": "Berlin", "zones": [1, None, -2]},
        "counts": [("a", 1), ("b", None)],
        "details": '{"x": [1]}',
    },
    {"id": 2**63 - 1, "place": {"city": None, "zones": []}, "counts": [], "cost": Decimal("0.001")},
    {"id": -(2**63), "name": "", "blob": b"", "flag": False, "cost": Decimal("-0.128")},
]


def table(rows: Sequence[Any] = ROWS, columns: pa.Schema = COLUMNS) -> pa.Table:
    return pa.Table.from_pylist(list(rows), columns)


def datums(schema: Any, *values: Any) -> list[bytes]:
    """Values as fastavro writes them."""
    parsed, made = fastavro.parse_schema(json.loads(json.dumps(schema))), []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        made.append(out.getvalue())
    return made


def record(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": "v", "type": kind}]}


def raw(schema: Any, columns: Any, **more: Any) -> AvroFormat:
    return AvroFormat(pa.schema(columns), layout="raw", node=parse_schema(json.dumps(schema)), **more)
