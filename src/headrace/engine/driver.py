"""The driver's side of an epoch: the input of tasks, their reports, and the commit.

One life of a job: `open` finds the last checkpoint and finishes its commit if that was cut short; then,
per epoch, `begin` makes the context that tasks run with, `seal` turns their reports into the next checkpoint
and `commit` makes the sinks' output visible. Any step may be the last before a crash: all can be repeated.
"""

from __future__ import annotations

import time as clock
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from headrace.base.errors import (
    ConfigurationError,
    CorruptStateError,
    IncompatibleStateError,
    InternalError,
    OutputClosedError,
    StateError,
    StateInUseError,
)
from headrace.base.watermarks import END_OF_TIME, Watermark
from headrace.engine.chain import load_operator
from headrace.engine.commits import CommitTask, commit_context, commit_failure, commit_seconds
from headrace.engine.compatibility import check_compatible
from headrace.engine.context import EpochContext, JobContext
from headrace.engine.envelope import Envelope
from headrace.engine.event_times import implausible_times
from headrace.engine.exchange import Exchange
from headrace.engine.offsets import quiet_task
from headrace.engine.reports import EpochReport, TaskReports
from headrace.engine.sources import JobSources
from headrace.engine.stages import StagePlan, cut_stages
from headrace.engine.taps import Tap
from headrace.engine.task import SplitTask
from headrace.model.operator import OperatorContext
from headrace.model.plan import Plan
from headrace.state.backend import ParquetBackend, SavedCheckpoint
from headrace.state.generation import Generation, Start
from headrace.state.identity import IDENTITY, Identity, load_identity, missing_identity
from headrace.state.metadata import (
    CheckpointMetadata,
    OperatorCheckpointMetadata,
    SavedOperator,
    StateFile,
    SubtaskCheckpointMetadata,
    TableSize,
)
from headrace.storage.base import Storage

Step = Callable[[str, int], None]
"""Called as (step, epoch) when the driver has come past a step of an epoch; tests crash here."""


