"""What runs measure, in Prometheus' text format.

`METRICS` declares every metric; the reference page is drawn from it. `exposition` writes any number of
snapshots, each of one pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.base.extras import load_extra
from headrace.base.watermarks import END_OF_TIME
from headrace.jobs.metrics import PHASES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

STATES = ("starting", "running", "stopping", "finished", "stopped", "failed")

Sample = tuple[tuple[str, ...], float]
"""The values of a metric's labels, without that of `pipeline`, and its own."""


@dataclass(frozen=True)
class Metric:
    """A metric; every one has the label `pipeline` besides its own."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()


_PER_SUBTASK = ("operator", "subtask")
_PER_PARTITION = ("source", "partition")

METRICS = (
    Metric("headrace_pipeline_info", "gauge", "Always 1, with the job as a label.", ("job",)),
    Metric("headrace_pipeline_state", "gauge", "1 for the current state of the run, else 0.", ("state",)),
    Metric("headrace_pipeline_start_time_seconds", "gauge", "When the run started, in seconds since 1970."),
    Metric("headrace_pipeline_parallelism", "gauge", "Subtasks of an operator."),
    Metric("headrace_pipeline_rows_in_total", "counter", "Rows that the sources have read in this run."),
    Metric("headrace_pipeline_rows_out_total", "counter", "Rows that the sinks have received in this run."),
    Metric(
        "headrace_pipeline_watermark_delay_seconds",
        "gauge",
        "How far the event time of the pipeline is behind the clock.",
    ),
    Metric("headrace_pipeline_errors_total", "counter", "Problems that did not stop the run."),
    Metric("headrace_pipeline_retries_total", "counter", "Retries of epochs and of calls to sources."),
    Metric("headrace_pipeline_waiting_servers", "gauge", "Unavailable servers that the run waits for."),
    Metric("headrace_epochs_total", "counter", "Committed epochs of this run."),
    Metric("headrace_last_epoch", "gauge", "The number of the last committed epoch."),
    Metric(
        "headrace_epoch_duration_seconds",
        "histogram",
        "The duration of epochs, from planning to commit, without waiting for input.",
    ),
    Metric(
        "headrace_epoch_phase_seconds_total",
        "counter",
        "The time of epochs by phase: `wait` (no input), `plan` (offsets of sources), `run` (tasks), "
        "`seal` (the checkpoint is written), `commit` (sinks commit, old checkpoints are removed).",
        ("phase",),
    ),
    Metric("headrace_checkpoint_timestamp_seconds", "gauge", "When the last epoch was committed."),
    Metric("headrace_checkpoint_age_seconds", "gauge", "The time since the last commit."),
    Metric("headrace_checkpoint_duration_seconds", "gauge", "The duration of its checkpoint and commit."),
    Metric("headrace_checkpoint_written_bytes_total", "counter", "Bytes of state written by checkpoints."),
    Metric("headrace_operator_rows_in_total", "counter", "Rows that the subtask received.", _PER_SUBTASK),
    Metric("headrace_operator_rows_out_total", "counter", "Rows that the subtask emitted.", _PER_SUBTASK),
    Metric("headrace_operator_bytes_in_total", "counter", "Arrow bytes of those rows.", _PER_SUBTASK),
    Metric("headrace_operator_bytes_out_total", "counter", "Arrow bytes of those rows.", _PER_SUBTASK),
    Metric(
        "headrace_operator_busy_seconds_total",
        "counter",
        "Working time of the subtask, without the operators chained behind it.",
        _PER_SUBTASK,
    ),
    Metric(
        "headrace_operator_busy_ratio",
        "gauge",
        "The share of the last minute in which the busiest subtask worked.",
        ("operator",),
    ),
    Metric(
        "headrace_operator_skew_ratio",
        "gauge",
        "Working time of the busiest subtask divided by the mean, in the last minute; 1 is balanced.",
        ("operator",),
    ),
    Metric(
        "headrace_operator_backpressure_ratio",
        "gauge",
        "The load of downstream operators while a source has unread rows.",
        ("operator",),
    ),
    Metric(
        "headrace_operator_counter_total",
        "counter",
        "Counters of operators and connectors (`ctx.metrics.add`).",
        ("operator", "counter"),
    ),
    Metric("headrace_late_rows_total", "counter", "Late rows.", ("operator",)),
    Metric("headrace_bad_rows_total", "counter", "Records that could not be read or written.", ("operator",)),
    Metric(
        "headrace_dead_letters_total", "counter", "Records written to a dead letter table.", ("operator",)
    ),
    Metric("headrace_state_rows", "gauge", "Rows in a state table.", ("operator", "table")),
    Metric("headrace_state_bytes", "gauge", "Bytes of a state table.", ("operator", "table")),
    Metric(
        "headrace_watermark_timestamp_seconds",
        "gauge",
        "The event time that the inputs of an operator have reached.",
        ("operator",),
    ),
    Metric(
        "headrace_watermark_delay_seconds",
        "gauge",
        "How far this event time is behind the clock.",
        ("operator",),
    ),
    Metric(
        "headrace_source_lag_rows",
        "gauge",
        "Unread rows or messages after the last epoch.",
        _PER_PARTITION,
    ),
    Metric("headrace_source_lag_bytes", "gauge", "Unread bytes of files and logs.", _PER_PARTITION),
    Metric("headrace_source_lag_files", "gauge", "Unread files of directories.", _PER_PARTITION),
    Metric("headrace_sink_commits_total", "counter", "Commits with data.", ("operator",)),
    Metric("headrace_sink_commit_seconds_total", "counter", "The duration of these commits.", ("operator",)),
    Metric("headrace_spark_cores", "gauge", "The number of tasks that Spark can run in parallel."),
    Metric("headrace_spark_active_tasks", "gauge", "Tasks that are running."),
    Metric("headrace_spark_task_seconds_total", "counter", "Run time of tasks."),
    Metric("headrace_spark_gc_seconds_total", "counter", "Java's garbage collection time in tasks."),
    Metric("headrace_spark_failed_tasks_total", "counter", "Tasks that failed."),
    Metric("headrace_spark_idle_ratio", "gauge", "The idle share of Spark's cores in the last minute."),
    Metric(
        "headrace_process_memory_bytes",
        "gauge",
        "Resident memory on the driver's machine: of the `driver`, of Spark's `java`, of Python `workers`, "
        "of `other` processes that the run has started.",
        ("process",),
    ),
)


def exposition(snapshots: Iterable[Mapping[str, Any]]) -> bytes:
    """The metrics of these runs, as `GET /metrics` answers."""
    client = load_extra(
        "prometheus_client",
        feature="`/metrics`",
        extra="server",
        package="prometheus-client",
        submodules=("core", "exposition"),
    )
    families = {metric.name: _family(client, metric) for metric in METRICS}
    for snapshot in snapshots:
        pipeline = snapshot["pipeline"]
        for metric in METRICS:
            if metric.kind == "histogram":
                _add_histogram(families[metric.name], pipeline, snapshot)
        for name, labels, value in samples(snapshot):
            families[name].add_metric([pipeline, *labels], value)
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(_Collected([family for family in families.values() if family.samples]))
    text: bytes = client.exposition.generate_latest(registry)
    return text


class _Collected:
    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> list[Any]:
        return self._families


def _family(client: Any, metric: Metric) -> Any:
    kinds = {
        "counter": client.core.CounterMetricFamily,
        "gauge": client.core.GaugeMetricFamily,
        "histogram": client.core.HistogramMetricFamily,
    }
    return kinds[metric.kind](metric.name, metric.meaning, labels=["pipeline", *metric.labels])


def _add_histogram(family: Any, pipeline: str, snapshot: Mapping[str, Any]) -> None:
    worked = sum(snapshot["phase_seconds"][phase] for phase in PHASES if phase != "wait")
    family.add_metric([pipeline], buckets=snapshot["epoch_buckets"], sum_value=worked)


def samples(snapshot: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """The samples of a snapshot but its histogram: name, labels without `pipeline`, value.

    What is not known is left out.
    """
    for name, labels, value in _samples(snapshot):
        if value is not None:
            yield f"headrace_{name}", labels, float(value)


def _samples(snapshot: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], float | None]]:
    yield "pipeline_info", (snapshot["job"],), 1
    for state in STATES:
        yield "pipeline_state", (state,), int(state == snapshot["state"])
    yield "pipeline_start_time_seconds", (), snapshot["started"]
    yield "pipeline_parallelism", (), snapshot["parallelism"]
    yield "pipeline_rows_in_total", (), snapshot["rows_in"]
    yield "pipeline_rows_out_total", (), snapshot["rows_out"]
    yield "pipeline_watermark_delay_seconds", (), snapshot["watermark_delay"]
    yield "pipeline_errors_total", (), snapshot["errors"]
    yield "pipeline_retries_total", (), snapshot["retries"]
    yield "pipeline_waiting_servers", (), snapshot["waiting_servers"]
    yield "epochs_total", (), snapshot["epochs"]
    yield "last_epoch", (), snapshot["last_epoch"]
    for phase, seconds in snapshot["phase_seconds"].items():
        yield "epoch_phase_seconds_total", (phase,), seconds
    at = snapshot["checkpoint_time"]
    yield "checkpoint_timestamp_seconds", (), at
    yield "checkpoint_age_seconds", (), None if at is None else max(0.0, snapshot["time"] - at)
    yield "checkpoint_duration_seconds", (), snapshot["checkpoint_seconds"]
    yield "checkpoint_written_bytes_total", (), snapshot["bytes_written"]
    for node, operator in snapshot["operators"].items():
        yield from _of_operator(node, operator)
    for source, lag in snapshot["lag"].items():
        for partition, behind in lag["partitions"].items():
            yield f"source_lag_{lag['unit']}", (source, partition), behind
    for name, value in (snapshot["spark"] or {}).items():
        yield f"spark_{name}{'_total' if name in _SPARK_COUNTERS else ''}", (), value
    for process, size in snapshot["memory"].items():
        yield "process_memory_bytes", (process,), size


_SPARK_COUNTERS = {"task_seconds", "gc_seconds", "failed_tasks"}
_SHOWN_APART = {"late_rows", "bad_rows", "dead_letters"}


def _of_operator(
    node: str, operator: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[str, ...], float | None]]:
    for subtask, work in operator["subtasks"].items():
        for name in ("rows_in", "rows_out", "bytes_in", "bytes_out"):
            yield f"operator_{name}_total", (node, subtask), work[name]
        yield "operator_busy_seconds_total", (node, subtask), work["seconds"]
    for name in ("busy", "skew", "backpressure"):
        yield f"operator_{name}_ratio", (node,), operator[name]
    for name in _SHOWN_APART:
        yield f"{name}_total", (node,), operator["counters"].get(name, 0)
    for name, value in operator["counters"].items():
        if name not in _SHOWN_APART:
            yield "operator_counter_total", (node, name), value
    for table, size in operator["tables"].items():
        yield "state_rows", (node, table), size["rows"]
        yield "state_bytes", (node, table), size["bytes"]
    if operator["watermark"] != END_OF_TIME.time:
        mark = operator["watermark"]
        yield "watermark_timestamp_seconds", (node,), None if mark is None else mark / 1e9
        yield "watermark_delay_seconds", (node,), operator["watermark_delay"]
    if operator["role"] == "sink":
        yield "sink_commits_total", (node,), operator["commits"]
        yield "sink_commit_seconds_total", (node,), operator["commit_seconds"]
