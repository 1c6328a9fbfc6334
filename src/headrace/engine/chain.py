"""Runs the operators of one chain in one task: data by direct calls, signals in topological order."""

from __future__ import annotations

import errno
import hashlib
import pickle
import uuid
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any

import pyarrow as pa

from headrace.base.errors import (
    ExternalError,
    HeadraceError,
    InternalError,
    OperatorError,
    PlanError,
    user_traceback,
)
from headrace.base.keys import key_range
from headrace.base.position import move_to, position_label
from headrace.base.watermarks import END_OF_TIME, Watermark, WatermarkHolder, advance, before_end, merge
from headrace.engine.context import EpochContext, JobContext
from headrace.engine.envelope import EnvelopeKind, EnvelopeWriter
from headrace.engine.stages import Chain, StagePlan
from headrace.engine.taps import samples_of, tapped
from headrace.model.fragments import set_epoch_time
from headrace.model.operator import (
    CheckpointBarrier,
    OperatorContext,
    TaskInfo,
)
from headrace.model.plan import PlanNode
from headrace.state.manager import TableManager, undeclared_table
from headrace.state.metadata import SubtaskCheckpointMetadata
from headrace.state.tables import StateTable
from headrace.storage.open import open_storage


def load_operator(node: PlanNode) -> Any:
    """Bring the operator of a node back from its pickled form."""
    try:
        return pickle.loads(node.payload)  # noqa: S301 - made by this job's own driver
    except ImportError as error:
        raise PlanError(
            f"operator `{node.id}` cannot be loaded by a worker: {error}",
            hint="install the package on the workers, or ship the module with --py-files (py_files=[...])",
        ) from error


def operator_version(node: PlanNode) -> str:
    """A string that changes with the code or the options of an operator."""
    return hashlib.sha256(node.payload).hexdigest()[:12]


class NoTables:
    """The state of an operator in a source's task: none, but commit data for sinks."""

    def __init__(self, operator_id: str) -> None:
        self._operator_id = operator_id
        self.commit_data: dict[str, bytes] = {}

    def get(self, name: str) -> StateTable:
        raise undeclared_table(self._operator_id, name)

    def insert_committing_data(self, table: str, data: bytes) -> None:
        self.commit_data[table] = data


class _NodeRun:
    """One operator of the chain while it runs: its object, context, output and counters.

    It is the operator's collector: what is collected goes straight into the next operators of the
    chain, or over a crossing into envelopes.
    """

    def __init__(
        self, chain: ChainRun, node: PlanNode, ctx: OperatorContext, *, output: Watermark | None
    ) -> None:
        self.node = node
        self.ctx = ctx
        self.operator: Any = chain.operators.get(node.id) or load_operator(node)
        self.rows_in = self.rows_out = 0
        self.bytes_in = self.bytes_out = 0
        self.output = output
        self._chain = chain
        self._samples = samples_of(chain.stages.taps, node.id)
        self._crossings = chain.stages.crossings_from(node.id)
        self._next = [
            (edge.output, edge.target, edge.input, chain.stages.plan.input_count(edge.target))
            for edge in chain.stages.plan.outputs(node.id)
            if edge.target in chain.members
        ]

    def collect(self, batch: pa.RecordBatch, output: str = "") -> None:
        if not isinstance(batch, pa.RecordBatch):
            raise TypeError(
                f"collect() takes a pyarrow.RecordBatch, got {type(batch).__name__}; "
                "a table goes batch by batch: `for batch in table.to_batches(): collector.collect(batch)`"
            )
        if batch.num_rows == 0:
            return
        size = batch.nbytes
        self.rows_out += batch.num_rows
        self.bytes_out += size
        for sample in self._samples:
            sample.take(batch, output)
        for crossing in self._crossings:
            if crossing.edge.output == output:
                self._chain.writer.send(crossing, batch)
        for wanted, target, index, total in self._next:
            if wanted == output:
                self._chain.process(target, index, total, batch, size)

    def broadcast_watermark(self, watermark: Watermark) -> None:
        self.output = advance(self.output, before_end(watermark))

    def report(self, metadata: SubtaskCheckpointMetadata) -> dict[str, Any]:
        return {
            "metadata": metadata.to_json(),
            "output": None if self.output is None else self.output.to_json(),
            "input": self.ctx.last_present_watermark,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "nanoseconds": self._chain.nanoseconds[self.node.id],
            "metrics": self.ctx.metrics.values,
            "errors": self.ctx.errors[:20],
            "over": self.ctx.over,
            "stop": self.ctx.stop_requested,
            **tapped(self._samples),
        }


