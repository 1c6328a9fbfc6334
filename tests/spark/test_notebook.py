"""A notebook, run headless: a pipeline shows its graph, rows a table that settles, a handle its progress."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

REASON = "a notebook needs nbclient, nbformat and ipykernel"
nbclient = pytest.importorskip("nbclient", reason=REASON)
nbformat = pytest.importorskip("nbformat", reason=REASON)
pytest.importorskip("ipykernel", reason=REASON)

pytestmark = pytest.mark.spark

CELLS = (
    """
import headrace as hr
rows = [{"shop": "mill", "amount": 3}, {"shop": "weir", "amount": 5}, {"shop": "mill", "amount": 4}]
pipeline = hr.Pipeline("shops")
totals = pipeline.source("memory", rows=rows).group_by("shop").aggregate(total="sum(amount)")
totals.sink("memory", name="totals");
""",
    "pipeline",
    "table = totals.show(10, parallelism=1)",
    "table",
    """
sql = "SELECT shop, city FROM (VALUES ('mill', 'Bath')) AS t (shop, city)"
result = hr.Pipeline.from_sql(sql).run(parallelism=1)
""",
    """
run = pipeline.start(parallelism=1)
run.await_termination(120)
run
""",
)


@pytest.fixture(scope="module")
def outputs() -> list[list[Any]]:
    """What each cell of the notebook has put out."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": source}
    client = nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3")
    client.execute(env=environment)
    return [cell.outputs for cell in notebook.cells]


def html_of(output: list[Any]) -> str:
    return "".join(one["data"].get("text/html", "") for one in output if "data" in one)


def test_a_pipeline_shows_its_graph(outputs: list[list[Any]]) -> None:
    (shown,) = outputs[1]
    assert shown["data"]["text/vnd.mermaid"].startswith("flowchart LR")
    assert "aggregate_1.aggregate" in shown["data"]["text/html"]
    assert "stage 1" in shown["data"]["text/plain"]


def test_rows_are_shown_in_one_table_that_settles(outputs: list[list[Any]]) -> None:
    tables = [one for one in outputs[2] if "data" in one]
    assert len(tables) == 1
    assert "<td>mill</td><td>7</td>" in html_of(outputs[2])
    assert html_of(outputs[3]) == html_of(outputs[2])


def test_a_bare_select_shows_its_rows(outputs: list[list[Any]]) -> None:
    assert "<td>mill</td><td>Bath</td>" in html_of(outputs[4])


def test_a_handle_shows_how_far_the_run_is(outputs: list[list[Any]]) -> None:
    assert "<i>finished</i>" in html_of(outputs[5])
