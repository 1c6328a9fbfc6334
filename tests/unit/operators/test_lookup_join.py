from __future__ import annotations

import itertools
import pickle
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import ExternalError, PlanError
from headrace.model.operator import Lookup, OperatorContext
from headrace.operators.lookup_join import CacheOptions, LookupJoin
from headrace.testing.in_process import run_in_process
from tests.support import ListCollector, task
from tests.unit.operators.windowing import every_way, random_rows, to_rows

JOBS = itertools.count()


class Shelf(Lookup):
    """A table in memory that writes down what it is asked for; it must not be pickled while it is used."""

    def __init__(self, entries: dict[Any, str], kind: pa.DataType | None = None) -> None:
        self.entries = entries
        self.asked: list[list[Any]] = []
        self.kind = kind or pa.string()
        self.down = False

    @property
    def key(self) -> str:
        return "id"

    @property
    def columns(self) -> pa.Schema:
        return pa.schema([("name", pa.string()), pa.field("id", self.kind, nullable=False)])

    def lookup(self, keys: pa.Array, ctx: OperatorContext) -> pa.Table:
        if self.down:
            raise ExternalError("the shelf is closed")
        assert keys.type == self.kind
        assert not keys.null_count
        self.asked.append(keys.to_pylist())
        found = [one for one in keys.to_pylist() if one in self.entries]
        found.reverse()  # in any order
        return pa.table({"id": pa.array(found, self.kind), "name": [self.entries[one] for one in found]})


class Bench:
    """Drives one operator as a worker does: its resources live, its contexts are of one epoch each."""

    def __init__(self, operator: LookupJoin) -> None:
        self.operator = operator
        self.job = f"lookup-{next(JOBS)}"
        self.metrics: dict[str, float] = {}

    def join(self, keys: Any, *, time: float = 0.0) -> list[dict[str, Any]]:
        keys = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.string())
        batch = pa.record_batch({"n": pa.array(range(len(keys)), pa.int64()), "k": keys})
        ctx = OperatorContext(task(job=self.job), None, time=time)  # type: ignore[arg-type]
        collector = ListCollector()
        self.operator.process_batch(batch, ctx, collector)
        self.metrics = dict(ctx.metrics.values)
        return collector.rows


def bench(shelf: Shelf, kind: Any = "inner", **options: Any) -> Bench:
    cache = CacheOptions(**options)
    return Bench(LookupJoin(shelf, on="k", columns={"name": "c.name", "id": "c.id"}, kind=kind, cache=cache))


def test_an_inner_join_leaves_out_rows_without_an_entry_and_keeps_the_order() -> None:
    rows = bench(Shelf({"a": "Ada", "b": "Bob"})).join(["b", "x", None, "a", "b"])
    assert rows == [
        {"n": 0, "k": "b", "c.name": "Bob", "c.id": "b"},
        {"n": 3, "k": "a", "c.name": "Ada", "c.id": "a"},
        {"n": 4, "k": "b", "c.name": "Bob", "c.id": "b"},
    ]


def test_a_left_join_has_nulls_where_there_is_no_entry() -> None:
    rows = bench(Shelf({"a": "Ada"}), "left").join(["x", "a", None])
    assert [(row["k"], row["c.name"], row["c.id"]) for row in rows] == [
        ("x", None, None),
        ("a", "Ada", "a"),
        (None, None, None),
    ]


@pytest.mark.parametrize("kind", ["inner", "left"])
@pytest.mark.parametrize("keys", [[], [None, None]])
def test_a_batch_without_keys_asks_for_nothing(kind: str, keys: list[Any]) -> None:
    shelf = Shelf({"a": "Ada"})
    assert len(bench(shelf, kind).join(keys)) == (len(keys) if kind == "left" else 0)
    assert shelf.asked == []


def test_each_key_of_a_batch_is_asked_for_once_and_all_in_one_request() -> None:
    shelf = Shelf({"a": "Ada"})
    at = bench(shelf)
    at.join(["a", "x", "a", "b", "x"])
    assert shelf.asked == [["a", "x", "b"]]
    assert at.metrics == {"lookups": 3, "cache_hits": 0}


def test_what_was_found_and_what_was_not_is_remembered() -> None:
    shelf = Shelf({"a": "Ada"})
    at = bench(shelf, "left")
    at.join(["a", "x"])
    shelf.entries = {"a": "Alan", "x": "Xenia", "y": "Yves"}
    assert [row["c.name"] for row in at.join(["y", "x", "a"], time=1e9)] == ["Yves", None, "Ada"]
    assert shelf.asked == [["a", "x"], ["y"]]
    assert at.metrics == {"lookups": 1, "cache_hits": 2}


def test_nothing_is_remembered_with_no_bytes_for_it() -> None:
    shelf = Shelf({"a": "Ada"})
    at = bench(shelf, max_bytes=0)
    at.join(["a"])
    shelf.entries = {"a": "Alan"}
    assert [row["c.name"] for row in at.join(["a", "a"])] == ["Alan", "Alan"]
    assert shelf.asked == [["a"], ["a"]]


