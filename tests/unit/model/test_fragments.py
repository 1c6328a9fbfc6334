"""Fragments are planned once, and a plan that runs again remembers nothing."""

import random
import time
from typing import Any

import pyarrow as pa
import pytest

from headrace.model import fragments
from headrace.model.fragments import Fragment, plan_once, selected_columns

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("v", pa.float64()),
        ("s", pa.struct([("a", pa.int64())])),
        ("l", pa.list_(pa.int64())),
    ]
)
REPEATABLE = [
    "SELECT k + 1 AS k, v FROM input WHERE v > 0.5",
    "SELECT count(*) AS n FROM input",
    "SELECT min(v) AS low, max(v) AS high FROM input",
    "SELECT k, sum(v) AS v, count(*) FILTER (WHERE v > 0.5) AS n FROM input GROUP BY k",
    "SELECT DISTINCT k FROM input",
    "SELECT k, v FROM input ORDER BY v",
    "SELECT k, unnest(l) AS one FROM input",
    "SELECT * FROM (SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v) AS r FROM input) WHERE r <= 2",
    "SELECT s['a'] AS a FROM input WHERE s IS NOT NULL",
]
PLANNED_EACH_TIME = [
    "SELECT k, v FROM input ORDER BY v LIMIT 3",
    "SELECT a.k AS k FROM input a JOIN input b ON a.k = b.k AND a.v < b.v",
    "SELECT k FROM input UNION ALL SELECT k FROM input",
    "SELECT k FROM input WHERE v > (SELECT avg(v) FROM input)",
    "SELECT k, now() AS t FROM input",
]


def rows(seed: int, count: int) -> pa.Table:
    chosen = random.Random(seed)
    values: list[dict[str, Any]] = [
        {
            "k": chosen.choice([1, 2, 3, None]),
            "v": chosen.random(),
            "s": chosen.choice([None, {"a": seed}]),
            "l": [1] * chosen.randrange(3),
        }
        for _ in range(count)
    ]
    return pa.Table.from_pylist(values, schema=SCHEMA)


def planned(fragment: Fragment) -> Any:
    return plan_once(fragment.sql, tuple(fragment.inputs.items()), fragment.functions)


@pytest.mark.parametrize("sql", REPEATABLE + PLANNED_EACH_TIME[:-1])
def test_every_run_is_as_if_it_were_the_first(sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fragment = Fragment(sql, {"input": SCHEMA})
    given = [rows(seed, count) for seed, count in enumerate([10, 0, 3, 500, 1])]
    found = [fragment.run(input=one) for one in given for _ in range(2)]
    monkeypatch.setattr(fragments, "plan_once", lambda *_: None)
    wanted = [fragment.run(input=one) for one in given for _ in range(2)]
    assert [sorted(map(str, one.to_pylist())) for one in found] == [
        sorted(map(str, one.to_pylist())) for one in wanted
    ]


@pytest.mark.parametrize("sql", REPEATABLE)
def test_what_remembers_nothing_is_planned_once(sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fragment = Fragment(sql, {"input": SCHEMA})
    fragment.run(input=rows(0, 5))
    monkeypatch.setattr("datafusion.SessionContext.sql", None)
    fragment.run(input=rows(1, 5))


@pytest.mark.parametrize("sql", PLANNED_EACH_TIME)
def test_what_remembers_something_is_planned_for_each_run(sql: str) -> None:
    assert planned(Fragment(sql, {"input": SCHEMA})) is None


def test_a_plan_is_made_anew_before_its_metrics_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "_RUNS", 3)
    fragment = Fragment("SELECT k * 7 AS k FROM input", {"input": SCHEMA})
    given = rows(2, 4)
    first = planned(fragment)
    plans = []
    for _ in range(7):
        assert fragment.run(input=given).column("k").to_pylist() == [
            None if k is None else k * 7 for k in given["k"].to_pylist()
        ]
        plans.append(first._plan)
    assert [one is plans[0] for one in plans] == [True, True, *[False] * 5]


def test_the_time_of_day_goes_on() -> None:
    fragment = Fragment("SELECT now() AS t FROM input", {"input": SCHEMA})
    first = fragment.run(input=rows(0, 1))["t"][0].as_py()
    time.sleep(0.002)
    assert fragment.run(input=rows(0, 1))["t"][0].as_py() > first


def test_the_names_of_list_items_do_not_matter() -> None:
    schema = pa.schema(
        [("l", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.int64())), ("n", pa.int64())]
    )
    fragment = Fragment("SELECT l, m, n + 1 AS n FROM input", {"input": schema})
    named = pa.schema(
        [
            ("l", pa.list_(pa.field("element", pa.int64()))),
            ("m", pa.map_(pa.field("k", pa.string(), nullable=False), pa.field("v", pa.int64()))),
            ("n", pa.int64()),
        ]
    )
    rows = [
        {"l": [1, None], "m": [("a", 1)], "n": 1},
        {"l": None, "m": None, "n": 2},
        {"l": [], "m": [], "n": 3},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=named)
    for given in (batch, batch.slice(1), pa.RecordBatch.from_pylist(rows, schema=schema)):
        wanted = [{**row, "n": row["n"] + 1} for row in given.to_pylist()]
        assert fragment.run(input=given).to_pylist() == wanted


def test_rows_are_let_go_after_a_run() -> None:
    fragment = Fragment("SELECT k + 9 AS k FROM input", {"input": SCHEMA})
    fragment.run(input=rows(0, 1))
    assert all(not table.batches for table in planned(fragment)._inputs.values())


SELECTIONS = {
    'SELECT "k" FROM input': {"k": "k"},
    'SELECT "v" AS "k", "k" AS "v" FROM input': {"k": "v", "v": "k"},
    'SELECT "a" AS "b" FROM (SELECT "k" AS "a", "v" FROM (SELECT "k", "v" FROM input))': {"b": "k"},
    'SELECT "k" AS "a ""quoted"", FROM name" FROM input': {'a "quoted", FROM name': "k"},
}
OTHERS = [
    'SELECT "k" AS "a", "v" AS "a" FROM input',
    'SELECT "K" FROM input',
    'SELECT "k" + 1 AS "k" FROM input',
    'SELECT "s"[\'a\'] AS "a" FROM input',
    'SELECT "k" FROM input WHERE "k" > 1',
    'SELECT "k" FROM (SELECT "k" FROM input WHERE "k" > 1)',
    'SELECT DISTINCT "k" FROM input',
    'SELECT "k" FROM other',
    'SELECT "v" FROM (SELECT "k" FROM input)',
    "SELECT k FROM input",
]


@pytest.mark.parametrize("sql", SELECTIONS)
def test_columns_that_are_only_selected_and_renamed_are_the_same_without_datafusion(
    sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert selected_columns(sql, {"input": SCHEMA}) == SELECTIONS[sql]
    selected = Fragment(sql, {"input": SCHEMA})
    monkeypatch.setattr(fragments, "selected_columns", lambda *_: None)
    computed = Fragment(sql, {"input": SCHEMA})
    assert selected.output == computed.output
    for count in (0, 1, 500):
        assert selected.run(input=rows(count, count)).equals(computed.run(input=rows(count, count)))


@pytest.mark.parametrize("sql", OTHERS)
def test_whatever_else_a_fragment_does_is_left_to_datafusion(sql: str) -> None:
    assert selected_columns(sql, {"input": SCHEMA}) is None
