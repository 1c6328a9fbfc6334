"""The postgres source against a real server: the rows of a table, then its changes."""

from __future__ import annotations

import datetime as dt
import json
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import pytest

from headrace.base.errors import BadLineError, ConfigurationError, ExternalError, ReplacedError
from headrace.base.spans import Source
from headrace.connectors.postgres import client as shared
from headrace.connectors.postgres import snapshot as postgres_snapshot
from headrace.connectors.postgres import source as postgres_source
from headrace.connectors.postgres.source import LANE, PostgresSource
from headrace.connectors.sample import read_sample
from headrace.model.operator import Limit, Offset, SourceContext
from headrace.sql.table_connectors import build_connectors
from headrace.sql.types import column_lines
from headrace.state.generation import Generation
from headrace.storage.open import open_storage
from tests.servers.postgres import Database
from tests.support import ListCollector, read_range, task

NOW = 1_700_000_000.0
TABLE = (
    "CREATE TABLE t (id bigint PRIMARY KEY, name text)",
    "ALTER TABLE t REPLICA IDENTITY FULL",
)

DROP_SLOTS = (
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
)


def source(postgres: Database, folder: Path, *, node: str = "source_t", **more: Any) -> PostgresSource:
    return opened(PostgresSource(**options(postgres, **more)), postgres, folder, node=node)


def options(postgres: Database, **more: Any) -> dict[str, Any]:
    named = {name.replace("__", "."): value for name, value in more.items()}
    return {"url": postgres.url, "table": "t", "schema": {"id": "int64", "name": "string"}, **named}


S = TypeVar("S", bound=PostgresSource)


def opened(made: S, postgres: Database, folder: Path, *, node: str = "source_t") -> S:
    made.validate()
    made.open(open_storage(str(folder)), job_id=f"job-{postgres.name}", node=node)
    return made


def read(one: PostgresSource, start: Offset | None = None, rows: int = 10**9) -> tuple[list[Any], Offset]:
    """Everything from `start` on, in epochs, and where that ends."""
    found: list[Any] = []
    offset = one.initial_offset(time=NOW) if start is None else start
    while (end := latest(one, offset, rows)) != offset:
        part = read_range(one, offset, end, parallelism=2)
        assert one.count(offset, end) == len(part)
        found += part
        offset = json.loads(json.dumps(end))
    return found, offset


def latest(one: PostgresSource, start: Offset, rows: int = 10**9) -> Offset:
    """How far an epoch may read now, without the rest that a look at a quiet log is followed by."""
    one._rest_until = 0.0
    return one.latest_offset(start, Limit(rows, NOW), parallelism=2)


def short(rows: list[Any]) -> list[tuple[Any, ...]]:
    """Rows as (`+` or `-`, id, name)."""
    return [("-" if row.get("_retract") else "+", row["id"], row["name"]) for row in rows]


# --------------------------------------------------------------------------------------------- what is read


def test_first_come_the_rows_that_are_there_and_then_every_change(postgres: Database, tmp_path: Path) -> None:
    postgres.run(*TABLE, "INSERT INTO t VALUES (1, 'a'), (2, NULL), (3, '')")
    one = source(postgres, tmp_path)
    rows, offset = read(one)
    assert sorted(short(rows)) == [("+", 1, "a"), ("+", 2, None), ("+", 3, "")]
    assert {row["_timestamp"] for row in rows} == {int(NOW * 1e9)}
    postgres.run(
        "INSERT INTO t VALUES (4, 'd')",
        "UPDATE t SET name = 'b' WHERE id = 2",
        "UPDATE t SET id = 7 WHERE id = 3",
        "DELETE FROM t WHERE id = 1",
    )
    rows, offset = read(one, offset)
    assert short(rows) == [
        ("+", 4, "d"),
        ("-", 2, None), ("+", 2, "b"),
        ("-", 3, ""), ("+", 7, ""),
        ("-", 1, "a"),
    ]  # fmt: skip
    (now,) = postgres.rows("SELECT extract(epoch FROM now())")[0]
    assert all(abs(row["_timestamp"] / 1e9 - float(now)) < 60 for row in rows)
    assert read(one, offset) == ([], offset)


