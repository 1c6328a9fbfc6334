"""Writes the expected rows of the SQL cases about windows, joins, aggregates and OVER.

Beside `name.sql` stands `name.duckdb` (or `name.datafusion`, where only that knows a function): the same
question to a batch database, over all rows of the inputs at once. Its answer is `name.expected.jsonl`. For a
case with several sinks it is `name.<table>.duckdb` and `name.<table>.expected.jsonl`.

    python tests/sql/oracle_one.py                 every case
    python tests/sql/oracle_one.py windows/hop     those whose path starts so

A batch question may use every input as a table, `tumble(t, width)` for the window of an instant and
`hops(t, slide, width)` for the list of its windows. It may have several statements; the last is the question.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from datafusion import SessionContext

HERE = Path(__file__).parent
FOLDERS = ("windows", "joins", "aggregates", "over", "times")

TABLES = {
    "rides": "event_time TIMESTAMP, event TEXT, ride_id BIGINT, driver_id BIGINT, zone TEXT, passengers INT, "
    "fare DOUBLE, paid_with TEXT",
    "customers": "customer_id BIGINT, name TEXT, tier TEXT, region TEXT, joined_at TIMESTAMP",
    "orders": "order_id BIGINT, customer_id BIGINT, placed_at TIMESTAMP, status TEXT, amount BIGINT, "
    "quantity INT, coupon TEXT, ship_to STRUCT(city TEXT, country TEXT)",
    "payments": "payment_id BIGINT, order_id BIGINT, paid_at TIMESTAMP, method TEXT, amount BIGINT",
    "views": "view_id BIGINT, viewed_at TIMESTAMP, user_name TEXT, path TEXT, referrer TEXT, "
    "device STRUCT(os TEXT, mobile BOOLEAN), spent_ms BIGINT",
    "readings": "reading_id BIGINT, read_at TIMESTAMP, sensor TEXT, x DOUBLE, y DOUBLE, flags BIGINT, "
    "ok BOOLEAN, note TEXT",
    "impressions": "impression_id BIGINT, shown_at TIMESTAMP, ad TEXT, person BIGINT, cost BIGINT",
    "clicks": "clicked_at TIMESTAMP, ad TEXT, person BIGINT",
    "trips": "visit_id BIGINT, visited_at TIMESTAMP, who TEXT, points BIGINT",
    "bids": "bid BIGINT, item TEXT, price BIGINT, placed TIMESTAMP",
    "quotes": "quote BIGINT, item TEXT, worth BIGINT, since TIMESTAMP",
    "bridges": "visit_id BIGINT, visited_at TIMESTAMP, who TEXT, points BIGINT",
}

MACROS = """
CREATE MACRO bucket(t, width) AS time_bucket(width, t, TIMESTAMP '1970-01-01');
CREATE MACRO tumble(t, width) AS {'start': bucket(t, width), 'end': bucket(t, width) + width};
CREATE MACRO hops(t, slide, width) AS list_transform(
    generate_series(bucket(t - width, slide) + slide, bucket(t, slide), slide),
    lambda s: {'start': s, 'end': s + width}
);
"""


def database() -> duckdb.DuckDBPyConnection:
    """DuckDB with the inputs as tables."""
    made = duckdb.connect()
    made.execute(MACROS)
    for name, columns in TABLES.items():
        path = HERE / "inputs" / f"{name}.json"
        made.execute(f"CREATE TABLE {name} ({columns})")
        types = ", ".join(f"{column}: '{kind}'" for column, kind in _columns(made, name))
        made.execute(f"INSERT INTO {name} SELECT * FROM read_json('{path}', columns = {{{types}}})")
    return made


def _columns(made: duckdb.DuckDBPyConnection, table: str) -> list[tuple[str, str]]:
    return [(row[0], row[1].replace("'", "''")) for row in made.execute(f"DESCRIBE {table}").fetchall()]


def answer(question: Path) -> pa.Table:
    """The rows that a batch question gives."""
    text = question.read_text(encoding="utf-8")
    with database() as made:
        if question.suffix == ".duckdb":
            return made.sql(text).to_arrow_table()
        ctx = SessionContext()
        for name in TABLES:
            ctx.from_arrow(made.sql(f"FROM {name}").to_arrow_table(), name)
    return ctx.sql(text).to_arrow_table()


def plain(value: Any) -> Any:
    """A value as it stands in JSON."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        text = value.isoformat()
        return text.removesuffix("000") if value.microsecond else text
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def lines(table: pa.Table) -> str:
    """Rows as JSON lines, in the order of their text: what the order of rows is does not matter."""
    rows = [{name: plain(value) for name, value in row.items()} for row in table.to_pylist()]
    return "".join(sorted(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def questions(start: str) -> Iterator[Path]:
    """The batch questions whose path starts so."""
    for folder in FOLDERS:
        for path in sorted((HERE / folder).iterdir()):
            if path.suffix in (".duckdb", ".datafusion") and f"{folder}/{path.name}".startswith(start):
                yield path


if __name__ == "__main__":
    for one in questions(sys.argv[1] if len(sys.argv) > 1 else ""):
        one.with_suffix(".expected.jsonl").write_text(lines(answer(one)), encoding="utf-8")
