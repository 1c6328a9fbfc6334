"""Iceberg tables, beside pyiceberg alone."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.connectors._files import per_second, table, write
from headrace.connectors.iceberg.sink import IcebergSink, load_catalog


def measure() -> dict[str, float]:
    """Write a table with the connector, and with the library."""
    rows = table()
    alone = rows.drop_columns(["_timestamp"])
    with tempfile.TemporaryDirectory() as name:
        options = {
            "catalog.type": "sql",
            "catalog.url": f"sqlite:///{name}/catalog.db",
            "catalog.warehouse": f"file://{name}/warehouse",
            "table_name": "ours",
            "rolling_policy.interval": "1d",
        }
        catalog = load_catalog(IcebergSink(**options).options)
        catalog.create_namespace("default")  # which also imports what it takes
        rates = {
            "sink": per_second(lambda: write(lambda: IcebergSink(**options), rows, Path(name, "state"))),
        }
        theirs = catalog.create_table("default.theirs", alone.schema)
        rates["pyiceberg, append"] = per_second(lambda: theirs.append(alone))
    return rates
