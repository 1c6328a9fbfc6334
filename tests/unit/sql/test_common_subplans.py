"""What a query says twice is computed once."""

import pyarrow as pa
import pytest

import headrace
from headrace.sql.bind.logical import Relation, StreamScan, Union
from headrace.sql.lower.common_subplans import merge_common_subplans

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
        (f"SELECT a FROM ({COUNTS}) UNION ALL SELECT n FROM ({COUNTS})", 1),
        (f"SELECT x.a FROM ({COUNTS}) x JOIN ({COUNTS}) y ON x.w = y.w AND x.a = y.a", 1),
        (f"CREATE VIEW v AS {COUNTS}; SELECT a, n FROM v; SELECT n FROM v", 1),
        # The state of a query has a name that no other query changes.
        (f"{COUNTS}; {COUNTS}", 2),
        (f"SELECT n FROM ({COUNTS}) UNION ALL SELECT n FROM ({COUNTS.replace('FROM t', 'FROM u')})", 2),
        (f"SELECT n FROM ({COUNTS}) UNION ALL SELECT n FROM ({COUNTS.replace('1 second', '2 second')})", 2),
        (
            f"SELECT n FROM ({COUNTS}) UNION ALL SELECT n FROM ({COUNTS.replace('t G', 't WHERE b > 1 G')})",
            2,
        ),
        (f"SELECT n FROM ({COUNTS}) UNION ALL SELECT n FROM ({COUNTS.replace('count(*)', 'sum(b)')})", 2),
        (f"SELECT a FROM ({RANDOM}) UNION ALL SELECT n FROM ({RANDOM})", 2),
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


@headrace.udf
def noise(value: int) -> int:
    """Gives what it likes."""
    return value


def test_a_function_of_the_user_is_called_wherever_it_is_written() -> None:
    noisy = "SELECT a, noise(b) AS n FROM t"
    query = f"SELECT x.a FROM ({noisy}) x JOIN ({noisy}) y ON x.a = y.a AND x.n = y.n"
    pipeline = headrace.Pipeline.from_sql(TABLES + query, udfs=[noise], preview=lambda _: ("blackhole", {}))
    shown = pipeline.explain()
    assert shown.count("noise(") == 2


def test_a_relation_is_compared_without_all_that_it_is_made_of() -> None:
    relation: Relation = StreamScan(pa.schema([("a", pa.int64())]), ports=())
    for _ in range(200):  # whoever looked into both inputs of each would never come to an end
        relation = Union(relation.columns, inputs=(relation, relation))
    assert merge_common_subplans([relation])[relation] is relation
