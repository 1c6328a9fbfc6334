"""Rows of PostgreSQL that cannot be read: why, and how they travel with a copy."""

from __future__ import annotations

import pyarrow as pa

from headrace.connectors.postgres.rows import RowReader

READER = RowReader(
    pa.schema([pa.field("id", pa.int8(), nullable=False), pa.field("at", pa.timestamp("us"))]),
    table="t",
    where="host:5432/db",
)
TEXTS = [
    pa.array(["1", "x", None, "400", "5"]),
    pa.array(["2026-01-02 03:04:05", None, "infinity", "-infinity", None]),
]


def test_each_bad_row_is_told_once_with_its_column_its_value_and_its_place() -> None:
    rows, bad = READER.read(TEXTS, [16, 32, 48, 64, 80])
    assert [at for at in range(rows.num_rows) if at not in bad] == [0, 4]
    assert {at: (error.column, error.message) for at, error in bad.items()} == {
        1: ("id", "column `id` of table `t`: `x` cannot be read as int8, in the transaction at 0/20"),
        2: (
            "id",
            (
                "column `id` of table `t`: the value is missing, and the column is NOT NULL, "
                "in the transaction at 0/30"
            ),
        ),
        3: ("id", "column `id` of table `t`: `400` cannot be read as int8, in the transaction at 0/40"),
    }
    assert bad[3].content == '{"id": "400", "at": "-infinity"}'
    assert bad[3].position == "the transaction at 0/40"


def test_a_copy_keeps_what_is_wrong_with_its_rows() -> None:
    rows, bad = READER.read(TEXTS)
    again, told = READER.split_errors(READER.with_errors(rows, bad))
    assert again.equals(rows)
    assert {at: (one.message, one.column, one.content, one.position) for at, one in told.items()} == {
        at: (one.message, one.column, one.content, one.position) for at, one in bad.items()
    }
    assert READER.split_errors(rows) == (rows, {})  # a copy of which all rows had to be good
