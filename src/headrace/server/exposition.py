"""The metrics for Prometheus: the states of all jobs, and the measurements of those that run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace.jobs import prometheus
from headrace.server.database import Row

if TYPE_CHECKING:
    from headrace.server.service import Service

CONTENT_TYPE = prometheus.CONTENT_TYPE
_ASKING_AT_ONCE = 8


def exposition(service: Service) -> bytes:
    """The metrics of all jobs, as `GET /metrics` answers."""
    names = _names(service)
    jobs = [job for job in service.pipelines.jobs() if job["pipeline_id"] in names]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Jobs(jobs, names))
    return generate_latest(registry) + prometheus.exposition(_snapshots(service, jobs, names))


def _names(service: Service) -> dict[str, str]:
    """What each pipeline is called by the label `pipeline`, which tells pipelines of one name apart."""
    rows = service.pipelines.names()
    counts = Counter(rows.values())
    return {key: name if counts[name] == 1 else f"{name} {key}" for key, name in rows.items()}


def _snapshots(service: Service, jobs: Sequence[Row], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the processes that answer have measured."""
    running = [job for job in jobs if not job["process_over"]]
    with ThreadPoolExecutor(_ASKING_AT_ONCE) as pool:
        answers = pool.map(lambda job: service.monitor.ask(job["id"], "metrics", False), running)
        told = list(zip(running, answers, strict=True))
    return [{**snapshot, "pipeline": names[job["pipeline_id"]]} for job, snapshot in told if snapshot]


class _Jobs:
    def __init__(self, jobs: Sequence[Row], names: Mapping[str, str]) -> None:
        self._jobs = jobs
        self._names = names

    def collect(self) -> Iterator[Metric]:
        """The families of all jobs."""
        states = GaugeMetricFamily(
            "headrace_job_state", "1 for the state of each job", labels=["pipeline", "job", "state"]
        )
        starts = CounterMetricFamily(
            "headrace_job_starts", "Starts of the job's process", labels=["pipeline", "job"]
        )
        failures = GaugeMetricFamily(
            "headrace_job_failures_in_a_row",
            "Failures since the job was last healthy",
            labels=["pipeline", "job"],
        )
        for job in self._jobs:
            labels = [self._names[job["pipeline_id"]], job["id"]]
            states.add_metric([*labels, job["state"]], 1)
            starts.add_metric(labels, job["run_id"])
            failures.add_metric(labels, job["failures"])
        yield from (states, starts, failures)
