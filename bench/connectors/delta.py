"""Delta Lake tables, beside deltalake alone."""

from __future__ import annotations

import tempfile
from pathlib import Path

from deltalake import DeltaTable, write_deltalake

from bench.connectors._files import per_second, read, table, write
from headrace.connectors.delta.sink import DeltaSink
from headrace.connectors.delta.source import DeltaSource


def measure() -> dict[str, float]:
    """Write a table and read it with the connector, and with the library."""
    rows = table()
    alone = rows.drop_columns(["_timestamp"])
    with tempfile.TemporaryDirectory() as name:
        ours, theirs = str(Path(name, "ours")), str(Path(name, "theirs"))
        options = {"path": ours, "rolling_policy.interval": "1d"}
        return {
            "sink": per_second(lambda: write(lambda: DeltaSink(**options), rows, Path(name, "state"))),
            "source": per_second(lambda: read(DeltaSource(path=ours))),
            "deltalake, write": per_second(lambda: write_deltalake(theirs, alone)),
            "deltalake, read": per_second(lambda: DeltaTable(theirs).to_pyarrow_table()),
        }
