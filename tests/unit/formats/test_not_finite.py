"""NaN and the infinities are written, and read again as what they are."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from headrace.formats.avro.format import AvroFormat
from headrace.formats.base import Format
from headrace.formats.csv.format import CsvFormat
from headrace.formats.json.debezium import DebeziumFormat
from headrace.formats.json.format import JsonFormat
from headrace.formats.parquet import ParquetFormat
from headrace.formats.protobuf.format import ProtobufFormat

COLUMNS = pa.schema([("single", pa.float32()), ("double", pa.float64())])
VALUES = [math.nan, math.inf, -math.inf, -0.0, None, 1.5]
ROWS = pa.table({name: pa.array(VALUES, COLUMNS.field(name).type) for name in COLUMNS.names})
MESSAGES = [
    JsonFormat(COLUMNS),
    DebeziumFormat(COLUMNS),
    CsvFormat(COLUMNS),
    AvroFormat(COLUMNS, layout="raw"),
    ProtobufFormat(COLUMNS),
]


def texts(table: pa.Table) -> list[str]:
    return [str(table.column(name).to_pylist()) for name in COLUMNS.names]


@pytest.mark.parametrize("form", MESSAGES, ids=lambda form: type(form).__name__)
def test_messages_hold_nan_and_infinity_and_are_read_as_they_were(form: Format) -> None:
    assert texts(form.decode(form.messages(ROWS)).rows) == texts(ROWS)


@pytest.mark.parametrize("form", [AvroFormat(COLUMNS), ParquetFormat(COLUMNS)], ids=["avro", "parquet"])
def test_files_hold_nan_and_infinity_and_are_read_as_they_were(form: Format) -> None:
    assert texts(form.decode(form.encode(ROWS)).rows) == texts(ROWS)


def test_json_and_csv_write_them_as_strings_that_other_readers_take() -> None:
    assert JsonFormat(COLUMNS).messages(ROWS)[:3] == [
        b'{"single":"NaN","double":"NaN"}',
        b'{"single":"Infinity","double":"Infinity"}',
        b'{"single":"-Infinity","double":"-Infinity"}',
    ]
    assert CsvFormat(COLUMNS).messages(ROWS)[:3] == [b"NaN,NaN", b"Infinity,Infinity", b"-Infinity,-Infinity"]
