"""Lookups in a real PostgreSQL: alone, in SQL, and while it is down."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import ExternalError
from headrace.connectors.postgres import client as shared
from headrace.connectors.postgres.lookup import PostgresLookup
from headrace.model.operator import OperatorContext
from headrace.testing.in_process import run_in_process
from tests.servers.postgres import Database
from tests.support import task

JOBS = itertools.count()
COLUMNS = {"id": "int64", "name": "string", "age": "int64"}
PEOPLE = (
    "CREATE TABLE people (id bigint PRIMARY KEY, name text, age smallint, more text)",
    "INSERT INTO people VALUES (1, 'Ada', 36, 'x'), (2, '', NULL, 'y'), (-3, 'Eve', 7, NULL)",
)


def lookup(postgres: Database, **options: Any) -> PostgresLookup:
    values = {"url": postgres.url, "table": "people", "schema": COLUMNS, "primary_key": "id", **options}
    made: PostgresLookup = pickle.loads(pickle.dumps(PostgresLookup(**values)))
    made.validate()
    return made


def ask(table: PostgresLookup, keys: Any) -> list[dict[str, Any]]:
    ctx = OperatorContext(task(job=f"postgres-{next(JOBS)}"), None)  # type: ignore[arg-type]
    keys = keys if isinstance(keys, pa.Array) else pa.array(keys, table.columns.field(table.key).type)
    rows: list[dict[str, Any]] = table.lookup(keys, ctx).to_pylist()
    return sorted(rows, key=lambda row: str(row[table.key]))


def test_rows_are_found_by_their_key_with_one_query(postgres: Database) -> None:
    postgres.run(*PEOPLE)
    assert ask(lookup(postgres), [9, 1, 2, -3]) == [
        {"id": -3, "name": "Eve", "age": 7},
        {"id": 1, "name": "Ada", "age": 36},
        {"id": 2, "name": "", "age": None},
    ]
    assert ask(lookup(postgres), [9]) == []
    postgres.run("SET enable_seqscan = off")  # the table is too small for an index to pay
    plan = postgres.rows("EXPLAIN SELECT id FROM people WHERE id = ANY('{1,2}'::text[]::bigint[])")
    assert "Index" in str(plan)  # with the cast that the lookup writes


def test_a_view_and_any_column_can_be_asked(postgres: Database) -> None:
    postgres.run(*PEOPLE, "CREATE VIEW adults AS SELECT upper(name) AS name, age FROM people WHERE age > 17")
    table = lookup(postgres, table="adults", schema={"age": "int64", "name": "string"}, primary_key="name")
    assert ask(table, ["ADA", "EVE"]) == [{"age": 36, "name": "ADA"}]


def test_values_of_every_type_are_found(postgres: Database) -> None:
    postgres.run(
        "CREATE TABLE t (id uuid, b bool, n numeric(12, 3), y bytea, ts timestamptz, day date, l text[],"
        " j jsonb, span interval)",
        "INSERT INTO t VALUES ('6f9619ff-8b86-d011-b42d-00c04fc964ff', true, 1.5, '\\x00ff',"
        " '2026-01-02 03:04:05.000006+02', '2026-02-03', '{a,NULL}', '{\"x\": [1]}', '1 month 2 seconds')",
    )
    columns = {
        "id": "string", "b": "bool", "n": "decimal(12, 3)", "y": "binary", "ts": "timestamp[us]",
        "day": "date", "l": "list<string>", "j": "struct<x: list<int64>>", "span": "interval",
    }  # fmt: skip
    table = lookup(postgres, table="t", schema=columns)
    (row,) = ask(table, ["6F9619FF-8b86-d011-b42d-00c04fc964ff"])
    assert row == {
        "id": "6f9619ff-8b86-d011-b42d-00c04fc964ff",
        "b": True,
        "n": Decimal("1.500"),
        "y": b"\x00\xff",
        "ts": dt.datetime.fromisoformat("2026-01-02T01:04:05.000006"),
        "day": dt.date(2026, 2, 3),
        "l": ["a", None],
        "j": {"x": [1]},
        "span": pa.MonthDayNano([1, 0, 2 * 10**9]),
    }
    for kind, key in (("timestamp[us]", row["ts"]), ("decimal(12, 3)", row["n"]), ("binary", row["y"])):
        name = {"timestamp[us]": "ts", "decimal(12, 3)": "n", "binary": "y"}[kind]
        by = lookup(postgres, table="t", schema={name: kind}, primary_key=name)
        assert ask(by, [key]) == [{name: key}]


def test_keys_that_cannot_be_of_the_column_have_no_row(postgres: Database) -> None:
    postgres.run("CREATE TABLE t (id uuid)", "INSERT INTO t VALUES ('6f9619ff-8b86-d011-b42d-00c04fc964ff')")
    table = lookup(postgres, table="t", schema={"id": "string"})
    keys = ["", "no uuid", "6f9619ff-8b86-d011-b42d-00c04fc964ff", "x", "\\", '"']
    assert len(ask(table, keys)) == 1
    postgres.run(*PEOPLE, "CREATE TABLE small (id smallint)", "INSERT INTO small VALUES (7)")
    assert ask(lookup(postgres, table="small", schema={"id": "int64"}), [2**40, 7]) == [{"id": 7}]


def test_a_value_that_does_not_fit_its_declared_type_is_shown(postgres: Database) -> None:
    postgres.run(*PEOPLE)
    table = lookup(postgres, schema={"id": "int64", "name": "int64"})
    with pytest.raises(ExternalError, match="column `name` of table `people`: `Ada` cannot be read as int64"):
        ask(table, [1])


def test_a_table_or_a_column_that_is_not_there_is_named(postgres: Database) -> None:
    with pytest.raises(ExternalError, match="has no table `people`"):
        ask(lookup(postgres), [1])
    postgres.run(*PEOPLE)
    with pytest.raises(ExternalError, match="has no column `nmae` in table `people`") as caught:
        ask(lookup(postgres, schema={"id": "int64", "nmae": "string"}), [1])
    assert caught.value.hint == "did you mean `name`?"
    assert lookup(postgres).reach() == "PostgreSQL 16.6, table people with 4 columns"


def test_a_server_that_is_restarted_is_asked_again_and_one_that_is_down_is_told(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.run(*PEOPLE)
    table = lookup(postgres)
    assert len(ask(table, [1])) == 1
    postgres.restart(crash=True)
    assert len(ask(table, [1])) == 1
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 0.2)
    postgres.close()
    postgres.server.stop()
    try:
        with pytest.raises(ExternalError, match="does not answer: Connection refused") as caught:
            ask(table, [1])
        assert caught.value.retry
    finally:
        postgres.server.start()


def test_a_wrong_password_is_told_and_never_shown(postgres: Database) -> None:
    table = lookup(postgres, password="open-sesame")
    with pytest.raises(ExternalError, match="refuses the user") as caught:
        ask(table, [1])
    assert "sesame" not in f"{caught.value}{table.display()}{table.options!r}"


SQL = """
CREATE TABLE orders (n BIGINT, customer_id BIGINT)
WITH (connector = 'single_file', path = '{orders}', format = 'json', type = 'source');

