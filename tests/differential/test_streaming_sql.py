"""A query over a bounded stream ends with the rows that a batch database gives."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.differential.answers import STYLES, Case, Life, as_batch, check
from tests.differential.data import BIGINT, NAN, SECOND, TIMESTAMP, TYPES, Data, changes, streams
from tests.differential.relations import (
    Program,
    Relation,
    Step,
    distinct,
    grouped,
    joined,
    limited,
    mapped,
    ranked,
    table,
    united,
    updating,
    windowed,
)

settings.register_profile(
    "differential", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=False
)
settings.register_profile(
    "differential-long", settings.get_profile("differential"), derandomize=False, max_examples=3000
)
PROFILE = settings.get_profile(
    "differential-long" if os.environ.get("HYPOTHESIS_PROFILE") == "long" else "differential"
)


def examples(count: int) -> settings:
    """The profile with this share of the time that a check may take."""
    return settings(PROFILE, max_examples=max(1, count * PROFILE.max_examples // 100))


def lives(draw: st.DrawFn) -> list[Life]:
    """Stops at random places, each followed by a life of another shape, and one that goes to the end."""
    shape = st.builds(
        Life,
        parallelism=st.integers(1, 3),
        epoch_rows=st.sampled_from([100, 17, 9, 5]),
        epochs=st.integers(1, 3),
        seed=st.integers(0, 3),
    )
    stopped = draw(st.lists(shape, max_size=2))
    last = Life(draw(st.integers(1, 3)), draw(st.sampled_from([100, 23, 11])), None, draw(st.integers(0, 3)))
    return [*stopped, last]


def case_of(draw: st.DrawFn, tables: list[Data], program: Program, result: Relation) -> Case:
    """The case of the last view of a program."""
    used = [one for one in tables if any(f" {one.name}" in sql.stream for _, sql in program.views)]
    style = draw(st.sampled_from(STYLES))
    views = program.views
    known = all(sql.duck is not None for _, sql in views)
    known = known and not any(kind is NAN for one in tables for _, kind in one.columns)
    return Case(
        used,
        style([(name, sql.stream) for name, sql in views]),
        as_batch([(name, sql.batch) for name, sql in views], result.columns),
        as_batch([(name, sql.duck or "") for name, sql in views], result.columns) if known else None,
        result.columns,
        lives(draw),
    )


def some_steps(program: Program, source: Relation, steps: list[Step], most: int) -> Relation:
    """A relation with some steps applied to it, one after the other."""
    for _ in range(program.draw(st.integers(0, most))):
        source = program.draw(st.sampled_from(steps))(program, source)
    return source


@st.composite
def projections(draw: st.DrawFn) -> Case:
    tables = [draw(streams("a"))]
    program = Program(draw)
    made = some_steps(program, mapped(program, table(tables[0])), [mapped], 2)
    return case_of(draw, tables, program, made)


@st.composite
def windows(draw: st.DrawFn) -> Case:
    tables = [draw(streams("a"))]
    program = Program(draw)
    source = some_steps(program, table(tables[0]), [mapped], 1)
    made = some_steps(program, windowed(program, source), [windowed, mapped, ranked, limited, distinct], 2)
    return case_of(draw, tables, program, made)


@st.composite
def updates(draw: st.DrawFn) -> Case:
    tables = [draw(streams("a"))]
    program = Program(draw)
    source = some_steps(program, table(tables[0]), [mapped, distinct], 1)
    made = some_steps(program, updating(program, source), [updating, mapped, distinct, ranked, limited], 2)
    return case_of(draw, tables, program, made)


@st.composite
def window_joins(draw: st.DrawFn) -> Case:
    tables = [draw(streams("a")), draw(streams("b"))]
    program = Program(draw)
    left = windowed(program, table(tables[0]))
    right = left
    if draw(st.integers(0, 4)):
        source = table(draw(st.sampled_from(tables)))
        right = grouped(program, source, left.window)
    sides = [some_steps(program, side, [mapped], 1) for side in (left, right)]
    made = some_steps(
        program, joined(program, *sides), [windowed, updating, mapped, ranked, limited, distinct], 1
    )
    return case_of(draw, tables, program, made)


@st.composite
def updating_joins(draw: st.DrawFn) -> Case:
    tables = [draw(streams("a")), draw(st.one_of(streams("b"), changes("b")))]
    program = Program(draw)
    sides = [some_steps(program, table(one), [mapped, updating, windowed], 1) for one in tables]
    made = some_steps(program, joined(program, *sides), [windowed, updating, mapped, ranked, distinct], 1)
    return case_of(draw, tables, program, made)


@st.composite
def changing_tables(draw: st.DrawFn) -> Case:
    tables = [draw(changes("a")), draw(changes("b"))]
    program = Program(draw)
    source = table(tables[0])
    if draw(st.integers(0, 2)) == 2:
        source = draw(st.sampled_from([joined, united]))(program, source, table(tables[1]))
    steps: list[Step] = [updating, mapped, distinct, ranked, limited]
    made = some_steps(program, draw(st.sampled_from(steps))(program, source), steps, 1)
    return case_of(draw, tables, program, made)


@st.composite
def compositions(draw: st.DrawFn) -> Case:
    tables = [draw(streams("a")), draw(streams("b")), draw(changes("c"))]
    program = Program(draw)
    steps: list[Step] = [windowed, windowed, updating, mapped, distinct, ranked, limited]
    parts = [table(one) for one in tables]
    for _ in range(draw(st.integers(2, 4))):
        source = draw(st.sampled_from(parts[-3:]))
        if draw(st.integers(0, 2)) == 0:
            other = draw(st.sampled_from(parts))
            parts.append(draw(st.sampled_from([joined, united]))(program, source, other))
        else:
            parts.append(draw(st.sampled_from(steps))(program, source))
    return case_of(draw, tables, program, parts[-1])


@given(case=projections())
@examples(20)
def test_rows_pass_through_expressions_and_filters(case: Case) -> None:
    check(case)


@given(case=windows())
@examples(40)
def test_windows_close_with_the_batch_answer(case: Case) -> None:
    check(case)


@given(case=updates())
@examples(30)
def test_updating_results_come_to_the_batch_answer(case: Case) -> None:
    check(case)


@given(case=window_joins())
@examples(25)
def test_rows_of_one_window_meet(case: Case) -> None:
    check(case)


@given(case=updating_joins())
@examples(25)
def test_joins_without_windows_come_to_the_batch_answer(case: Case) -> None:
    check(case)


@given(case=changing_tables())
@examples(30)
def test_changes_of_rows_lead_to_the_answer_over_what_is_left(case: Case) -> None:
    check(case)


WIDER = Case(
    [
        Data("a", (("id", BIGINT), ("ts", TIMESTAMP), ("v", TYPES[0])), [[{"id": 1, "ts": 0, "v": -1}]]),
        Data(
            "b",
            (("id", BIGINT), ("ts", TIMESTAMP), ("v", TYPES[3])),
            [[{"id": 2, "ts": 0, "v": 4_000_000_000}]],
        ),
        Data("c", (("id", BIGINT), ("ts", TIMESTAMP), ("v", TYPES[6])), [[{"id": 3, "ts": 0, "v": 1.5}]]),
    ],
    "SELECT v FROM a UNION ALL SELECT v FROM b UNION ALL SELECT v FROM c",
    [("answer", "SELECT v FROM a UNION ALL SELECT v FROM b UNION ALL SELECT v FROM c")],
)
"""The types of a union were those of its first side."""


@example(case=WIDER)
@given(case=compositions())
@examples(30)
def test_views_over_views_come_to_the_batch_answer(case: Case) -> None:
    check(case)


BOTH_ENDS = """
CREATE VIEW counted AS SELECT tumble(INTERVAL '5 seconds') AS w, count(*) AS n FROM a GROUP BY w;
SELECT w.start AS c0, date_trunc('minute', w.start) AS c1, max(w.end) AS c2 FROM counted
GROUP BY w.start, date_trunc('minute', w.start)
"""


def test_groups_can_use_both_ends_of_a_window() -> None:
    rows = [{"id": number, "ts": number * SECOND} for number in range(8)]
    data = Data("a", (("id", BIGINT), ("ts", TIMESTAMP)), [rows])
    start = "arrow_cast(et - et % 5000000000, 'Timestamp(Nanosecond, None)')"
    starts = f"SELECT DISTINCT {start} AS c0 FROM a"
    body = "SELECT c0, date_trunc('minute', c0) AS c1, c0 + INTERVAL '5 seconds' AS c2 FROM starts"
    check(Case([data], BOTH_ENDS, [("starts", starts), ("answer", body)]))


@pytest.mark.parametrize(
    "value",
    [
        "CASE WHEN id > 5 THEN 1 ELSE 2.5 END",
        "CASE WHEN id > 5 THEN v ELSE id END",
        "CAST(v AS BIGINT UNSIGNED) * id",
    ],
)
def test_an_expression_has_the_type_that_holds_all_its_values(value: str) -> None:
    rows = [{"id": number, "ts": 0, "v": 1} for number in (-1, 1, 5_000_000_000)]
    data = Data("a", (("id", BIGINT), ("ts", TIMESTAMP), ("v", TYPES[3])), [rows])
    check(Case([data], f"SELECT {value} AS c FROM a", [("answer", f"SELECT {value} AS c FROM a")]))
