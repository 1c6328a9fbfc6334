"""The good records of a batch are read together, whatever is wrong with the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from bench.connectors.formats import BAD_EVERY, bad_cases, rows, with_bad
from headrace.formats.base import Format
from headrace.formats.json.rewrite import JsonRewriter

COUNT = 5 * BAD_EVERY
CASES = [
    pytest.param(form, damage, is_lines, id=f"{name}, {kind}")
    for name, form, damages, is_lines in bad_cases()
    if name.startswith(("json", "debezium"))
    for kind, damage in damages.items()
]


def spy(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: list[Any]) -> None:
    """Record the first argument of each call of a method, which still does its work."""
    method = getattr(owner, name)

    def recorded(self: Any, *arguments: Any) -> Any:
        calls.append(arguments[0])
        return method(self, *arguments)

    monkeypatch.setattr(owner, name, recorded)


@pytest.mark.parametrize(("form", "damage", "is_lines"), CASES)
def test_only_lines_near_a_bad_one_are_read_singly(
    monkeypatch: pytest.MonkeyPatch, form: Format, damage: Callable[[bytes], bytes], is_lines: bool
) -> None:
    table = rows(COUNT)
    singly: list[Any] = []
    spy(monkeypatch, JsonRewriter, "normal", singly)
    records = with_bad(form.messages(table), damage)
    data: Any = records if not is_lines else form.head(table.schema) + b"\n".join([*records, b""])
    decoded = form.decode(data)
    good = [index for index in range(COUNT) if index % BAD_EVERY != BAD_EVERY // 2]
    names = [name for name in table.schema.names if name != "at"]  # some formats write milliseconds
    read = decoded.rows.select(names)
    assert read.equals(table.select(names).take(pa.array(good)).cast(read.schema))
    assert len(decoded.bad) == COUNT // BAD_EVERY
    assert len(singly) <= 2 * len(decoded.bad)
