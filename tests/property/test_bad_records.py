"""Records that are read together are read as each of them is alone: the same rows and the same errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.connectors.formats import (
    _AVRO_BAD,
    _CSV_MESSAGES_BAD,
    _JSON_BAD,
    _PROTOBUF_BAD,
    COLUMNS,
    WRITTEN,
    Damage,
    rows,
)
from headrace.formats.avro.format import AvroFormat
from headrace.formats.avro.schema import schema_of
from headrace.formats.base import Format
from headrace.formats.csv.format import CsvFormat
from headrace.formats.json.debezium import DebeziumFormat
from headrace.formats.json.format import JsonFormat
from headrace.formats.parquet import conform
from headrace.formats.protobuf.columns import files_for
from headrace.formats.protobuf.format import ProtobufFormat
from headrace.formats.raw import RawFormat

TABLE = rows(60)
TEXT = pa.schema({"value": pa.string()})
RAW = RawFormat(TEXT, kind=pa.string(), drop_bad=True)
WIDE_AVRO, WIDE_PROTOBUF = schema_of(list(WRITTEN)), files_for(list(WRITTEN))
FORMATS: Mapping[str, tuple[Format, Mapping[str, Damage]]] = {
    "json": (JsonFormat(COLUMNS, drop_bad=True), _JSON_BAD),
    "debezium": (DebeziumFormat(COLUMNS, drop_bad=True), _JSON_BAD),
    "csv": (CsvFormat(COLUMNS, drop_bad=True), _CSV_MESSAGES_BAD),
    "avro": (AvroFormat(COLUMNS, layout="raw", drop_bad=True), _AVRO_BAD),
    "protobuf": (ProtobufFormat(COLUMNS, drop_bad=True), _PROTOBUF_BAD),
}
CELLS: Mapping[str, st.SearchStrategy[Any]] = {
    "id": st.none(),
    "quantity": st.integers(-(2**40), 2**40),
    "at": st.sampled_from(
        ["yesterday", "", " ", "2024-02-30", "2024-02-03T04:05:06Z", "2024-02-03 04:05:06+01:00", "1.5", "é"]
    ),
}
OFTEN = settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))


def outcomes(decoded: Any) -> tuple[list[Any], list[Any]]:
    return decoded.rows.to_pylist(), [(error.line, error.column, str(error)) for error in decoded.bad]


def check_each_alone(form: Format, messages: list[bytes]) -> None:
    alone_rows: list[Any] = []
    alone_bad: list[Any] = []
    for number, message in enumerate(messages, 1):
        read, bad = outcomes(form.decode([message], first_line=number))
        alone_rows += read
        alone_bad += bad
    read, bad = outcomes(form.decode(messages))
    assert read == alone_rows
    assert bad == alone_bad


@pytest.mark.parametrize("name", list(FORMATS))
def test_damaged_messages_anywhere_are_found_and_the_others_read(name: str) -> None:
    form, damages = FORMATS[name]
    good = form.messages(TABLE)

    @OFTEN
    @given(st.dictionaries(st.integers(0, len(good) - 1), st.sampled_from(sorted(damages)), max_size=12))
    def run(places: dict[int, str]) -> None:
        damaged = list(good)
        for place, kind in places.items():
            damaged[place] = damages[kind](good[place])
        check_each_alone(form, damaged)

    run()


# Not for Avro: where a value may be null, its reader takes any other number than that of null for the value.
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "avro"])
def test_messages_with_any_bytes_changed_are_read_together_as_each_alone(name: str) -> None:
    form, _ = FORMATS[name]
    good = form.messages(TABLE)
    change = st.tuples(st.integers(0, len(good) - 1), st.integers(0, 200), st.integers(0, 255))

    @OFTEN
    @given(st.lists(change, max_size=12))
    def run(changes: list[tuple[int, int, int]]) -> None:
        damaged = list(good)
        for place, offset, byte in changes:
            at = offset % len(good[place])
            damaged[place] = good[place][:at] + bytes([byte]) + good[place][at + 1 :]
        check_each_alone(form, damaged)

    run()


def test_lines_of_any_bytes_are_texts_together_if_each_is_one() -> None:
    @OFTEN
    @given(st.lists(st.one_of(st.binary(max_size=4), st.text(max_size=4).map(str.encode)), max_size=30))
    def run(lines: list[bytes]) -> None:
        check_each_alone(RAW, lines)

    run()


WRITERS: Mapping[str, tuple[Format, Callable[[pa.Table], list[bytes]]]] = {
    "avro": (
        AvroFormat(COLUMNS, layout="raw", node=WIDE_AVRO, drop_bad=True),
        AvroFormat(WRITTEN, layout="raw", node=WIDE_AVRO).messages,
    ),
    "protobuf": (
        ProtobufFormat(COLUMNS, files=WIDE_PROTOBUF, drop_bad=True),
        ProtobufFormat(WRITTEN, files=WIDE_PROTOBUF).messages,
    ),
    "csv": (CsvFormat(COLUMNS, drop_bad=True), CsvFormat(WRITTEN).messages),
    "json": (JsonFormat(COLUMNS, drop_bad=True), JsonFormat(WRITTEN).messages),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Rows with values that the declared columns cannot hold, in any places."""
    values = TABLE.cast(WRITTEN).to_pylist()
    for place in draw(st.lists(st.integers(0, len(values) - 1), max_size=12)):
        column = draw(st.sampled_from(sorted(CELLS)))
        values[place][column] = draw(CELLS[column])
    return pa.Table.from_pylist(values, WRITTEN)


@pytest.mark.parametrize("name", list(WRITERS))
def test_values_that_do_not_fit_are_found_in_their_rows_and_columns(name: str) -> None:
    form, write = WRITERS[name]

    @OFTEN
    @given(tables())
    def run(table: pa.Table) -> None:
        check_each_alone(form, write(table))

    run()


@OFTEN
@given(tables())
def test_rows_of_parquet_that_do_not_fit_are_found(table: pa.Table) -> None:
    together = conform(table, COLUMNS, where="file", drop_bad=True)
    alone = [
        conform(table.slice(row, 1), COLUMNS, first=row, where="file", drop_bad=True)
        for row in range(table.num_rows)
    ]
    assert together.rows.to_pylist() == [row for decoded in alone for row in decoded.rows.to_pylist()]
    assert [str(error) for error in together.bad] == [str(error) for part in alone for error in part.bad]