def test_what_is_committed_after_the_start_of_a_run_with_available_now_is_left_for_the_next(
    postgres: Database, tmp_path: Path
) -> None:
    postgres.run(*TABLE, "INSERT INTO t VALUES (1, 'a')")
    one = source(postgres, tmp_path)
    start = one.initial_offset(time=NOW)
    postgres.run("INSERT INTO t VALUES (2, 'b')", "INSERT INTO t VALUES (3, 'c')")
    start = one.limit_to_available(start, time=NOW)
    postgres.run("INSERT INTO t VALUES (4, 'd')")
    rows, offset = read(one, start, 1)
    assert short(rows) == [("+", 1, "a"), ("+", 2, "b"), ("+", 3, "c")]
    again = source(postgres, tmp_path)
    rows, offset = read(again, again.limit_to_available(offset, time=NOW))
    assert short(rows) == [("+", 4, "d")]
    bounded = source(postgres, tmp_path, source__bounded=True)
    with pytest.raises(ConfigurationError, match=r"`source\.bounded` ends the source for good"):
        bounded.limit_to_available(offset, time=NOW)


def test_a_transaction_is_read_whole_and_one_that_was_rolled_back_is_not(
    postgres: Database, tmp_path: Path
) -> None:
    postgres.run(*TABLE)
    one = source(postgres, tmp_path)
    start = one.initial_offset(time=NOW)
    with postgres.server.connect(postgres.name) as other, other.transaction():
        other.execute("INSERT INTO t VALUES (1, 'early')")
        postgres.run("INSERT INTO t VALUES (2, 'between')")
        other.execute("INSERT INTO t SELECT n, 'early' FROM generate_series(10, 29) n")
    with postgres.server.connect(postgres.name) as other:
        with other.transaction(force_rollback=True):
            other.execute("INSERT INTO t VALUES (99, 'never')")
        with other.transaction():
            other.execute("INSERT INTO t VALUES (3, 'x')")
            with other.transaction(force_rollback=True):
                other.execute("INSERT INTO t VALUES (98, 'never')")
    first = latest(one, start, 1)
    second = latest(one, first, 5)
    third = latest(one, second, 5)
    assert short(read_range(one, start, first)) == [("+", 2, "between")]
    assert [row["id"] for row in read_range(one, first, second)] == [1, *range(10, 30)]
    assert short(read_range(one, second, third)) == [("+", 3, "x")]


