"""Windowed joins by keys of windowed aggregates need no shuffle of their own."""

import pytest

import headrace
from headrace.engine.stages import cut_stages

TABLES = """CREATE TABLE l (a BIGINT, b BIGINT, c TEXT, ts TIMESTAMP, WATERMARK FOR ts)
    WITH (connector = 'single_file', path = '/nowhere/l.json', format = 'json', type = 'source');
CREATE TABLE r (a BIGINT, b BIGINT, d INT, ts TIMESTAMP, WATERMARK FOR ts)
    WITH (connector = 'single_file', path = '/nowhere/r.json', format = 'json', type = 'source');
CREATE VIEW x AS SELECT a, b, count(*) AS n, tumble(interval '1 second') AS w FROM l GROUP BY a, b, w;
CREATE VIEW y AS SELECT b AS z, a, d, count(*) AS n, tumble(interval '1 second') AS w
    FROM r GROUP BY b, a, d, w;
CREATE VIEW s AS SELECT a, session(interval '1 second') AS w FROM l GROUP BY a, w;
"""


@pytest.mark.parametrize(
    ("query", "depth", "routes"),
    [
        ("SELECT x.n FROM x JOIN y ON x.w = y.w AND x.a = y.a", 1, ["a", "a"]),
        ("SELECT x.n FROM x LEFT JOIN y ON x.b = y.z AND x.w = y.w AND x.a = y.a", 1, ["b, a", "b, a"]),
        ("SELECT x.n FROM x JOIN (SELECT * FROM y WHERE n > 1) y ON x.w = y.w AND x.a = y.z", 1, ["a", "b"]),
        # One aggregate cannot go two ways, nor be computed before it is routed.
        ("SELECT l.n FROM x l JOIN x r ON l.w = r.w AND l.a = r.b", 2, ["a, b"]),
        ("SELECT x.n FROM x JOIN y ON x.w = y.w AND x.a + 1 = y.a", 2, ["a, b", "b, a, d"]),
        ("SELECT x.n FROM x JOIN y ON x.w = y.w AND x.n = y.n", 2, ["a, b", "b, a, d"]),
        # Equal numbers of different types may have different hashes; sessions end at different times.
        ("SELECT x.n FROM x JOIN y ON x.w = y.w AND x.a = y.d", 2, ["a, b", "b, a, d"]),
        ("SELECT s.a FROM s JOIN s t ON s.w = t.w AND s.a = t.a", 2, ["a"]),
    ],
)
def test_rows_that_are_joined_by_keys_of_their_groups_are_shuffled_once(
    query: str, depth: int, routes: list[str]
) -> None:
    plan = headrace.Pipeline.from_sql(TABLES + query, preview=lambda _: ("blackhole", {})).plan()
    stages = cut_stages(plan, parallelism=2)
    assert stages.depth == depth
    joins = ("windowed", "UpdatingJoin")
    found = [plan.routing(node.id) for node in plan.nodes if node.tables and node.operator not in joins]
    assert sorted(found) == sorted(f"shuffle({route})" for route in routes)
    (join,) = [node.id for node in plan.nodes if node.operator in joins]
    assert plan.routing(join).startswith("forward" if depth == 1 else "shuffle")


def test_an_aggregate_that_two_joins_read_goes_the_way_of_the_first() -> None:
    query = """SELECT p.n
        FROM (SELECT x.n AS n, x.w AS w, x.b AS b FROM x JOIN y ON x.w = y.w AND x.a = y.a) p
        JOIN x q ON p.w = q.w AND p.b = q.b"""
    plan = headrace.Pipeline.from_sql(TABLES + query, preview=lambda _: ("blackhole", {})).plan()
    routes = {node.id: plan.routing(node.id) for node in plan.nodes if node.operator == "window_aggregate"}
    assert routes == {"x.tumble": "shuffle(a)", "y.tumble": "shuffle(a)"}


@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN"])
def test_a_column_that_is_joined_by_is_carried_and_kept_once(kind: str) -> None:
    query = f"SELECT l.c FROM l {kind} r ON l.a = r.a AND l.a = r.b AND l.b + 1 = r.d"
    plan = headrace.Pipeline.from_sql(TABLES + query, preview=lambda _: ("blackhole", {})).plan()
    (join,) = [node for node in plan.nodes if node.tables]
    left, right = (table.key for table in join.tables)
    # `l.a` once as it is and once as another key, since a key has every column once; `d` is cast.
    assert left == ("l.a", "_timestamp:key1", "_timestamp:key2")
    assert right == ("r.a", "r.b", "_timestamp:key2")
    times = {"_event_time", "_timestamp", *(() if kind == "JOIN" else ("_sequence",))}
    kept = [set(table.schema.names) - times for table in join.tables if table.schema is not None]
    assert kept == [{"l.c", *left, "l.b"}, {*right, "r.d"}]
