"""What a program says twice is computed once."""

import pytest

import headrace

TABLES = """CREATE TABLE t (a BIGINT, b BIGINT, ts TIMESTAMP, WATERMARK FOR ts)
    WITH (connector = 'single_file', path = '/nowhere/t.json', format = 'json', type = 'source');
CREATE TABLE u (a BIGINT, b BIGINT, ts TIMESTAMP, WATERMARK FOR ts)
    WITH (connector = 'single_file', path = '/nowhere/u.json', format = 'json', type = 'source');
"""


def operators(queries: str) -> list[str]:
    pipeline = headrace.Pipeline.from_sql(TABLES + queries, preview=lambda _: ("blackhole", {}))
    return [node.operator for node in pipeline.plan().nodes]


COUNTS = "SELECT a, count(*) AS n, tumble(interval '1 second') AS w FROM t GROUP BY a, w"

RANDOM = COUNTS.replace("count(*)", "max(b + random())")


@pytest.mark.parametrize(
    ("queries", "aggregates"),
    [
        (f"{COUNTS}; {COUNTS}", 1),
        (f"SELECT x.a FROM ({COUNTS}) x JOIN ({COUNTS}) y ON x.w = y.w AND x.a = y.a", 1),
        (f"CREATE VIEW v AS {COUNTS}; SELECT a, n FROM v; SELECT n FROM ({COUNTS})", 1),
        (f"{COUNTS}; {COUNTS.replace('FROM t', 'FROM u')}", 2),
        (f"{COUNTS}; {COUNTS.replace('1 second', '2 second')}", 2),
        (f"{COUNTS}; {COUNTS.replace('FROM t', 'FROM t WHERE b > 1')}", 2),
        (f"{COUNTS}; {COUNTS.replace('count(*)', 'sum(b)')}", 2),
        (f"{RANDOM}; {RANDOM}", 2),
    ],
)
def test_the_same_relation_becomes_the_same_operators(queries: str, aggregates: int) -> None:
    found = operators(queries)
    assert sum("aggregate" in name and "partial" not in name for name in found) == aggregates


def test_each_reader_of_what_is_shared_gets_all_rows() -> None:
    queries = f"SELECT a FROM ({COUNTS}) UNION ALL SELECT a FROM ({COUNTS})"
    pipeline = headrace.Pipeline.from_sql(TABLES + queries, preview=lambda _: ("blackhole", {}))
    plan = pipeline.plan()
    assert [edge.target for edge in plan.edges].count("preview") == 2
