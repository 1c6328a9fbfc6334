"""The alert rules and the dashboard in `packaging/monitoring`, checked by a real Prometheus."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

import headrace as hr
from tests.servers.processes import free_port
from tests.servers.prometheus import Prometheus, find_program, run_prometheus
from tests.unit.test_monitoring import FOLDER, alerts, panels


@pytest.mark.parametrize(
    "arguments",
    [("check", "rules", "prometheus-alerts.yml"), ("test", "rules", "prometheus-alerts.test.yml")],
    ids=["valid", "fire"],
)
def test_the_alert_rules_are_valid_and_fire_when_they_should(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [find_program("promtool"), *arguments], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def program(folder: Path) -> str:
    """A pipeline with a state and a source of each kind of lag."""
    (folder / "many").mkdir()
    rows = "".join(json.dumps({"n": n}) + "\n" for n in range(10))
    (folder / "one.json").write_text(rows)
    (folder / "many" / "part.json").write_text(rows)
    return f"""
        CREATE TABLE numbers WITH (connector = 'impulse', event_rate = 200);
        CREATE TABLE one (n BIGINT) WITH (connector = 'single_file', path = '{folder}/one.json');
        CREATE TABLE many (n BIGINT) WITH (
          connector = 'filesystem', type = 'source', path = '{folder}/many', format = 'json'
        );
        CREATE TABLE counts (n BIGINT) WITH (connector = 'blackhole', type = 'sink');
        CREATE TABLE written (n BIGINT) WITH (
          connector = 'single_file', type = 'sink', path = '{folder}/out.json'
        );
        INSERT INTO counts SELECT count(*) FROM numbers GROUP BY tumble(INTERVAL '1 second'), counter % 5;
        INSERT INTO written SELECT n FROM one;
        INSERT INTO counts SELECT n FROM many;
    """


def filled(expression: str) -> str:
    """An expression of the dashboard with its variables filled in."""
    return expression.replace("$pipeline", ".*").replace("$__rate_interval", "20s")


def empty_panels(prometheus: Prometheus) -> list[str]:
    """The titles of the panels that have an expression without any value."""
    return [
        title
        for title, expressions in panels()
        for expression in expressions
        if all(series["value"][1] == "NaN" for series in prometheus.ask(filled(expression)))
    ]


@pytest.mark.spark
def test_no_panel_of_a_running_pipeline_is_empty(tmp_path: Path) -> None:
    find_program("prometheus")
    port = free_port()
    pipeline = hr.Pipeline.from_sql(program(tmp_path), name="monitored")
    options = hr.RunOptions(metrics_port=port)
    with (
        pipeline.start(tmp_path / "state", parallelism=2, options=options) as run,
        run_prometheus(tmp_path, f"127.0.0.1:{port}") as prometheus,
    ):
        deadline = time.monotonic() + 180
        while (empty := empty_panels(prometheus)) and time.monotonic() < deadline:
            assert run.is_active, run.exception()
            time.sleep(1)
        assert empty == []
        for _, expressions in alerts():
            for expression in expressions:
                prometheus.ask(expression)  # it can be parsed; whether it fires is promtool's case
