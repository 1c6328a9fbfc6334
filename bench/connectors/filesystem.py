"""Files of Parquet and of JSON lines, beside pyarrow alone."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.json
import pyarrow.parquet as pq

from bench.connectors._files import ROWS, per_second, read, table, write
from headrace.connectors.filesystem.sink import FileSystemSink
from headrace.connectors.filesystem.source import FileSystemSource


def measure() -> dict[str, float]:
    """Write files and read them with the connector, and with pyarrow."""
    rows, rates = table(), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for form in ("parquet", "json"):
            path = str(folder / form)
            options: dict[str, Any] = {"path": path, "format": form, "rolling_policy.interval": "1d"}
            columns = {"n": "int64", "text": "string"}

            def make(options: dict[str, Any] = options) -> FileSystemSink:
                return FileSystemSink(**options)

            rates[f"{form} sink"] = per_second(lambda: write(make, rows, folder / f"state-{form}"))  # noqa: B023
            source = FileSystemSource(path=path, format=form, schema=columns)
            rates[f"{form} source"] = per_second(lambda: read(source))  # noqa: B023
        alone = rows.drop_columns(["_timestamp"])
        file = folder / "alone.parquet"
        rates["pyarrow, write parquet"] = per_second(lambda: pq.write_table(alone, file, compression="zstd"))
        rates["pyarrow, read parquet"] = per_second(lambda: pq.read_table(file, use_threads=False))
        lines = folder / "alone.json"
        text = "".join(json.dumps(row) + "\n" for row in alone.slice(0, ROWS // 10).to_pylist())
        rates["json.dumps, write lines"] = per_second(
            lambda: lines.write_text(
                "".join(json.dumps(r) + "\n" for r in alone.slice(0, ROWS // 10).to_pylist())
            ),
            ROWS // 10,
        )
        lines.write_text(text * 10)
        options = {"use_threads": False, "block_size": 4 << 20}
        rates["pyarrow, read lines"] = per_second(
            lambda: pyarrow.json.read_json(lines, pyarrow.json.ReadOptions(**options))
        )
    return rates
