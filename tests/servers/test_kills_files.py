"""kill -9 of pipelines into files, lakes and a database in a file, and the promises that are counted."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.connectors.base import Delivery
from tests.servers.http import table
from tests.servers.killing import Files, Output, copying, delivery_of, kill_and_count, lines

SOMETIMES = {"rolling_policy__interval": "50ms", "rolling_policy__file_size": 300}
"""Files that span some epochs, so that rows wait in the state when the run is killed."""


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_files_hold_each_row_once(tmp_path: Path, form: str) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    source: dict[str, Any] = {"path": folder, "format": form, "source__watch_interval": "20ms"}
    sink = {"path": out, "format": form, **SOMETIMES}

    def feed(numbers: Sequence[int]) -> None:
        part = tmp_path / f"part.{form}"
        if form == "json":
            part.write_text("".join(f"{line}\n" for line in lines(numbers)))
        else:
            pq.write_table(pa.table({"n": list(numbers)}), part)
        part.replace(folder / f"{numbers[0]:06}.{form}")

    def seen() -> Counter[int]:
        files = [path for path in out.rglob(f"*.{form}") if not path.name.startswith((".", "_"))]
        if form == "parquet":
            return Counter(n for path in files for n in pq.read_table(path).column("n").to_pylist())
        return Counter(json.loads(line)["n"] for path in files for line in path.read_text().splitlines())

    sql = copying(
        table("filesystem", "n BIGINT", **source), table("filesystem", "n BIGINT", "sink", "copied", **sink)
    )
    kill_and_count(sql, tmp_path / "state", feed=feed, seen=seen)


def test_a_delta_table_holds_each_row_once(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    files, out = Files(tmp_path), str(tmp_path / "table")

    def seen() -> Counter[int]:
        if not deltalake.DeltaTable.is_deltatable(out):
            return Counter()
        return Counter(deltalake.DeltaTable(out).to_pyarrow_table().column("n").to_pylist())

    options = {"path": out, "format": "parquet", **SOMETIMES}
    sql = copying(files.sql, table("delta", "n BIGINT", "sink", "copied", **options))
    kill_and_count(sql, tmp_path / "state", feed=files.feed, seen=seen)


def test_a_delta_table_that_is_followed_is_read_once(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    out, path = Output(tmp_path), str(tmp_path / "table")

    def feed(numbers: Sequence[int]) -> None:
        deltalake.write_deltalake(path, pa.table({"n": list(numbers)}), mode="append")

    options = {"path": path, "format": "parquet", "source__watch_interval": "20ms"}
    sql = copying(table("delta", "n BIGINT", **options), out.sql)
    kill_and_count(sql, tmp_path / "state", feed=feed, seen=out.seen)


def test_an_iceberg_table_holds_each_row_once(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    from headrace.connectors.iceberg.sink import IcebergSink, load_catalog

    files = Files(tmp_path)
    options = {
        "catalog__type": "sql",
        "catalog__url": f"sqlite:///{tmp_path}/catalog.db",
        "catalog__warehouse": f"file://{tmp_path}/warehouse",
        "namespace": "lake",
        "table_name": "copied",
    }
    spelled = {name.replace("__", "."): value for name, value in options.items()}
    catalog = load_catalog(IcebergSink(**spelled).options)

    def seen() -> Counter[int]:
        if not catalog.table_exists("lake.copied"):
            return Counter()
        return Counter(catalog.load_table("lake.copied").scan().to_arrow().column("n").to_pylist())

    given: dict[str, Any] = {"format": "parquet", **options, **SOMETIMES}
    sql = copying(files.sql, table("iceberg", "n BIGINT", "sink", "copied", **given))
    kill_and_count(sql, tmp_path / "state", feed=files.feed, seen=seen)


def test_a_database_in_a_file_holds_each_row_once(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    files, path = Files(tmp_path), tmp_path / "rows.db"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE copied (n BIGINT)")
    made.close()

    def seen() -> Counter[int]:
        connection = sqlite3.connect(path, timeout=60)
        try:
            return Counter(n for (n,) in connection.execute("SELECT n FROM copied"))
        finally:
            connection.close()

    options = {"url": f"sqlite:///{path}", "table": "copied", "format": None}
    sql = copying(files.sql, table("database", "n BIGINT", "sink", "copied", **options))
    kill_and_count(sql, tmp_path / "state", feed=files.feed, seen=seen)


# ------------------------------------------------------------------------------- how promises are found


@pytest.mark.parametrize(
    ("when", "met"),
    [
        ("", True),
        ("`target` = 'string' or 'hash'", False),
        ("`target` = 'list' and `address`", True),
        ("target = 'list' and `cluster.addresses`", False),
        ("no `cluster.addresses`", True),
        ("no `address`", False),
        ("the server is in a good mood", False),
    ],
)
def test_the_condition_of_a_promise_is_read(when: str, met: bool) -> None:
    options = {"target": "list", "address": "here", "cluster.addresses": None}
    one, other = Delivery("exactly once", "so", when=when), Delivery("at most once", "so", when="it is told")
    assert delivery_of([one] if met else [one, other], options, ["it is told"]) == (one if met else other)
