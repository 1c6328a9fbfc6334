"""The progress of a run after each epoch, and its result."""

from __future__ import annotations

import time as clock
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.connectors.columns import source_schema
from headrace.connectors.memory import MemorySink, take_collected
from headrace.engine.chain import load_operator
from headrace.engine.reports import EpochReport
from headrace.engine.stages import StagePlan
from headrace.jobs.metrics import RunMetrics
from headrace.model.operator import BAD_ROWS_OF, DEAD_LETTER, DEAD_LETTERS
from headrace.model.plan import Edge, Plan

Reason = Literal["finished", "available_now", "max_epochs", "stopped", "immediate"]
"""Why a run ended: the sources ended, what was there at the start was read, the limit was reached, it was
asked to, a source said so."""


@dataclass(frozen=True)
class Progress:
    """One epoch, with the totals of the run so far.

    Attributes:
        epoch: the number of the epoch.
        rows_in: rows that sources read in this epoch.
        rows_out: rows that sinks received in this epoch.
        total_in: rows that sources have read in this run.
        total_out: rows that sinks have received in this run.
        rows_per_second: rows read per second of this epoch.
        watermark: the event time that the pipeline has reached, in nanoseconds since 1970; None before that.
        state_bytes: the size of the state.
        state_rows: the number of rows in the state.
        bytes_written: the size of the files of this checkpoint.
        seconds: the duration of the epoch.
        late_rows: late rows in this run.
        parallelism: how many subtasks an operator had.
        errors: problems of this epoch that did not stop the run.

    >>> import headrace as hr, tempfile
    >>> from headrace.testing.in_process import run_in_process
    >>> pipeline = hr.Pipeline()
    >>> pipeline.source("impulse", message_count=30).sink("blackhole")
    Stream(impulse_1: counter BIGINT, subtask_index BIGINT)
    >>> epochs = []
    >>> result = run_in_process(pipeline, tempfile.mkdtemp(), epoch_rows=10, on_progress=epochs.append)
    >>> [(progress.epoch, progress.rows_in, progress.total_in) for progress in epochs][:3]
    [(1, 10, 10), (2, 10, 20), (3, 10, 30)]
    """

    epoch: int
    rows_in: int
    rows_out: int
    total_in: int
    total_out: int
    rows_per_second: float
    watermark: int | None
    state_bytes: int
    state_rows: int
    bytes_written: int
    seconds: float
    late_rows: int
    late_by: Mapping[str, int] = field(default_factory=dict)
    """The late rows of each operator that had any."""
    bad_by: Mapping[str, int] = field(default_factory=dict)
    """The records that sources could not read in this run, by the kind of error."""
    unreadable: tuple[str, ...] = ()
    """The sources whose records could all not be read in this run."""
    warnings: tuple[str, ...] = ()
    """Probable mistakes in the input, in the first epoch that shows them."""
    errors: tuple[str, ...] = ()
    parallelism: int = 0

    def __repr__(self) -> str:
        return (
            f"Progress(epoch={self.epoch}, rows_in={self.rows_in}, rows_out={self.rows_out}, "
            f"total_in={self.total_in}, total_out={self.total_out}, late_rows={self.late_rows})"
        )