class ChainRun:
    """One subtask of a chain in one epoch."""

    def __init__(
        self,
        stages: StagePlan,
        chain: Chain,
        *,
        subtask: int,
        job: JobContext,
        epoch: int,
        time: float,
        writer: EnvelopeWriter,
        context: EpochContext | None = None,
        source: str | None = None,
        operators: Mapping[str, Any] | None = None,
    ) -> None:
        self.stages = stages
        self.chain = chain
        self.subtask = subtask
        self.writer = writer
        self.members = frozenset(chain.nodes) - {source}
        self.operators = dict(operators or {})
        self._job = job
        self._epoch = epoch
        self._time = time
        self._context = context
        self._failure: HeadraceError | None = None
        self.nanoseconds = dict.fromkeys(chain.nodes, 0)
        """How long each operator has worked, without those that it called."""
        self._working: str | None = None
        self._since = 0
        task_label = f"subtask {subtask}, epoch {epoch}"
        self._labels = {node: position_label(f"operator {node}, {task_label}") for node in chain.nodes}
        move_to(position_label(f"between operators {', '.join(chain.nodes)}, {task_label}"))
        attempt = uuid.uuid4().hex[:12]
        self.nodes: dict[str, _NodeRun] = {}
        for node_id in chain.nodes:
            if node_id in self.members:
                node = stages.plan.by_id[node_id]
                run = _NodeRun(self, node, self._context_of(node, attempt), output=self._output_of(node))
                self.nodes[node_id] = run

    def _output_of(self, node: PlanNode) -> Watermark | None:
        if self._context is None:
            return None
        outputs = self._context.outputs.get(node.id, {})
        return outputs.get(self.subtask, outputs.get(-1))

    def _context_of(self, node: PlanNode, attempt: str) -> OperatorContext:
        parallelism = self.chain.parallelism
        storage = open_storage(self._job.state_url)
        last = None if self._context is None else self._context.inputs.get(node.id)
        tables: NoTables | TableManager = NoTables(node.id)
        if self._context is not None:
            operator = self.operators.setdefault(node.id, load_operator(node))
            tables = TableManager(
                storage=storage,
                job_id=self._job.job_id,
                operator_id=node.id,
                subtask=self.subtask,
                parallelism=parallelism,
                epoch=self._epoch,
                configs=node.tables,
                restored=self._context.restored.get(node.id),
                watermark=last,
                migrate=operator.migrate_table,
                compact_after=self._job.compact_after,
            )
        return OperatorContext(
            task_info=self.task_info(node, parallelism),
            tables=tables,
            inputs=self.stages.plan.input_count(node.id),
            watermark=None if last is None else Watermark(last),
            last_present_watermark=last,
            time=self._time,
            staging=staging_path(self._epoch, node.id, self.subtask, attempt),
            version=operator_version(node),
            storage=storage,
        )

    def task_info(self, node: PlanNode, parallelism: int) -> TaskInfo:
        return TaskInfo(
            job_id=self._job.job_id,
            operator_id=node.id,
            operator_name=node.operator,
            subtask=self.subtask,
            parallelism=parallelism,
            key_range=key_range(self.subtask, parallelism) if self.subtask < parallelism else (0, 0),
            epoch=self._epoch,
        )

    def start(self) -> None:
        """Call `on_start` of every operator, first to last."""
        for run in self.nodes.values():
            self.call(run.node.id, run.operator.on_start, run.ctx)

    def process(self, node_id: str, index: int, total: int, batch: pa.RecordBatch, size: int) -> None:
        """Give a batch of so many bytes to one operator of the chain."""
        run = self.nodes[node_id]
        run.rows_in += batch.num_rows
        run.bytes_in += size
        self.call(node_id, run.operator.process_batch_index, index, total, batch, run.ctx, run)

    def call(self, node_id: str, method: Callable[..., Any], *args: Any) -> Any:
        """Call an operator's method; an exception becomes an error that names the operator."""
        before, caller = move_to(self._labels[node_id]), self._account_for(node_id)
        set_epoch_time(self._time)
        try:
            result = method(*args)
        except HeadraceError as error:
            if isinstance(error, OperatorError) or self._failure is error:
                raise
            error.where = error.where or f"operator {node_id}, subtask {self.subtask}, epoch {self._epoch}"
            error.traceback_text = error.traceback_text or user_traceback(error)
            self._failure = error
            raise
        except (Exception, SystemExit) as error:
            self._failure = wrap_failure(error, node_id, self.subtask, self._epoch)
            raise self._failure from error
        move_to(before)
        self._account_for(caller)
        if self._failure is not None:
            # An operator caught the failure of the one behind it: the epoch has failed all the same.
            raise self._failure
        return result

    def _account_for(self, node_id: str | None) -> str | None:
        """Account the time from now on to `node_id`; returns the node before."""
        now, before = perf_counter_ns(), self._working
        if before is not None:
            self.nanoseconds[before] += now - self._since
        self._working, self._since = node_id, now
        return before

    def flush_source(self) -> None:
        """End a source's share of an epoch: operators behind it may emit what they gathered."""
        barrier = CheckpointBarrier(self._epoch, self._epoch, self._time)
        for run in self.nodes.values():
            self.call(run.node.id, run.operator.handle_checkpoint, barrier, run.ctx, run)
            self.call(run.node.id, run.operator.on_close, False, run.ctx, run)

    def source_reports(self) -> dict[str, Any]:
        """The reports of the operators behind a source to the driver."""
        return {
            node_id: run.report(
                SubtaskCheckpointMetadata(
                    operator_id=node_id,
                    subtask=self.subtask,
                    epoch=self._epoch,
                    watermark=None,
                    commit_data=run.ctx.tables.commit_data if isinstance(run.ctx.tables, NoTables) else {},
                )
            )
            for node_id, run in self.nodes.items()
        }

    def settle_source_watermarks(self, source: str, output: Watermark | None) -> dict[str, Watermark | None]:
        """Let the watermarks of a source and of operators behind it reach the operators further on."""
        outputs = {source: output}
        for node_id, run in self.nodes.items():
            upstream = [
                outputs[edge.source] for edge in self.stages.plan.inputs(node_id) if edge.source in outputs
            ]
            outputs[node_id] = run.output = run.output or merge(upstream)
        return outputs

    def finish(self, received: Mapping[int, Watermark | None]) -> dict[str, Any]:
        """End the epoch, operator by operator: watermark, tick, end of data, checkpoint.

        `received` is the merged watermark of each crossing into this chain. In topological order every
        row an operator still emits reaches the next one before that one's own watermark does.
        """
        if self._context is None:
            raise InternalError("a source's task has no epoch to finish")
        barrier = CheckpointBarrier(self._epoch, self._context.min_epoch, self._time)
        reports: dict[str, Any] = {}
        for node_id, run in self.nodes.items():
            if run.ctx.last_present_watermark == END_OF_TIME.time:
                # Its inputs ended in an earlier epoch, while other branches of the plan go on.
                run.output = END_OF_TIME
                reports[node_id] = self._checkpoint(run, then_stop=True)
                continue
            ended = self._handle_watermark(run, received)
            self._handle_tick(run)
            if self._context.stopping and run.node.stops:
                self.call(node_id, run.operator.handle_stop, self._context.stopping == "end", run.ctx, run)
            if ended:
                self.call(node_id, run.operator.on_close, True, run.ctx, run)
                run.output = END_OF_TIME
            self.call(node_id, run.operator.handle_checkpoint, barrier, run.ctx, run)
            if not ended:
                self.call(node_id, run.operator.on_close, False, run.ctx, run)
            if run.ctx.over:
                run.output = END_OF_TIME  # whoever reads it will get nothing more
            reports[node_id] = self._checkpoint(run, then_stop=ended)
        return reports

    def _checkpoint(self, run: _NodeRun, *, then_stop: bool) -> dict[str, Any]:
        """Checkpoint an operator's tables, forward its watermark and report its metrics."""
        tables = run.ctx.tables
        if not isinstance(tables, TableManager):
            raise InternalError(f"operator `{run.node.id}` lost its tables")
        metadata = self.call(
            run.node.id, tables.checkpoint, self._epoch, self._time, run.ctx.watermark, then_stop
        )
        if tables.late_rows:
            run.ctx.metrics.add("late_rows", tables.late_rows)
        for crossing in self.stages.crossings_from(run.node.id):
            output = None if run.output is None else run.output.to_json()
            self.writer.signal(crossing, EnvelopeKind.WATERMARK, output)
        return run.report(metadata)

    def _handle_watermark(self, run: _NodeRun, received: Mapping[int, Watermark | None]) -> bool:
        node_id = run.node.id
        edges = self.stages.plan.inputs(node_id)
        holder = WatermarkHolder(len(edges), last_present=run.ctx.last_present_watermark)
        merged: Watermark | None = None
        going_on: set[int] = set()
        for position, edge in enumerate(edges):
            watermark = (
                self.nodes[edge.source].output
                if edge.source in self.members
                else received.get(self.stages.crossing_of[edge])
            )
            if watermark is not None:
                merged = holder.set(position, watermark)
            if watermark is None or not watermark.is_end:
                going_on.add(edge.input)
        run.ctx.ended_inputs = frozenset(edge.input for edge in edges) - going_on
        if merged is None:
            return False
        run.ctx.watermark = merged
        run.ctx.last_present_watermark = holder.last_present
        forwarded = self.call(node_id, run.operator.handle_watermark, merged, run.ctx, run)
        if forwarded is not None and not isinstance(forwarded, Watermark):
            raise wrap_failure(
                TypeError(
                    f"handle_watermark must return a Watermark or None, got {type(forwarded).__name__}"
                ),
                node_id,
                self.subtask,
                self._epoch,
            )
        if forwarded is not None:
            run.output = advance(run.output, forwarded if merged.is_end else before_end(forwarded))
        return merged.is_end

    def _handle_tick(self, run: _NodeRun) -> None:
        context = self._context
        if run.node.tick is None or context is None:
            return
        started = self._job.started
        before = context.previous_time
        last = -1 if before is None else int((before - started) / run.node.tick)
        tick = int((context.time - started) / run.node.tick)
        if tick > last:
            self.call(run.node.id, run.operator.handle_tick, tick, run.ctx, run)


def staging_path(epoch: int, operator_id: str, subtask: int, attempt: str) -> str:
    """Where a sink's attempt may put what it prepares; removed with the checkpoint of the epoch."""
    return f"checkpoints/checkpoint-{epoch:07}/operator-{operator_id}/staged-{subtask:03}-{attempt}"


_OUTSIDE = {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ENETUNREACH, errno.EHOSTUNREACH}
"""What the system says when a disk or a network fails: not the doing of the code that met it."""


def wrap_failure(error: BaseException, node_id: str, subtask: int, epoch: int) -> HeadraceError:
    """The failure of a user's operator, with the user's part of the traceback."""
    if isinstance(error, HeadraceError):
        return error
    text = user_traceback(error)
    if isinstance(error, ConnectionError | TimeoutError) or (
        isinstance(error, OSError) and error.errno in _OUTSIDE
    ):
        outside = ExternalError(
            f"{type(error).__name__}: {error}",
            where=f"operator {node_id}, subtask {subtask}, epoch {epoch}",
        )
        outside.traceback_text = text
        return outside
    return OperatorError(
        f"{type(error).__name__}: {error}",
        operator_id=node_id,
        subtask=subtask,
        epoch=epoch,
        traceback_text=text,
    )