class EpochDriver:
    """Owns the checkpoint of one job and moves it from epoch to epoch."""

    def __init__(
        self,
        stages: StagePlan,
        storage: Storage,
        *,
        keep_checkpoints: int = 10,
        compact_after: int = 8,
        now: Callable[[], float] = clock.time,
        step: Step | None = None,
    ) -> None:
        self.stages = stages
        self.storage = storage
        self.backend = ParquetBackend(storage)
        self._keep = keep_checkpoints
        self._compact_after = compact_after
        self.now = now
        self._step = step or (lambda _name, _epoch: None)
        self.sources = JobSources(stages)
        self._operators = {
            node.id: load_operator(node) for node in stages.plan.nodes if node.role != "source"
        }
        self._run_id = uuid.uuid4().hex
        self.generation: Generation | None = None
        self._checked = float("-inf")
        self._committed: int | None = None
        """The last epoch that all sinks have committed in this run, and that is marked as committed."""
        self._published: int | None = None
        """The last epoch that all sinks have committed in this run."""
        self._closed: OutputClosedError | None = None
        self._oldest = 1
        """The oldest epoch that a run may go back to, as it was when this one started."""
        self._sizes: dict[str, tuple[OperatorCheckpointMetadata, dict[str, TableSize]]] = {}
        """What was measured of checkpoints of operators: most stay as they are from epoch to epoch."""
        self.commits: dict[str, float] = {}
        """How many seconds each sink took in the last commit."""
        self._offsets: dict[int, Mapping[str, Any]] = {}
        """The offsets of checkpoints that are kept, of sources that want to know what has expired."""
        self.job: JobContext | None = None
        self.checkpoint: CheckpointMetadata | None = None
        self._restored: dict[str, OperatorCheckpointMetadata] = {}

    @property
    def epoch(self) -> int:
        """The last epoch that is past its commit point; 0 before the first."""
        return 0 if self.checkpoint is None else self.checkpoint.epoch

    @property
    def finished(self) -> bool:
        """Whether every source of the plan has been read to its end."""
        return (
            self.checkpoint is not None
            and self.checkpoint.finished
            and {node.id for node in self.stages.sources} <= set(self.checkpoint.offsets["sources"])
        )

    def open(
        self,
        *,
        from_epoch: int | None = None,
        allow_drop: bool = False,
        before_claim: Callable[[], None] | None = None,
    ) -> None:
        """Resume the job from its state directory, and replace a run that still uses it.

        `before_claim` is called before that, when the checkpoint is known; it may raise what refuses the run.
        """
        self.storage.check_writable()
        latest, is_committed = self._restore(from_epoch, allow_drop=allow_drop)
        if before_claim is not None:
            before_claim()
        # Only now, when nothing is refused any more: a run with a mistake must not end the one that works.
        self.generation = Generation.claim(self.storage, self._run_id)
        self._step("claimed", self.epoch)
        if self.backend.latest() != latest:  # the other run has gone on meanwhile, or back and on again
            latest, is_committed = self._restore(from_epoch, allow_drop=allow_drop)
        self._oldest = self.backend.oldest_epoch()
        writer = None if self.checkpoint is None else self.checkpoint.generation
        self.generation.start_from(Start(self.epoch, writer, self._oldest))
        if from_epoch is not None and latest is not None and latest.epoch > from_epoch:
            self.backend.discard_after(from_epoch, check=self.check_generation)
        if self.checkpoint is not None and (from_epoch is not None or not is_committed):
            try:
                self._commit(self.epoch)
            except CorruptStateError as error:
                raise self.offer_last_good(error, self.epoch) from error

    def _restore(self, from_epoch: int | None, *, allow_drop: bool) -> tuple[SavedCheckpoint | None, bool]:
        """Read the checkpoint to start from; returns the latest, and whether the sinks have committed it.

        Whatever can be refused is refused here. Nothing is written, except into a directory that is new.
        """
        # In this order: another run may create both between the two questions.
        latest = self.backend.latest()
        identity = self._load_identity()
        if from_epoch is not None:
            self._check_offered(from_epoch)
        epoch = from_epoch if from_epoch is not None else None if latest is None else latest.epoch
        if epoch is None:
            # Nothing can be refused any more: only now does the directory belong to this pipeline.
            self._use_identity(identity or self._create_identity())
            return None, True
        if identity is None:
            raise missing_identity(self.storage)
        job_id = identity.job_id
        try:
            checkpoint = self.backend.load_checkpoint_metadata(job_id, epoch)
            self.backend.prepare_checkpoint_load(checkpoint)
            restored = self._load_operators(checkpoint)
            is_committed = self.backend.is_committed(checkpoint)
        except StateError as error:
            if from_epoch is None and self.backend.latest() != latest:
                # The run that is still at work has gone on, and removed what this one was about to read.
                return self._restore(None, allow_drop=allow_drop)
            if from_epoch is not None:
                self._check_offered(from_epoch)
            if isinstance(error, CorruptStateError):
                raise self.offer_last_good(error, epoch) from error
            raise
        pending = [] if is_committed else [n for n, m in restored.items() if _commit_data(m, epoch)]
        check_compatible(self.stages.plan, checkpoint, restored, pending=pending, allow_drop=allow_drop)
        if latest is not None and latest.epoch > epoch:
            self._check_whole(epoch)
        self._use_identity(identity)
        self.checkpoint = checkpoint
        self._restored = {n: m for n, m in restored.items() if n in self.stages.plan.by_id}
        return latest, is_committed

    def _check_offered(self, epoch: int) -> None:
        """Raise a ConfigurationError if no run can start from an epoch, or no longer."""
        epochs = self.backend.epochs()
        if epoch not in epochs:
            raise ConfigurationError(
                f"there is no checkpoint of epoch {epoch} in {self.storage.url}",
                hint=f"the checkpoints there are: {', '.join(map(str, epochs)) or 'none'}",
            )

    def _load_operators(self, checkpoint: CheckpointMetadata) -> dict[str, OperatorCheckpointMetadata]:
        return {
            saved.operator_id: self._load_operator(checkpoint.job_id, saved)
            for saved in checkpoint.saved_operators()
        }

    def _load_operator(self, job_id: str, saved: SavedOperator) -> OperatorCheckpointMetadata:
        metadata = self.backend.load_operator_metadata(job_id, saved)
        if metadata is None:
            raise CorruptStateError(
                f"the metadata of operator `{saved.operator_id}` at epoch {saved.epoch} is missing in "
                f"{self.storage.url}"
            )
        return metadata

    def require_generation(self) -> Generation:
        """This run's claim to the state directory; call `open` first."""
        if self.generation is None:
            raise InternalError("the driver was not opened")
        return self.generation

    def check_generation(self, *, every: float = 0.0) -> None:
        """Raise a ReplacedError if another run has taken over the state directory.

        `every` is for how many seconds the last answer is good enough.
        """
        if not 0 <= self.now() - self._checked < every:  # a clock may be set back
            self.require_generation().check()
            self._checked = self.now()

    def _use_identity(self, identity: Identity) -> None:
        self.job = JobContext(
            job_id=identity.job_id,
            state_url=self.storage.url,
            started=identity.created,
            compact_after=self._compact_after,
        )

    def _create_identity(self) -> Identity:
        """Let the state directory belong to this pipeline."""
        name = self.stages.plan.name
        identity = Identity(name, f"{name}-{uuid.uuid4().hex[:8]}", self.now())
        if self.storage.create(IDENTITY, identity.to_bytes()):
            return identity
        saved = self._load_identity()
        if saved is None:
            raise StateInUseError(f"another run has created and removed {IDENTITY} in {self.storage.url}")
        return saved

    def _load_identity(self) -> Identity | None:
        """The job of the state directory, which is of this pipeline; None if the directory is new."""
        name, identity = self.stages.plan.name, load_identity(self.storage)
        if identity is not None and identity.pipeline != name:
            raise IncompatibleStateError(
                f"the state in {self.storage.url} belongs to the pipeline `{identity.pipeline}`, "
                f"not to `{name}`",
                hint="use another state directory, or rename the pipeline if it is the same one",
            )
        return identity

    def _check_whole(self, epoch: int) -> None:
        """Read what the checkpoint needs besides its tables: newer checkpoints are about to be removed."""
        problems = self.backend.verification(epoch, with_state=False).problems
        if problems:
            error = CorruptStateError(problems[0], where=self.storage.url)
            raise self.offer_last_good(error, epoch) from error

    def offer_last_good(self, error: CorruptStateError, epoch: int) -> CorruptStateError:
        """The same error, with the last checkpoint before `epoch` that is whole.

        Raises a ReplacedError if another run has taken over: it removes what this one needs.
        """
        if self.generation is not None:
            self.check_generation()
        good = self.backend.last_good_epoch(before=epoch)
        hint = (
            f"the last good checkpoint is epoch {good}: resume from it with --from-epoch {good} "
            f"(from_epoch={good})"
            if good is not None
            else "no earlier checkpoint is whole: restore the directory from a copy or start anew in another"
        )
        return CorruptStateError(error.message, hint=hint, where=error.where)

    def replace_operators(self, plan: Plan) -> None:
        """Go on with a plan of the same shape whose operators have changed, from the next epoch on."""
        stages = cut_stages(plan, parallelism=self.stages.parallelism)
        if [(node.id, node.tables) for node in plan.nodes] != [
            (node.id, node.tables) for node in self.stages.plan.nodes
        ] or plan.edges != self.stages.plan.edges:
            raise InternalError("a plan of another shape cannot take over while it runs")
        self.stages = replace(stages, taps=self.stages.taps)
        self._operators = {node.id: load_operator(node) for node in plan.nodes if node.role != "source"}

    def rescale(self, parallelism: int) -> None:
        """Go on with another parallelism: the next epoch reads the state by key range, as after a start."""
        self.stages = replace(cut_stages(self.stages.plan, parallelism=parallelism), taps=self.stages.taps)

    def tap(self, taps: tuple[Tap, ...]) -> bool:
        """Sample these outputs from the next epoch on; returns whether that is a change."""
        if taps == self.stages.taps:
            return False
        self.stages = replace(self.stages, taps=taps)
        return True

    def begin(self, *, stopping: Literal["pause", "end"] | None = None) -> EpochContext:
        """The input of the next epoch's tasks; `stopping` is the reason if it is the last of this run."""
        if self.job is None:
            raise InternalError("the driver was not opened")
        before = self.checkpoint
        epoch = self.epoch + 1
        marks = {} if before is None else self._marks(before)
        self._step("begin", epoch)
        return EpochContext(
            job=self.job,
            epoch=epoch,
            min_epoch=epoch if before is None else before.min_epoch,
            # A clock that was set back must not repeat ticks.
            time=self.now() if before is None else max(self.now(), before.start_time),
            previous_time=None if before is None else before.start_time,
            restored=self._restored,
            lanes={
                node.id: _watermarks(marks.get(f"lanes/{node.id}", {})) for node in self.stages.plan.nodes
            },
            outputs={
                node_id: outputs
                for chain in self.stages.chains
                if chain.stage > 0
                for node_id in chain.nodes
                if (outputs := _outputs(marks.get(f"outputs/{node_id}", {}), chain.parallelism))
            },
            inputs={
                name.removeprefix("inputs/"): int(values["merged"])
                for name, values in marks.items()
                if name.startswith("inputs/")
            },
            ended=self._ended(),
            stopping=stopping,
        )

    def _ended(self) -> frozenset[str]:
        ended = [] if self.checkpoint is None else self.checkpoint.offsets["ended"]
        return frozenset(ended) & {node.id for node in self.stages.sources}

    def _marks(self, before: CheckpointMetadata) -> Mapping[str, Mapping[str, int | str]]:
        """The watermarks of edges at the checkpoint; ended ones that a new source feeds are open again."""
        reached = {node.id for node in self.stages.sources} - set(before.offsets["sources"])
        for node in self.stages.plan.nodes:
            if any(edge.source in reached for edge in self.stages.plan.inputs(node.id)):
                reached.add(node.id)
        return {
            name: values
            for name, values in before.watermarks.items()
            if name.partition("/")[2] not in reached or END_OF_TIME.to_json() not in values.values()
        }

    def begin_last(self, *, ending: bool) -> tuple[EpochContext, SplitTask] | None:
        """Begin the last epoch, which reads nothing and calls `handle_stop` of the operators that have one.

        None if nothing was committed, the run is finished, or no operator has a `handle_stop`. `ending` is
        true if an operator ended the run.
        """
        before = self.checkpoint
        if before is None or before.finished or not any(node.stops for node in self.stages.plan.nodes):
            return None
        context = self.begin(stopping="end" if ending else "pause")
        return context, quiet_task(before.offsets, epoch=context.epoch, time=context.time)

    def seal(self, context: EpochContext, control: Iterable[Envelope]) -> EpochReport:
        """Turn the reports of an epoch's tasks into its checkpoint: the commit point of the epoch."""
        reports = TaskReports.read(self.stages, control)
        epoch = context.epoch
        self._step("tasks_done", epoch)
        if reports.offsets["epoch"] != epoch:
            raise InternalError(f"the sources read for epoch {reports.offsets['epoch']}, this is {epoch}")
        if reports.immediate:
            return self._report(context, reports, written=0)
        ended = reports.ended(self._ended())
        self.check_generation()
        try:
            restored, written = self._write_operators(context, reports.subtasks())
        except StateInUseError:
            if self._adopt(context):
                return self._report(context, reports, written=0)
            raise
        self._step("operators_written", epoch)
        checkpoint = CheckpointMetadata(
            job_id=context.job.job_id,
            pipeline=self.stages.plan.name,
            epoch=epoch,
            min_epoch=max(self._oldest, epoch - self._keep + 1),
            parallelism=self.stages.parallelism,
            start_time=context.time,
            finish_time=self.now(),
            offsets={**reports.offsets, "ended": sorted(ended)},
            operators={name: metadata.epoch for name, metadata in restored.items()},
            watermarks=reports.watermarks(context),
            finished=ended >= {node.id for node in self.stages.sources} or reports.over,
            needs_commit=any(_commit_data(metadata, epoch) for metadata in restored.values()),
            rows_in=reports.rows_in,
            rows_out=reports.rows_out,
            operator_names={node.id: node.operator for node in self.stages.plan.nodes},
            lineages=self.stages.plan.lineages,
            run_id=self._run_id,
            generation=self.require_generation().number,
            operator_generations={
                name: metadata.generation for name, metadata in restored.items() if metadata.generation
            },
        )
        try:
            self.backend.write_checkpoint_metadata(checkpoint)
        except StateInUseError:
            if self._adopt(context):
                return self._report(context, reports, written=written)
            raise
        # Only now: until the commit point an epoch that fails is tried again from the one before.
        self.checkpoint, self._restored = checkpoint, restored
        self._step("metadata_written", epoch)
        return self._report(context, reports, written=written)

    def _adopt(self, context: EpochContext) -> bool:
        """Adopt this epoch's checkpoint if this run wrote it without getting the confirmation."""
        checkpoint = self.backend.load_checkpoint_metadata(context.job.job_id, context.epoch)
        if checkpoint.run_id != self._run_id:
            return False
        self._restored = self._load_operators(checkpoint)
        self.checkpoint = checkpoint
        return True

    def _write_operators(
        self,
        context: EpochContext,
        subtasks: Mapping[str, list[SubtaskCheckpointMetadata]],
    ) -> tuple[dict[str, OperatorCheckpointMetadata], int]:
        operators: dict[str, OperatorCheckpointMetadata] = {}
        written = 0
        for name, parts in subtasks.items():
            node = self.stages.plan.by_id[name]
            committing = any(part.commit_data for part in parts)
            if not node.tables and not committing:
                continue
            written += sum(part.bytes_written for part in parts)
            before = self._restored.get(name)
            if before is not None and not committing and _same_files(before.subtasks, parts):
                operators[name] = before
                continue
            metadata = OperatorCheckpointMetadata(
                job_id=context.job.job_id,
                operator_id=name,
                operator_name=node.operator,
                fingerprint=self.stages.plan.fingerprint(name),
                epoch=context.epoch,
                parallelism=len(parts),
                table_configs={table.name: table for table in node.tables},
                subtasks=tuple(parts),
                routing=self.stages.plan.routing(name),
                generation=self.require_generation().number,
            )
            self.backend.write_operator_checkpoint_metadata(metadata)
            operators[name] = metadata
        return operators, written

    def commit(self, exchange: Exchange | None = None) -> None:
        """Phase two: let every sink make its part of the sealed epoch visible. May be repeated.

        Sinks that divide their commit do it in tasks of the exchange, or without one on the driver.
        """
        if self._committed != self.epoch:
            self._commit(self.epoch, exchange)
            self._committed = self.epoch
        self.check_generation()
        if self.checkpoint is not None:
            self.sources.committed(self.checkpoint.offsets["sources"], epoch=self.epoch)
        self._step("committed", self.epoch)
        if self.checkpoint is not None:
            self._clean_up(self.checkpoint)

    def _clean_up(self, checkpoint: CheckpointMetadata) -> None:
        """Remove files that no kept checkpoint refers to, and what sources keep for older ones."""
        oldest = checkpoint.min_epoch
        self.backend.cleanup(self._keep, checkpoint.epoch, oldest=oldest, check=self.check_generation)
        if not self.sources.store_ranges:
            return
        self._offsets[checkpoint.epoch] = checkpoint.offsets["sources"]
        if oldest not in self._offsets:
            with suppress(StateError):  # without it nothing is known to have expired
                before = self.backend.load_checkpoint_metadata(checkpoint.job_id, oldest)
                self._offsets[oldest] = before.offsets["sources"]
        if oldest in self._offsets:
            self.sources.expired(self._offsets[oldest], epoch=checkpoint.epoch)
        self._offsets = {epoch: offsets for epoch, offsets in self._offsets.items() if epoch >= oldest}

    def _commit(self, epoch: int, exchange: Exchange | None = None) -> None:
        if self._published == epoch:
            # Only the mark has failed, and may be there all the same: tasks that committed again would find
            # it, and take the epoch for one that this run has left behind.
            self.check_generation()
        else:
            self._closed = self._publish(epoch, exchange)
            self._published = epoch
        if self.checkpoint is not None and self.checkpoint.needs_commit:
            self.backend.mark_committed(epoch, self.require_generation().number)
        if self._closed is not None:
            raise self._closed

    def _publish(self, epoch: int, exchange: Exchange | None) -> OutputClosedError | None:
        """Let every sink make its part visible; returns the error of an output that nobody reads any more."""
        closed: OutputClosedError | None = None
        self.commits = {} if exchange is None else self._commit_in_tasks(epoch, exchange)
        for name, operator in self._operators.items():
            data = _commit_data(self._restored.get(name), epoch)
            if not data or name in self.commits:
                continue
            self.check_generation()
            began = clock.perf_counter()
            try:
                operator.handle_commit(epoch, data, self._commit_context(name, epoch))
            except OutputClosedError as error:
                closed = error  # the other sinks get their rows before the run ends
            except StateError as error:
                self.check_generation()  # the successor may have removed what is missing
                error.where = f"operator {name}, commit of epoch {epoch} on the driver"
                raise
            except Exception as error:
                self.check_generation()  # the successor may be why the sink has failed
                raise commit_failure(error, name, epoch, where="on the driver") from error
            self.commits[name] = clock.perf_counter() - began
            self._step(f"sink_committed:{name}", epoch)
        return closed

    def _commit_in_tasks(self, epoch: int, exchange: Exchange) -> dict[str, float]:
        """Let tasks commit for the sinks that divide their commit; returns how many seconds each took."""
        if self.job is None or self.checkpoint is None:
            raise InternalError("the driver was not opened")
        claim, tasks = self.require_generation(), list[CommitTask]()
        for name, operator in self._operators.items():
            data = _commit_data(self._restored.get(name), epoch)
            shares = operator.commit_shares(data) if data else ()
            for number, share in enumerate(shares):
                tasks.append(
                    CommitTask(
                        index=len(tasks),
                        operator_id=name,
                        share=number,
                        shares=len(shares),
                        epoch=epoch,
                        writer=self.checkpoint.generation,
                        time=self.now(),
                        data=share,
                        generation=claim.number,
                        run_id=claim.run_id,
                    )
                )
        if not tasks:
            return {}
        self.check_generation()
        try:
            seconds = commit_seconds(tasks, exchange.commit(tasks, self.job))
        except Exception:
            self.check_generation()  # the successor may be why it has failed
            raise
        for name in seconds:
            self._step(f"sink_committed:{name}", epoch)
        return seconds

    def _commit_context(self, name: str, epoch: int) -> OperatorContext:
        if self.job is None:
            raise InternalError("the driver was not opened")
        return commit_context(
            self.stages,
            self.job,
            operator_id=name,
            epoch=epoch,
            now=self.now(),
            storage=self.storage,
            claim=self.generation,
        )

    def live_files(self) -> list[StateFile]:
        """The files of the state, each once, whatever number of subtasks share it."""
        files = [file for metadata in self._restored.values() for file in metadata.files()]
        return list({file.file: file for file in files}.values())

    def _watermark(self, *, finished: bool) -> int | None:
        """The watermark that operators have acted on; without one behind a shuffle, that of the sources."""
        marks = {} if self.checkpoint is None else self.checkpoint.watermarks
        for kind in ("inputs/", "lanes/"):
            times = [
                int(value)
                for name, values in marks.items()
                if name.startswith(kind)
                for value in values.values()
                if value != "idle"
            ]
            if times:
                return END_OF_TIME.time if finished and kind == "lanes/" else min(times)
        return None

    def _tables(self) -> dict[str, dict[str, TableSize]]:
        """The size of each table; files that several subtasks share count once."""
        self._sizes = {
            name: before
            if (before := self._sizes.get(name)) is not None and before[0] is metadata
            else (metadata, metadata.table_sizes())
            for name, metadata in self._restored.items()
        }
        return {name: tables for name, (_, tables) in self._sizes.items() if tables}

    def _report(self, context: EpochContext, reports: TaskReports, *, written: int) -> EpochReport:
        tables = self._tables()
        sizes = [size for operator in tables.values() for size in operator.values()]
        finished = self.checkpoint is not None and self.checkpoint.finished and not reports.immediate
        marks = {} if self.checkpoint is None else self.checkpoint.watermarks
        watermarks = {
            name.partition("/")[2]: min(times)
            for name, values in marks.items()
            if name.startswith(("inputs/", "lanes/"))
            and (times := [int(value) for value in values.values() if value != "idle"])
        }
        return EpochReport(
            epoch=context.epoch,
            rows_in=reports.rows_in,
            rows_out=reports.rows_out,
            watermark=self._watermark(finished=finished),
            state_bytes=sum(size.bytes for size in sizes),
            state_rows=sum(size.rows for size in sizes),
            bytes_written=written,
            seconds=self.now() - context.time,
            finished=finished,
            immediate=reports.immediate,
            stop_requested=reports.stop_requested,
            parallelism=self.stages.parallelism,
            metrics=reports.metrics(),
            errors=reports.errors(),
            warnings=implausible_times(self.stages.plan, self._event_times(), now=context.time),
            work=reports.work(),
            tables=tables,
            watermarks=watermarks,
            tapped=reports.tapped(),
        )

    def _event_times(self) -> dict[str, int]:
        """How far event time has come where it is read: at the slowest lane of each node."""
        marks = {} if self.checkpoint is None else self.checkpoint.watermarks
        lanes = {name.removeprefix("lanes/"): of for name, of in marks.items() if name.startswith("lanes/")}
        times = {
            node: [int(value) for value in values.values() if value != "idle"]
            for node, values in lanes.items()
        }
        return {node: max(values) for node, values in times.items() if values}