def test_an_answer_is_believed_until_its_time_is_over() -> None:
    shelf = Shelf({"a": "Ada"})
    at = bench(shelf, "left", ttl="10s")
    at.join(["a", "x"], time=100)
    at.join(["b"], time=105)
    shelf.entries = {"a": "Alan", "x": "Xenia"}
    assert [row["c.name"] for row in at.join(["a", "x", "b"], time=109.9)] == ["Ada", None, None]
    assert [row["c.name"] for row in at.join(["a", "x", "b"], time=110)] == ["Alan", "Xenia", None]
    assert shelf.asked[2:] == [["a", "x"]]
    assert [row["c.name"] for row in at.join(["a"], time=119)] == ["Alan"]


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    shelf = Shelf({f"k{n}": "v" * 100 for n in range(1000)})
    at = bench(shelf, max_bytes=50_000)
    at.join(["k0", "k1"])
    for n in range(2, 1000):
        at.join(["k0", f"k{n}"])
    asked = [key for keys in shelf.asked for key in keys]
    assert asked.count("k0") == 1
    assert at.join(["k1"])[0]["c.name"] == "v" * 100
    assert shelf.asked[-1] == ["k1"]


def test_more_than_fits_at_once_is_joined_all_the_same() -> None:
    shelf = Shelf({f"k{n}": f"{n}" * 50 for n in range(500)})
    at = bench(shelf, "left", max_bytes=1000)
    for _ in range(3):
        rows = at.join([f"k{n}" for n in range(600)])
        assert [row["c.name"] for row in rows] == [f"{n}" * 50 if n < 500 else None for n in range(600)]


def test_an_entry_that_was_asked_for_again_survives_its_old_self() -> None:
    shelf = Shelf({f"k{n}": "old" for n in range(100)})
    at = bench(shelf, max_bytes=20_000, ttl="1s")
    for time in range(30):
        shelf.entries["k0"] = f"at {time}"
        assert [row["c.name"] for row in at.join([f"k{time}", "k0"], time=time)][-1] == f"at {time}"


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (pa.int64(), [-1, 7]),
        (pa.uint8(), [0, 255]),
        (pa.float64(), [0.5, float("inf")]),
        (pa.bool_(), [True, False]),
        (pa.binary(), [b"\xff", b""]),
        (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-2.00")]),
        (pa.date32(), [date(2024, 1, 1), date(1969, 1, 1)]),
        (pa.timestamp("us"), [datetime(2024, 1, 1), datetime(1969, 1, 1)]),  # noqa: DTZ001
        (pa.string(), ["", "ä"]),
    ],
)
def test_keys_may_be_of_any_type_that_has_values(kind: pa.DataType, keys: list[Any]) -> None:
    shelf = Shelf({keys[0]: "first", keys[1]: "second"}, kind)
    at = bench(shelf, "left")
    given = pa.array([*keys, None, keys[0]], kind)
    for _ in range(2):
        assert [row["c.name"] for row in at.join(given)] == ["first", "second", None, "first"]
    assert len(shelf.asked) == 1


def test_zeros_and_nans_are_each_one_key() -> None:
    shelf = Shelf({0.0: "zero"}, pa.float64())
    at = bench(shelf, "left")
    for _ in range(2):
        rows = at.join(pa.array([0.0, -0.0, float("nan"), float("nan")]))
        assert [row["c.name"] for row in rows] == ["zero", "zero", None, None]
    assert len(shelf.asked) == 1


def test_keys_are_cast_to_the_type_of_the_table_and_never_rounded() -> None:
    at = bench(Shelf({7: "seven"}, pa.int64()))
    assert [row["c.name"] for row in at.join(pa.array([7, 8], pa.int16()))] == ["seven"]
    with pytest.raises(PlanError, match="column `k` cannot be compared with key `id`"):
        at.join(pa.array([7.5]))


def test_a_key_that_cannot_be_compared_is_refused() -> None:
    with pytest.raises(PlanError, match="a key of type list"):
        bench(Shelf({}, pa.list_(pa.int64())))


def test_columns_that_the_table_does_not_have_are_refused() -> None:
    with pytest.raises(PlanError, match="no column `nam`"):
        LookupJoin(Shelf({}), on="k", columns={"nam": "c.nam"})


def test_a_table_that_does_not_answer_is_asked_again_later() -> None:
    shelf = Shelf({"a": "Ada"})
    at = bench(shelf)
    shelf.down = True
    with pytest.raises(ExternalError):
        at.join(["a"])
    shelf.down = False
    assert [row["c.name"] for row in at.join(["a"])] == ["Ada"]


def test_it_runs_in_the_task_of_its_source_and_pickles() -> None:
    operator = LookupJoin(Shelf({}), on="k", columns={}, cache=CacheOptions(ttl=timedelta(seconds=1)))
    assert operator.stateless
    assert pickle.loads(pickle.dumps(operator)).ttl == timedelta(seconds=1)


def test_rows_meet_their_entry_however_they_come(tmp_path: Path) -> None:
    rows = random_rows(300)
    shelf = Shelf({n: f"name {n}" for n in range(4)}, pa.int64())

    def build() -> hr.Pipeline:
        p = hr.Pipeline("lookup")
        join = LookupJoin(shelf, on="k", columns={"name": "name"})
        p.source(hr.MemorySource(rows)).apply(join).sink(hr.MemorySink("out"))
        return p

    whole = every_way(build, tmp_path)
    expected = [row["k"] for row in rows.to_pylist() if row["k"] is not None and row["k"] < 4]
    assert [row["name"] for row in to_rows(whole)] == [f"name {key}" for key in expected]
    metrics = run_in_process(build(), tmp_path / "metrics").metrics["lookup_join_1"]
    assert metrics["lookups"] == 6
