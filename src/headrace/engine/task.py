"""The two kinds of task: reading one split of a source, and one subtask of a later stage.

Both are functions to envelopes. They never raise for what a user's operator did: a failure travels to
the driver as an error envelope, and every stage that meets one stops working for this epoch.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import HeadraceError, InternalError, PlanError
from headrace.base.watermarks import END_OF_TIME, IDLE, Watermark, advance, before_end, merge
from headrace.engine.chain import ChainRun, load_operator, wrap_failure
from headrace.engine.context import EpochContext, JobContext
from headrace.engine.envelope import (
    BY_ORDER,
    Envelope,
    EnvelopeKind,
    EnvelopeWriter,
    batches_of,
)
from headrace.engine.stages import Chain, StagePlan
from headrace.engine.taps import samples_of, tapped
from headrace.model.operator import Finish, SourceContext, Split
from headrace.storage.open import open_storage

_TASKS_PER_CORE = 2
_ROWS_PER_TASK = 2_000


@dataclass(frozen=True)
class SplitTask:
    """One task of stage 0: a split of a source, or (split None) only the signals of the epoch.

    The first task of an epoch carries `signals`: the offsets, the lanes of every source, which of them
    are idle and which sources have ended.
    """

    index: int
    epoch: int
    time: float
    source: str | None
    split: Split | None
    signals: Mapping[str, Any] | None
    rows: int | None = None
    """About how many rows it reads, if the source can tell."""


class _SourceCollector:
    """Where a source puts its rows: straight into the operators chained behind it."""

    def __init__(self, run: ChainRun, source: str) -> None:
        self.rows = self.bytes = 0
        self.output: Watermark | None = None
        self._run = run
        self._source = source
        self.samples = samples_of(run.stages.taps, source)
        self._crossings = run.stages.crossings_from(source)
        self._next = [
            (edge.output, edge.target, edge.input, run.stages.plan.input_count(edge.target))
            for edge in run.stages.plan.outputs(source)
            if edge.target in run.members
        ]

    def collect(self, batch: pa.RecordBatch, output: str = "") -> None:
        _check_timed(batch, self._source)
        if batch.num_rows == 0:
            return
        size = batch.nbytes
        if not output:
            self.rows += batch.num_rows
            self.bytes += size
        for sample in self.samples:
            sample.take(batch, output)
        for crossing in self._crossings:
            if crossing.edge.output == output:
                self._run.writer.send(crossing, batch)
        for wanted, target, index, total in self._next:
            if wanted == output:
                self._run.process(target, index, total, batch, size)

    def broadcast_watermark(self, watermark: Watermark) -> None:
        self.output = advance(self.output, before_end(watermark))


def _check_timed(batch: pa.RecordBatch, source: str) -> None:
    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"collect() takes a pyarrow.RecordBatch, got {type(batch).__name__}")
    index = batch.schema.get_field_index(TIMESTAMP)
    if index < 0 or batch.schema.field(index).type != pa.timestamp("ns"):
        actual = "none" if index < 0 else str(batch.schema.field(index).type)
        raise PlanError(
            f"every batch of source `{source}` needs a column `{TIMESTAMP}`, timestamp[ns]; it has {actual}",
            hint="set it to the event time of each row, in UTC, with pa.timestamp('ns')",
        )


def run_split(stages: StagePlan, job: JobContext, task: SplitTask) -> Iterator[Envelope]:
    """Read one split through the operators chained behind its source."""
    writer = EnvelopeWriter(task.index)
    try:
        report: dict[str, Any] = {"split": task.index, "signals": task.signals}
        if task.split is not None and task.source is not None:
            report |= _read_split(stages, job, task, writer)
            yield from writer.drain()
        if task.signals is not None:
            for crossing in stages.crossings:
                if crossing.edge.source in stages.stage0:
                    writer.signal(crossing, EnvelopeKind.SOURCE_SIGNAL, {"signals": _lanes(task.signals)})
        writer.control(EnvelopeKind.MANIFEST, report)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the driver decides what a failure means
        writer = failed(error, task.index, task.source or "source", task.epoch, stages.width_after(0))
    yield from writer.drain(everything=True)


def _lanes(signals: Mapping[str, Any]) -> dict[str, Any]:
    return {name: signals[name] for name in ("lanes", "idle", "ended")}


def _read_split(
    stages: StagePlan, job: JobContext, task: SplitTask, writer: EnvelopeWriter
) -> dict[str, Any]:
    source_id, split = task.source, task.split
    if source_id is None or split is None:
        raise InternalError("a split without a source")
    chain = next(chain for chain in stages.at(0) if chain.nodes[0] == source_id)
    run = ChainRun(
        stages,
        chain,
        subtask=task.index,
        job=job,
        epoch=task.epoch,
        time=task.time,
        writer=writer,
        source=source_id,
    )
    run.start()
    node = stages.plan.by_id[source_id]
    source = load_operator(node)
    ctx = SourceContext(
        task_info=run.task_info(node, chain.parallelism), split=split, storage=open_storage(job.state_url)
    )
    collector = _SourceCollector(run, source_id)
    run.call(source_id, source.on_start, ctx)
    finish = run.call(source_id, source.run, ctx, collector)
    run.call(source_id, source.on_close, ctx, collector)
    run.flush_source()
    outputs = run.settle_source_watermarks(source_id, collector.output)
    lane = f"{source_id}/{split.lane}"
    for node_id, output in outputs.items():
        for crossing in stages.crossings_from(node_id):
            writer.signal(
                crossing,
                EnvelopeKind.SOURCE_SIGNAL,
                {
                    "lane": lane,
                    "watermark": None if output is None else output.to_json(),
                    "final": finish is Finish.FINAL,
                },
            )
    return {
        "source": source_id,
        "lane": lane,
        "rows": collector.rows,
        "bytes": collector.bytes,
        "nanoseconds": run.nanoseconds[source_id],
        "finish": (finish or Finish.GRACEFUL).value,
        "watermarks": {n: o.to_json() for n, o in outputs.items() if o is not None},
        "nodes": run.source_reports(),
        "metrics": ctx.metrics.values,
        "errors": ctx.errors[:20],
        **tapped(collector.samples),
    }


def run_stage(
    stages: StagePlan,
    stage: int,
    partition: int,
    context: EpochContext,
    envelopes: Iterable[Envelope],
) -> Iterator[Envelope]:
    """Run one partition of a stage: its subtask of every chain there; pass on what is for later."""
    mine: list[Envelope] = []
    failed_before = False
    here = {crossing.index for crossing in stages.crossings if crossing.stage <= stage}
    for envelope in envelopes:
        failed_before = failed_before or envelope.kind is EnvelopeKind.ERROR
        if envelope.edge in here:
            mine.append(envelope)
        else:
            yield envelope
    if failed_before or not mine:
        # Without even a signal this is no epoch: there was nothing to read.
        return
    writer = EnvelopeWriter(partition)
    mine.sort(key=BY_ORDER)
    operator_id = "stage"
    try:
        for chain in stages.at(stage):
            if partition < chain.parallelism:
                operator_id = chain.nodes[0]
                yield from _run_chain(
                    stages, chain, context, subtask=partition, envelopes=mine, writer=writer
                )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the driver decides what a failure means
        writer = failed(error, partition, operator_id, context.epoch, stages.width_after(stage))
    yield from writer.drain(everything=True)


def widths(stages: StagePlan, splits: Sequence[SplitTask], cores: Callable[[], int | None]) -> list[int]:
    """How many tasks run each stage behind these splits.

    A task has a price, whatever it does. If few rows are read there are some for every core, and each runs
    several subtasks. With many rows each subtask has its own, so that a task holds little at once. So it is,
    too, if nobody knows how many there are, or how many `cores` (None).
    """
    subtasks = [stages.width(stage) for stage in range(1, stages.depth + 1)]
    counted = [split.rows for split in splits if split.rows is not None]
    if max(subtasks, default=0) <= _TASKS_PER_CORE or len(counted) < len(splits):
        return subtasks
    slots = cores()
    if slots is None:
        return subtasks
    enough = max(_TASKS_PER_CORE * slots, -(-sum(counted) // _ROWS_PER_TASK))
    return [min(width, enough) for width in subtasks]


def run_subtasks(
    stages: StagePlan,
    stage: int,
    subtasks: Sequence[int],
    context_of: Callable[[int, int], EpochContext],
    envelopes: Iterable[Envelope],
) -> Iterator[Envelope]:
    """Run some partitions of a stage one after the other; `context_of` takes a stage and a partition."""
    if len(subtasks) == 1:
        yield from run_stage(stages, stage, subtasks[0], context_of(stage, subtasks[0]), envelopes)
        return
    arrived: dict[int, list[Envelope]] = {subtask: [] for subtask in subtasks}
    for envelope in envelopes:
        arrived[envelope.to].append(envelope)
    for subtask in subtasks:
        yield from run_stage(stages, stage, subtask, context_of(stage, subtask), arrived.pop(subtask))


def _run_chain(
    stages: StagePlan,
    chain: Chain,
    context: EpochContext,
    *,
    subtask: int,
    envelopes: list[Envelope],
    writer: EnvelopeWriter,
) -> Iterator[Envelope]:
    run = ChainRun(
        stages,
        chain,
        subtask=subtask,
        job=context.job,
        epoch=context.epoch,
        time=context.time,
        writer=writer,
        context=context,
    )
    inbound = {c.index: c for c in stages.crossings if c.chain == chain.index}
    signals: dict[int, list[Envelope]] = {index: [] for index in inbound}
    data: list[Envelope] = []
    for envelope in envelopes:
        if envelope.edge in inbound:
            (data if envelope.kind is EnvelopeKind.DATA else signals[envelope.edge]).append(envelope)
    run.start()
    for index, batch in batches_of(data):
        edge = inbound[index].edge
        run.process(edge.target, edge.input, stages.plan.input_count(edge.target), batch, batch.nbytes)
        yield from writer.drain()
    received = {
        index: _merge_signals(stages, context, inbound[index].edge.source, signals[index])
        for index in inbound
    }
    reports = run.finish(received)
    writer.control(EnvelopeKind.MANIFEST, {"chain": chain.index, "subtask": subtask, "nodes": reports})


def _merge_signals(
    stages: StagePlan, context: EpochContext, origin: str, signals: list[Envelope]
) -> Watermark | None:
    if origin in stages.stage0:
        return merge_lanes(
            context.lanes.get(origin, {}),
            [signal.signal() for signal in signals],
            sources=stages.origins(origin),
            ended=context.ended,
        )
    payloads = {bytes(signal.payload): signal for signal in signals}  # most subtasks say the same
    messages = [signal.signal() for signal in payloads.values()]
    return merge(None if message is None else Watermark.from_json(message) for message in messages)


def merge_lanes(
    before: Mapping[str, Watermark],
    messages: Iterable[Mapping[str, Any]],
    *,
    sources: frozenset[str],
    ended: frozenset[str] = frozenset(),
) -> Watermark | None:
    """The watermark after stage 0: the minimum over the lanes of the sources that reach it.

    A lane stands where its last rows left it, in this epoch or an earlier one; idle lanes are ignored
    and lanes of ended sources are past every row. `ended` are the sources that ended in earlier epochs.
    """
    lanes: dict[str, Watermark | None] = {}
    idle: set[str] = set()
    over = set(ended & sources)
    finals: dict[str, bool] = {}
    moved: dict[str, Watermark | None] = {}
    for message in messages:
        if "signals" in message:
            for source, names in message["signals"]["lanes"].items():
                if source in sources:
                    lanes |= {f"{source}/{name}": None for name in names}
            for source, names in message["signals"]["idle"].items():
                idle |= {f"{source}/{name}" for name in names}
            over |= set(message["signals"]["ended"]) & sources
        else:
            lane = message["lane"]
            source = lane.partition("/")[0]
            finals[source] = finals.get(source, True) and message["final"]
            if message["watermark"] is not None:
                moved[lane] = advance(moved.get(lane), Watermark.from_json(message["watermark"]))
    over |= {source for source, final in finals.items() if final}
    for lane in lanes:
        if lane.partition("/")[0] in over:
            lanes[lane] = END_OF_TIME
        elif lane in idle and lane not in moved:
            lanes[lane] = IDLE
        else:
            lanes[lane] = advance(before.get(lane), moved.get(lane))
    if not lanes:
        return END_OF_TIME if sources <= over else None
    return merge(lanes.values())


def failed(error: BaseException, sender: int, operator_id: str, epoch: int, width: int) -> EnvelopeWriter:
    """The whole output of a task that failed: the error, for the driver and every later task."""
    writer = EnvelopeWriter(sender)
    failure = wrap_failure(error, operator_id, sender, epoch)
    message = {"error": base64.b64encode(pickle.dumps(failure)).decode(), "text": str(failure)}
    for to in range(width):
        writer.control(EnvelopeKind.ERROR, message, to=to)
    return writer


def failure_of(message: Mapping[str, Any]) -> HeadraceError:
    """The error that a task sent."""
    try:
        error = pickle.loads(base64.b64decode(message["error"]))  # noqa: S301 - from our own task
    except Exception:  # noqa: BLE001 - an error class of the user's that the driver does not have
        return InternalError(message["text"])
    if isinstance(error, HeadraceError):
        return error
    return InternalError(message["text"])
