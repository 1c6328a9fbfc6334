"""What Prometheus is told of a run, and what the HTTP server of a run answers."""

from __future__ import annotations

import http.client
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import headrace as hr
from headrace.base.errors import ConfigurationError, MissingExtraError
from headrace.exchanges.spark.usage import SparkUsage
from headrace.jobs.handle import start_job
from headrace.jobs.metrics_server import MetricsServer
from headrace.jobs.prometheus import METRICS, exposition
from headrace.jobs.settings import load_settings
from headrace.jobs.usage import UsageWatch, memory_by_process
from headrace.testing.in_process import run_in_process
from tests.unit.jobs.test_metrics import tallies, windows

USAGE = SparkUsage(cores=2, active_tasks=1, task_seconds=7.5, gc_seconds=0.5, failed_tasks=0)
COUNTED = {name: value for name, value in vars(USAGE).items() if name != "web_url"}


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a run has measured in its middle, with Spark's figures as they could be."""
    with tallies(monkeypatch) as made:
        run_in_process(windows(), tmp_path, max_epochs=3, epoch_rows=100)
    spark = {"idle_ratio": 0.25, **COUNTED}
    rest = {"state": "running", "waiting_servers": 0, "spark": spark, "memory": memory_by_process()}
    return {**made[0].measured.snapshot(), **rest}


def parsed(text: bytes) -> dict[str, list[Any]]:
    """The samples of an exposition by the name of their metric."""
    return {family.name: family.samples for family in text_string_to_metric_families(text.decode())}


def test_every_metric_that_is_shown_is_declared_with_its_labels(snapshot: dict[str, Any]) -> None:
    declared = {metric.name.removesuffix("_total"): metric for metric in METRICS}
    families = parsed(exposition([snapshot]))
    for name, samples in families.items():
        for sample in samples:
            own = set(sample.labels) - {"le"}
            assert own == {"pipeline", *declared[name].labels}, sample
            assert sample.labels["pipeline"] == "counts"
    # Those of other sources than this one, and of a connector that counts nothing itself.
    unseen = {"headrace_source_lag_bytes", "headrace_source_lag_files"}
    assert declared.keys() - families.keys() == unseen


def test_the_exposition_has_the_values_of_the_snapshot(snapshot: dict[str, Any]) -> None:
    families = parsed(exposition([snapshot]))
    rows = {
        (sample.labels["operator"], sample.labels["subtask"]): sample.value
        for sample in families["headrace_operator_rows_in"]
    }
    for node, operator in snapshot["operators"].items():
        for subtask, work in operator["subtasks"].items():
            assert rows[node, subtask] == work["rows_in"]
    states = {sample.labels["state"]: sample.value for sample in families["headrace_pipeline_state"]}
    assert (states.pop("running"), set(states.values())) == (1, {0})
    duration = {sample.name: sample.value for sample in families["headrace_epoch_duration_seconds"]}
    assert duration["headrace_epoch_duration_seconds_count"] == snapshot["epochs"] == 3
    assert duration["headrace_epoch_duration_seconds_sum"] > 0


def test_the_metrics_of_several_pipelines_are_one_exposition(snapshot: dict[str, Any]) -> None:
    families = parsed(exposition([snapshot, {**snapshot, "pipeline": 'odd "name"\n'}]))
    epochs = {sample.labels["pipeline"]: sample.value for sample in families["headrace_epochs"]}
    assert epochs == {"counts": 3, 'odd "name"\n': 3}


def ask(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request(method, path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_a_run_answers_scrapes_and_says_whether_it_is_ready(snapshot: dict[str, Any]) -> None:
    states = ["starting"]
    seen: list[dict[str, Any]] = [{}]
    with MetricsServer("127.0.0.1", 0, snapshot=lambda: seen[0], state=lambda: states[0]) as server:
        assert ask(server.address, "/healthz") == (200, "starting\n")
        assert ask(server.address, "/readyz") == (503, "starting\n")
        assert ask(server.address, "/metrics") == (200, "")
        states[0], seen[0] = "running", snapshot
        assert ask(server.address, "/readyz") == (200, "running\n")
        status, text = ask(server.address, "/metrics?name=x")
        assert (status, text.encode()) == (200, exposition([snapshot]))
        assert ask(server.address, "/metrics", "HEAD") == (200, "")
        assert ask(server.address, "/")[0] == 404
        assert ask(server.address, "/metrics", "POST")[0] == 501
        states[0] = "failed"
        assert ask(server.address, "/healthz") == (503, "failed\n")
    with pytest.raises(OSError, match="refused"):
        ask(server.address, "/healthz")


def test_a_client_that_says_nothing_keeps_nobody_waiting() -> None:
    with MetricsServer("127.0.0.1", 0, snapshot=dict, state=lambda: "running") as server:
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port))):
            assert ask(server.address, "/healthz")[0] == 200


def test_a_port_that_is_taken_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    pipeline = hr.Pipeline("taken")
    pipeline.source("memory", rows=[{"n": 1}]).sink("blackhole")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = {"state": {"dir": str(tmp_path)}, "metrics": {"port": port}}
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1, port {port}: another program listens"):
            start_job(pipeline.plan(), load_settings(flags=flags))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_of_this_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match=host) as refused:
        MetricsServer(host, 0, snapshot=dict, state=lambda: "running")
    assert "--metrics-host" in (refused.value.hint or "")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[server\]'"):
        MetricsServer("127.0.0.1", 0, snapshot=dict, state=lambda: "running")


def test_spark_is_looked_at_once_somebody_asks_and_a_spark_that_hangs_delays_nobody() -> None:
    asked, answer = threading.Event(), threading.Event()

    def hangs() -> SparkUsage:
        asked.set()
        answer.wait(60)
        return replace(USAGE, web_url="http://127.0.0.1:4040")

    watch = UsageWatch(hangs)
    assert not asked.is_set()
    assert watch.latest() == {"spark": None, "spark_url": None, "memory": {}}
    assert asked.wait(60)
    assert watch.latest()["spark"] is None
    answer.set()
    for _ in range(600):
        if watch.latest()["spark"] is not None:
            break
        threading.Event().wait(0.1)
    latest = watch.latest()
    watch.close()
    assert latest["spark"] == {**COUNTED, "idle_ratio": None}
    assert latest["spark_url"] == "http://127.0.0.1:4040"
    assert latest["memory"]["driver"] > 1_000_000