def _commit_data(metadata: OperatorCheckpointMetadata | None, epoch: int) -> dict[str, dict[int, bytes]]:
    """What an operator has prepared in an epoch: table → subtask → data."""
    data: dict[str, dict[int, bytes]] = defaultdict(dict)
    if metadata is not None and metadata.epoch == epoch:
        for part in metadata.subtasks:
            for table, payload in part.commit_data.items():
                data[table][part.subtask] = payload
    return data


def _watermarks(values: Mapping[str, int | str]) -> dict[str, Watermark]:
    return {lane: Watermark.from_json(value) for lane, value in values.items()}


def _outputs(values: Mapping[str, int | str], parallelism: int) -> dict[int, Watermark]:
    """Where each subtask's output stood; after a rescale every new subtask starts at the minimum."""
    marks = {int(s): Watermark.from_json(value) for s, value in values.items() if s != "parallelism"}
    if values.get("parallelism") == parallelism:
        return marks
    times = [mark.time for mark in marks.values() if mark.time is not None]
    return {-1: Watermark(min(times))} if times and len(marks) == values.get("parallelism") else {}


def _same_files(
    before: Iterable[SubtaskCheckpointMetadata], after: Iterable[SubtaskCheckpointMetadata]
) -> bool:
    def files(parts: Iterable[SubtaskCheckpointMetadata]) -> list[dict[str, Any]]:
        return [
            {name: part.tables[name] for name in sorted(part.tables) if part.tables[name]} for part in parts
        ]

    old, new = list(before), list(after)
    return not any(part.commit_data for part in old) and files(old) == files(new)
