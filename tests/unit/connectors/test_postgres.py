"""What the postgres source and lookup refuse, and what they show, without a server."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import ConfigurationError, MissingExtraError
from headrace.connectors.postgres import snapshot as postgres_snapshot
from headrace.connectors.postgres.lookup import PostgresLookup
from headrace.connectors.postgres.snapshot import Snapshot, copied_rows
from headrace.connectors.postgres.source import PostgresSource
from headrace.storage.open import open_storage

URL = "postgresql://ada:open-sesame@host:5432/sales"
COLUMNS = {"id": "int64", "name": "string"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source.slot": "Not A Slot"}, "option `source.slot`"),
        ({"source.changes": "some"}, "option `source.changes`"),
        ({"source.bounded": True, "source.snapshot": False}, "would read nothing"),
        ({"source.snapshots": True}, "did you mean `source.snapshot`"),
        ({"format": "json"}, "unknown option `format`"),
    ],
)
def test_options_of_a_source_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        PostgresSource(**{"url": URL, "table": "t", "schema": COLUMNS, **options})
    assert "sesame" not in str(caught.value)


def test_a_source_has_to_be_told_the_columns() -> None:
    with pytest.raises(ConfigurationError, match="needs to know its columns"):
        PostgresSource(url=URL, table="t").validate()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": COLUMNS}, "needs a primary key of one column, got none"),
        ({"schema": COLUMNS, "primary_key": "id, name"}, "needs a primary key of one column, got id, name"),
        ({"primary_key": "id"}, "PostgresLookup needs columns"),
        ({"schema": COLUMNS, "primary_key": "key"}, "`primary_key` names `key`"),
    ],
)
def test_a_lookup_needs_columns_and_a_key(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        PostgresLookup(url=URL, table="t", **options)


def test_whether_rows_change_depends_on_the_options() -> None:
    assert PostgresSource.is_updating({})
    assert not PostgresSource.is_updating({"source.changes": "inserts"})
    assert not PostgresSource.is_updating({"source.bounded": "true"})
    assert not PostgresSource.is_updating({"source.bounded": True})


def test_without_psycopg_the_pip_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.setitem(sys.modules, "psycopg.conninfo", None)
    with pytest.raises(MissingExtraError, match="psycopg") as caught:
        PostgresSource(url=URL, table="t", schema=COLUMNS).validate()
    assert caught.value.hint == "pip install 'headrace[postgres]'"


def test_nothing_that_is_shown_holds_a_secret() -> None:
    one = PostgresSource(url=URL, table="t", schema=COLUMNS, password="sesame")
    assert one.display() == "PostgresSource(t at host:5432/sales)"
    assert "sesame" not in f"{one.options!r}{one.options.model_dump_json(exclude={'columns'})}"


@pytest.mark.parametrize("size", [1, 3, 100])
def test_copied_rows_are_kept_in_files_and_read_in_any_range(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(postgres_snapshot, "FILE_ROWS", 4)
    monkeypatch.setattr(postgres_snapshot, "_PARSED_BYTES", size)
    lines = [f'{n},"a ""{n}"",\r\n"\n'.encode() for n in range(10)] + [b',""\n', b"7,\n"]
    storage = open_storage(str(tmp_path))
    snapshot, folder = Snapshot.create(storage, "node", check=lambda: None)

    def values(texts: Sequence[pa.Array]) -> pa.Table:
        return pa.table({"n": texts[0].cast(pa.int64()), "s": texts[1]})

    total, index = snapshot.write(copied_rows(iter(lines), 2, values))
    assert total == 12
    assert len(storage.list(folder + "/")) == 4  # three of rows, and the index
    snapshot = Snapshot(storage, folder, index)
    rows = [{"n": n, "s": f'a "{n}",\r\n'} for n in range(10)] + [{"n": None, "s": ""}, {"n": 7, "s": None}]
    for first in range(13):
        for end in range(first, 13):
            found = [row for part in snapshot.read(first, end) for row in part.to_pylist()]
            assert found == rows[first:end]
    Snapshot.create(storage, "node", check=lambda: None)
    assert storage.list("snapshots/") == []
