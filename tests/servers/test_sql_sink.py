"""The database sink, through SQLAlchemy, with SQLite and with a real PostgreSQL."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import Pipeline
from headrace.base.errors import ExternalError, RefusedError, ReplacedError
from headrace.connectors._shared.sql_table import KEPT_EPOCHS
from headrace.connectors.database import sink as module
from headrace.connectors.database.sink import DatabaseSink
from headrace.formats.base import JSON_COLUMN
from headrace.testing.in_process import CrashError, run_in_process
from tests.contract.test_sinks import suspend_before
from tests.servers.postgres import PASSWORD
from tests.servers.postgres import Database as Postgres
from tests.support import SinkDriver

ROWS = 60
STEPS = ("operators_written", "metadata_written", "sink_committed")


class SQLite:
    """A database in a file."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'data.db'}"
        self._path = folder / "data.db"

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path)) as connection, connection:
            return connection.execute(query).fetchall()

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.rows(statement)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return SQLite(tmp_path) if request.param == "sqlite" else request.getfixturevalue("postgres")


def driver(database: Any, folder: Path, table: str, **more: Any) -> SinkDriver:
    values = {"url": database.url, "table": table, **{k.replace("__", "."): v for k, v in more.items()}}
    return SinkDriver(lambda: DatabaseSink(**values), folder)


def batch(rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema)


def counting(database: Any, numbers: Path) -> Pipeline:
    """Numbers into a table as they are, and how often each remainder came into another that changes."""
    return Pipeline.from_sql(pipeline_text(database, numbers), name="counting")


def pipeline_text(database: Any, numbers: Path) -> str:
    into = "WITH (connector = 'database', url = '{}', 'table' = '{}')"
    return f"""
        CREATE TABLE numbers (n BIGINT) WITH (connector = 'single_file', path = '{numbers}', type = 'source');
        CREATE TABLE copied (n BIGINT) {into.format(database.url, "copied")};
        CREATE TABLE counted (rest BIGINT PRIMARY KEY, times BIGINT) {into.format(database.url, "counted")};
        INSERT INTO copied SELECT n FROM numbers;
        INSERT INTO counted SELECT n % 7 AS rest, count(*) AS times FROM numbers GROUP BY n % 7;
    """


@pytest.fixture
def numbers(database: Any, tmp_path: Path) -> Path:
    database.run(
        "CREATE TABLE copied (n bigint)", "CREATE TABLE counted (rest bigint PRIMARY KEY, times int)"
    )
    path = tmp_path / "numbers.json"
    path.write_text("\n".join(json.dumps({"n": n}) for n in range(ROWS)))
    return path


def assert_counted_once(database: Any) -> None:
    assert Counter(n for (n,) in database.rows("SELECT n FROM copied")) == Counter(range(ROWS))
    assert dict(database.rows("SELECT rest, times FROM counted")) == Counter(n % 7 for n in range(ROWS))


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_writes_each_row_once(
    database: Any, numbers: Path, tmp_path: Path, step: str
) -> None:
    def on_step(name: str, epoch: int) -> None:
        if name.startswith(step) and epoch == 2:
            raise CrashError

    with pytest.raises(CrashError):
        run_in_process(counting(database, numbers), tmp_path / "state", epoch_rows=20, on_step=on_step)
    assert run_in_process(counting(database, numbers), tmp_path / "state", parallelism=3).reason == "finished"
    assert_counted_once(database)


