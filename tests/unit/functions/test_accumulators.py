"""Aggregates of the user that take rows one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from datafusion import SessionConfig, SessionContext

from headrace.base.errors import ConfigurationError, ExpressionError
from headrace.functions.aggregate import AccumulatorFunction
from headrace.functions.failures import take_failure
from headrace.functions.user import udaf
from headrace.model.fragments import Fragment, new_context


class Mean:
    total: float = 0.0
    count: int = 0

    def update(self, value: float, weight: int | None) -> None:
        self.total += value * (weight or 1)
        self.count += weight or 1

    def retract(self, value: float, weight: int | None) -> None:
        self.total -= value * (weight or 1)
        self.count -= weight or 1

    def merge(self, other: Mean) -> None:
        self.total += other.total
        self.count += other.count

    def finish(self) -> float | None:
        return self.total / self.count if self.count else None


# To a type checker a decorated class is the class, so here they are decorated by a call.
made = udaf(name="mean_of")(Mean)
assert isinstance(made, AccumulatorFunction)
mean_of = made


def column(sql: str, table: pa.Table, function: Any) -> list[Any]:
    made = Fragment(f"SELECT {sql} AS x FROM input", {"input": table.schema}, functions=(function,))
    values: list[Any] = made.run(input=table)["x"].to_pylist()
    return values


ROWS = pa.table({"v": [1.0, 2.0, None, 4.0], "w": [1, None, 5, 2], "back": [False, False, False, True]})


def test_an_accumulator_is_given_each_row_and_then_finishes() -> None:
    assert mean_of.is_aggregate
    assert (mean_of.merges, mean_of.retracts) == (True, True)
    assert mean_of.state == pa.struct([("total", pa.float64()), ("count", pa.int64())])
    assert column("mean_of(v, w)", ROWS, mean_of) == [11.0 / 4]
    assert column("mean_of(v, w) FILTER (WHERE w > 100)", ROWS, mean_of) == [None]


def test_in_python_it_is_the_class() -> None:
    made = mean_of()
    assert isinstance(made, Mean)
    made.update(3.0, 2)
    assert made.finish() == 3.0
    made.retract(3.0, 1)
    assert (made.total, made.count) == (3.0, 1)


def test_states_of_parts_are_merged_and_then_rows_are_taken_back() -> None:
    # The row that is taken back comes before the one that gave it: parts have no order.
    back = 'mean_of__changes("back", "v", "w")'
    part = f"(SELECT {back} AS p FROM input WHERE back) UNION ALL (SELECT {back} FROM input WHERE NOT back)"
    twice = pa.concat_tables([ROWS, ROWS.slice(3).set_column(2, "back", pa.array([False]))])
    merged = f"SELECT mean_of__merged(p) AS q FROM ({part})"
    made = Fragment(
        f"SELECT mean_of__result(q) AS x, q['count'] AS n FROM ({merged})",
        {"input": twice.schema},
        functions=(mean_of,),
    )
    assert made.run(input=twice).to_pylist() == [{"x": 1.5, "n": 2}]


def test_datafusion_may_merge_states_by_itself() -> None:
    ctx = SessionContext(SessionConfig().with_target_partitions(4))
    mean_of.install(ctx)
    batches = [pa.record_batch({"k": ["a", "b"], "v": [float(n), 2.0], "w": [n, 1]}) for n in range(1, 5)]
    ctx.register_record_batches("input", [[batch] for batch in batches])
    plan = ctx.sql("SELECT k, mean_of(v, w) AS x FROM input GROUP BY k ORDER BY k")
    assert "Partial" in plan.execution_plan().display_indent()
    assert pa.Table.from_batches(plan.collect())["x"].to_pylist() == [3.0, 2.0]


def test_what_it_raises_shows_the_row_or_the_state() -> None:
    class Fussy:
        seen: list[int] = field(default_factory=list)

        def update(self, value: int) -> None:
            if value < 0:
                raise ValueError("below zero")
            self.seen.append(value)

        def finish(self) -> int:
            return 100 // len(self.seen)

    def failure(values: list[int]) -> ExpressionError:
        ctx = new_context([udaf(Fussy)])
        ctx.register_record_batches("input", [[pa.record_batch({"v": pa.array(values, pa.int64())})]])
        with pytest.raises(Exception, match="headrace failure") as caught:
            ctx.sql("SELECT fussy(v) AS x FROM input").collect()
        error = take_failure(caught.value)
        assert isinstance(error, ExpressionError)
        return error

    error = failure([1, -2])
    assert error.message == "udf `fussy` raised ValueError: below zero for the row value=-2"
    assert 'raise ValueError("below zero")' in error.traceback_text
    assert "for the state" in failure([]).message


def test_a_field_that_holds_another_type_is_told_by_its_name() -> None:
    class Halves:
        total: int = 0
        parts: list[int] = field(default_factory=list)

        def update(self, value: int) -> None:
            if value < 0:
                self.parts.append(value / 2)  # type: ignore[arg-type]
            else:
                self.total += value / 2  # type: ignore[assignment]

        def merge(self, other: Halves) -> None:
            self.total += other.total

        def finish(self) -> float:
            return self.total

    function: Any = udaf(Halves)

    def failure(value: int) -> str:
        with pytest.raises(ExpressionError) as caught:
            column("halves__part(v)", pa.table({"v": [value]}), function)
        assert "annotate the field" in str(caught.value.hint)
        return caught.value.message

    assert failure(5).startswith("the field `total` of `halves` is 2.5 (float), which is not int64: ")
    assert failure(-5).startswith("the field `parts` of `halves` is [-2.5] (list), which is not list<")
    assert column("halves__part(v)", pa.table({"v": [4]}), function) == [{"total": 2, "parts": []}]


class NoFinish:
    total: int = 0

    def update(self, value: int) -> None: ...


class NoState:
    def update(self, value: int) -> None: ...
    def finish(self) -> int:
        return 1


class NoDefault:
    total: int

    def update(self, value: int) -> None: ...
    def finish(self) -> int:
        return 1


class OddState:
    total: dict[str, int] = field(default_factory=dict)

    def update(self, value: int) -> None: ...
    def finish(self) -> int:
        return 1


class OwnInit:
    def __init__(self) -> None:
        self.total = 0

    def update(self, value: int) -> None: ...
    def finish(self) -> int:
        return 1


class OtherRetract:
    total: int = 0

    def update(self, value: int) -> None: ...
    def merge(self, other: OtherRetract) -> None: ...
    def retract(self) -> None: ...
    def finish(self) -> int:
        return 1


class RetractAlone:
    total: int = 0

    def update(self, value: int) -> None: ...
    def retract(self, value: int) -> None: ...
    def finish(self) -> int:
        return 1


class NoTypes:
    total: int = 0

    def update(self, value) -> None: ...  # type: ignore[no-untyped-def]
    def finish(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (NoFinish, "it has no method `finish`"),
        (NoState, "its fields are its state"),
        (NoDefault, "the field `total` has no default"),
        (OddState, "SQL has no type for one"),
        (OwnInit, "it has an __init__ of its own"),
        (OtherRetract, "it has no arguments"),
        (RetractAlone, "`retract` needs `merge`"),
        (NoTypes, "the argument `value` has no annotation"),
    ],
)
def test_a_class_that_cannot_work_says_what_to_do(kind: type, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        udaf(kind)
    assert said in caught.value.message
    assert caught.value.hint
    assert "test_accumulators.py, line" in (caught.value.where or "")


def test_a_dataclass_is_taken_as_it_is() -> None:
    @dataclass(slots=True)
    class Last:
        value: str | None = None

        def update(self, value: str) -> None:
            self.value = value

        def finish(self) -> str | None:
            return self.value

    last_of = udaf(name="last_of")(Last)
    assert isinstance(last_of, AccumulatorFunction)
    assert last_of.name == "last_of"
    assert (last_of.merges, last_of.retracts) == (False, False)
    assert column("last_of(v)", pa.table({"v": ["a", "b", None]}), last_of) == ["b"]