@dataclass(frozen=True)
class RunResult:
    """The summary of a run.

    Attributes:
        job_id: the id of the job; it stays the same over all runs on one state directory.
        epochs: the number of committed epochs.
        first_epoch: the number of the first.
        last_epoch: the number of the last.
        rows_in: rows that sources read.
        rows_out: rows that sinks received.
        reason: `finished`, `available_now`, `max_epochs`, `stopped` or `immediate`.
        watermark: the event time that the pipeline has reached, in nanoseconds since 1970; None before that.
        late_rows: late rows.
        state_bytes: the size of the state.
        state_dir: the state directory; None if it was a temporary one.
        log_file: Spark's log.
        rows: the rows of memory sinks, by their names.
        metrics: the counters of every source and operator by their ids.
        errors: problems that did not stop the run, the first 100.

    >>> import headrace as hr, tempfile
    >>> from headrace.testing.in_process import run_in_process
    >>> pipeline = hr.Pipeline()
    >>> pipeline.source("impulse", message_count=30).sink("memory", name="numbers")
    Stream(impulse_1: counter BIGINT, subtask_index BIGINT)
    >>> result = run_in_process(pipeline, tempfile.mkdtemp())
    >>> result.reason, result.rows_in, result.rows["numbers"].num_rows
    ('finished', 30, 30)
    """

    job_id: str
    epochs: int
    first_epoch: int
    last_epoch: int
    rows_in: int
    rows_out: int
    reason: Reason
    seconds: float
    """The duration of the run, including the start of Spark."""
    busy_seconds: float = 0.0
    """The duration of its epochs."""
    watermark: int | None = None
    late_rows: int = 0
    state_bytes: int = 0
    state_dir: str | None = None
    log_file: str | None = None
    rows: Mapping[str, pa.Table] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Probable mistakes in the input, such as event times in 1970."""

    def __repr__(self) -> str:
        collected = ", ".join(f"{name}: {table.num_rows} rows" for name, table in self.rows.items())
        return (
            f"RunResult({self.reason!r}, epochs={self.epochs}, rows_in={self.rows_in}, "
            f"rows_out={self.rows_out}, late_rows={self.late_rows}, seconds={self.seconds:.1f}"
            f"{f', rows={{{collected}}}' if collected else ''})"
        )

    @property
    def rows_per_second(self) -> float:
        """Rows read per second of epochs; the start of Spark is not counted."""
        return self.rows_in / self.busy_seconds if self.busy_seconds > 0 else 0.0

    @property
    def late_by(self) -> Mapping[str, int]:
        """The late rows of each operator that had any."""
        return late_by(self.metrics)

    @property
    def bad_by(self) -> Mapping[str, int]:
        """The records that sources could not read, by the kind of error."""
        return bad_by(self.metrics)

    @property
    def unreadable(self) -> tuple[str, ...]:
        """The sources of which no record could be read, although there were some."""
        return unreadable(self.metrics)


def late_by(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, int]:
    """The late rows of each operator that had any, by the counters of all operators."""
    return {node: int(values["late_rows"]) for node, values in metrics.items() if values.get("late_rows")}


def bad_by(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, int]:
    """The records that could not be read, by the kind of error, the most frequent first."""
    counts: Counter[str] = Counter()
    for values in metrics.values():
        for name, value in values.items():
            if name.startswith(BAD_ROWS_OF):
                counts[name.removeprefix(BAD_ROWS_OF)] += int(value)
    return dict(counts.most_common())


def unreadable(metrics: Mapping[str, Mapping[str, float]]) -> tuple[str, ...]:
    """The sources of which no record could be read, although there were some."""
    return tuple(
        node
        for node, values in metrics.items()
        if not values.get("rows_out") and any(name.startswith(BAD_ROWS_OF) for name in values)
    )


def collected_rows(plan: Plan, job_id: str) -> dict[str, pa.Table]:
    """The rows that the memory sinks of a plan have committed in this process and not yet returned."""
    rows = take_collected(job_id)
    for node in plan.nodes:
        sink = load_operator(node) if node.role == "sink" else None
        if isinstance(sink, MemorySink) and not rows.get(sink.options.name):
            schemas = (_written_columns(plan, edge) for edge in plan.inputs(node.id))
            columns = next((schema for schema in schemas if schema is not None), None)
            rows[sink.options.name] = pa.table({}) if columns is None else columns.empty_table()
    return rows


def _written_columns(plan: Plan, edge: Edge) -> pa.Schema | None:
    """The columns of the rows on an edge, if an upstream operator declares them."""
    if edge.output:
        return DEAD_LETTERS if edge.output == DEAD_LETTER else None
    node = plan.by_id[edge.source]
    if node.role == "source":
        columns = source_schema(load_operator(node))
        hidden = [(TIMESTAMP, pa.timestamp("ns")), *([(RETRACT, pa.bool_())] if node.emits_updates else [])]
        return None if columns is None else pa.schema([*columns, *hidden])
    output = getattr(load_operator(node), "output", None)
    return output if isinstance(output, pa.Schema) else None


def _noted(report: EpochReport, metrics: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Probable problems of the input, by topic."""
    kinds = ", ".join(bad_by(metrics))
    return dict(report.warnings) | {
        f"bad records of {node}": f"no record of `{node}` could be read so far ({kinds})"
        for node in unreadable(metrics)
    }


