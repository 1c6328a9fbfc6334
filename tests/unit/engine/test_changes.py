"""A changed pipeline on old state: what resumes, what is refused before anything runs, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.testing.in_process import run_in_process
from tests import flows


class Total(hr.ArrowOperator):
    """Sums `counter` per key; its table can be declared in several ways."""

    def __init__(self, *, version: int = 1, extra: bool = False, table: str = "totals") -> None:
        self.version = version
        self.extra = extra
        self.table = table

    def tables(self) -> list[hr.TableConfig]:
        fields = [("k", pa.int64()), ("s", pa.int64())]
        if self.extra:
            fields.append(("n", pa.int64()))
        return [
            hr.keyed_table_config(
                self.table, "sum per key", pa.schema(fields), key=["k"], version=self.version
            )
        ]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        grouped = pa.table(batch).group_by("k").aggregate([("counter", "sum"), ("counter", "count")])
        keys = pa.record_batch({"k": grouped["k"].combine_chunks()})
        rows, _ = ctx.keyed_table(self.table).get(keys)
        sums = pc.add(grouped["counter_sum"].combine_chunks(), rows.column("s").fill_null(0))
        columns = {"k": keys.column("k"), "s": sums}
        if self.extra:
            counts = pc.add(grouped["counter_count"].combine_chunks(), rows.column("n").fill_null(0))
            columns["n"] = counts
        out = pa.record_batch(columns)
        ctx.keyed_table(self.table).put(out)
        collector.collect(out)


class Migrating(Total):
    """Version 2 counts too; what version 1 saved has counted nothing."""

    @property
    def name(self) -> str:
        return "Total"

    def migrate_table(self, table: str, version: int, rows: pa.Table) -> pa.Table:
        assert (table, version) == ("totals", 1)
        return rows.append_column("n", pa.array([0] * rows.num_rows, pa.int64()))


Build = Callable[[], hr.Pipeline]


def pipeline(
    *,
    name: str = "changing",
    operator: hr.ArrowOperator | None = None,
    id: str = "total",  # noqa: A002
    source: str = "numbers",
    key: str = "k",
    count: int = 300,
    more: bool = False,
) -> hr.Pipeline:
    made = hr.Pipeline(name)
    rows = made.source(flows.impulse(count), id=source).map(flows.keyed(5), id="key")
    rows.key_by(key).apply(operator or Total(), id=id).sink(hr.MemorySink("out"))
    if more:
        rows.sink(hr.MemorySink("raw"))
        made.source(flows.impulse(10), id="other").sink(hr.MemorySink("other"))
    return made


@pytest.fixture
def state(tmp_path: Path) -> Path:
    run_in_process(pipeline(), tmp_path, epoch_rows=100, max_epochs=2)
    return tmp_path


def test_new_sinks_and_sources_resume(state: Path) -> None:
    result = run_in_process(pipeline(more=True), state)
    assert (result.reason, result.first_epoch) == ("finished", 3)
    assert result.rows["raw"].num_rows == 100
    assert result.rows["other"].num_rows == 10
    last = {row["k"]: row["s"] for row in result.rows["out"].to_pylist()}
    assert last == {k: sum(range(k, 300, 5)) for k in range(5)}


def test_another_pipelines_state_is_refused(state: Path) -> None:
    with pytest.raises(hr.IncompatibleStateError, match="belongs to the pipeline `changing`, not to `other`"):
        run_in_process(pipeline(name="other"), state)


def test_a_table_with_other_columns_is_refused_with_what_changed(state: Path) -> None:
    with pytest.raises(hr.IncompatibleStateError) as caught:
        run_in_process(pipeline(operator=Total(extra=True)), state)
    assert "table `totals` of operator `total`: columns changed (`n` int64 is new)" in str(caught.value)
    assert "use a new state directory" in str(caught.value)


def test_a_new_version_with_a_migration_resumes(state: Path) -> None:
    result = run_in_process(pipeline(operator=Migrating(version=2, extra=True)), state, parallelism=3)
    last = {row["k"]: (row["s"], row["n"]) for row in result.rows["out"].to_pylist()}
    assert last == {k: (sum(range(k, 300, 5)), 20) for k in range(5)}


def test_a_new_version_without_a_migration_is_refused(state: Path) -> None:
    with pytest.raises(hr.IncompatibleStateError, match="has no `migrate_table`"):
        run_in_process(pipeline(operator=Total(version=2, extra=True)), state)


def test_other_routing_keys_are_refused(state: Path) -> None:
    with pytest.raises(hr.IncompatibleStateError, match=r"from shuffle\(k\) to shuffle\(counter\)"):
        run_in_process(pipeline(key="counter"), state)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda: pipeline(id="renamed"), r"operator `total` \(Total\) is gone: its state would be lost"),
        (lambda: pipeline(source="renamed"), "source `numbers` .* is gone: its position would be lost"),
        (lambda: pipeline(operator=Total(table="renamed")), "table `totals` of operator `total` is gone"),
    ],
)
def test_state_that_would_be_lost_is_dropped_only_when_allowed(state: Path, change: Build, what: str) -> None:
    with pytest.raises(hr.IncompatibleStateError, match=what) as caught:
        run_in_process(change(), state)
    assert "--allow-drop" in str(caught.value)
    assert run_in_process(change(), state, allow_drop=True).reason == "finished"


def test_an_epoch_that_is_not_there_is_refused_with_those_that_are(state: Path) -> None:
    with pytest.raises(hr.ConfigurationError, match="no checkpoint of epoch 7") as caught:
        run_in_process(pipeline(), state, from_epoch=7)
    assert "1, 2" in str(caught.value)


def test_an_earlier_checkpoint_can_be_taken_up_again(state: Path) -> None:
    result = run_in_process(pipeline(), state, from_epoch=1)
    assert (result.first_epoch, result.rows_in) == (2, 200)
    last = {row["k"]: row["s"] for row in result.rows["out"].to_pylist()}
    assert last == {k: sum(range(k, 300, 5)) for k in range(5)}


# ------------------------------------------------------------------- operators that nobody has named


SALES = [{"shop": shop, "amount": n} for n in range(1, 7) for shop in ("mill", "weir")]


def counts(*conditions: str, ids: dict[str, str] | None = None) -> hr.Pipeline:
    """An unnamed updating count per shop of the rows that each condition lets through."""
    composed = hr.Pipeline("counts")
    sales = composed.source("memory", rows=SALES, id="sales")
    for condition in conditions:
        counted = (
            sales.filter(condition).group_by("shop").aggregate(n="count(*)", id=(ids or {}).get(condition))
        )
        counted.sink(hr.MemorySink(condition))
    return composed


LOW, HIGH = "amount < 3", "amount >= 3"


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ((LOW, HIGH), (HIGH, LOW), "`aggregate_2.aggregate` is now what `aggregate_1.aggregate` was"),
        ((LOW,), (HIGH, LOW), "`aggregate_2.aggregate` is now what `aggregate_1.aggregate` was"),
        ((LOW, HIGH), (HIGH,), "`aggregate_1.aggregate` is now what `aggregate_2.aggregate` was"),
    ],
)
def test_unnamed_operators_that_change_places_do_not_swap_their_state(
    tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...], names: str
) -> None:
    run_in_process(counts(*before), tmp_path, epoch_rows=8, max_epochs=1)
    for allow_drop in (False, True):
        with pytest.raises(hr.IncompatibleStateError) as caught:
            run_in_process(counts(*after), tmp_path, allow_drop=allow_drop)
        assert names in str(caught.value)
        assert "id='aggregate_" in str(caught.value)


def test_operators_that_change_places_resume_when_they_are_given_their_old_ids(tmp_path: Path) -> None:
    run_in_process(counts(LOW, HIGH), tmp_path, epoch_rows=8, max_epochs=1)
    ids = {LOW: "aggregate_1", HIGH: "aggregate_2"}
    result = run_in_process(counts(HIGH, LOW, ids=ids), tmp_path)
    assert result.rows[LOW].num_rows == 0
    assert {(row["shop"], row["n"]) for row in result.rows[HIGH].to_pylist() if not row["_retract"]} == {
        ("mill", 4),
        ("weir", 4),
    }


def test_a_query_that_more_streams_read_is_still_recognized(tmp_path: Path) -> None:
    def build(*, more: bool) -> hr.Pipeline:
        composed = hr.Pipeline("shared")
        sales = composed.source("memory", rows=[{**row, "city": "x"} for row in SALES], id="sales")
        base = sales.with_columns(double="amount * 2")
        if more:
            first = base.filter("city = 'y'").group_by("shop").aggregate(n="count(*)")
            first.sink(hr.MemorySink("first"))
        base.filter("double > 2").group_by("shop").aggregate(n="count(*)").sink(hr.MemorySink("second"))
        return composed

    run_in_process(build(more=False), tmp_path, epoch_rows=8, max_epochs=1)
    with pytest.raises(hr.IncompatibleStateError, match=r"is now what `aggregate_1.aggregate` was"):
        run_in_process(build(more=True), tmp_path)


def test_unnamed_sources_that_change_places_do_not_swap_their_positions(tmp_path: Path) -> None:
    def build(*sizes: int) -> hr.Pipeline:
        composed = hr.Pipeline("two")
        for size in sizes:
            composed.source("impulse", message_count=size).sink(hr.MemorySink(f"{size} rows"))
        return composed

    run_in_process(build(300, 500), tmp_path, epoch_rows=100, max_epochs=1)
    with pytest.raises(hr.IncompatibleStateError, match="`impulse_2` is now what `impulse_1` was"):
        run_in_process(build(500, 300), tmp_path)


INSERTS = """
CREATE TABLE sales (shop TEXT NOT NULL, amount BIGINT NOT NULL)
WITH (connector = 'single_file', path = '{path}', format = 'json');
CREATE TABLE counted (shop TEXT, n BIGINT)
WITH (connector = 'single_file', path = '{out}', format = 'debezium_json');
{inserts}
"""


def test_queries_of_one_sql_sink_that_change_places_do_not_swap_their_state(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text("".join(f'{{"shop": "{r["shop"]}", "amount": {r["amount"]}}}\n' for r in SALES))

    def build(*conditions: str) -> hr.Pipeline:
        selects = [f"SELECT shop, count(*) FROM sales WHERE {c} GROUP BY shop" for c in conditions]
        inserts = "INSERT INTO counted " + " UNION ALL ".join(selects)
        return hr.Pipeline.from_sql(INSERTS.format(path=path, out=tmp_path / "out.json", inserts=inserts))

    run_in_process(build(LOW, HIGH), tmp_path / "state", epoch_rows=8, max_epochs=1)
    with pytest.raises(hr.IncompatibleStateError, match=r"is now what `counted.aggregate` was"):
        run_in_process(build(HIGH, LOW), tmp_path / "state")


# -------------------------------------------------------------- new state behind changes of old state


def updating(*, more: bool, fresh: bool = False) -> hr.Pipeline:
    composed = hr.Pipeline("behind")
    sales = composed.source("memory", rows=SALES, id="sales")
    by_shop = sales.group_by("shop").aggregate(n="count(*)", id="by_shop")
    by_shop.sink(hr.MemorySink("by_shop"))
    if more:
        by_shop.filter("n > 0").group_by("n").aggregate(shops="count(*)", id="by_count").sink(
            hr.MemorySink("by_count")
        )
    if fresh:
        by_amount = sales.group_by("amount").aggregate(n="count(*)", id="by_amount")
        by_amount.group_by("n").aggregate(amounts="count(*)", id="fresh").sink(hr.MemorySink("fresh"))
    return composed


def test_an_aggregate_added_behind_one_that_resumes_is_refused(tmp_path: Path) -> None:
    run_in_process(updating(more=False), tmp_path, epoch_rows=8, max_epochs=1)
    with pytest.raises(hr.IncompatibleStateError) as caught:
        run_in_process(updating(more=True), tmp_path)
    assert "operator `by_count.aggregate` is new, and reads the changes of `by_shop.aggregate`" in str(
        caught.value
    )
    assert "use a new state directory" in str(caught.value)
    assert run_in_process(updating(more=False), tmp_path).reason == "finished"


def test_an_aggregate_added_behind_a_new_one_counts_from_there(tmp_path: Path) -> None:
    run_in_process(updating(more=False), tmp_path, epoch_rows=8, max_epochs=1)
    result = run_in_process(updating(more=False, fresh=True), tmp_path)
    assert result.rows["fresh"].column("_retract").to_pylist() == [False]


def test_a_view_added_behind_an_updating_one_that_resumes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text("".join(f'{{"shop": "{r["shop"]}", "amount": {r["amount"]}}}\n' for r in SALES))

    def build(query: str) -> hr.Pipeline:
        view = "CREATE VIEW by_shop AS SELECT shop, count(*) AS n FROM sales GROUP BY shop;"
        inserts = f"{view} INSERT INTO counted SELECT shop, n FROM by_shop; {query}"
        return hr.Pipeline.from_sql(
            INSERTS.format(path=path, out=tmp_path / "out.json", inserts=inserts),
            preview=lambda _: ("memory", {"name": "preview"}),
        )

    run_in_process(build(""), tmp_path / "state", epoch_rows=8, max_epochs=1)
    with pytest.raises(
        hr.IncompatibleStateError, match=r"is new, and reads the changes of `by_shop.aggregate`"
    ):
        run_in_process(build("SELECT n, count(*) AS shops FROM by_shop GROUP BY n;"), tmp_path / "state")
    # Without state of its own there is nothing that could be missing.
    run_in_process(build("SELECT n FROM by_shop WHERE n > 1;"), tmp_path / "state")