CREATE TEMPORARY TABLE people (id BIGINT PRIMARY KEY, name TEXT)
WITH (connector = 'postgres', type = 'lookup', url = '{url}', table = 'people',
      'lookup.cache.max_bytes' = 1000000, 'lookup.cache.ttl' = interval '10 seconds');

SELECT o.n, c.name FROM orders o {join} people c ON o.customer_id = c.id;
"""


@pytest.mark.parametrize(
    ("join", "expected"),
    [
        ("JOIN", [(0, "Ada"), (3, "Ada"), (4, "")]),
        ("LEFT JOIN", [(0, "Ada"), (1, None), (2, None), (3, "Ada"), (4, "")]),
    ],
)
def test_a_stream_is_joined_with_a_table_in_sql(
    postgres: Database, tmp_path: Path, join: str, expected: list[Any]
) -> None:
    postgres.run(*PEOPLE)
    orders = tmp_path / "orders.json"
    lines = [json.dumps({"n": n, "customer_id": key}) for n, key in enumerate([1, None, 99, 1, 2])]
    orders.write_text("\n".join(lines))
    sql = SQL.format(orders=orders, url=postgres.url, join=join)
    pipeline = hr.Pipeline.from_sql(sql, preview=lambda _: ("memory", {"name": "out"}))
    result = run_in_process(pipeline, tmp_path / "state", parallelism=2, epoch_rows=2)
    assert sorted((row["n"], row["name"]) for row in result.rows["out"].to_pylist()) == expected
    (metrics,) = [value for name, value in result.metrics.items() if "lookup_people" in name]
    assert metrics["lookups"] == 3
    assert metrics["cache_hits"] == 1
