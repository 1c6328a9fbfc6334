"""Tables of PostgreSQL, beside psycopg alone."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.connectors._rows import rate, sink_rate
from headrace.connectors.database.sink import DatabaseSink
from headrace.connectors.postgres.sink import PostgresSink
from headrace.connectors.postgres.source import PostgresSource
from headrace.model.operator import Limit
from headrace.storage.open import open_storage
from tests.servers.postgres import Database, new_database, run_server
from tests.support import read_split

ROWS = 200_000
PEEK = "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', %s, %s)"


def measure() -> dict[str, float]:
    """Read a table and its changes, add and replace rows, with the connector and with the client alone."""
    pa.array([""])  # the first array of a process imports pandas
    with run_server() as server, new_database(server) as postgres, tempfile.TemporaryDirectory() as folder:
        return _read(postgres, Path(folder)) | _write(postgres, Path(folder))


_rate = functools.partial(rate, rows=ROWS)


def _read(postgres: Database, folder: Path) -> dict[str, float]:
    query = f"SELECT n AS id, 'name ' || n AS name, n * 0.5 AS price FROM generate_series(1, {ROWS}) n"
    postgres.run(f"CREATE TABLE goods AS {query}", "ALTER TABLE goods REPLICA IDENTITY FULL")
    columns = {"id": "int64", "name": "string", "price": "double"}
    source = PostgresSource(url=postgres.url, table="goods", schema=columns)
    source.open(open_storage(str(folder)), job_id="bench", node="goods")
    offsets: list[Any] = []

    def read() -> None:
        end = source.latest_offset(offsets[-1], Limit(ROWS, 0), parallelism=1)
        for split in source.splits(offsets[-1], end, parallelism=1):
            read_split(source, split)
        offsets.append(end)

    rates = {"source, first rows copied": _rate(lambda: offsets.append(source.initial_offset(time=0)))}
    rates["source, first rows read"] = _rate(read)
    rates["client, SELECT"] = _rate(lambda: postgres.rows("SELECT * FROM goods"))
    postgres.run("UPDATE goods SET price = price + 1")
    rates["source, updates"] = _rate(read)
    names = [offsets[-1]["changes"]["slot"], "publication_names", "headrace_goods"]
    rates["client, updates as bytes"] = _rate(lambda: postgres.rows(PEEK, names))
    return rates


def _write(postgres: Database, folder: Path) -> dict[str, float]:
    names = [f"name {n}" for n in range(ROWS)]
    rows = pa.table({"id": range(ROWS), "name": names, "price": [n * 0.5 for n in range(ROWS)]})
    tuples = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))

    def write(sink: Any, table: str, key: str) -> float:
        postgres.run(f"CREATE TABLE {table} (id bigint PRIMARY KEY, name text, price double precision)")
        options = {"url": postgres.url, "table": table, "primary_key": key}
        return sink_rate(lambda: sink(**options), rows.to_batches(), folder / table)

    def copy() -> None:
        postgres.run("CREATE TABLE copied (id bigint PRIMARY KEY, name text, price double precision)")
        with postgres.connection.cursor() as cursor, cursor.copy("COPY copied FROM STDIN") as stream:
            for row in tuples:
                stream.write_row(row)

    return {
        "sink, rows added": write(PostgresSink, "added", ""),
        "client, COPY row by row": _rate(copy),
        "sink, rows replaced": write(PostgresSink, "replaced", "id"),
        "database sink, rows replaced": write(DatabaseSink, "general", "id"),
    }
