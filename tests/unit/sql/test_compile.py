"""What a program of SQL becomes: which operators, how often a source is read, what is shown."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.base.errors import SqlError
from headrace.jobs.progress import Progress, RunResult
from headrace.model.plan import Plan
from headrace.sql.compile import Preview
from headrace.testing.in_process import ManualClock, run_in_process


def collect(name: str) -> tuple[str, dict[str, Any]]:
    return "memory", {"name": name}


def pipeline(sql: str) -> headrace.Pipeline:
    shown = iter(f"select_{number}" for number in range(1, 10))
    return headrace.Pipeline.from_sql(
        sql, preview=lambda _: collect(next(shown)), sinks=lambda table, _: collect(table)
    )


def run(sql: str, state: Path, **options: Any) -> RunResult:
    return run_in_process(pipeline(sql), state, **options)


def standing(result: RunResult, name: str = "select_1") -> list[dict[str, Any]]:
    """The rows that stand at the end, without event time."""
    rows: list[dict[str, Any]] = []
    for row in result.rows[name].drop_columns(["_timestamp"]).to_pylist():
        if row.pop("_retract", False):
            rows.remove(row)
        else:
            rows.append(row)
    return rows


def write_lines(file: Path, rows: list[Mapping[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def kinds(plan: Plan) -> list[str]:
    return [node.operator for node in plan.nodes]


IMPULSE = """
CREATE TABLE impulse WITH (
  connector = 'impulse', event_rate = 1000000, message_count = 100, event_time_interval = 1000000000
);
"""


def test_a_source_is_read_once_however_many_queries_use_it() -> None:
    plan = pipeline(
        IMPULSE
        + """
        CREATE TABLE a WITH (connector = 'blackhole');
        CREATE TABLE b WITH (connector = 'blackhole');
        CREATE VIEW even AS SELECT counter FROM impulse WHERE counter % 2 = 0;
        INSERT INTO a SELECT counter FROM even;
        INSERT INTO b SELECT count(*) FROM even;
        SELECT * FROM impulse;
        """
    ).plan()
    assert kinds(plan).count("impulse") == 1
    assert [node.id for node in plan.nodes if node.role == "sink"] == ["sink_a", "sink_b", "preview"]


def test_a_view_used_twice_is_computed_once() -> None:
    plan = pipeline(
        IMPULSE
        + """
        CREATE VIEW counts AS SELECT counter % 3 AS k, count(*) AS n FROM impulse GROUP BY 1;
        SELECT k FROM counts WHERE n > 1;
        SELECT n FROM counts;
        """
    ).plan()
    assert len([node for node in plan.nodes if node.tables]) == 1


def test_operators_are_called_after_the_view_they_belong_to() -> None:
    plan = pipeline(
        IMPULSE + "CREATE VIEW counts AS SELECT count(*) AS n FROM impulse; SELECT n + 1 AS m FROM counts;"
    ).plan()
    assert [node.id for node in plan.nodes if node.tables] == ["counts.aggregate"]


def test_only_columns_that_are_used_are_read(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "rows.json", [{"a": 1, "b": "not a number", "c": 3}])
    result = run(
        f"""CREATE TABLE t (a INT, b INT, c INT)
            WITH (connector = 'single_file', path = '{file}', format = 'json', type = 'source');
            SELECT a + c AS s FROM t;""",
        tmp_path / "state",
    )
    assert standing(result) == [{"s": 4}]


def test_a_quiet_source_no_longer_holds_the_watermark_back(tmp_path: Path) -> None:
    sql = """
        CREATE TABLE busy WITH (connector = 'impulse', event_rate = 1, event_time_interval = 1000000000);
        CREATE TABLE quiet WITH (connector = 'impulse', event_rate = 0.00001{});
        CREATE VIEW both_sources AS SELECT counter FROM busy UNION ALL SELECT counter FROM quiet;
        SELECT count(*) AS n, tumble(INTERVAL '10 seconds') AS w FROM both_sources GROUP BY w;
        """
    emitted = []
    for index, idle in enumerate(("", ", idle_micros = 2000000")):
        clock = ManualClock()

        def passing(_: Progress, clock: ManualClock = clock) -> None:
            clock.advance(1)

        result = run(
            sql.format(idle), tmp_path / f"state{index}", clock=clock, max_epochs=40, on_progress=passing
        )
        emitted.append(result.rows_out)
    assert emitted[0] == 0
    assert emitted[1] >= 2


def test_late_rows_are_counted_and_go_to_a_table_of_their_own(tmp_path: Path) -> None:
    times = ["00:00:01", "00:02:00", "00:00:30", "00:02:10", "00:05:00", "00:02:20"]
    file = write_lines(
        tmp_path / "rows.json", [{"t": f"2024-01-01T{t}Z", "n": n} for n, t in enumerate(times)]
    )
    sql = f"""
        CREATE TABLE t (t TIMESTAMP, n INT, WATERMARK FOR t) WITH (
          connector = 'single_file', path = '{file}', format = 'json', type = 'source', late_table = 'lost');
        SELECT count(*) AS c, tumble(INTERVAL '1 minute') AS w FROM t WHERE n >= 0 GROUP BY w;
        SELECT n FROM lost;
        """
    result = run(sql, tmp_path / "state", epoch_rows=1)
    assert sorted(row["n"] for row in standing(result, "select_2")) == [2, 5]
    assert result.late_rows == 2
    assert result.metrics["query.tumble"]["late_rows"] == 2
    assert sum(row["c"] for row in standing(result)) == 4


def test_late_rows_can_go_into_a_sink(tmp_path: Path) -> None:
    file = write_lines(
        tmp_path / "rows.json", [{"t": f"2024-01-01T{t}Z"} for t in ("00:00:01", "00:02:00", "00:00:30")]
    )
    sql = f"""
        CREATE TABLE lost (at TIMESTAMP) WITH (connector = 'blackhole');
        CREATE TABLE t (t TIMESTAMP, WATERMARK FOR t) WITH (
          connector = 'single_file', path = '{file}', format = 'json', type = 'source', late_table = 'lost');
        SELECT count(*) AS c FROM t GROUP BY session(INTERVAL '10 seconds');
        """
    result = run(sql, tmp_path / "state", epoch_rows=1)
    assert [str(row["at"]) for row in standing(result, "lost")] == ["2024-01-01 00:00:30"]


def _with_bad_lines(folder: Path) -> Path:
    file = folder / "rows.json"
    lines = [b'{"n": 1, "s": "a"}', b"not JSON", b'{"n": "x"}', b"\xff", b'{"n": 2, "s": "b"}']
    file.write_bytes(b"\n".join(lines))
    return file


def test_bad_records_have_a_table_of_their_own(tmp_path: Path) -> None:
    sql = f"""
        CREATE TABLE t (n INT, s TEXT) WITH (
          connector = 'single_file', path = '{_with_bad_lines(tmp_path)}', format = 'json', type = 'source',
          dead_letter_table = 'bad');
        SELECT n FROM t;
        SELECT * FROM bad;
        """
    result = run(sql, tmp_path / "state", epoch_rows=2)
    assert [row["n"] for row in standing(result)] == [1, 2]
    bad = standing(result, "select_2")
    assert [row["record"] for row in bad] == [b"not JSON", b'{"n": "x"}', b"\xff"]
    assert [row["content"] for row in bad] == ["not JSON", '{"n": "x"}', "\ufffd"]
    assert [row["position"] for row in bad] == ["line 2", "line 3", "line 4"]
    assert all(row["source"].endswith("rows.json") for row in bad)
    assert "column `n`" in bad[1]["error"]
    assert [row["offset_id"] for row in bad] == [2, 3, 4]
    assert result.metrics["source_t"]["bad_rows"] == 3


def test_bad_records_are_counted_by_the_code_of_their_error(tmp_path: Path) -> None:
    sql = f"""
        CREATE TABLE t (n INT, s TEXT) WITH (
          connector = 'single_file', path = '{_with_bad_lines(tmp_path)}', format = 'json', type = 'source',
          dead_letter_table = 'bad');
        SELECT n FROM t;
        SELECT code, count(*) AS records, min(offset_id) AS first FROM bad GROUP BY code;
        """
    result = run(sql, tmp_path / "state")
    bad = standing(result, "select_2")
    assert sorted((row["code"], row["records"], row["first"]) for row in bad) == [
        ("malformed", 2, 2),
        ("wrong-value", 1, 3),
    ]
    assert dict(result.bad_by) == {"malformed": 2, "wrong-value": 1}
    assert result.unreadable == ()


def test_rows_of_other_queries_do_not_carry_what_the_late_table_needs(tmp_path: Path) -> None:
    sql = f"""
        CREATE TABLE t (n INT, at TIMESTAMP NOT NULL, WATERMARK FOR at) WITH (
          connector = 'single_file', path = '{_times(tmp_path)}', late_table = 'late');
        CREATE VIEW counts AS
          SELECT n FROM (SELECT tumble(INTERVAL '1 minute') AS w, count(*) AS n FROM t GROUP BY w);
        SELECT n FROM t WHERE n > 0;
        SELECT n FROM counts;
        SELECT n FROM late;
        """
    result = run(sql, tmp_path / "state", epoch_rows=1)
    for table in result.rows.values():
        assert set(table.column_names) <= {"n", "_timestamp"}
    assert [row["n"] for row in standing(result, "select_3")] == [3]


def _times(folder: Path) -> Path:
    file = folder / "times.json"
    times = ["00:00:00", "00:05:00", "00:00:01"]
    file.write_text("".join(f'{{"n": {n}, "at": "2026-01-01T{at}"}}\n' for n, at in enumerate(times, 1)))
    return file


def test_bad_records_go_into_a_sink_by_the_names_of_its_columns(tmp_path: Path) -> None:
    out = tmp_path / "bad.json"
    sql = f"""
        CREATE TABLE bad (position TEXT, content TEXT) WITH (
          connector = 'single_file', path = '{out}', format = 'json', type = 'sink');
        CREATE TABLE t (n INT, s TEXT) WITH (
          connector = 'single_file', path = '{_with_bad_lines(tmp_path)}', format = 'json', type = 'source',
          bad_data = 'dead_letter', dead_letter_table = 'bad');
        CREATE TABLE good (n INT) WITH (
          connector = 'single_file', path = '{tmp_path / "good.json"}', format = 'json', type = 'sink');
        INSERT INTO good SELECT n FROM t;
        """
    program = headrace.Pipeline.from_sql(sql)
    run_in_process(program, tmp_path / "state", epoch_rows=1)
    assert out.read_text().splitlines()[0] == '{"position":"line 2","content":"not JSON"}'
    assert len(out.read_text().splitlines()) == 3
    assert (tmp_path / "good.json").read_text().splitlines() == ['{"n":1}', '{"n":2}']


def test_bad_records_of_several_tables_share_a_table(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(f'{{"n": 1}}\nbad {name}\n')
    tables = "".join(
        f"CREATE TABLE {name} (n INT) WITH (connector = 'single_file', path = '{tmp_path / name}.json', "
        "type = 'source', dead_letter_table = 'bad');"
        for name in ("a", "b")
    )
    result = run(
        tables + "SELECT n FROM a; SELECT n FROM b; SELECT content FROM bad;",
        tmp_path / "state",
        epoch_rows=1,
    )
    assert sorted(row["content"] for row in standing(result, "select_3")) == ["bad a", "bad b"]


def test_a_table_for_bad_records_takes_no_name_that_is_taken() -> None:
    sql = """
        CREATE TABLE t (n INT) WITH (
          connector = 'single_file', path = 'x', type = 'source', dead_letter_table = 'bad');
        CREATE VIEW bad AS SELECT n FROM t;
        SELECT n FROM bad;
        """
    with pytest.raises(SqlError, match="`bad` is defined twice"):
        pipeline(sql)


def test_one_column_of_csv_without_a_header_is_found_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1,a\n2,b\n")
    sql = f"""
        CREATE TABLE t (id BIGINT, name TEXT) WITH (connector = 'single_file', type = 'source',
          path = '{tmp_path / "rows.csv"}', format = 'csv', csv.header = false);
        SELECT name FROM t;
        """
    assert [row["name"] for row in standing(run(sql, tmp_path / "state"))] == ["a", "b"]


def test_a_function_without_arguments_is_refused_where_it_is_defined() -> None:
    sql = "CREATE FUNCTION f() RETURNS BIGINT LANGUAGE python AS $$ return 7 $$;" + IMPULSE
    with pytest.raises(SqlError, match="takes no arguments"):
        pipeline(sql + "SELECT f() FROM impulse;")


def test_a_fraction_is_no_whole_number(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"n": 1}\n')
    sql = f"""
        CREATE FUNCTION f(x BIGINT) RETURNS BIGINT LANGUAGE python AS $$ return x / 2 $$;
        CREATE TABLE t (n BIGINT) WITH (
          connector = 'single_file', path = '{tmp_path / "rows.json"}', type = 'source');
        SELECT f(n) AS half FROM t;
        """
    with pytest.raises(headrace.HeadraceError, match="it is not a whole number"):
        run(sql, tmp_path / "state")


def test_changes_are_read_from_directories(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    changes = [
        {"before": None, "after": {"id": 1, "v": 2}, "op": "c"},
        {"before": {"id": 1, "v": 2}, "after": {"id": 1, "v": 3}, "op": "u"},
    ]
    (folder / "a.json").write_text("".join(json.dumps(change) + "\n" for change in changes))
    sql = f"""
        CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT) WITH (
          connector = 'filesystem', path = '{folder}', format = 'debezium_json', type = 'source');
        SELECT id, v FROM t;
        """
    assert standing(run(sql, tmp_path / "state")) == [{"id": 1, "v": 3}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("bad_data = 'dead_letter'", "nothing would take the records"),
        ("bad_data = 'drop', dead_letter_table = 'bad'", "does not go with `bad_data` = 'drop'"),
        ("dead_letter_table = 'sink'", "must have the columns of bad records"),
        ("dead_letter_table = 'memory'", "cannot go into `memory`"),
    ],
)
def test_bad_records_need_a_place(options: str, message: str) -> None:
    sql = f"""
        CREATE TABLE sink (a INT, b INT) WITH (connector = 'blackhole');
        CREATE TABLE memory (n INT);
        CREATE TABLE t (n INT) WITH (
          connector = 'single_file', path = 'x', format = 'json', type = 'source', {options});
        SELECT n FROM t;
        """
    with pytest.raises(SqlError, match=message):
        pipeline(sql)


def test_a_dead_letter_table_with_a_wrong_type_is_told_before_it_runs() -> None:
    sql = """
        CREATE TABLE bad (error TEXT, position BIGINT) WITH (connector = 'blackhole');
        CREATE TABLE t (n INT) WITH (
          connector = 'single_file', path = 'x', type = 'source', dead_letter_table = 'bad');
        SELECT n FROM t;
        """
    told = "column `position` of `bad` is BIGINT, and bad records have TEXT there"
    with pytest.raises(SqlError, match=told) as caught:
        pipeline(sql)
    assert "record BYTEA, content TEXT, error TEXT, source TEXT, position TEXT" in str(caught.value)
    assert "position BIGINT" in str(caught.value)  # the line
    pipeline(sql.replace("BIGINT", "TEXT"))


GUARDED = """
    CREATE FUNCTION half(x BIGINT) RETURNS BOOLEAN LANGUAGE python AS $$
      if x <= 0:
          raise ValueError("it was not left out")
      return x % 2 == 0
    $$;
    CREATE TABLE t (x BIGINT, y BIGINT) WITH (
      connector = 'single_file', path = '{path}', type = 'source');
    {query};
