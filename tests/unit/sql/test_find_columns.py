"""Tables that are written without columns: their sources find them out."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.base.errors import IncompatibleStateError, SqlError
from headrace.base.spans import Source
from headrace.jobs.progress import RunResult
from headrace.sql.table_connectors import build_connectors
from headrace.sql.types import column_lines
from headrace.testing.in_process import run_in_process

ORDERS = [
    {"id": 1, "userId": "a", "amount": 3, "ts": "2026-01-01T09:00:00", "at": {"lat": 1.5}},
    {"id": 2, "userId": "b", "amount": 4, "ts": "2026-01-01T09:01:00Z", "at": {"lat": 2}},
]


def write_lines(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def table(path: Path, elements: str = "", options: str = "", connector: str = "single_file") -> str:
    return f"CREATE TABLE t {elements} WITH (connector = '{connector}', path = '{path}'{options});"


def pipeline(sql: str) -> headrace.Pipeline:
    return headrace.Pipeline.from_sql(
        sql,
        name="found",
        preview=lambda _: ("memory", {"name": "rows"}),
        sinks=lambda name, _: ("memory", {"name": name}),
    )


def run(sql: str, state: Path, **options: Any) -> RunResult:
    return run_in_process(pipeline(sql), state, **options)


def rows(sql: str, state: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run(sql, state).rows["rows"].drop_columns(["_timestamp"]).to_pylist()
    return found


def lines(sql: str) -> list[str]:
    (tried,) = [one for one in build_connectors([Source("t.sql", sql)], "t") if one.role == "source"]
    return column_lines(tried.inferred_columns)


def test_the_columns_of_json_are_found_in_its_lines(tmp_path: Path) -> None:
    sql = table(write_lines(tmp_path / "x.json", ORDERS))
    assert lines(sql) == [
        "id BIGINT",
        '"userId" TEXT',
        "amount BIGINT",
        "ts TEXT",
        "at STRUCT<lat DOUBLE>",
    ]
    found = rows(sql + 'SELECT "userId", at.lat AS lat, amount + 1 AS more FROM t', tmp_path / "state")
    assert found == [{"userId": "a", "lat": 1.5, "more": 4}, {"userId": "b", "lat": 2.0, "more": 5}]


def test_what_is_found_can_be_written_into_the_table(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.json", [{**ORDERS[0], "primary": [{"Unit": True}]}])
    written = ",\n".join(lines(table(path)))
    assert '"primary" STRUCT<"Unit" BOOLEAN>[]' in written
    sql = "SELECT * FROM t"
    assert rows(table(path, f"({written})") + sql, tmp_path / "a") == rows(table(path) + sql, tmp_path / "b")


def test_the_plan_shows_what_was_found(tmp_path: Path) -> None:
    plan = pipeline(table(write_lines(tmp_path / "x.json", ORDERS)) + "SELECT id FROM t").plan()
    (source,) = [node for node in plan.nodes if node.role == "source"]
    assert dict(source.config)["columns found"].startswith('id BIGINT, "userId" TEXT, ')


def test_a_watermark_and_computed_columns_go_with_found_ones(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.json", ORDERS)
    elements = "(WATERMARK FOR ts, double BIGINT GENERATED ALWAYS AS (amount * 2))"
    sql = "SELECT sum(double) AS n FROM t GROUP BY tumble(INTERVAL '1 minute')"
    assert rows(table(path, elements) + sql, tmp_path / "state") == [{"n": 6}, {"n": 8}]
    fields = rows(table(path, options=", event_time_field = 'ts'") + "SELECT ts FROM t", tmp_path / "b")
    assert [row["ts"].minute for row in fields] == [0, 1]


def test_late_rows_and_bad_records_have_the_columns_that_were_found(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.json", [ORDERS[1], ORDERS[0]])
    with path.open("a") as file:
        file.write("nonsense\n")
    sql = table(path, "(WATERMARK FOR ts)", ", late_table = 'late', dead_letter_table = 'bad'")
    sql += "SELECT count(*) AS n FROM t GROUP BY tumble(INTERVAL '1 second');"
    sink = "CREATE TABLE o WITH (connector = 'stdout');"
    pipeline(sql + sink + "INSERT INTO o SELECT id, amount FROM late;")
    found = run(sql + sink + "INSERT INTO o SELECT content FROM bad;", tmp_path / "state")
    assert found.rows["o"].column("content").to_pylist() == ["nonsense"]


def test_changes_tell_the_columns_of_their_rows(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {"before": None, "after": {"id": 1, "n": 5}, "op": "c"},
        {"payload": {"before": {"id": 1, "n": 5}, "after": {"id": 1, "n": 7, "x": "y"}, "op": "u"}},
    ]
    path = write_lines(tmp_path / "x.json", changes)
    sql = table(path, "(PRIMARY KEY (id))", ", format = 'debezium_json', type = 'source'")
    assert lines(sql) == ["id BIGINT", "n BIGINT", "x TEXT"]
    found = run(sql + "SELECT sum(n) AS n FROM t", tmp_path / "state").rows["rows"].to_pylist()
    assert found[-1]["n"] == 7


def test_messages_of_kafka_connect_tell_the_columns_of_their_payload(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.json", [{"schema": {}, "payload": {"id": 1}}])
    assert lines(table(path, options=", 'json.include_schema' = true")) == ["id BIGINT"]


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("a,b\n1,x\n", ", format = 'csv'", ["a BIGINT", "b TEXT"]),
        ("1,x\n", ", format = 'csv', 'csv.header' = false", ["f0 BIGINT", "f1 TEXT"]),
        ("a line\n", ", format = 'raw_string'", ["value TEXT"]),
        ("a line\n", ", format = 'raw_bytes'", ["value BYTEA"]),
        ('{"a": 1}\n', ", 'json.unstructured' = true", ["value TEXT"]),
        ('{"_timestamp": 1, "a": true}\n', "", ["a BOOLEAN"]),
        ('{"a": {}, "b": [{}], "c": {"d": {}}}\n', "", ["a JSON", "b JSON[]", "c STRUCT<d JSON>"]),
        ('{"a": 1}\nnonsense\n{"b": 2.5}\n', ", bad_data = 'drop'", ["a BIGINT", "b DOUBLE"]),
    ],
)
def test_every_format_of_lines_tells_its_columns(
    text: str, options: str, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "x").write_text(text)
    assert lines(table(tmp_path / "x", options=options)) == expected


def test_files_tell_their_columns_and_those_of_their_directories(tmp_path: Path) -> None:
    folder = tmp_path / "parquet" / "day=1"
    folder.mkdir(parents=True)
    moment = pa.array([0], pa.timestamp("us", "UTC"))
    kinds = {
        "n": pa.array([1], pa.int32()),
        "at": moment,
        "t": pa.array(["x"]).dictionary_encode(),
        "many": pa.array([["x"]], pa.large_list(pa.large_string())),
    }
    pq.write_table(pa.table(kinds), folder / "a.parquet")
    sql = table(tmp_path / "parquet", options=", format = 'parquet'", connector="filesystem")
    assert lines(sql) == ["day TEXT", "n INT", "at TIMESTAMP(6)", "t TEXT", "many TEXT[]"]
    (row,) = rows(sql + "SELECT day, n, t, many, at FROM t", tmp_path / "state")
    assert (row["day"], row["n"], row["t"], row["many"]) == ("1", 1, "x", ["x"])
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "a.json.gz").write_bytes(gzip.compress(b'{"n": 1}\n'))
    assert lines(table(tmp_path / "json", connector="filesystem")) == ["n BIGINT"]


def test_a_delta_table_tells_its_columns(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(str(tmp_path / "d"), pa.table({"id": [1], "name": ["a"]}))
    assert lines(table(tmp_path / "d", connector="delta")) == ["id BIGINT", "name TEXT"]


def test_a_schema_of_avro_tells_the_columns() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
    options = f", format = 'avro', 'avro.raw_datums' = true, 'avro.schema' = '{json.dumps(schema)}'"
    mqtt = "connector = 'mqtt', url = 'mqtt://localhost:1', topic = 'x', type = 'source'"
    sql = f"CREATE TABLE t WITH ({mqtt}{options})"
    assert lines(sql) == ["n BIGINT"]


@pytest.mark.parametrize(
    ("text", "elements", "options", "message", "hint"),
    [
        ("", "", "", "nothing is there yet", "write them"),
        ('{"a": 1}\n{"a": "x"}\n', "", "", "`t` cannot be found out: line 2", "write them"),
        ("a,a\n1,2\n", "", ", format = 'csv'", "names the column `a` 2 times", "rename"),
        ('{"id": 1}\n', "(PRIMARY KEY (idd))", "", "no column `idd` for the primary key", "`id`"),
        ('{"ts": 1}\n', "(WATERMARK FOR tss)", "", "there is no column `tss`", "`ts`"),
        ('{"ts": 1}\n', "(WATERMARK FOR ts)", "", "event time `ts` is BIGINT", "declare it"),
        ('{"a": 1}\n', "(a INT GENERATED ALWAYS AS (1))", "", "has a column `a` already", "another name"),
        ('{"id": 1}\n', "", ", format = 'debezium_json'", "needs a primary key", "(PRIMARY KEY (id))"),
        ('{"a": 1}\n', "", ", event_time_field = 'b'", "there is no column `b`", "the columns are a"),
    ],
)
def test_what_cannot_be_found_out_is_told_at_the_table(
    text: str, elements: str, options: str, message: str, hint: str, tmp_path: Path
) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(SqlError) as raised:
        pipeline(table(tmp_path / "x", elements, options) + "SELECT * FROM t")
    assert message in raised.value.message
    assert hint in (raised.value.hint or "")
    assert raised.value.more == ()


def test_messages_without_a_schema_that_need_one_are_told_the_option() -> None:
    mqtt = "connector = 'mqtt', url = 'mqtt://localhost:1', topic = 'x', format = 'protobuf'"
    with pytest.raises(SqlError) as raised:
        pipeline(f"CREATE TABLE t WITH ({mqtt}); SELECT * FROM t")
    assert raised.value.hint == "write them: (name TYPE, …), or give `protobuf.schema`"


def test_a_connector_that_cannot_tell_its_columns_says_so() -> None:
    with pytest.raises(SqlError, match="its columns cannot be read from its rows"):
        pipeline("CREATE TABLE t WITH (connector = 'spark', 'format' = 'rate'); SELECT * FROM t")


def test_a_table_that_nothing_reads_is_not_looked_at() -> None:
    pipeline(table(Path("/nowhere")) + "SELECT 1 AS one")


def test_a_sink_without_columns_may_have_a_key(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.json", ORDERS)
    sink = "CREATE TABLE o (PRIMARY KEY ({})) WITH (connector = 'stdout', format = 'debezium_json');"
    insert = 'INSERT INTO o SELECT "userId", count(*) AS n FROM t GROUP BY "userId";'
    pipeline(table(path) + sink.format('"userId"') + insert)
    with pytest.raises(SqlError, match="no column `id` for the primary key"):
        pipeline(table(path) + sink.format("id") + insert)


def test_a_name_with_large_letters_needs_quotes(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.json", ORDERS)
    with pytest.raises(SqlError) as raised:
        pipeline(table(path) + "SELECT userId FROM t")
    assert 'write "userId"' in (raised.value.hint or "")


def test_a_resumed_job_goes_on_unless_columns_that_it_keeps_have_changed(tmp_path: Path) -> None:
    path, state = tmp_path / "x.json", tmp_path / "state"
    sql = table(path) + "SELECT shop, sum(amount) AS total FROM t GROUP BY shop"
    before = [{"shop": "mill", "amount": 3}, {"shop": "weir", "amount": 4}]
    write_lines(path, before)
    run(sql, state, max_epochs=1, epoch_rows=1)
    write_lines(path, [*before, {"shop": "mill", "amount": 5, "note": "new"}])
    run(sql, state, max_epochs=1, epoch_rows=1)
    write_lines(path, [{**row, "amount": 3.5} for row in before])
    with pytest.raises(IncompatibleStateError, match=r"operator `query.aggregate`: columns changed .*double"):
        run(sql, state)
