"""The dashboard and the alert rules in `packaging/monitoring` use metrics and labels that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.jobs.prometheus import METRICS

FOLDER = Path(__file__).parents[2] / "packaging" / "monitoring"
LABELS = {metric.name: {"pipeline", *metric.labels} for metric in METRICS} | {
    f"{metric.name}_{part}": {"pipeline", *metric.labels, "le"}
    for metric in METRICS
    if metric.kind == "histogram"
    for part in ("bucket", "count", "sum")
}
SCRAPED = {"job", "instance"}
"""What Prometheus itself adds."""


def dashboard() -> dict[str, Any]:
    """The dashboard of Grafana."""
    content: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    return content


def panels() -> list[tuple[str, list[str]]]:
    """The panels of the dashboard that show something: title, expressions."""
    return [
        (panel["title"], [target["expr"] for target in panel["targets"]])
        for panel in dashboard()["panels"]
        if panel["type"] != "row"
    ]


def alerts() -> list[tuple[str, list[str]]]:
    """The alerts: name, expression."""
    groups = yaml.safe_load((FOLDER / "prometheus-alerts.yml").read_text())["groups"]
    return [(rule["alert"], [rule["expr"]]) for group in groups for rule in group["rules"]]


@pytest.mark.parametrize(("name", "expressions"), [*panels(), *alerts()])
def test_an_expression_names_metrics_and_labels_that_there_are(name: str, expressions: list[str]) -> None:
    for expression in expressions:
        metrics = set(re.findall(r"\bheadrace_\w+(?!\w*[(])", re.sub(r'"[^"]*"', '""', expression)))
        metrics |= {
            m for m in LABELS if re.search(r"__name__=~", expression) and m.startswith("headrace_source_lag")
        }
        if name != "HeadraceDown":
            assert metrics, expression
        assert metrics <= LABELS.keys()
        named = {
            label.strip()
            for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
            for label in group.split(",")
        }
        assert named <= set().union(SCRAPED, *(LABELS[metric] for metric in metrics))


def test_panels_do_not_overlap_and_have_an_id_each() -> None:
    shown = dashboard()["panels"]
    assert len({panel["id"] for panel in shown}) == len(shown)
    taken: set[tuple[int, int]] = set()
    for panel in shown:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_every_alert_has_its_case() -> None:
    cases = (FOLDER / "prometheus-alerts.test.yml").read_text()
    assert [name for name, _ in alerts() if f'alertname="{name}"' not in cases] == []