@pytest.mark.parametrize(
    "moment", ["_mark", "after the mark", "_execute", "after the rows", "after the commit"]
)
def test_a_crash_inside_a_commit_writes_each_row_once(
    database: Any, numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    names = {"after the mark": "_mark", "after the rows": "_change", "after the commit": "write"}
    name = names.get(moment, moment)
    kept: Callable[..., Any] = getattr(DatabaseSink, name)
    calls: list[str] = []

    def crashing(*arguments: Any) -> Any:
        calls.append(name)
        last = len(calls) == 3
        if last and not moment.startswith("after"):
            raise CrashError
        result = kept(*arguments)
        if last:
            raise CrashError
        return result

    with monkeypatch.context() as patch:
        patch.setattr(DatabaseSink, name, staticmethod(crashing) if name == "_mark" else crashing)
        with pytest.raises(CrashError):
            run_in_process(counting(database, numbers), tmp_path / "state", epoch_rows=20)
    assert len(calls) == 3
    assert run_in_process(counting(database, numbers), tmp_path / "state").reason == "finished"
    assert_counted_once(database)


def test_two_commits_of_one_epoch_at_the_same_time_are_one(database: Any, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (n bigint)")
    sink = driver(database, tmp_path / "state", "t")
    data = sink.prepare(1, [batch([{"n": n} for n in range(1000)])])
    threads = [threading.Thread(target=lambda: sink.commit(1, data)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.rows("SELECT count(*) FROM t") == [(1000,)]


def test_an_epoch_that_was_made_anew_replaces_its_mark(database: Any, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (n bigint)")
    sink = driver(database, tmp_path / "state", "t")
    old = sink.prepare(1, [batch([{"n": 1}])])
    new = sink.prepare(1, [batch([{"n": 2}])])
    for data in (old, old, new, new):
        sink.commit(1, data)
    sink.run(200, [batch([{"n": 3}])])
    assert sorted(database.rows("SELECT n FROM t")) == [(1,), (2,), (3,)]
    assert database.rows("SELECT epoch FROM headrace_epochs WHERE epoch >= 0") == [(200,)]


def test_an_epoch_whose_mark_is_forgotten_is_not_written_again_by_a_run_that_was_replaced(
    database: Any, tmp_path: Path
) -> None:
    database.run("CREATE TABLE t (n bigint)")
    sink = driver(database, tmp_path / "state", "t")
    sink.take_over()
    data = sink.prepare(1, [batch([{"n": 1}])])
    sink.commit(1, data)
    replaced = sink.take_over()
    for epoch in range(2, KEPT_EPOCHS + 4):
        sink.run(epoch, [batch([{"n": epoch}])])
    assert database.rows("SELECT min(epoch) FROM headrace_epochs WHERE epoch >= 0") == [(3,)]
    sink.claim = replaced
    with pytest.raises(ReplacedError):
        sink.commit(1, data)
    assert database.rows("SELECT count(*) FROM t") == [(KEPT_EPOCHS + 3,)]


def test_marks_of_earlier_versions_count(database: Any, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (n bigint)")
    sink = driver(database, tmp_path / "state", "t")
    data = sink.prepare(1, [batch([{"n": 1}])])
    sink.commit(1, data)
    database.run("DELETE FROM headrace_epochs WHERE epoch < 0")  # they wrote nothing else
    sink.take_over()
    sink.commit(1, data)
    sink.run(2, [batch([{"n": 2}])])
    assert database.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,)]


def test_a_state_directory_that_was_restored_from_a_copy_goes_on(database: Any, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (n bigint)")
    sink = driver(database, tmp_path / "state", "t")
    sink.take_over()
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    for epoch in range(1, 4):
        sink.take_over()
        sink.run(epoch, [batch([{"n": epoch}])])
    restored = driver(database, tmp_path / "copy", "t")
    restored.take_over()
    restored.run(1, [batch([{"n": 7}])])
    restored.run(2, [batch([{"n": 8}])])
    assert database.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,), (7,), (8,)]


def test_a_run_that_is_suspended_in_its_transaction_and_its_successor_write_an_epoch_once(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("CREATE TABLE t (n bigint)")
    sink = driver(database, tmp_path / "state", "t")
    sink.take_over()
    sink.run(1, [batch([{"n": 1}])])
    data = sink.prepare(2, [batch([{"n": 2}])])
    successor = threading.Thread(target=lambda: sink.commit(2, data))

    def take_over() -> None:
        sink.take_over()
        successor.start()
        successor.join(0.5)
        assert successor.is_alive()  # it waits for the other transaction

    with monkeypatch.context() as patch:
        suspend_before(patch, DatabaseSink, "_change", take_over)
        sink.commit(2, data)
        successor.join()
    assert database.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,)]
    sink.run(3, [batch([{"n": 3}])])
    assert database.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,)]


