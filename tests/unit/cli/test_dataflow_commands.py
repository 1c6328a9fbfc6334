"""`check`, `explain` and `schema` of dataflows."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main
from headrace.dataflow.document.json_schema import json_schema

OPERATOR = """
class Operator:
    def on_event(self, dora_event, send_output): ...
"""
FLOW = """
nodes:
  - id: readings
    connector: impulse
    options: {message_count: 3}
  - id: clock
    operator: {python: op.py, inputs: {tick: dora/timer/millis/1000}, outputs: [beat]}
  - id: runtime
    deploy: {machine: far}
    operators:
      - {id: count, python: op.py, inputs: {beat: clock/beat, again: runtime/count/n}, outputs: [n]}
      - id: slow
        python: op.py
        inputs: {newest: {source: runtime/count/n, queue_policy: drop_oldest, queue_size: 1}}
  - id: wide
    parallelism: 3
    partition_by: counter
    restart_policy: on-failure
    operator: {python: op.py, inputs: {rows: readings/rows}, outputs: [rows]}
  - id: screen
    connector: stdout
    inputs: {rows: wide/rows}
"""


def headrace(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    (tmp_path / "op.py").write_text(OPERATOR)
    (tmp_path / "flow.yml").write_text(FLOW)
    return tmp_path / "flow.yml"


# ------------------------------------------------------------------------------------- check


def test_check_counts_what_a_dataflow_has_and_warns(flow: Path) -> None:
    result = headrace("check", flow)
    assert (result.exit_code, result.stdout) == (0, "ok: 4 operators, 2 connectors, 6 inputs, 1 timer\n")
    assert result.stderr.startswith(f"warning: {flow}:9:5: ")
    assert "Spark decides" in result.stderr


def test_check_counts_processes(tmp_path: Path) -> None:
    (tmp_path / "node.py").touch()
    nodes = "[{id: a, path: node.py, outputs: [x]}, {id: b, path: node.py, inputs: {x: a/x}}]"
    (tmp_path / "flow.yml").write_text(f"nodes: {nodes}")
    assert headrace("check", tmp_path / "flow.yml").stdout == "ok: 2 processes, 1 input\n"


def test_check_shows_all_mistakes_with_their_places(flow: Path) -> None:
    flow.write_text(FLOW.replace("clock/beat", "clok/beat").replace("millis/1000", "milis/10"))
    result = headrace("check", flow)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("error[dataflow]") == 2
    assert f"at {flow}:7:" in result.stderr
    assert f"at {flow}:11:" in result.stderr
    assert "did you mean `clock" in result.stderr
    assert "2 errors" in result.stderr


def test_check_parses_the_operators(flow: Path) -> None:
    (flow.parent / "op.py").write_text("class Operatr: ...")
    result = headrace("check", flow)
    assert result.exit_code == 2
    assert "no class `Operator`" in result.stderr


# ----------------------------------------------------------------------------------- explain


def test_mermaid_draws_the_graph_of_the_document(flow: Path) -> None:
    result = headrace("explain", "--mermaid", flow)
    assert result.exit_code == 0
    assert result.stdout == headrace("explain", "--format", "mermaid", flow).stdout
    assert (
        result.stdout
        == r"""flowchart TB
  n_readings[\"readings"/]
  n_clock["clock"]
  n_wide["wide ×3"]
  n_screen[/"screen"\]
  subgraph n_runtime["runtime"]
    n_runtime_count["count"]
    n_runtime_slow[/"slow"\]
  end
  subgraph n_dora_timer["timers"]
    n_dora_timer_secs_1[\"secs/1"/]
  end
  n_dora_timer_secs_1 -->|"tick"| n_clock
  n_clock -->|"beat"| n_runtime_count
  n_runtime_count -->|"n as again"| n_runtime_count
  n_runtime_count -->|"n as newest"| n_runtime_slow
  n_readings -->|"rows"| n_wide
  n_wide -->|"rows"| n_screen
