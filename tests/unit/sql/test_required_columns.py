"""Only what a query reads of a column with fields is read of a file."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.engine.chain import load_operator
from headrace.testing.in_process import run_in_process

PLACE = pa.struct(
    [
        ("name", pa.string()),
        ("code", pa.int64()),
        ("at", pa.struct([("lat", pa.float64()), ("lon", pa.float64()), ("note", pa.string())])),
    ]
)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "place": {"name": "a", "code": 10, "at": {"lat": 1.5, "lon": 2.5, "note": "x"}}},
    {"id": 2, "place": None},
    {"id": 3, "place": {"name": None, "code": None, "at": None}},
    {"id": 4, "place": {"name": "d", "code": 40, "at": {"lat": None, "lon": 4.5, "note": None}}},
]
COLUMNS = """id BIGINT,
    place STRUCT<name TEXT, code BIGINT, at STRUCT<lat DOUBLE, lon DOUBLE, note TEXT>>"""


@pytest.fixture(params=["parquet", "json"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    folder = tmp_path / "rows"
    folder.mkdir()
    if request.param == "parquet":
        schema = pa.schema([("id", pa.int64()), ("place", PLACE)])
        pq.write_table(pa.Table.from_pylist(ROWS, schema=schema), folder / "a.parquet")
    else:
        (folder / "a.json").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return f"""CREATE TABLE t ({COLUMNS}) WITH (
        connector = 'filesystem', type = 'source', path = '{folder}', format = '{request.param}');"""


def answer(sql: str, state: Path) -> tuple[str, list[dict[str, Any]]]:
    """What is read of the column `place`, and the rows."""
    pipeline = headrace.Pipeline.from_sql(sql, preview=lambda _: ("memory", {"name": "rows"}))
    source = load_operator(pipeline.plan().nodes[0])
    shown = source.display().partition("'place': '")[2].partition("'")[0]
    rows = run_in_process(pipeline, state).rows["rows"].drop_columns(["_timestamp"]).to_pylist()
    return shown, rows


@pytest.mark.parametrize(
    ("query", "read", "rows"),
    [
        ("SELECT id FROM t WHERE id > 2", "", [{"id": 3}, {"id": 4}]),
        ("SELECT place.code AS c FROM t WHERE id < 3", "struct<code: int64>", [{"c": 10}, {"c": None}]),
        (
            "SELECT t.place.at.lon AS lon, place['name'] AS n FROM t WHERE id = 4",
            "struct<name: string, at: struct<lon: double>>",
            [{"lon": 4.5, "n": "d"}],
        ),
        (
            "SELECT id FROM t WHERE place IS NOT NULL",
            "struct<code: int64>",
            [{"id": 1}, {"id": 3}, {"id": 4}],
        ),
        ("SELECT id FROM t WHERE place IS NULL", "struct<code: int64>", [{"id": 2}]),
        (
            "SELECT id FROM t WHERE place.at IS NULL",
            "struct<at: struct<lat: double>>",
            [{"id": 2}, {"id": 3}],
        ),
        (
            "SELECT q.at.note AS note FROM (SELECT id, place AS q FROM t) WHERE id = 1",
            "struct<at: struct<note: string>>",
            [{"note": "x"}],
        ),
        (
            "SELECT place.code AS c, count(*) AS n FROM t WHERE place.code IS NOT NULL GROUP BY place.code",
            "struct<code: int64>",
            [{"c": 10, "n": 1}, {"c": 40, "n": 1}],
        ),
        (
            "SELECT a.place.name AS n, b.id AS id FROM t a JOIN t b ON a.place.code = b.id * 10",
            None,
            [{"n": "a", "id": 1}, {"n": "d", "id": 4}],
        ),
    ],
)
def test_only_fields_that_are_used_are_read(
    table: str, query: str, read: str | None, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    shown, found = answer(table + query, tmp_path / "state")
    if read is not None:
        assert shown == read
    found = [{name: value for name, value in row.items() if name != "_retract"} for row in found]
    assert sorted(found, key=str) == sorted(rows, key=str)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT place FROM t",
        "SELECT * FROM t",
        "SELECT place.code AS c, place FROM t",
        "SELECT place.code AS c FROM (SELECT place FROM t UNION ALL SELECT place FROM t)",
    ],
)
def test_a_column_that_is_used_whole_is_read_whole(table: str, query: str, tmp_path: Path) -> None:
    shown, found = answer(table + query, tmp_path / "state")
    assert shown == str(PLACE)
    assert len(found) in {4, 8}


def test_a_file_without_the_wanted_fields_still_tells_whether_there_is_a_value(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    rows = [{"place": {"other": 1}}, {"place": None}]
    pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
    sql = f"""CREATE TABLE t ({COLUMNS}) WITH (
        connector = 'filesystem', type = 'source', path = '{folder}', format = 'parquet');
        SELECT place.code AS c, place IS NULL AS gone FROM t"""
    _, found = answer(sql, tmp_path / "state")
    assert found == [{"c": None, "gone": False}, {"c": None, "gone": True}]


def test_columns_whose_names_have_dots_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    table = pa.table({"a": [{"b": 1, "c": 2}], "a.b": [3]})
    pq.write_table(table, folder / "a.parquet")
    sql = f"""CREATE TABLE t (a STRUCT<b BIGINT, c BIGINT>, "a.b" BIGINT) WITH (
        connector = 'filesystem', type = 'source', path = '{folder}', format = 'parquet');
        SELECT a.b AS inner, "a.b" AS outer FROM t"""
    pipeline = headrace.Pipeline.from_sql(sql, preview=lambda _: ("memory", {"name": "rows"}))
    rows = run_in_process(pipeline, tmp_path / "state").rows["rows"]
    assert rows.select(["inner", "outer"]).to_pylist() == [{"inner": 1, "outer": 3}]
