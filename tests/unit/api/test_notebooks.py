"""What a notebook shows of pipelines and streams, without a notebook."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.api.live_table import LiveTables, in_notebook
from headrace.model.plan import Plan
from headrace.testing.in_process import run_in_process

ROWS = [{"shop": "mill", "amount": 3}, {"shop": "<weir>", "amount": 5}, {"shop": "mill", "amount": 4}]


class Planned(hr.Pipeline):
    """A pipeline whose plan is there already, for the test kit."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.name)
        self._plan = plan

    def plan(self) -> Plan:
        return self._plan


def shown(stream: hr.Stream, table: hr.LiveTable, state_dir: Path) -> hr.LiveTable:
    """The table that `stream.show()` shows, by the test kit instead of Spark."""
    live = LiveTables()
    plan = stream.pipeline._shown_plan(stream, *live.add(table))
    with live.connected():
        run_in_process(Planned(plan), state_dir, epoch_rows=1)
    return table


def test_a_pipeline_shows_its_stages_and_a_diagram() -> None:
    pipeline = hr.Pipeline("<shops>".strip("<>"))
    pipeline.source("memory", rows=ROWS).group_by("shop").aggregate(n="count(*)").sink("blackhole")
    bundle = pipeline._repr_mimebundle_()
    assert bundle["text/vnd.mermaid"] == pipeline.explain("mermaid", parallelism=1)
    assert "aggregate_1.aggregate" in bundle["text/html"]
    assert "state groups" in bundle["text/html"]


def test_a_pipeline_that_cannot_run_yet_says_why() -> None:
    pipeline = hr.Pipeline("begun")
    pipeline.source("memory", rows=ROWS)
    assert pipeline._repr_mimebundle_() == {
        "text/plain": "Pipeline('begun'): nothing reads the source `memory_1`"
    }


def test_a_table_has_the_rows_that_stand(tmp_path: Path) -> None:
    totals = hr.Pipeline().source("memory", rows=ROWS).group_by("shop").aggregate(total="sum(amount)")
    table = shown(totals, hr.LiveTable("t", totals.schema, updating=True, key=("shop",)), tmp_path)
    assert sorted(table.rows) == [("<weir>", "5"), ("mill", "7")]
    assert "<td>&lt;weir&gt;</td><td>5</td>" in table._repr_html_()
    assert repr(table).endswith("2 rows")


def test_a_table_shows_the_last_rows_and_says_how_many_there_are(tmp_path: Path) -> None:
    rows = hr.Pipeline().source("memory", rows=ROWS).filter("amount > 0")
    table = shown(rows, hr.LiveTable("t", rows.schema, limit=2), tmp_path)
    assert table.rows == [("<weir>", "5"), ("mill", "4")]
    assert "the last 2 of 3 rows" in repr(table)


def test_columns_that_are_not_known_are_those_of_the_first_rows(tmp_path: Path) -> None:
    rows = hr.Pipeline().source("memory", rows=ROWS).map(lambda batch: batch)
    table = shown(rows, hr.LiveTable("t"), tmp_path)
    assert repr(table).startswith("shop    amount")


def test_only_what_the_stream_is_made_of_is_run() -> None:
    pipeline = hr.Pipeline()
    rows = pipeline.source("memory", rows=ROWS, id="rows")
    pipeline.source("impulse", id="unread")
    rows.filter("amount > 3").sink("stdout")
    kept = rows.filter("amount > 4").map(lambda batch: batch, id="kept")
    plan = pipeline._shown_plan(kept, "preview", {"name": "x"})
    assert [node.id for node in plan.nodes] == ["rows", "rows.watermark", "filter_2.project", "kept", "show"]


def test_a_program_that_is_no_notebook_is_none() -> None:
    assert not in_notebook()
    assert repr(hr.LiveTable("t", pa.schema([("a", pa.int64())]))) == "a\n-\n0 rows"


def test_rows_to_show_are_at_least_one() -> None:
    with pytest.raises(hr.PlanError, match="number of rows"):
        hr.Pipeline().source("memory", rows=ROWS).show(0)