"""
    )


def test_text_shows_the_units_and_then_the_plan(flow: Path) -> None:
    shown = headrace("explain", flow).stdout
    units, plan = shown.split("\n\n")
    assert units.splitlines() == [
        "dataflow flow · 6 units",
        "  readings connector impulse",
        "    → rows",
        "  clock op.py",
        "    tick ← dora/timer/secs/1",
        "    → beat",
        "  runtime/count op.py",
        "    beat ← clock/beat",
        "    again ← runtime/count/n",
        "    → n",
        "  runtime/slow op.py",
        "    newest ← runtime/count/n (drop_oldest, queue of 1)",
        "  wide op.py (×3 by counter, restarts on-failure)",
        "    rows ← readings/rows",
        "    → rows",
        "  screen connector stdout",
        "    rows ← wide/rows",
    ]
    assert plan.startswith("pipeline flow · parallelism ")
    assert headrace("explain", "--plan", flow).stdout == plan


def test_plan_draws_what_the_engine_runs(flow: Path) -> None:
    shown = headrace("explain", "--plan", "--mermaid", flow).stdout
    assert shown.startswith("flowchart LR")
    assert 'n_runtime[["runtime<br/>state units"]]' in shown


def test_json_has_the_units_beside_the_plan(flow: Path) -> None:
    shown = json.loads(headrace("explain", "--format", "json", flow).stdout)
    assert shown["dataflow"]["units"][3] == {
        "address": "runtime/slow",
        "kind": "python",
        "runs": "op.py",
        "inputs": {"newest": "runtime/count/n"},
        "outputs": [],
    }
    plan = json.loads(headrace("explain", "--plan", "--format", "json", flow).stdout)
    assert "dataflow" not in plan
    assert plan.keys() < shown.keys()


class _Outside(HTMLParser):
    """Collects what a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href"}]
        self.found += [tag] if tag in {"script", "link", "iframe", "img"} else []


def test_the_page_needs_nothing_else_and_has_every_unit(flow: Path, tmp_path: Path) -> None:
    page = tmp_path / "flow.html"
    result = headrace("explain", "--html", page, flow)
    assert (result.exit_code, result.stdout) == (0, f"wrote {page}\n")
    text = page.read_text()
    outside = _Outside()
    outside.feed(text)
    assert outside.found == []
    assert "url(http" not in text
    svg = re.search(r"<svg.*</svg>", text, flags=re.DOTALL)
    assert svg is not None
    drawn = ET.fromstring(svg[0])
    titles = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == [
        *("readings", "clock", "runtime/count", "runtime/slow", "wide", "screen"),
        "dora/timer/secs/1",
    ]
    assert len([one for one in drawn.iter() if one.get("class") == "arrow"]) == 6
    assert "flowchart TB" in text
    assert "pipeline flow · parallelism" in text


def test_the_page_of_a_query_draws_its_plan(tmp_path: Path) -> None:
    page = tmp_path / "query.html"
    sql = "create table n with (connector = 'impulse', message_count = 3); select count(*) as c from n"
    assert headrace("explain", "-e", sql, "--html", page).exit_code == 0
    assert "<title>source_n</title>" in page.read_text()
    assert "flowchart LR" in page.read_text()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--mermaid", "--format", "json"), "different things"),
        (("--html", "x.html", "--mermaid"), "leave out the format"),
        (("--html", "x.yml"), "called .html, not to x.yml"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flow: Path, flags: tuple[str, ...], says: str) -> None:
    result = headrace("explain", *flags, flow)
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_page_that_cannot_be_written_says_why(flow: Path, tmp_path: Path) -> None:
    result = headrace("explain", flow, "--html", tmp_path / "no" / "where.html")
    assert result.exit_code == 2
    assert "where.html cannot be written: No such file or directory" in result.stderr


# ------------------------------------------------------------------------------------ schema


def test_schema_prints_the_schema_for_editors() -> None:
    result = headrace("schema")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == json_schema()
