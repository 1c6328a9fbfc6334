"""The columns of a table of PostgreSQL in Arrow's types."""

import pyarrow as pa

from headrace.connectors.postgres.client import PostgresColumn, PostgresTable
from headrace.connectors.postgres.columns import table_columns
from headrace.sql.types import column_lines


def test_types_of_postgres_have_types_of_sql() -> None:
    columns = {
        "id": PostgresColumn("bigint", generated=False, is_json=False),
        "price": PostgresColumn("numeric", generated=False, is_json=False, declared="numeric(12,2)"),
        "exact": PostgresColumn("numeric", generated=False, is_json=False, declared="numeric"),
        "at": PostgresColumn("timestamp with time zone", generated=False, is_json=False),
        "doc": PostgresColumn("jsonb", generated=False, is_json=True),
        "tags": PostgresColumn("text[]", generated=False, is_json=False),
        "who": PostgresColumn("uuid", generated=False, is_json=False),
        "twice": PostgresColumn("integer", generated=True, is_json=False),
    }
    table = PostgresTable("t", 1, columns, [], "f")
    expected = [
        "id BIGINT",
        "price DECIMAL(12, 2)",
        "exact DECIMAL(38, 10)",
        "at TIMESTAMP(6)",
        "doc JSON",
        "tags TEXT[]",
        "who TEXT",
    ]
    assert column_lines(table_columns(table, generated=False)) == expected
    assert table_columns(table, generated=True).field("twice").type == pa.int32()
