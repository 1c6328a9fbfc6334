"""The postgres sink against a real server: changes, values, and what it refuses."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import Pipeline
from headrace.base.errors import ConfigurationError, ExternalError, PlanError, RefusedError, SqlError
from headrace.connectors.database.sink import DatabaseSink
from headrace.connectors.postgres import client as shared
from headrace.connectors.postgres.sink import PostgresSink
from headrace.formats.base import JSON_COLUMN
from tests.servers.postgres import PASSWORD, Database
from tests.support import SinkDriver


def options(postgres: Database, table: str, **more: Any) -> dict[str, Any]:
    return {"url": postgres.url, "table": table, **{k.replace("__", "."): v for k, v in more.items()}}


def driver(postgres: Database, folder: Path, table: str, **more: Any) -> SinkDriver:
    return SinkDriver(lambda: PostgresSink(**options(postgres, table, **more)), folder)


def batch(rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema)


def changes(*rows: tuple[str, int, Any]) -> pa.RecordBatch:
    """Rows as (`+` or `-`, id, name)."""
    return batch([{"id": n, "name": name, "_retract": sign == "-"} for sign, n, name in rows])


def with_options(values: dict[str, Any]) -> str:
    return "WITH (" + ", ".join(f"'{name}' = '{value}'" for name, value in values.items()) + ")"


# ------------------------------------------------------------------------------------------------ changes


@pytest.mark.parametrize("seed", range(4))
def test_the_changes_of_an_epoch_count_in_whatever_order_subtasks_give_them(
    postgres: Database, tmp_path: Path, seed: int
) -> None:
    postgres.run("CREATE TABLE t (id bigint PRIMARY KEY, name text, untouched text DEFAULT 'kept')")
    sink = driver(postgres, tmp_path, "t", primary_key="id")
    sink.run(1, [changes(("+", 1, "a"), ("+", 2, "b"), ("+", 3, "c"), ("+", 4, "d"))])
    parts = [
        [changes(("-", 1, "a"), ("+", 1, "x"))],  # updated
        [changes(("-", 1, "x"), ("+", 5, "e"))],  # … and again, in another subtask
        [changes(("+", 1, "y"), ("-", 2, "b"), ("-", 5, "e"))],  # deleted; came and went
        [changes(("-", 3, "c"), ("+", 3, "z"), ("-", 3, "z"), ("+", 3, "c"))],  # as it was
    ]
    order = [parts[(place * 3 + seed) % 4] for place in range(4)]
    sink.run(2, *order)
    assert postgres.rows("SELECT * FROM t ORDER BY id") == [
        (1, "y", "kept"),
        (3, "c", "kept"),
        (4, "d", "kept"),
    ]


def test_without_retractions_the_last_row_of_a_key_counts(postgres: Database, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE t (a text, b int, name text, PRIMARY KEY (a, b))")
    sink = driver(postgres, tmp_path, "t", primary_key="b, a")
    rows = [{"a": "x", "b": n % 2, "name": str(n)} for n in range(5)]
    sink.run(1, [batch(rows[:2])], [batch(rows[2:])])
    sink.run(2, [batch([{"a": "x", "b": 1, "name": None}])])
    assert postgres.rows("SELECT * FROM t ORDER BY b") == [("x", 0, "4"), ("x", 1, None)]


def test_a_table_of_nothing_but_its_key_is_a_set(postgres: Database, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE t (id bigint PRIMARY KEY)")
    sink = driver(postgres, tmp_path, "t", primary_key="id")
    for epoch in (1, 2):
        sink.run(epoch, [batch([{"id": epoch}, {"id": 7}, {"id": 7}])])
    assert sorted(postgres.rows("SELECT id FROM t")) == [(1,), (2,), (7,)]


def test_an_updating_result_needs_the_key_of_the_table(postgres: Database, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"n": 1}')
    sql = f"""
        CREATE TABLE numbers (n BIGINT) WITH (connector = 'single_file', path = '{tmp_path / "in.json"}');
        CREATE TABLE t (times BIGINT) {with_options({"connector": "postgres", **options(postgres, "t")})};
        INSERT INTO t SELECT count(*) FROM numbers;
    """
    with pytest.raises(SqlError, match="cannot take an updating result") as caught:
        Pipeline.from_sql(sql)
    assert "declare the PRIMARY KEY of the table" in str(caught.value)
    with pytest.raises(PlanError, match="has no key"):
        driver(postgres, tmp_path, "t").prepare(1, [changes(("+", 1, "a"))])


# ------------------------------------------------------------------------------------------------- values

COLUMNS = pa.schema(
    [
        pa.field("b", pa.bool_()),
        pa.field("i", pa.int64()),
        pa.field("f", pa.float64()),
        pa.field("d", pa.decimal128(20, 5)),
        pa.field("s", pa.string()),
        pa.field("y", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.time64("ns")),
        pa.field("ts", pa.timestamp("ns")),
        pa.field("tz", pa.timestamp("us", "UTC")),
        pa.field("span", pa.month_day_nano_interval()),
        pa.field("l", pa.list_(pa.string())),
        pa.field("m", pa.list_(pa.list_(pa.int64()))),
        pa.field("j", pa.string(), metadata=JSON_COLUMN),
        pa.field("o", pa.struct([("x", pa.int64())])),
        pa.field("u", pa.uint64()),
    ]
)
VALUE: dict[str, Any] = {
    "b": True,
    "i": -(2**63),
    "f": float("inf"),
    "d": Decimal("-12345.67890"),
    "s": 'ü "quoted", \\N \\.\n\\.\n\r\n\t',
    "y": b"\x00\xff\n",
    "day": dt.date(1969, 12, 31),
    "at": dt.time(23, 59, 59, 999_999),
    "ts": dt.datetime.fromisoformat("2026-01-02T03:04:05.000006"),
    "tz": dt.datetime.fromisoformat("2026-01-02T03:04:05+02:00"),
    "span": pa.MonthDayNano([1, -2, 3_500_000_000]),
    "l": ["a", None, 'b",\\{}', "NULL", ""],
    "m": [[1, 2], [3, None]],
    "j": '{"a": [1, null]}',
    "o": {"x": 1},
    "u": 2**64 - 1,
}


@pytest.mark.parametrize("key", [None, "i"])
def test_values_of_every_type_are_written_into_a_table_that_the_sink_creates(
    postgres: Database, tmp_path: Path, key: str | None
) -> None:
    more = {} if key is None else {"primary_key": key}
    sink = driver(postgres, tmp_path, "t", schema=COLUMNS, sink__create_table=True, **more)
    plain = pa.schema([pa.field(field.name, field.type) for field in COLUMNS])
    nothing = {**dict.fromkeys(VALUE), "i": 7}
    empty = {**VALUE, "i": 8, "s": "", "y": b"", "l": [], "f": float("nan"), "m": []}
    sink.run(1, [batch([VALUE, nothing, empty], plain)])
    sink.run(2, [batch([{**VALUE, "i": 9}], plain)])
    first, second, third, fourth = postgres.rows("SELECT * FROM t ORDER BY i")
    assert first == tuple(
        {
            **VALUE,
            "span": dt.timedelta(days=28, seconds=3.5),
            "j": {"a": [1, None]},
            "u": Decimal(2**64 - 1),
        }.values()
    )
    assert second == (None, 7, *[None] * 14)
    assert third[4:6] == ("", b"")
    assert third[11:13] == ([], [])
    assert third[2] != third[2]
    assert fourth[1] == 9
    types = postgres.rows(
        "SELECT data_type FROM information_schema.columns WHERE table_name = 't' ORDER BY ordinal_position"
    )
    assert [one for (one,) in types][:5] == ["boolean", "bigint", "double precision", "numeric", "text"]


def test_texts_become_what_the_columns_of_the_table_are(postgres: Database, tmp_path: Path) -> None:
    postgres.run(
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        "CREATE TABLE t (id uuid PRIMARY KEY, mood mood, address inet, tags varchar(5)[], doc jsonb)",
        "ALTER TABLE t ADD more int[]",
    )
    sink = driver(postgres, tmp_path, "public.t", primary_key="id")
    row = {
        "id": "6f9619ff-8b86-d011-b42d-00c04fc964ff",
        "mood": "good",
        "address": "10.0.0.1",
        "tags": ["a"],
        "doc": [1, 2],
        "more": [3],
    }
    sink.run(1, [batch([row])])
    sink.run(2, [batch([{**row, "id": row["id"].upper(), "mood": "bad"}])])  # type: ignore[attr-defined]
    assert postgres.rows("SELECT mood::text, address::text, tags, doc, more FROM t") == [
        ("bad", "10.0.0.1/32", ["a"], [1, 2], [3])
    ]


def test_a_single_column_may_be_null(postgres: Database, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE t (s text)")
    driver(postgres, tmp_path, "t").run(1, [batch([{"s": None}, {"s": ""}, {"s": None}])])
    assert postgres.rows("SELECT s IS NULL, count(*) FROM t GROUP BY 1 ORDER BY 1") == [(False, 1), (True, 2)]


def test_names_are_taken_as_they_are(postgres: Database, tmp_path: Path) -> None:
    postgres.run('CREATE SCHEMA "My schema"', 'CREATE TABLE "My schema"."a.""b" ("N n" bigint, "select" int)')
    sink = driver(postgres, tmp_path, '"My schema"."a.""b"', sink__epochs_table='"My schema".marks')
    sink.run(1, [batch([{"N n": 1, "select": 2}])])
    assert postgres.rows('SELECT * FROM "My schema"."a.""b"') == [(1, 2)]
    assert postgres.rows('SELECT epoch FROM "My schema".marks WHERE epoch > 0') == [(1,)]


# --------------------------------------------------------------------------------------------- what fails


@pytest.mark.parametrize(
    ("table", "rows", "more", "message"),
    [
        ("nowhere", [{"n": 1}], {}, "has no table `nowhere`"),
        ("t", [{"m": 1}], {}, "has no column `m` in table `t`"),
        ("t", [{"n": 7}], {}, "violates check constraint"),
        ("t", [{"n": 1}, {"n": 1}], {}, "duplicate key value.*Key \\(n\\)=\\(1\\) already exists"),
        ("t", [{"n": 1, "s": "x"}], {"primary_key": "s"}, "has no primary key or unique index on s"),
        ("v", [{"n": 1}], {}, "cannot copy to view|cannot be performed on view"),
    ],
)
def test_what_the_database_refuses_is_told_and_nothing_is_written(
    postgres: Database, tmp_path: Path, table: str, rows: list[Any], more: dict[str, Any], message: str
) -> None:
    postgres.run(
        "CREATE TABLE t (n bigint PRIMARY KEY CHECK (n < 5), s varchar(3))",
        "CREATE VIEW v AS SELECT n FROM t",
    )
    sink = driver(postgres, tmp_path, table, **more)
    with pytest.raises(ExternalError, match=message) as caught:
        sink.run(1, [batch(rows)])
    assert postgres.name in str(caught.value)
    assert postgres.rows("SELECT count(*) FROM t") == [(0,)]
    assert postgres.rows("SELECT count(*) FROM headrace_epochs") == [(0,)]


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        ("smallint", [2**15 - 1, -(2**15), None], 2**15),
        ("integer", [2**31 - 1], -(2**31) - 1),
        ("integer", [1.0], 1.5),
        ("bigint", ["12", " 7 "], "x"),
        ("numeric(5, 2)", [999, -999], 1000),
        ("numeric(5, 2)", [999.994, math.nan], 999.996),
        ("numeric(5, 2)", [Decimal("999.994")], Decimal("999.995")),
        ("real", [1.5, math.inf], 1e300),
        ("varchar(3)", ["abc", "éàü", "abc  "], "abcd"),
        ("char(3)", ["a"], "abcd"),
        ("varchar(3) NOT NULL", ["", "a"], None),
        ("uuid", ["6f9619ff-8b86-d011-b42d-00c04fc964ff"], "6f9619ff"),
        ("mood", ["good"], "fair"),
        ("inet", ["10.0.0.1"], "10.0.0.256"),
        ("jsonb", ['{"a": 1}'], "{a: 1}"),
        ("timestamptz", ["2026-01-02 03:04:05+02"], "yesterday at noon or so"),
        ("small", [4], 5),
        ("int[]", [[1, 2]], [2**40]),
        ("boolean", ["yes"], "perhaps"),
    ],
)
def test_a_row_that_does_not_fit_the_columns_of_its_table_is_refused_before_the_commit_point(
    postgres: Database, tmp_path: Path, declared: str, good: list[Any], bad: Any
) -> None:
    postgres.run(
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        "CREATE DOMAIN small AS int CHECK (VALUE < 5)",
        f"CREATE TABLE t (n bigint, c {declared})",
    )
    sink = driver(postgres, tmp_path, "t")
    kind = pa.array([*good, bad]).type
    refused = pa.record_batch({"n": range(len(good) + 1), "c": pa.array([*good, bad], kind)})
    with pytest.raises(RefusedError, match=r"for column `c`, which is .* in the table") as caught:
        sink.prepare(1, [refused])
    shown = "null" if bad is None else str(bad)
    assert f"it has {shown}" in str(caught.value).replace("'", "")
    sink.run(1, [refused[: len(good)]])
    assert postgres.rows("SELECT count(*) FROM t") == [(len(good),)]


def test_a_table_that_was_changed_takes_what_fits_it_now(postgres: Database, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE t (id bigint PRIMARY KEY, s varchar(3))")
    sink = driver(postgres, tmp_path, "t", primary_key="id")
    wide = batch([{"id": 1, "s": "abcd", "_retract": False}])
    with pytest.raises(RefusedError, match="'abcd' for column `s`, which is character varying"):
        sink.prepare(1, [wide])
    # A value that is taken back in the same epoch is not written.
    sink.run(1, [batch([{"id": 1, "s": "abcd", "_retract": sign} for sign in (False, True)])])
    postgres.run("ALTER TABLE t ALTER s TYPE text")
    sink.run(2, [wide])
    assert postgres.rows("SELECT * FROM t") == [(1, "abcd")]


def test_null_is_left_to_a_trigger_that_may_replace_it(postgres: Database, tmp_path: Path) -> None:
    postgres.run(
        "CREATE TABLE t (n bigint NOT NULL)",
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN NEW.n := coalesce(NEW.n, 0); RETURN NEW; END'",
        "CREATE TRIGGER fill BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fill()",
    )
    rows = batch([{"n": None}], pa.schema({"n": pa.int64()}))
    SinkDriver(lambda: PostgresSink(url=postgres.url, table="t"), tmp_path / "a").run(1, [rows])
    SinkDriver(lambda: DatabaseSink(url=postgres.url, table="t"), tmp_path / "b").run(1, [rows])
    assert postgres.rows("SELECT n FROM t") == [(0,), (0,)]


def test_a_column_that_needs_a_value_and_is_not_written_is_told_before_the_run(postgres: Database) -> None:
    postgres.run("CREATE TABLE t (n bigint, made bigint DEFAULT 1 NOT NULL, who text NOT NULL)")
    schema = pa.schema({"n": pa.int64()})
    with pytest.raises(ExternalError, match="column `who` in table `t` that is NOT NULL and has no default"):
        PostgresSink(url=postgres.url, table="t", schema=schema).reach()
    schema = pa.schema({"n": pa.int64(), "who": pa.string()})
    assert "table t with 3 columns" in PostgresSink(url=postgres.url, table="t", schema=schema).reach()


def test_a_nul_character_is_refused_before_the_commit_point(postgres: Database, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE t (n bigint PRIMARY KEY, s text)")
    sink = driver(postgres, tmp_path, "t")
    with pytest.raises(ExternalError, match="column `s` holds a string with a NUL character") as caught:
        sink.run(1, [batch([{"n": 1, "s": "a\x00b"}])])
    assert postgres.name in str(caught.value)
    assert postgres.rows("SELECT count(*) FROM t") == [(0,)]


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"password": "wrong-word"}, "refuses the user: password authentication failed", "check the user"),
        ({"username": "nobody"}, "refuses the user: password authentication failed", "check the user"),
        ({"database": "nowhere"}, 'refuses: database "nowhere" does not exist', "check the option `url`"),
        ({"port": "1"}, "does not answer: Connection refused", "check host and port"),
        ({"host": "no-such-host.invalid"}, "does not answer: failed to resolve host", "check host and port"),
        ({"more": "?sslmode=require"}, "server does not support SSL", "sslmode=disable"),
    ],
)
def test_a_database_that_cannot_be_reached_is_told_without_secrets(
    postgres: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    message: str,
    hint: str,
) -> None:
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(shared, "CONNECT_SECONDS", 0.3)
    host, port = change.get("host", "127.0.0.1"), change.get("port", postgres.server.port)
    url = f"postgresql://tests:{PASSWORD}@{host}:{port}/{change.get('database', postgres.name)}"
    chosen = {name: one for name, one in change.items() if name in {"username", "password"}}
    sink = PostgresSink(url=url + change.get("more", ""), table="t", **chosen)
    sink.validate()
    made = SinkDriver(lambda: sink, tmp_path)
    for attempt in (sink.reach, lambda: made.run(1, [batch([{"n": 1}])])):
        with pytest.raises(ExternalError, match=message) as caught:
            attempt()
        assert hint in str(caught.value)
        assert PASSWORD not in str(caught.value)
        assert "wrong-word" not in str(caught.value)


def test_a_user_who_may_not_create_the_marks_is_told_what_to_run(postgres: Database, tmp_path: Path) -> None:
    postgres.run(
        "CREATE TABLE t (n bigint)", "DROP ROLE IF EXISTS small", "CREATE ROLE small LOGIN PASSWORD 'x'"
    )
    postgres.run("GRANT INSERT ON t TO small")
    sink = SinkDriver(
        lambda: PostgresSink(url=postgres.url, username="small", password="x", table="t"), tmp_path
    )
    try:
        with pytest.raises(ExternalError, match="does not let this user create the table") as caught:
            sink.run(1, [batch([{"n": 1}])])
        assert caught.value.hint is not None
        postgres.run(caught.value.hint.partition(": ")[2])
        with pytest.raises(ExternalError, match="permission denied for table headrace_epochs"):
            sink.run(1, [batch([{"n": 1}])])
        postgres.run("GRANT ALL ON headrace_epochs TO small")
        sink.run(1, [batch([{"n": 1}])])
        assert postgres.rows("SELECT n FROM t") == [(1,)]
    finally:
        postgres.run("DROP OWNED BY small", "DROP ROLE small")


# -------------------------------------------------------------------------------------------------- reach


def test_reach_tells_what_is_there_and_what_does_not_fit(postgres: Database) -> None:
    postgres.run("CREATE TABLE t (n bigint PRIMARY KEY, s text)")
    assert PostgresSink(**options(postgres, "t")).reach() == "PostgreSQL 16.6, table t with 2 columns"
    created = PostgresSink(**options(postgres, "new", sink__create_table=True))
    assert created.reach() == "PostgreSQL 16.6, table new is not there and will be created"
    for wrong, message in (
        (options(postgres, "x"), "has no table `x`"),
        (options(postgres, "t", schema={"m": "int64"}), "has no column `m`"),
        (options(postgres, "t", schema={"s": "string"}, primary_key="s"), "has no primary key"),
    ):
        with pytest.raises(ExternalError, match=message):
            PostgresSink(**wrong).reach()
    assert postgres.rows("SELECT to_regclass('headrace_epochs')") == [(None,)]


def test_an_address_that_cannot_be_read_is_refused_without_showing_it() -> None:
    for url in ("postgresql://u:open-sesame@h/d?nonsense=1", "postgresql://u:open sesame@h/d"):
        with pytest.raises(ConfigurationError, match="cannot be read as the address") as caught:
            PostgresSink(url=url, table="t").validate()
        assert "sesame" not in str(caught.value)