@pytest.mark.parametrize("seed", range(3))
def test_rows_and_changes_together_give_the_table_as_it_is_while_it_is_written(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(postgres_snapshot, "FILE_ROWS", 7)
    postgres.run(*TABLE, "INSERT INTO t SELECT n, 'start' FROM generate_series(0, 29) n")
    stop = threading.Event()
    put = "INSERT INTO t VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET name = EXCLUDED.name"

    def write() -> None:
        choice = random.Random(seed)
        with postgres.server.connect(postgres.name) as other:
            while not stop.is_set():
                with other.transaction():
                    for _ in range(choice.randrange(1, 4)):
                        key, name = choice.randrange(40), f"n{choice.randrange(1000)}"
                        other.execute(put, [key, name])
                        other.execute("DELETE FROM t WHERE id = %s", [choice.randrange(40)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        one = source(postgres, tmp_path)
        start = one.initial_offset(time=NOW)
        found, offset = [], start
        for turn in range(12):
            end = latest(one, offset, 1 + turn * 5)
            found += read_range(one, offset, end)
            if turn % 3 == 2:
                one.committed(end)
            offset = end
    finally:
        stop.set()
        writer.join()
    found += read(one, offset)[0]
    table: Counter[Any] = Counter()
    for sign, key, name in short(found):
        table[key, name] += 1 if sign == "+" else -1
        assert table[key, name] in {0, 1}
    assert sorted(row for row, times in table.items() if times) == postgres.rows(
        "SELECT * FROM t ORDER BY id"
    )


def test_inserts_alone_are_rows_that_are_only_added(postgres: Database, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE t (id bigint PRIMARY KEY, name text)", "INSERT INTO t VALUES (1, 'a')")
    one = source(postgres, tmp_path, source__changes="inserts")
    rows, offset = read(one)
    postgres.run("UPDATE t SET name = 'b'", "INSERT INTO t VALUES (2, 'c')", "DELETE FROM t", "TRUNCATE t")
    more, offset = read(one, offset, 1)
    assert short(rows + more) == [("+", 1, "a"), ("+", 2, "c")]
    assert "_retract" not in rows[0]
    postgres.run(*["UPDATE t SET name = 'x'", "INSERT INTO t VALUES (5, 'e')", "UPDATE t SET name = 'y'"] * 1)
    assert short(read(one, offset, 1)[0]) == [("+", 5, "e")]


def test_without_a_snapshot_only_changes_come(postgres: Database, tmp_path: Path) -> None:
    postgres.run(*TABLE, "INSERT INTO t VALUES (1, 'a')")
    one = source(postgres, tmp_path, source__snapshot=False)
    start = one.initial_offset(time=NOW)
    postgres.run("UPDATE t SET name = 'b'")
    assert short(read(one, start)[0]) == [("-", 1, "a"), ("+", 1, "b")]


def test_values_of_every_type_are_the_same_in_first_rows_and_in_changes(
    postgres: Database, tmp_path: Path
) -> None:
    columns = {
        "b": ("bool", "bool"), "i": ("int", "int32"), "f": ("float8", "double"),
        "n": ("numeric", "decimal(20, 5)"), "s": ("varchar(9)", "string"), "c": ("char(3)", "string"),
        "y": ("bytea", "binary"),
        "day": ("date", "date"), "at": ("time", "time64[us]"), "ts": ("timestamp", "timestamp[us]"),
        "tz": ("timestamptz", "timestamp[us]"), "span": ("interval", "interval"),
        "l": ("text[]", "list<string>"), "m": ("int[][]", "list<list<int32>>"), "j": ("jsonb", "string"),
        "o": ("json", "struct<x: int64>"), "u": ("uuid", "string"), "e": ("mood", "string"),
        "r": ("int4range", "string"),
    }  # fmt: skip
    listed = ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items())
    postgres.run(
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        f"CREATE TABLE t ({listed})",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    values = (
        "true, -7, 'NaN', 12345.678, E'a\\n\"b\"', 'x', '\\x00ff', '2026-02-03', '10:00:00.5', "
        "'2026-01-02 03:04:05.000006', '2026-01-02 03:04:05+02', '1 month -2 days 3.5 seconds', "
        "'{a,NULL,\"b,c\",\"\"}', '{{1,2},{3,NULL}}', '{\"k\": [1, null]}', '{\"x\": 1}', "
        "'6f9619ff-8b86-d011-b42d-00c04fc964ff', 'good', '[1,5)'"
    )
    nothing = ", ".join(["NULL"] * len(columns))
    postgres.run(f"INSERT INTO t VALUES ({values})", f"INSERT INTO t VALUES ({nothing})")
    one = source(postgres, tmp_path, schema={name: kind for name, (_, kind) in columns.items()})
    first, offset = read(one)
    postgres.run("DELETE FROM t")
    second, _ = read(one, offset)
    for before, after in zip(first, second, strict=True):
        kept = {name: str(value) for name, value in before.items() if name in columns}
        assert kept == {name: str(value) for name, value in after.items() if name in columns}
    row = first[0]
    assert row["n"] == Decimal("12345.67800")
    assert row["s"] == 'a\n"b"'
    assert row["c"] == "x  "
    assert row["y"] == b"\x00\xff"
    assert row["tz"] == int(dt.datetime.fromisoformat("2026-01-02T01:04:05+00:00").timestamp()) * 10**6
    assert row["l"] == ["a", None, "b,c", ""]
    assert row["m"] == [[1, 2], [3, None]]
    assert row["o"] == {"x": 1}
    assert row["r"] == "[1,5)"
    assert set(first[1].values()) == {None, False, int(NOW * 1e9)}


def test_a_long_value_that_an_update_leaves_alone_is_still_there(postgres: Database, tmp_path: Path) -> None:
    postgres.run(*TABLE, "ALTER TABLE t ALTER name SET STORAGE EXTERNAL, ADD n int")
    one = source(postgres, tmp_path, schema={"id": "int64", "name": "string", "n": "int32"})
    _, offset = read(one)
    long = "ü" * 50_000
    postgres.connection.execute("INSERT INTO t VALUES (1, %s, 1), (2, NULL, 1)", [long])
    postgres.run("UPDATE t SET n = 2", "UPDATE t SET n = 3, name = 'short'")
    rows, _ = read(one, offset)
    names = [row["name"] for row in rows]
    assert names == [long, None, long, long, None, None, long, "short", None, "short"]


def test_columns_may_come_and_other_tables_do_not_matter(postgres: Database, tmp_path: Path) -> None:
    postgres.run(
        *TABLE, "CREATE TABLE other (id bigint, name text)", "CREATE PUBLICATION two FOR TABLE t, other"
    )
    one = source(postgres, tmp_path, source__publication="two")
    _, offset = read(one)
    postgres.run(
        "INSERT INTO other VALUES (1, 'no')",
        "INSERT INTO t VALUES (1, 'a')",
        "ALTER TABLE t ADD more int DEFAULT 5",
        "INSERT INTO t VALUES (2, 'b', 6)",
        "TRUNCATE other",
        "ALTER TABLE t DROP more",
        "INSERT INTO t VALUES (3, 'c')",
    )
    rows, offset = read(one, offset, 1)
    assert short(rows) == [("+", 1, "a"), ("+", 2, "b"), ("+", 3, "c")]


def test_a_partitioned_table_is_one_table(postgres: Database, tmp_path: Path) -> None:
    postgres.run(
        "CREATE TABLE t (id bigint, name text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20)",
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("t", "low", "high")),
        "INSERT INTO t VALUES (1, 'a'), (11, 'b')",
    )
    one = source(postgres, tmp_path)
    rows, offset = read(one)
    postgres.run("UPDATE t SET name = 'c' WHERE id = 11", "INSERT INTO t VALUES (5, 'd')")
    more, _ = read(one, offset)
    assert sorted(short(rows)) == [("+", 1, "a"), ("+", 11, "b")]
    assert short(more) == [("-", 11, "b"), ("+", 11, "c"), ("+", 5, "d")]


def test_names_are_taken_as_they_are(postgres: Database, tmp_path: Path) -> None:
    postgres.run(
        'CREATE SCHEMA "My schema"',
        'CREATE TABLE "My schema"."a.""b" ("N n" bigint, "select" text)',
        'ALTER TABLE "My schema"."a.""b" REPLICA IDENTITY FULL',
    )
    name = '"My schema"."a.""b"'
    columns = {"N n": "int64", "select": "string"}
    for publication in (None, 'My "publication"'):
        more = {} if publication is None else {"source__publication": publication}
        one = source(postgres, tmp_path, table=name, schema=columns, **more)
        _, offset = read(one)
        postgres.run(f"INSERT INTO {name} VALUES (1, 'a')")
        (row,), _ = read(one, offset)
        assert (row["N n"], row["select"]) == (1, "a")


# ------------------------------------------------------------------------------------------ slots and the log


def test_the_slot_follows_what_is_committed_and_is_not_moved_by_reading(
    postgres: Database, tmp_path: Path
) -> None:
    postgres.run(*TABLE)
    one = source(postgres, tmp_path)
    start = one.initial_offset(time=NOW)
    place = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s"
    slot = start[LANE]["slot"]
    before = postgres.rows(place, [slot])
    for n in range(5):
        postgres.run(f"INSERT INTO t VALUES ({n}, 'x')")
    rows, end = read(one, start, 1)
    assert [row["id"] for row in rows] == list(range(5))
    assert postgres.rows(place, [slot]) == before
    one.committed(end)
    one.committed(end)
    assert postgres.rows(place, [slot]) == [(end[LANE]["lsn"],)]
    with pytest.raises(ExternalError, match="has let go of changes") as caught:
        read(one, start)
    assert "cannot go back to an earlier epoch" in str(caught.value)


def test_a_slot_that_cannot_be_moved_now_is_moved_later(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    postgres.run(*TABLE)
    one = source(postgres, tmp_path)
    _, start = read(one)
    postgres.run("INSERT INTO t VALUES (1, 'a')")
    rows, end = read(one, start)
    monkeypatch.setattr(postgres_source, "_ADVANCE_SECONDS", 0.1)
    postgres.close()
    postgres.server.stop()
    with caplog.at_level(logging.WARNING, logger="headrace"):
        one.committed(end)
    assert "was not moved" in caplog.text
    postgres.server.start()
    postgres.run(*(f"INSERT INTO t VALUES ({n}, 'b')" for n in range(2, 9)))
    more, last = read(one, end, 1)
    assert [row["id"] for row in rows + more] == list(range(1, 9))
    one.committed(last)
    assert read(one, last) == ([], last)


def test_the_slot_moves_on_when_only_other_tables_change(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_source, "QUIET_BYTES", 1000)
    postgres.run(*TABLE, "CREATE TABLE other (name text)")
    one = source(postgres, tmp_path)
    _, start = read(one)
    postgres.run("INSERT INTO other SELECT repeat('x', 100) FROM generate_series(1, 100)")
    rows, end = read(one, start)
    assert rows == []
    assert end[LANE]["lsn"] > start[LANE]["lsn"]
    postgres.run("INSERT INTO t VALUES (1, 'a')")
    one.committed(end)
    assert short(read(one, end)[0]) == [("+", 1, "a")]


def test_what_an_attempt_to_start_has_left_is_cleared_away(postgres: Database, tmp_path: Path) -> None:
    postgres.run(*TABLE, "INSERT INTO t VALUES (1, 'a')")
    first = source(postgres, tmp_path)
    first.initial_offset(time=NOW)
    postgres.run("UPDATE t SET name = 'b'")
    again = source(postgres, tmp_path)  # nothing of the first attempt was saved
    rows, _ = read(again)
    assert short(rows) == [("+", 1, "b")]
    assert len(postgres.slots()) == 1
    postgres.run("UPDATE t SET name = 'ü'")
    wrong = source(postgres, tmp_path, schema={"id": "int64", "name": "int64"})
    with pytest.raises(BadLineError, match="column `name` of table `t`: `ü` cannot be read as int64"):
        wrong.initial_offset(time=NOW)
    assert postgres.slots() == []


class Suspended(PostgresSource):
    """Is suspended once while it starts, for as long as `while_asleep` takes."""

    step = "_check"
    while_asleep: Callable[[], None] = staticmethod(lambda: None)

    def _sleep(self, step: str) -> None:
        if step == self.step:
            self.step = ""
            self.while_asleep()

    def _check(self, connection: Any, table: Any) -> None:
        super()._check(connection, table)
        self._sleep("_check")

    def _read_copied(self, texts: Any) -> Any:
        self._sleep("_read_copied")
        return super()._read_copied(texts)


@pytest.mark.parametrize("step", ["_check", "_read_copied"])
def test_a_run_suspended_while_it_first_starts_leaves_the_slot_and_the_rows_of_its_successor(
    step: str, postgres: Database, tmp_path: Path
) -> None:
    postgres.run(*TABLE, "INSERT INTO t SELECT n, 'a' FROM generate_series(1, 5) n")
    storage = open_storage(str(tmp_path))
    successor = source(postgres, tmp_path)
    offsets: list[Offset] = []

    def take_over() -> None:
        successor.claim = Generation.claim(storage, "successor")
        offsets.append(successor.initial_offset(time=NOW))

    first = opened(Suspended(**options(postgres)), postgres, tmp_path)
    first.claim = Generation.claim(storage, "first")
    first.step, first.while_asleep = step, take_over
    if step == "_check":
        with pytest.raises(ReplacedError):
            first.initial_offset(time=NOW)
    else:
        first.initial_offset(time=NOW)
    (start,) = offsets
    assert postgres.slots() == [start[LANE]["slot"]]
    postgres.run("INSERT INTO t VALUES (6, 'b')")
    rows, _ = read(successor, start)
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5, 6]


def test_the_copy_of_the_first_rows_is_removed_when_it_was_read(postgres: Database, tmp_path: Path) -> None:
    postgres.run(*TABLE, "INSERT INTO t SELECT n, 'a' FROM generate_series(1, 50) n")
    one = source(postgres, tmp_path)
    start = one.initial_offset(time=NOW)
    storage = open_storage(str(tmp_path))
    assert storage.list("snapshots/")
    middle = latest(one, start, 20)
    copy = cloudpickle.loads(cloudpickle.dumps(one))
    assert len(read_range(one, start, middle)) == 20
    rows, _ = read(copy, middle, 10)
    assert len(rows) == 30
    assert storage.list("snapshots/") == []
    with pytest.raises(ExternalError, match="are no longer kept"):
        read_range(copy, start, middle)


def test_a_slot_of_a_given_name_is_not_taken_from_another_pipeline(
    postgres: Database, tmp_path: Path
) -> None:
    postgres.run(*TABLE)
    name = f"given_{postgres.name}"
    one = source(postgres, tmp_path, source__slot=name)
    one.initial_offset(time=NOW)
    assert postgres.slots() == [name]
    other = source(postgres, tmp_path, source__slot=name)
    with pytest.raises(ExternalError, match=f"has a replication slot `{name}` already") as caught:
        other.initial_offset(time=NOW)
    assert caught.value.hint is not None
    postgres.run(caught.value.hint.partition("run ")[2])
    other.initial_offset(time=NOW)


def test_a_look_leaves_nothing_behind(postgres: Database, tmp_path: Path) -> None:
    postgres.run(*TABLE, "INSERT INTO t SELECT n, 'a' FROM generate_series(1, 2000) n")
    one = source(postgres, tmp_path).for_sampling()
    rows, end = read(one, None, 100)
    assert len(rows) == 1000
    assert one.is_finished(end)
    assert postgres.slots() == []
    assert postgres.rows("SELECT pubname FROM pg_publication") == []


def test_the_table_tells_its_columns(postgres: Database) -> None:
    postgres.run(
        "CREATE TABLE t (id bigint PRIMARY KEY, price numeric(6, 2), at timestamptz, tags text[], doc jsonb, "
        "twice bigint GENERATED ALWAYS AS (id * 2) STORED)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 2.50, '2026-01-01 10:00+00', '{a,b}', '{\"x\": 1}')",
    )
    listed = f"connector = 'postgres', url = '{postgres.url}', table = 't', type = 'source'"
    table = f"CREATE TABLE t (PRIMARY KEY (id)) WITH ({listed})"
    (tried,) = build_connectors([Source("t.sql", table)], "t")
    assert column_lines(tried.inferred_columns) == [
        "id BIGINT",
        "price DECIMAL(6, 2)",
        "at TIMESTAMP(6)",
        "tags TEXT[]",
        "doc JSON",
    ]
    (batch,), bad = read_sample(tried.connector.for_sampling(), 5, 10)
    assert batch.column("tags").to_pylist() == [["a", "b"]]
    assert bad == []


# --------------------------------------------------------------------------------------------- what fails


@pytest.mark.parametrize(
    ("statements", "more", "message"),
    [
        ((), {}, "has no table `t`"),
        (("CREATE TABLE t (id bigint)",), {}, "has no column `name` in table `t`"),
        (
            ("CREATE TABLE t (id bigint PRIMARY KEY, name text)",),
            {},
            "does not tell the old rows of table `t`",
        ),
        (
            ("CREATE TABLE t (id bigint, name text GENERATED ALWAYS AS ('x') STORED)",),
            {"source__changes": "inserts"},
            "does not tell changes of `name`, a generated column",
        ),
        (
            (*TABLE, "CREATE TABLE other (n int)", "CREATE PUBLICATION p FOR TABLE other"),
            {"source__publication": "p"},
            "has a publication `p` that does not hold the table",
        ),
    ],
)
def test_a_table_that_cannot_be_followed_is_refused(
    postgres: Database, tmp_path: Path, statements: tuple[str, ...], more: dict[str, Any], message: str
) -> None:
    postgres.run(*statements)
    one = source(postgres, tmp_path, **more)
    with pytest.raises(ExternalError, match=message):
        one.initial_offset(time=NOW)
    assert postgres.slots() == []


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (
            ("INSERT INTO t VALUES (1, 'a')", "TRUNCATE t"),
            "has truncated table `t`, in the transaction at 0/",
        ),
        (
            ("ALTER TABLE t REPLICA IDENTITY DEFAULT", "INSERT INTO t VALUES (1, 'a')", "DELETE FROM t"),
            "did not tell the old row of a change of table `t`, in the transaction at 0/",
        ),
        (
            ("ALTER TABLE t RENAME name TO label", "INSERT INTO t VALUES (1, 'a')"),
            "table `t` has no column `name` in the transaction at 0/",
        ),
        (
            ("ALTER TABLE t ALTER id TYPE text", "INSERT INTO t VALUES ('x', 'a')"),
            "column `id` of table `t`: `x` cannot be read as int64, in the transaction at 0/",
        ),
        (("DROP TABLE t",), "no longer has table `t`"),
        (("DROP TABLE t", *TABLE), "has another table `t`"),
        ((DROP_SLOTS,), "no longer has the replication slot"),
    ],
)
def test_what_cannot_be_followed_any_further_ends_the_run_with_its_place(
    postgres: Database, tmp_path: Path, statements: tuple[str, ...], message: str
) -> None:
    postgres.run(*TABLE)
    one = source(postgres, tmp_path)
    _, offset = read(one)
    postgres.run(*statements)
    with pytest.raises(ExternalError, match=message):
        read(one, offset)


MOMENTS = ("CREATE TABLE t (id bigint, name timestamp)", "ALTER TABLE t REPLICA IDENTITY FULL")
DAY = "2026-01-02"


@pytest.mark.parametrize("bad_data", ["drop", "dead_letter"])
def test_a_value_that_cannot_be_read_is_a_bad_record_of_the_copy_and_of_the_changes(
    postgres: Database, tmp_path: Path, bad_data: str
) -> None:
    postgres.run(*MOMENTS, f"INSERT INTO t VALUES (1, '{DAY}'), (2, 'infinity'), (3, NULL)")
    schema = {"id": "int64", "name": "timestamp[ns]"}
    one = source(postgres, tmp_path, schema=schema, bad_data=bad_data)
    offset = one.initial_offset(time=NOW)
    good: list[Any] = []
    letters: list[Any] = []
    counted = 0.0
    for statements in (
        (),
        (
            f"INSERT INTO t VALUES (4, '{DAY}'), (5, '-infinity')",
            "UPDATE t SET name = 'infinity' WHERE id = 1",
        ),
        (f"UPDATE t SET name = '{DAY}' WHERE id = 2", "DELETE FROM t WHERE id = 5"),
    ):
        postgres.run(*statements)
        end = latest(one, offset)
        for split in one.splits(offset, end, parallelism=1):
            ctx, collector = SourceContext(task(), split, storage=one._storage), ListCollector()
            one.run(ctx, collector)
            good += [row for row in collector.rows if "record" not in row]
            letters += [row for row in collector.rows if "record" in row]
            counted += ctx.metrics.values.get("bad_rows", 0)
        offset = end
    # A row that was left out is not taken back either.
    assert [("-" if row["_retract"] else "+", row["id"]) for row in good] == [
        ("+", 1), ("+", 3), ("+", 4), ("-", 1), ("+", 2),
    ]  # fmt: skip
    assert counted == 3
    if bad_data == "drop":
        assert letters == []
        return
    assert [json.loads(letter["content"])["id"] for letter in letters] == ["2", "5", "1"]
    assert letters[0]["error"] == "column `name` of table `t`: `infinity` cannot be read as timestamp[ns]"
    assert letters[0]["position"] == "the rows that were there"
    assert letters[1]["position"].startswith("the transaction at 0/")
    assert letters[1]["position"] in letters[1]["error"]


def test_a_value_that_cannot_be_read_ends_the_run_with_its_place(postgres: Database, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE t (id numeric, name text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    one = source(postgres, tmp_path, schema={"id": "decimal128(5, 2)", "name": "string"})
    _, offset = read(one)
    postgres.run("INSERT INTO t VALUES (1234567, 'a')")
    shown = (
        r"column `id` of table `t`: `1234567` cannot be read as decimal128\(5, 2\), in the transaction at 0/"
    )
    with pytest.raises(BadLineError, match=shown) as raised:
        read(one, offset)
    assert raised.value.content == '{"id": "1234567", "name": "a"}'


def test_a_truncated_table_can_be_ignored(postgres: Database, tmp_path: Path) -> None:
    postgres.run(*TABLE)
    one = source(postgres, tmp_path, source__truncate="ignore")
    _, start = read(one)
    postgres.run("INSERT INTO t VALUES (1, 'a')", "TRUNCATE t", "INSERT INTO t VALUES (2, 'b')")
    end = latest(one, start)
    (split,) = one.splits(start, end, parallelism=1)
    ctx, collector = SourceContext(task(), split), ListCollector()
    one.run(ctx, collector)
    assert short(collector.rows) == [("+", 1, "a"), ("+", 2, "b")]
    assert ctx.metrics.values == {"truncates": 1}


def test_a_user_who_may_not_replicate_is_told(postgres: Database, tmp_path: Path) -> None:
    postgres.run(*TABLE, "DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN PASSWORD 'x'")
    postgres.run("GRANT SELECT ON t TO reader")
    try:
        one = source(postgres, tmp_path, username="reader", password="x")
        with pytest.raises(ExternalError, match="does not let this user publish the table") as caught:
            one.initial_offset(time=NOW)
        assert caught.value.hint is not None
        postgres.run(caught.value.hint.partition("run: ")[2])
        with pytest.raises(ExternalError, match="does not let this user replicate"):
            one.initial_offset(time=NOW)
        postgres.run("ALTER ROLE reader REPLICATION")
        assert read(one)[0] == []
    finally:
        postgres.run(DROP_SLOTS, "DROP OWNED BY reader", "DROP ROLE reader")


def test_a_wrong_password_or_a_server_that_is_not_there_is_told(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(shared, "CONNECT_SECONDS", 1)
    for change, message in (
        ({"password": "open-sesame"}, "refuses the user"),
        ({"url": "postgresql://tests:open-sesame@127.0.0.1:1/x"}, "does not answer: Connection refused"),
    ):
        one = source(postgres, tmp_path, **change)
        for attempt in (lambda one=one: one.initial_offset(time=NOW), one.reach):
            with pytest.raises(ExternalError, match=message) as caught:
                attempt()
            assert "sesame" not in f"{caught.value}{one.display()}"


def test_reach_tells_what_is_there_and_whether_it_can_be_followed(postgres: Database, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE t (id bigint, name text)")
    with pytest.raises(ExternalError, match="does not tell the old rows"):
        source(postgres, tmp_path).reach()
    postgres.run("ALTER TABLE t REPLICA IDENTITY FULL")
    assert source(postgres, tmp_path).reach() == "PostgreSQL 16.6, table t with 2 columns"
    assert postgres.slots() == []
