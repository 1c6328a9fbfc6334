"""The metrics of running jobs, as the REST API shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from headrace.jobs.metrics import HISTORY_SECONDS
from headrace.model.operator import BAD_ROWS_OF
from headrace.server.database import Row
from headrace.server.history import RunSample
from headrace.server.models import (
    MetricGroupView,
    MetricName,
    MetricView,
    OperatorMetricsView,
    OperatorView,
    ProgressView,
    SubtaskMetricsView,
)

SHOWN_SECONDS = 300
_RATE_SECONDS = 10.0
QUEUE_SIZE: Final = 100.0
"""Of the queue that Arroyo's clients expect behind every operator."""
_NAMES: Final[dict[MetricName, str]] = {
    "messages_recv": "rows_in",
    "messages_sent": "rows_out",
    "bytes_recv": "bytes_in",
    "bytes_sent": "bytes_out",
}


def operator_metrics(
    graph: Mapping[str, Any],
    samples: Sequence[RunSample],
    snapshot: Mapping[str, Any] | None,
    seconds: float = SHOWN_SECONDS,
) -> list[OperatorMetricsView]:
    """The metrics of every node: rates of the last `seconds`, the backpressure of the last minute.

    Rates of several subtasks are between the points of the run's own history, as far as that goes back;
    others are between samples, which are closer together and go on over a restart.
    """
    snapshot_of_subtasks = snapshot if seconds <= HISTORY_SECONDS else None
    return [
        OperatorMetricsView(
            node_id=node["node_id"],
            metric_groups=[
                *(
                    _subtask_group(name, snapshot_of_subtasks, node["id"], counter, seconds)
                    or _group(name, _rates(samples, node["id"], counter))
                    for name, counter in _NAMES.items()
                ),
                *_pressure(snapshot, node["id"]),
            ],
        )
        for node in graph["nodes"]
    ]


def _group(name: MetricName, values: list[MetricView]) -> MetricGroupView:
    return MetricGroupView(name=name, subtasks=[SubtaskMetricsView(index=0, metrics=values)])


def _subtask_group(
    name: MetricName, snapshot: Mapping[str, Any] | None, node: str, counter: str, seconds: float
) -> MetricGroupView | None:
    """The rates of each subtask; None if there is one, or so many that the run does not keep them apart."""
    history: Mapping[str, Any] = (snapshot or {}).get("history") or {}
    subtasks: Mapping[str, Mapping[str, Sequence[float]]] = history.get("operators", {}).get(node, {})
    if len(subtasks) < 2:
        return None
    times: Sequence[float] = history["times"]
    since = times[-1] - seconds
    views = []
    for index, series in sorted((int(index), series) for index, series in subtasks.items()):
        points = pairwise(zip(times, series[counter], strict=True))
        rates = [
            MetricView(time=int(after * 1e6), value=(high - low) / (after - before))
            for (before, low), (after, high) in points
            if after > before >= since
        ]
        views.append(SubtaskMetricsView(index=index, metrics=rates))
    return MetricGroupView(name=name, subtasks=views)


def operators_of(samples: Sequence[RunSample], snapshot: Mapping[str, Any] | None) -> list[OperatorView]:
    """What every operator of a run does and holds, and how large its state was in the last hour."""
    operators: Mapping[str, Mapping[str, Any]] = (snapshot or {}).get("operators", {})
    return [
        OperatorView(
            id=node,
            state=[
                MetricView(time=sample.time, value=sample.metrics[node]["state_bytes"])
                for sample in samples
                if "state_bytes" in sample.metrics.get(node, {})
            ],
            **{name: values[name] for name in _OF_OPERATOR},
            **{name: values["counters"].get(name, 0) for name in ("late_rows", "bad_rows", "dead_letters")},
            bad_by={
                name.removeprefix(BAD_ROWS_OF): count
                for name, count in values["counters"].items()
                if name.startswith(BAD_ROWS_OF)
            },
        )
        for node, values in operators.items()
    ]


_OF_OPERATOR = (
    "name",
    "rows_in",
    "rows_out",
    "bytes_in",
    "bytes_out",
    "seconds",
    "busy",
    "skew",
    "backpressure",
    "watermark_delay",
    "state_rows",
    "state_bytes",
    "commits",
    "commit_seconds",
)


def _pressure(snapshot: Mapping[str, Any] | None, node: str) -> list[MetricGroupView]:
    """The backpressure, and the queue that clients would compute it from: epochs have none."""
    values: dict[MetricName, float] = {}
    if snapshot and node in snapshot["operators"]:
        held = snapshot["operators"][node]["backpressure"]
        values = {
            "backpressure": held,
            "tx_queue_size": QUEUE_SIZE,
            "tx_queue_rem": QUEUE_SIZE * (1 - held),
        }
    names: tuple[MetricName, ...] = ("backpressure", "tx_queue_size", "tx_queue_rem")
    time = int(snapshot["time"] * 1e6) if snapshot else 0
    return [
        _group(name, [MetricView(time=time, value=values[name])] if name in values else []) for name in names
    ]


def _rates(samples: Sequence[RunSample], node: str, counter: str) -> list[MetricView]:
    rates = []
    for before, after in pairwise(samples):
        seconds = (after.time - before.time) / 1e6
        moved = _value(after, node, counter) - _value(before, node, counter)
        if seconds > 0 and moved >= 0:  # a new run counts from zero again
            rates.append(MetricView(time=after.time, value=moved / seconds))
    return rates


def _value(sample: RunSample, node: str, counter: str) -> float:
    return sample.metrics.get(node, {}).get(counter, 0.0)


def progress_of(
    job: Row, status: Mapping[str, Any] | None, samples: Sequence[RunSample], error: str | None
) -> ProgressView:
    """The progress of a job, for lists of jobs."""
    progress: Mapping[str, Any] = (status or {}).get("progress") or {}
    metrics: Mapping[str, Mapping[str, float]] = (status or {}).get("metrics") or {}
    lag: Mapping[str, float] = (status or {}).get("lag") or {}
    recent = [sample for sample in samples if sample.time >= samples[-1].time - _RATE_SECONDS * 1e6]

    def total(counter: str) -> int | None:
        return None if status is None else int(sum(values.get(counter, 0) for values in metrics.values()))

    return ProgressView(
        state=job["state"],
        epoch=progress.get("epoch"),
        rows_in=progress.get("total_in"),
        rows_out=progress.get("total_out"),
        rows_in_per_second=_rate(recent, "total_in"),
        rows_out_per_second=_rate(recent, "total_out"),
        watermark=None if progress.get("watermark") is None else progress["watermark"] // 1000,
        lag=lag.get("rows"),
        lag_bytes=lag.get("bytes"),
        lag_files=lag.get("files"),
        epoch_seconds=progress.get("seconds"),
        state_bytes=progress.get("state_bytes"),
        state_rows=progress.get("state_rows"),
        late_rows=progress.get("late_rows"),
        bad_rows=total("bad_rows"),
        dead_letters=total("dead_letters"),
        restarts=job["failures"],
        message=(status or {}).get("message", ""),
        last_error=error,
    )


def _rate(samples: Sequence[RunSample], counter: str) -> float | None:
    if len(samples) < 2:
        return None
    seconds = (samples[-1].time - samples[0].time) / 1e6
    moved = samples[-1].progress.get(counter, 0) - samples[0].progress.get(counter, 0)
    return moved / seconds if seconds > 0 and moved >= 0 else None
