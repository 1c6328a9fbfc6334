"""Expressions give in Headrace what they give in PostgreSQL."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.testing.changelog import ChangelogEngine
from tests.servers.postgres import Database

EXPRESSIONS = [
    line for line in (Path(__file__).parent / "postgres_expressions.txt").read_text().splitlines() if line
]
"""Over the columns of the table below; an expression a line."""

TABLE = """CREATE TABLE t (n INT, i INT, b BIGINT, d DOUBLE PRECISION, x DECIMAL(10, 2), s TEXT, f BOOLEAN,
    ts TIMESTAMP, day DATE, iv INTERVAL, a BIGINT[], w TEXT[], j {json}, y BYTEA)"""
ROWS = [
    """0, 7, 42, 2.5, 12.34, 'Hello World', TRUE, TIMESTAMP '2024-03-15 10:20:30.123456', DATE '2024-02-29',
    INTERVAL '14 months 3 days 4 hours 5 minutes 6.789 seconds', ARRAY[3, 1, 2], ARRAY['a', 'b', NULL],
    '{"a":{"b":[1,2,{"c":"x"}]},"n":null,"t":true}', decode('01ff', 'hex')""",
    """1, -7, 0, -0.5, -0.05, '', FALSE, TIMESTAMP '1999-12-31 23:59:59', DATE '1969-12-31',
    INTERVAL '-1 months 2 days -1 seconds', NULL, ARRAY['é'], '[1,"two",3.5]', decode('', 'hex')""",
    "2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL",
]


def comparable(value: Any) -> Any:
    """A value as both sides have it: ten digits of a number, instants and JSON as texts."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float | Decimal):
        return str(value) if not math.isfinite(value) else float(f"{float(value):.10g}")
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat()
    if isinstance(value, dict | list):
        value = json.dumps(value, default=str)
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    text = str(value)
    return json.dumps(json.loads(text), sort_keys=True) if text[:1] in ("{", "[") else text


def test_there_are_some_hundreds_of_expressions() -> None:
    assert len(EXPRESSIONS) >= 300


@pytest.mark.parametrize("first", range(0, len(EXPRESSIONS), 40))
def test_expressions_mean_what_they_mean_in_postgres(first: int, postgres: Database) -> None:
    expressions = EXPRESSIONS[first : first + 40]
    with psycopg.connect(postgres.url, autocommit=True) as connection, ChangelogEngine() as engine:
        connection.execute("SET timezone = 'UTC'")
        connection.execute(TABLE.format(json="JSONB"))
        engine.execute(TABLE.format(json="JSON"))
        for row in ROWS:
            connection.execute(f"INSERT INTO t VALUES ({row})")
            engine.execute(f"INSERT INTO t VALUES ({row})")
        listed = ", ".join(f"{text} AS e{at}" for at, text in enumerate(expressions))
        sql = f"SELECT n, {listed} FROM t"
        theirs = {row[0]: row[1:] for row in connection.execute(sql).fetchall()}
        ours = {row[0]: row[1:] for row in engine.query(sql)}
    differences = [
        f"{text}: {ours[number][at]!r}, and PostgreSQL {theirs[number][at]!r}"
        for number in theirs
        for at, text in enumerate(expressions)
        if comparable(ours[number][at]) != comparable(theirs[number][at])
    ]
    assert not differences, "\n".join(differences)