"""


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT x FROM t WHERE x > 0 AND half(x)", [2, 4, 6, 8]),
        ("SELECT x FROM t WHERE x > 0 AND half(x) AND y > 0", [2, 4, 8]),
        ("SELECT x FROM t WHERE y > 0 AND x > 0 AND NOT half(x) AND half(x + 1)", [1, 5, 7]),
        ("SELECT x FROM t WHERE x > 0 AND random() < 2 AND (half(x) OR x = 3)", [2, 3, 4, 6, 8]),
        ("SELECT a.x FROM t AS a JOIN t AS b ON a.x = b.x WHERE a.x > 0 AND half(a.x)", [2, 4, 6, 8]),
        ("SELECT x FROM t WHERE CASE WHEN x > 0 THEN CAST(half(x) AS INT) ELSE 0 END = 1", [2, 4, 6, 8]),
    ],
)
def test_a_function_is_called_only_for_rows_that_pass_the_conditions_before_it(
    tmp_path: Path, query: str, expected: list[int]
) -> None:
    lines = "".join(json.dumps({"x": n, "y": n % 3}) + "\n" for n in range(-9, 10))
    (tmp_path / "in.json").write_text(lines)
    sql = GUARDED.format(path=tmp_path / "in.json", query=query)
    assert sorted(row["x"] for row in standing(run(sql, tmp_path / "state"))) == expected


def test_updating_results_are_forgotten_after_the_ttl(tmp_path: Path) -> None:
    sql = (
        "CREATE TABLE impulse WITH (connector = 'impulse', event_rate = 1);"
        "SET updating_ttl = INTERVAL '5 seconds';"
        "SELECT counter AS k, count(*) AS n FROM impulse GROUP BY k;"
    )
    clock = ManualClock()
    results = []
    for _ in range(20):
        clock.advance(1)
        results.append(run(sql, tmp_path / "state", clock=clock, max_epochs=1, idle_epochs=1))
    tables = [result.rows["select_1"] for result in results if "select_1" in result.rows]
    rows = pa.concat_tables(tables).to_pylist()
    appended = [row["k"] for row in rows if not row["_retract"]]
    retracted = [row["k"] for row in rows if row["_retract"]]
    assert retracted
    assert retracted == appended[: len(retracted)]
    assert len(appended) - len(retracted) < 10


def test_secrets_come_from_the_environment_and_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", str(tmp_path / "canary-b81f.json"))
    write_lines(tmp_path / "canary-b81f.json", [{"a": 1}])
    sql = """
        CREATE TABLE t (a INT) WITH (connector = 'single_file', path = '{{ CANARY }}', format = 'json');
        SELECT a FROM t;
        """
    result = run(sql, tmp_path / "state")
    assert standing(result) == [{"a": 1}]
    assert "canary-b81f" not in pipeline(sql).explain()
    stored = [file for file in (tmp_path / "state").rglob("*") if file.is_file()]
    assert stored
    assert not [file for file in stored if b"canary-b81f" in file.read_bytes()]


def test_a_bare_select_is_shown_under_names_as_written_and_a_table_has_those_of_datafusion() -> None:
    shown: list[Preview] = []
    written: list[Preview] = []

    def show(preview: Preview) -> tuple[str, dict[str, Any]]:
        shown.append(preview)
        return "memory", {"name": "shown"}

    def replace(_: str, preview: Preview) -> tuple[str, dict[str, Any]]:
        written.append(preview)
        return "memory", {"name": "written"}

    select = "SELECT count(*), sum(counter), max(impulse.counter) + 1, upper('x') FROM impulse;"
    out = "CREATE TABLE out WITH (connector = 'memory', name = 'out', type = 'sink');"
    headrace.Pipeline.from_sql(
        f"{IMPULSE} {select} {out} INSERT INTO out {select}", preview=show, sinks=replace
    )
    assert shown[0].columns.names == ["count(*)", "sum(counter)", "max(impulse.counter) + 1", "upper('x')"]
    assert written[0].columns.names == [
        "count(*)",
        "sum(impulse.counter)",
        "max(impulse.counter) + Int64(1)",
        'upper(Utf8("x"))',
    ]
    for preview in (*shown, *written):
        assert preview.columns.types == [pa.int64(), pa.int64(), pa.int64(), pa.string()]


def test_mistakes_are_user_errors_with_all_of_them_at_once() -> None:
    with pytest.raises(headrace.UserError) as caught:
        headrace.Pipeline.from_sql(IMPULSE + "SELECT cuonter FROM impulse; SELECT * FROM impuls;")
    error = caught.value
    assert isinstance(error, headrace.SqlError)
    assert "did you mean `counter`?" in str(error.hint)
    assert [one.hint for one in error.more] == ["did you mean `impulse`?"]
    assert error.where == "<sql>:5:8"


def test_a_table_of_another_engine_that_nothing_uses_does_no_harm() -> None:
    text = "CREATE TABLE m (a INT) WITH (connector = 'kinesis', url = 'x', topic = 'y');"
    pipeline(IMPULSE + text + "SELECT * FROM impulse;")
    with pytest.raises(headrace.SqlError, match="no connector `kinesis`"):
        pipeline(text + "SELECT * FROM m;")


def table_of(file: Path, columns: str = "k BIGINT, v BIGINT, s TEXT") -> str:
    return f"CREATE TABLE t ({columns}) WITH (connector = 'single_file', path = '{file}', format = 'json');"


ROWS: list[Mapping[str, Any]] = [
    {"k": 1, "v": 3, "s": "abc"},
    {"k": 1, "v": 4, "s": "00123"},
    {"k": 1, "v": 1, "s": "123"},
]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SELECT k, sum(v) AS r FROM t GROUP BY k", "SELECT k, max(v) AS r FROM t GROUP BY k"),
        ("SELECT k, sum(v) AS r FROM t GROUP BY k", "SELECT k, sum(v * 100) AS r FROM t GROUP BY k"),
        ("SELECT upper(s), count(*) FROM t GROUP BY 1", "SELECT lower(s), count(*) FROM t GROUP BY 1"),
        ("SELECT k, v FROM t ORDER BY v LIMIT 1", "SELECT k, v FROM t ORDER BY v DESC LIMIT 1"),
        (
            "SELECT count(*) FROM t GROUP BY tumble(INTERVAL '1 minute')",
            "SELECT count(*) FROM t GROUP BY tumble(INTERVAL '2 minutes')",
        ),
    ],
)
def test_state_of_another_query_is_refused(before: str, after: str, tmp_path: Path) -> None:
    table = table_of(write_lines(tmp_path / "rows.json", ROWS))
    run(table + before, tmp_path / "state", epoch_rows=2, max_epochs=1)
    with pytest.raises(headrace.IncompatibleStateError, match="the query has changed"):
        run(table + after, tmp_path / "state")
    resumed = run(table + before, tmp_path / "state")
    assert resumed.reason == "finished"


def test_a_text_and_a_number_are_compared_as_texts(tmp_path: Path) -> None:
    table = table_of(write_lines(tmp_path / "rows.json", ROWS))
    assert standing(run(table + "SELECT s FROM t WHERE s = 123", tmp_path / "a")) == [{"s": "123"}]
    other = run(table + "SELECT s FROM t WHERE 123 <> s", tmp_path / "b")
    assert standing(other) == [{"s": "abc"}, {"s": "00123"}]
    joined = run(table + "SELECT a.s FROM t a JOIN t b ON a.s = b.v + 122", tmp_path / "c")
    assert standing(joined) == [{"s": "123"}]


def test_columns_come_in_the_order_of_the_select(tmp_path: Path) -> None:
    table = table_of(write_lines(tmp_path / "rows.json", ROWS))
    result = run(table + "SELECT v, s, k FROM t", tmp_path / "state")
    assert result.rows["select_1"].column_names == ["v", "s", "k", "_timestamp"]


def test_a_file_that_is_read_cannot_be_written(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "rows.json", ROWS)
    table = table_of(file)
    with pytest.raises(headrace.SqlError, match="read and write the file"):
        headrace.Pipeline.from_sql(table + "INSERT INTO t SELECT k + 1, v, s FROM t")
    assert len(file.read_text().splitlines()) == len(ROWS)


def test_a_primary_key_that_rows_share_is_refused(tmp_path: Path) -> None:
    table = table_of(write_lines(tmp_path / "rows.json", ROWS))
    sink = (
        f"CREATE TABLE o (k BIGINT PRIMARY KEY, v BIGINT, n BIGINT)"
        f" WITH (connector = 'single_file', path = '{tmp_path / 'o.json'}', format = 'debezium_json');"
    )
    with pytest.raises(headrace.SqlError, match="one primary key"):
        pipeline(table + sink + "INSERT INTO o SELECT k, v, count(*) FROM t GROUP BY k, v")
    pipeline(table + sink + "INSERT INTO o SELECT k, max(v), count(*) FROM t GROUP BY k")


def test_changes_without_a_key_can_be_written_and_not_read(tmp_path: Path) -> None:
    table = table_of(write_lines(tmp_path / "rows.json", ROWS))
    changes = (
        f"CREATE TABLE o (k BIGINT, n BIGINT)"
        f" WITH (connector = 'single_file', path = '{tmp_path / 'o.json'}', format = 'debezium_json');"
    )
    pipeline(table + changes + "INSERT INTO o SELECT k, count(*) FROM t GROUP BY k")
    with pytest.raises(headrace.SqlError, match="needs a primary key"):
        pipeline(changes + "SELECT * FROM o")
