"""The good records of a batch are read together, whatever is wrong with the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from bench.connectors.formats import BAD_EVERY, BadCase, bad_cases, bad_rows, registry_server, rows
from headrace.formats.avro.read import AvroReader
from headrace.formats.csv.format import CsvFormat
from headrace.formats.json import read
from headrace.formats.json.format import JsonFormat
from headrace.formats.json.rewrite import JsonRewriter

COUNT = 5 * BAD_EVERY
NAMES = [case.name for case in bad_cases("http://127.0.0.1:1")]


@pytest.fixture(scope="module")
def cases() -> Iterator[dict[str, BadCase]]:
    with registry_server() as registry:
        yield {case.name: case for case in bad_cases(registry)}


def spy(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: list[Any]) -> None:
    """Record the first argument of each call of a method, which still does its work."""
    method = getattr(owner, name)

    def recorded(self: Any, *arguments: Any, **more: Any) -> Any:
        calls.append(arguments[0])
        return method(self, *arguments, **more)

    monkeypatch.setattr(owner, name, recorded)


@pytest.mark.parametrize("name", NAMES)
def test_the_good_records_beside_bad_ones_are_read_and_only_those_near_a_bad_one_singly(
    monkeypatch: pytest.MonkeyPatch, cases: dict[str, BadCase], name: str
) -> None:
    table, case = rows(COUNT), cases[name]
    rewritten: list[Any] = []
    singly: list[Any] = []
    parsed: list[Any] = []
    spy(monkeypatch, JsonRewriter, "normal", rewritten)
    spy(monkeypatch, AvroReader, "_read_singly", singly)
    spy(monkeypatch, CsvFormat, "_parse", parsed)
    bad = set(bad_rows(COUNT))
    good = [index for index in range(COUNT) if index not in bad]
    inputs = case.inputs(table)
    expected = case.decode(inputs["good"]).rows
    assert expected.num_rows == COUNT
    for kind, data in inputs.items():
        if kind == "good":
            continue
        for calls in (rewritten, singly, parsed):
            calls.clear()
        decoded = case.decode(data)
        assert decoded.rows.equals(expected.take(pa.array(good))), kind
        assert len(decoded.bad) == len(bad), kind
        # Each line with a JSON column is rewritten, once.
        assert len(rewritten) <= (COUNT if "JSON column" in name else 2 * len(bad)), kind
        assert sum(map(len, singly)) <= 2 * len(bad), kind
        if parsed:
            size = len(data) if isinstance(data, bytes) else sum(map(len, data)) + len(data)
            assert sum(map(len, parsed)) <= 1.5 * size, kind


@pytest.mark.parametrize("value", ["yesterday", "day {index}", "\\ud800", "2020-13-0{index}"])
def test_many_bad_json_values_take_no_call_of_the_parser_each(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    lines = JsonFormat(rows(COUNT).schema).messages(rows(COUNT))
    bad = range(0, COUNT, 100)
    for index in bad:
        lines[index] = b'{"id": 1, "at": "%b"}' % value.format(index=index).encode()
    parses: list[bytes] = []
    parse = read._parse

    def counted(data: bytes, schema: pa.Schema) -> pa.Table:
        parses.append(data)
        return parse(data, schema)

    monkeypatch.setattr(read, "_parse", counted)
    decoded = JsonFormat(rows(1).schema, drop_bad=True).decode(lines)
    assert [error.line for error in decoded.bad] == [index + 1 for index in bad]
    assert {error.column for error in decoded.bad} == {"at"}
    assert len(parses) < len(bad)
