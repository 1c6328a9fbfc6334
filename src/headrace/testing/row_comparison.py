"""Compares the rows of a result with expected ones, as JSON, in any order."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.columns import RETRACT
from headrace.base.errors import HeadraceError, UserError
from headrace.formats.json.format import JsonFormat
from headrace.jobs.progress import RunResult
from headrace.sql.compile import Preview

Rows = Counter[str]
"""A multiset of rows as JSON strings."""


def standing_rows(lives: Sequence[RunResult], output: str, preview: Preview) -> Rows:
    """The rows of a result at the end of all attempts, with retractions applied."""
    rows: Rows = Counter()
    for life in lives:
        table = life.rows[output]
        if not table.num_rows:
            continue
        back = pa.nulls(table.num_rows, pa.bool_())
        if RETRACT in table.column_names:
            back = table.column(RETRACT)
            table = table.drop_columns([RETRACT])
        back = pc.fill_null(back, False)
        lines = JsonFormat(preview.columns)
        rows.update(_texts(lines, table.filter(pc.invert(back))))
        rows.subtract(_texts(lines, table.filter(back)))
    wrong = [row for row, count in rows.items() if count < 0]
    if wrong:
        raise HeadraceError(f"a row was taken back that was not there: {wrong[0]}")
    return +rows


def _texts(lines: JsonFormat, table: pa.Table) -> list[str]:
    return [line.decode() for line in lines.messages(table)]


def read_rows(file: Path) -> Rows:
    """The expected rows of a file."""
    rows: Rows = Counter()
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise UserError(f"it is not JSON: {error}", where=f"{file}:{number}") from None
        if not isinstance(value, dict):
            raise UserError(f"a row is a JSON object, not {line.strip()}", where=f"{file}:{number}")
        rows[line.strip()] += 1
    return rows


def differences(expected: Rows, actual: Rows, tolerance: float | None = None) -> tuple[list[str], list[str]]:
    """The rows that are only in `expected`, and those that are only in `actual`.

    The order of keys does not matter; numbers are equal if their values are, or nearly so with a `tolerance`.
    """
    left, right = _by_value(expected), _by_value(actual)
    missing = [text for value, texts in left.items() for text in texts[len(right.get(value, ())) :]]
    unexpected = [text for value, texts in right.items() for text in texts[len(left.get(value, ())) :]]
    if tolerance is None or not missing or not unexpected:
        return missing, unexpected
    return _apart(missing, unexpected, tolerance)


def _by_value(rows: Rows) -> dict[Any, list[str]]:
    values: dict[Any, list[str]] = defaultdict(list)
    for text in rows.elements():
        values[_value(text)].append(text)
    return values


def _value(text: str) -> Any:
    return _frozen(json.loads(text, parse_float=Decimal))


def _frozen(value: Any) -> Any:
    """A JSON value that can be compared and hashed; true is not 1."""
    if isinstance(value, dict):
        return ("object", tuple(sorted((key, _frozen(item)) for key, item in value.items())))
    if isinstance(value, list):
        return ("list", tuple(_frozen(item) for item in value))
    return ("true" if value else "false",) if isinstance(value, bool) else value


def _apart(missing: list[str], unexpected: list[str], tolerance: float) -> tuple[list[str], list[str]]:
    """What is left when rows that are nearly equal are paired."""
    candidates: dict[Any, list[tuple[str, list[Decimal]]]] = defaultdict(list)
    for text in unexpected:
        shape, numbers = _shape(_value(text))
        candidates[shape].append((text, numbers))
    alone = []
    for text in missing:
        shape, numbers = _shape(_value(text))
        same_shape = candidates[shape]
        near_ones = [candidate for candidate in same_shape if _are_near(numbers, candidate[1], tolerance)]
        if near_ones:
            same_shape.remove(near_ones[0])
        else:
            alone.append(text)
    return alone, [text for same_shape in candidates.values() for text, _ in same_shape]


def _shape(value: Any) -> tuple[Any, list[Any]]:
    """A value without its numbers, and its numbers in order."""
    numbers: list[Any] = []

    def visit(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(visit(part) for part in part)
        if isinstance(part, int | Decimal):
            numbers.append(part)
            return ...
        return part

    return visit(value), numbers


def _are_near(left: Sequence[Any], right: Sequence[Any], tolerance: float) -> bool:
    return len(left) == len(right) and all(
        first == second
        or (
            not (isinstance(first, int) and isinstance(second, int))
            and math.isclose(first, second, rel_tol=tolerance, abs_tol=tolerance)
        )
        for first, second in zip(left, right, strict=True)
    )
