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


def test_a_second_writer_of_an_epoch_is_refused(tmp_path: Path) -> None:
    def intrude(name: str, epoch: int) -> None:
        if (name, epoch) == ("tasks_done", 2):
            run_in_process(pipeline(), tmp_path, epoch_rows=100, max_epochs=1)

    with pytest.raises(hr.StateInUseError):
        run_in_process(pipeline(), tmp_path, epoch_rows=100, on_step=intrude)