class Tally:
    """Adds up the epochs of one run and detects when a limit is reached."""

    def __init__(self, job_id: str, stages: StagePlan, *, first_epoch: int, max_epochs: int | None) -> None:
        self.job_id = job_id
        self.measured = RunMetrics(stages, job_id=job_id)
        self._first = first_epoch
        self._max_epochs = max_epochs
        self._began = clock.monotonic()
        self._last_report = self._began
        self._reports = 0
        self._busy = 0.0
        self._in = 0
        self._out = 0
        self._late = 0
        self._last: EpochReport | None = None
        self._reason: Reason | None = None
        self._errors: list[str] = []
        self._warnings: dict[str, str] = {}

    def add(self, report: EpochReport) -> Progress:
        """Take the report of an epoch."""
        now = clock.monotonic()
        # The first epoch is timed by itself: before it Spark was starting.
        since_last = report.seconds if self._reports == 0 else now - self._last_report
        seconds, self._last_report = max(since_last, 1e-9), now
        self._reports += 1
        self._busy += seconds
        self._in += report.rows_in
        self._out += report.rows_out
        self.measured.add(report)
        self._late += int(sum(values.get("late_rows", 0) for values in report.metrics.values()))
        self._errors.extend(report.errors[: max(0, 100 - len(self._errors))])
        metrics = self.metrics()
        noted = _noted(report, metrics)
        new = {key: text for key, text in noted.items() if key not in self._warnings}
        self._warnings |= new
        self._last = report
        self._reason = self._reason or self._reason_to_end(report)
        return Progress(
            epoch=report.epoch,
            rows_in=report.rows_in,
            rows_out=report.rows_out,
            total_in=self._in,
            total_out=self._out,
            rows_per_second=report.rows_in / seconds,
            watermark=report.watermark,
            state_bytes=report.state_bytes,
            state_rows=report.state_rows,
            bytes_written=report.bytes_written,
            seconds=seconds,
            late_rows=self._late,
            late_by=late_by(metrics),
            bad_by=bad_by(metrics),
            unreadable=unreadable(metrics),
            warnings=tuple(new.values()),
            errors=report.errors,
            parallelism=report.parallelism,
        )

    @property
    def reason(self) -> Reason | None:
        """Why no other epoch should follow: the first reason that an epoch gave, or None."""
        return self._reason

    def _reason_to_end(self, report: EpochReport) -> Reason | None:
        if report.immediate:
            return "immediate"
        if report.finished or report.stop_requested:
            return "finished"
        if self._max_epochs is not None and self._reports >= self._max_epochs:
            return "max_epochs"
        return None

    def metrics(self) -> dict[str, dict[str, float]]:
        """The counters of every source and operator, summed over the epochs so far."""
        return self.measured.counters()

    def result(
        self,
        reason: Reason,
        *,
        rows: Mapping[str, pa.Table],
        state_bytes: int = 0,
        state_dir: str | None = None,
        log_file: str | None = None,
    ) -> RunResult:
        """The result of the run that ends now."""
        last = self._last
        epochs = self._reports - (1 if last is not None and last.immediate else 0)
        return RunResult(
            job_id=self.job_id,
            epochs=epochs,
            first_epoch=self._first,
            last_epoch=self._first + epochs - 1,
            rows_in=self._in,
            rows_out=self._out,
            reason=reason,
            seconds=clock.monotonic() - self._began,
            busy_seconds=self._busy,
            watermark=None if last is None else last.watermark,
            late_rows=self._late,
            state_bytes=state_bytes if last is None else last.state_bytes,
            state_dir=state_dir,
            log_file=log_file,
            rows=rows,
            metrics=self.metrics(),
            errors=tuple(self._errors),
            warnings=tuple(self._warnings.values()),
        )
