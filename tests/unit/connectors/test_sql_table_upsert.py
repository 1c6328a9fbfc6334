"""The statements and values that the database sink gives to SQLAlchemy, without a database."""

from __future__ import annotations

import datetime as dt
import sys
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy import dialects

from headrace.base.errors import ConfigurationError, MissingExtraError
from headrace.connectors.database.sink import DatabaseSink, make_upsert
from headrace.connectors.database.values import column_type, python_values
from headrace.formats.base import JSON_COLUMN

mysql, postgresql, sqlite = (dialects.registry.load(name) for name in ("mysql", "postgresql", "sqlite"))
TABLE = sa.Table(
    "t", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("name", sa.Text)
)


@pytest.mark.parametrize(
    ("dialect", "names", "text"),
    [
        (postgresql, ["id", "name"], "ON CONFLICT (id) DO UPDATE SET name = excluded.name"),
        (sqlite, ["id", "name"], "ON CONFLICT (id) DO UPDATE SET name = excluded.name"),
        (sqlite, ["id"], "ON CONFLICT (id) DO NOTHING"),
        (mysql, ["id", "name"], "ON DUPLICATE KEY UPDATE name = "),
        (mysql, ["id"], "INSERT IGNORE INTO t"),
    ],
)
def test_rows_are_replaced_by_the_statement_of_the_database(
    dialect: Any, names: list[str], text: str
) -> None:
    made = dialect()
    upsert = make_upsert(made.name, TABLE, names, ["id"])
    assert text in str(upsert.compile(dialect=made))


def test_a_database_without_such_a_statement_has_none() -> None:
    assert make_upsert("oracle", TABLE, ["id", "name"], ["id"]) is None


@pytest.mark.parametrize(
    ("array", "target", "values"),
    [
        (pa.array([1, None]), sa.Text(), ["1", None]),
        (pa.array(["a", None]).dictionary_encode(), sa.Text(), ["a", None]),
        (pa.array([[1], None]), sa.JSON(), [[1], None]),
        (pa.array([[1], None]), sa.Text(), ["[1]", None]),
        (pa.array([[1], None]), sa.ARRAY(sa.Integer), [[1], None]),
        (
            pa.array([1500], pa.timestamp("ns")),
            sa.DateTime(),
            [dt.datetime.fromisoformat("1970-01-01T00:00:00.000001")],
        ),
        (
            pa.array([0], pa.timestamp("s")),
            sa.DateTime(timezone=True),
            [dt.datetime(1970, 1, 1, tzinfo=dt.UTC)],
        ),
        (pa.array([5], pa.duration("s")), sa.Interval(), [dt.timedelta(seconds=5)]),
        (pa.array([pa.MonthDayNano([0, 1, 10**9])]), sa.Interval(), [dt.timedelta(days=1, seconds=1)]),
        (pa.array([pa.MonthDayNano([1, 0, 0]), None]), sa.Interval(), ["1 mons", None]),
        (pa.array([pa.MonthDayNano([1, 0, 0]), None]), sa.Text(), ["1 mons", None]),
        (pa.array([b"x"]), sa.Text(), [b"x"]),
    ],
)
def test_values_are_what_the_column_takes(array: pa.Array, target: Any, values: list[Any]) -> None:
    field, column = pa.field("c", array.type), sa.Column("c", target)
    assert python_values(array, field, column, postgresql()) == values


def test_json_texts_are_values_in_a_json_column() -> None:
    field = pa.field("c", pa.string(), metadata=JSON_COLUMN)
    texts, column = pa.array(['{"a": 1}', None]), sa.Column("c", sa.JSON())
    assert python_values(texts, field, column, sqlite()) == [{"a": 1}, None]


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        (pa.uint8(), "SMALLINT"),
        (pa.uint16(), "INTEGER"),
        (pa.uint32(), "BIGINT"),
        (pa.uint64(), "NUMERIC(20, 0)"),
        (pa.float32(), "FLOAT(24)"),
        (pa.timestamp("ns", "UTC"), "TIMESTAMP WITH TIME ZONE"),
        (pa.list_(pa.int64()), "JSON"),
        (pa.string(), "TEXT"),
    ],
)
def test_created_columns_have_types_that_hold_the_values(kind: pa.DataType, made: str) -> None:
    assert str(column_type(pa.field("c", kind)).compile(postgresql())) == made


def test_keys_are_texts_that_can_be_indexed() -> None:
    assert str(column_type(pa.field("c", pa.string()), key=True).compile(mysql())) == "VARCHAR(190)"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("no address, open-sesame", "cannot be read as an address of SQLAlchemy"),
        ("nosuch://u:open-sesame@h/d", "cannot be read as an address of SQLAlchemy"),
        ("mysql+nosuchdriver://u:open-sesame@h/d", "cannot be read as an address of SQLAlchemy"),
        ("oracle+oracledb://u:open-sesame@h/d", "the driver `oracledb` of this database is not installed"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_showing_it(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        DatabaseSink(url=url, table="t").validate()
    assert "sesame" not in str(caught.value)


def test_without_sqlalchemy_the_pip_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(MissingExtraError, match="SQLAlchemy") as caught:
        DatabaseSink(url="sqlite://", table="t").validate()
    assert caught.value.hint == "pip install 'headrace[sql]'"


def test_nothing_that_is_shown_holds_a_secret() -> None:
    sink = DatabaseSink(url="mysql://ada:open-sesame@host/sales?x=sesame", table="orders", password="sesame")
    assert sink.display() == "DatabaseSink(orders at host/sales)"
    assert "sesame" not in f"{sink.options!r}{sink.options.model_dump_json()}"
