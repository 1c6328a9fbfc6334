"""The good records of a batch are read together, whatever is wrong with the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from bench.connectors.formats import BAD_EVERY, BadCase, bad_cases, bad_rows, registry_server, rows
from headrace.formats.avro.read import AvroReader
from headrace.formats.csv.format import CsvFormat
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
        # A file of Avro is one record for the errors of its rows.
        assert len(decoded.bad) == (1 if name.startswith("avro files") else len(bad)), kind
        if "JSON column" not in name:  # each line of these is rewritten anyway
            assert len(rewritten) <= 2 * len(bad), kind
        assert sum(map(len, singly)) <= 2 * len(bad), kind
        if parsed:
            size = len(data) if isinstance(data, bytes) else sum(map(len, data)) + len(data)
            assert sum(map(len, parsed)) <= 1.5 * size, kind