def test_a_server_that_is_restarted_between_commits_costs_no_rows(postgres: Postgres, tmp_path: Path) -> None:
    postgres.run("CREATE TABLE t (n bigint)")
    sink = driver(postgres, tmp_path, "t")
    for epoch in range(1, 4):
        sink.run(epoch, [batch([{"n": epoch}])])
        postgres.restart(crash=epoch == 2)
    assert postgres.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,)]


def test_a_locked_file_is_waited_for_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lite = SQLite(tmp_path)
    lite.run("CREATE TABLE t (n bigint)")
    sink = driver(lite, tmp_path / "state", "t", url=lite.url + "?timeout=0.1")
    sink.run(1, [batch([{"n": 1}])])
    data = sink.prepare(2, [batch([{"n": 2}])])
    with closing(sqlite3.connect(tmp_path / "data.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with monkeypatch.context() as patch:
            patch.setattr(module, "PATIENCE_SECONDS", 0.3)
            with pytest.raises(ExternalError, match="is locked: database is locked"):
                sink.commit(2, data)
        release = threading.Timer(0.5, other.rollback)
        other.rollback()
        release.cancel()
    sink.commit(2, data)
    assert lite.rows("SELECT n FROM t") == [(1,), (2,)]


@pytest.mark.parametrize("dialect", ["its own", "another"])
def test_changes_are_upserts_and_deletes(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    if dialect == "another":  # that has no statement of its own
        monkeypatch.setattr(module, "make_upsert", lambda *_: None)
    database.run("CREATE TABLE t (id bigint PRIMARY KEY, name text)")
    sink = driver(database, tmp_path / "state", "t", primary_key="id")

    def changes(*rows: tuple[str, int, Any]) -> pa.RecordBatch:
        return batch([{"id": n, "name": name, "_retract": sign == "-"} for sign, n, name in rows])

    sink.run(1, [changes(("+", 1, "a"), ("+", 2, "b"), ("+", 3, "c"))])
    sink.run(2, [changes(("+", 1, "x"), ("-", 2, "b"))], [changes(("-", 1, "a"), ("+", 4, None))])
    assert sorted(database.rows("SELECT * FROM t")) == [(1, "x"), (3, "c"), (4, None)]


def test_a_unique_index_is_a_key_too_and_a_key_alone_is_a_set(database: Any, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (a text, b int, n int)", "CREATE UNIQUE INDEX u ON t (b, a)")
    sink = driver(database, tmp_path / "state", "t", primary_key="a, b")
    sink.run(1, [batch([{"a": "x", "b": 1, "n": 1}, {"a": "x", "b": 1, "n": 2}])])
    sink.run(2, [batch([{"a": "x", "b": 1, "n": 3}])])
    assert database.rows("SELECT * FROM t") == [("x", 1, 3)]
    database.run("CREATE TABLE only_key (id int PRIMARY KEY)")
    alone = driver(database, tmp_path / "state", "only_key", primary_key="id")
    for epoch in (3, 4):
        alone.run(epoch, [batch([{"id": 1}])])
    assert database.rows("SELECT * FROM only_key") == [(1,)]


COLUMNS = pa.schema(
    [
        pa.field("b", pa.bool_()),
        pa.field("i", pa.int64()),
        pa.field("f", pa.float64()),
        pa.field("d", pa.decimal128(10, 2)),
        pa.field("s", pa.string()),
        pa.field("y", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.time64("ns")),
        pa.field("ts", pa.timestamp("ns")),
        pa.field("tz", pa.timestamp("us", "UTC")),
        pa.field("l", pa.list_(pa.string())),
        pa.field("o", pa.struct([("x", pa.int64())])),
        pa.field("j", pa.string(), metadata=JSON_COLUMN),
        pa.field("u", pa.uint16()),
    ]
)
VALUE: dict[str, Any] = {
    "b": True,
    "i": 2**63 - 1,
    "f": 1.5,
    "d": Decimal("-12345.75"),
    "s": "ü 'quoted' :name %s",
    "y": b"\x00\xff",
    "day": dt.date(2026, 2, 3),
    "at": dt.time(23, 59, 59, 5),
    "ts": dt.datetime.fromisoformat("2026-01-02T03:04:05.000006"),
    "tz": dt.datetime.fromisoformat("2026-01-02T03:04:05+00:00"),
    "l": ["a", None],
    "o": {"x": 1},
    "j": '{"k": [1]}',
    "u": 65_535,
}


@pytest.mark.parametrize("key", [None, "i"])
def test_values_of_every_type_are_written_into_a_table_that_the_sink_creates(
    database: Any, tmp_path: Path, key: str | None
) -> None:
    more = {} if key is None else {"primary_key": key}
    sink = driver(database, tmp_path / "state", "t", schema=COLUMNS, sink__create_table=True, **more)
    plain = pa.schema([pa.field(field.name, field.type) for field in COLUMNS])
    sink.run(1, [batch([VALUE, {**dict.fromkeys(VALUE), "i": 7}], plain)])
    sink.run(2, [batch([{**VALUE, "i": 8}], plain)])
    second, third, first = database.rows("SELECT * FROM t ORDER BY i")
    assert second == (None, 7, *[None] * 12)
    assert third[1] == 8
    if isinstance(database, SQLite):
        assert first[:6] == (1, 2**63 - 1, 1.5, -12345.75, VALUE["s"], VALUE["y"])
        assert first[6:8] == ("2026-02-03", "23:59:59.000005")
        assert first[8:10] == ("2026-01-02 03:04:05.000006", "2026-01-02 03:04:05.000000")
        assert [json.loads(one) for one in first[10:13]] == [["a", None], {"x": 1}, {"k": [1]}]
    else:
        assert first[:10] == tuple(VALUE.values())[:10]
        assert first[10:] == (["a", None], {"x": 1}, {"k": [1]}, 65_535)


def test_values_become_what_the_columns_of_the_table_are(database: Any, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (n text, ts text, o text, d text)")
    sink = driver(database, tmp_path / "state", "t")
    sink.run(1, [batch([{"n": 1, "ts": VALUE["ts"], "o": {"x": [1]}, "d": Decimal("1.50")}])])
    assert database.rows("SELECT * FROM t") == [("1", "2026-01-02 03:04:05.000006", '{"x":[1]}', "1.50")]


@pytest.mark.parametrize(
    ("table", "rows", "more", "message"),
    [
        ("nowhere", [{"n": 1}], {}, "has no table `nowhere`"),
        ("t", [{"m": 1}], {}, "has no column `m` in table `t`"),
        ("t", [{"n": 1}, {"n": 1}], {}, "refuses: .*(duplicate key|UNIQUE constraint failed)"),
        ("t", [{"n": 1, "s": "x"}], {"primary_key": "s"}, "has no primary key or unique index on s"),
    ],
)
def test_what_the_database_refuses_is_told_and_nothing_is_written(
    database: Any, tmp_path: Path, table: str, rows: list[Any], more: dict[str, Any], message: str
) -> None:
    database.run("CREATE TABLE t (n bigint PRIMARY KEY, s varchar(3) DEFAULT 'x' NOT NULL)")
    sink = driver(database, tmp_path / "state", table, **more)
    with pytest.raises(ExternalError, match=message) as caught:
        sink.run(1, [batch(rows)])
    assert PASSWORD not in str(caught.value)
    assert database.rows("SELECT count(*) FROM t") == [(0,)]
    assert database.rows("SELECT count(*) FROM headrace_epochs") == [(0,)]


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        ("varchar(3) NOT NULL", ["", "a"], None),
        ("varchar(3)", ["abc", None], "abcd"),
        ("smallint", [2**15 - 1], 2**15),
        ("numeric(5, 2)", [999.994], 1000.0),
    ],
)
def test_a_row_that_does_not_fit_the_columns_of_its_table_is_refused_before_the_commit_point(
    database: Any, tmp_path: Path, declared: str, good: list[Any], bad: Any
) -> None:
    database.run(f"CREATE TABLE t (n bigint, c {declared})")
    sink = driver(database, tmp_path / "state", "t")
    kind = pa.array([*good, bad]).type
    rows = pa.record_batch({"n": range(len(good) + 1), "c": pa.array([*good, bad], kind)})
    if isinstance(database, SQLite) and bad is not None:
        sink.run(1, [rows])  # it keeps to no length and no range
        assert database.rows("SELECT count(*) FROM t") == [(len(good) + 1,)]
        return
    with pytest.raises(RefusedError, match=r"for column `c`, which is .* in the table"):
        sink.prepare(1, [rows])
    sink.run(1, [rows[: len(good)]])
    assert database.rows("SELECT count(*) FROM t") == [(len(good),)]


def test_a_row_that_only_the_commit_can_refuse_does_not_hold_up_a_pipeline_for_ever(
    database: Any, numbers: Path, tmp_path: Path
) -> None:
    database.run("DROP TABLE copied", "CREATE TABLE copied (n bigint CHECK (n <> 50))")
    pipeline = counting(database, numbers)
    for _ in range(2):
        with pytest.raises(RefusedError) as caught:
            run_in_process(pipeline, tmp_path / "state", epoch_rows=20)
        assert str(caught.value.where).endswith("commit of epoch 3 on the driver"), caught.value.where
        assert "go back to the checkpoint before with --from-epoch 2" in str(caught.value.hint)
    text = pipeline_text(database, numbers).replace(
        "SELECT n FROM numbers", "SELECT n FROM numbers WHERE n <> 50"
    )
    run_in_process(Pipeline.from_sql(text, name="counting"), tmp_path / "state", epoch_rows=20, from_epoch=2)
    rest = [n for n in range(ROWS) if n != 50]
    assert sorted(n for (n,) in database.rows("SELECT n FROM copied")) == rest
    assert dict(database.rows("SELECT rest, times FROM counted")) == Counter(n % 7 for n in range(ROWS))


def test_a_table_that_was_changed_is_looked_at_again(database: Any, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (n bigint)")
    sink = driver(database, tmp_path / "state", "t")
    sink.run(1, [batch([{"n": 1}])])
    with pytest.raises(ExternalError, match="has no column `m`"):
        sink.run(2, [batch([{"n": 1, "m": 2}])])
    database.run("ALTER TABLE t ADD m int")
    sink.run(2, [batch([{"n": 2, "m": 2}])])
    assert database.rows("SELECT * FROM t ORDER BY n") == [(1, None), (2, 2)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"password": "wrong-word"}, "refuses: .*password authentication failed"),
        ({"url": "postgresql://tests:wrong-word@127.0.0.1:1/x"}, "does not answer: .*Connection refused"),
        ({"url": "postgresql://tests:wrong-word@no-such-host.invalid/x"}, "does not answer: .*resolve host"),
        ({"url": "sqlite:////no/such/folder/x.db"}, "refuses: unable to open database file"),
    ],
)
def test_a_database_that_cannot_be_reached_is_told_without_secrets(
    postgres: Postgres, change: dict[str, str], message: str
) -> None:
    sink = DatabaseSink(**{"url": postgres.url, "table": "t", **change})
    with pytest.raises(ExternalError, match=message) as caught:
        sink.reach()
    assert "wrong-word" not in f"{caught.value}{sink.display()}{sink.options!r}"


def test_reach_tells_what_is_there(database: Any) -> None:
    database.run("CREATE TABLE t (n bigint PRIMARY KEY, s text)")
    name = "sqlite" if isinstance(database, SQLite) else "postgresql 16.6"
    answer = DatabaseSink(url=database.url, table="t").reach()
    assert answer.startswith(name)
    assert answer.endswith(", table t with 2 columns")
    new = DatabaseSink(url=database.url, table="new", **{"sink.create_table": True})
    assert new.reach().endswith("table new is not there and will be created")
    with pytest.raises(ExternalError, match="has no table `x`"):
        DatabaseSink(url=database.url, table="x").reach()
