"""What the tasks of an epoch report to the driver, and what the driver reports of an epoch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.base.errors import HeadraceError, InternalError
from headrace.base.watermarks import Watermark, advance
from headrace.engine.context import EpochContext
from headrace.engine.envelope import Envelope, EnvelopeKind
from headrace.engine.offsets import Lag
from headrace.engine.stages import StagePlan
from headrace.engine.taps import TappedRows, read_sample
from headrace.engine.task import failure_of
from headrace.state.metadata import SubtaskCheckpointMetadata, TableSize


@dataclass(slots=True)
class Work:
    """What one subtask of a source or an operator did in an epoch, or in several; nobody changes one.

    Not frozen: there is one for each subtask and epoch, and that costs a multiple.
    """

    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    """How long it worked, without the operators that it called."""

    def __add__(self, other: Work) -> Work:
        return Work(
            self.rows_in + other.rows_in,
            self.rows_out + other.rows_out,
            self.bytes_in + other.bytes_in,
            self.bytes_out + other.bytes_out,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True)
class Phases:
    """Where the seconds of an epoch went."""

    wait: float = 0.0
    """There was nothing new to read."""
    plan: float = 0.0
    """The sources were asked how far to read."""
    run: float = 0.0
    """The tasks ran."""
    seal: float = 0.0
    """The checkpoint was written."""
    commit: float = 0.0
    """The sinks committed, and old checkpoints were removed."""

    @property
    def busy(self) -> float:
        """All but the wait."""
        return self.plan + self.run + self.seal + self.commit


@dataclass(frozen=True)
class EpochReport:
    """What one epoch did."""

    epoch: int
    rows_in: int
    rows_out: int
    watermark: int | None
    state_bytes: int
    state_rows: int
    bytes_written: int
    seconds: float
    finished: bool
    immediate: bool
    stop_requested: bool = False
    """Whether an operator requested the end of the run."""
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    warnings: Mapping[str, str] = field(default_factory=dict)
    """What is probably wrong with the input, by what it is about."""
    work: Mapping[str, Mapping[int, Work]] = field(default_factory=dict)
    """By source or operator, and subtask."""
    tables: Mapping[str, Mapping[str, TableSize]] = field(default_factory=dict)
    """The state by operator and table."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """The event time that the inputs of each operator have reached, and the lanes of each source."""
    phases: Phases = Phases()
    commits: Mapping[str, float] = field(default_factory=dict)
    """How many seconds the commit of each sink took that had something to commit."""
    lag: Mapping[str, Lag] = field(default_factory=dict)
    """What the epoch leaves unread of what was there when it was planned, of sources that know it."""
    parallelism: int = 0
    """How many subtasks an operator had."""
    load: float = 0.0
    """The share of the rows that it could have taken which the epoch read."""
    tapped: tuple[TappedRows, ...] = ()
    """What was sampled for those who look at rows."""


@dataclass(frozen=True)
class TaskReports:
    """The reports of all tasks of one epoch: by split, and by chain and subtask."""

    stages: StagePlan
    splits: Mapping[int, Mapping[str, Any]]
    chains: Mapping[tuple[int, int], Mapping[str, Any]]

    @classmethod
    def read(cls, stages: StagePlan, control: Iterable[Envelope]) -> TaskReports:
        """The reports in an epoch's control records; raises the failure of a task if one failed."""
        splits: dict[int, dict[str, Any]] = {}
        chains: dict[tuple[int, int], dict[str, Any]] = {}
        failures: list[HeadraceError] = []
        for envelope in control:
            message = envelope.message()
            if envelope.kind is EnvelopeKind.ERROR:
                failures.append(failure_of(message))
            elif "chain" in message:
                chains[message["chain"], message["subtask"]] = message
            else:
                splits[message["split"]] = message
        if failures:
            # A user's own failure says more than what followed from it elsewhere.
            raise min(failures, key=lambda error: (error.domain != "user", str(error)))
        expected = {
            (chain.index, subtask)
            for chain in stages.chains
            if chain.stage > 0
            for subtask in range(chain.parallelism)
        }
        if 0 not in splits or len(splits) != splits[0]["signals"]["splits"] or set(chains) != expected:
            raise InternalError(
                f"an epoch came back incomplete: {len(splits)} splits and {len(chains)} of "
                f"{len(expected)} subtasks reported"
            )
        return cls(stages, dict(sorted(splits.items())), dict(sorted(chains.items())))

    @property
    def offsets(self) -> Mapping[str, Any]:
        """Where the epoch ended in every source."""
        offsets: Mapping[str, Any] = self.splits[0]["signals"]["end"]
        return offsets

    @property
    def immediate(self) -> bool:
        """Whether a source requested an immediate stop."""
        return any(split.get("finish") == "immediate" for split in self.splits.values())

    def ended(self, before: frozenset[str]) -> frozenset[str]:
        """The sources that have ended: `before`, by their offset, or because all their splits ended."""
        final: dict[str, bool] = {}
        for split in self.splits.values():
            if "source" in split:
                name = split["source"]
                final[name] = final.get(name, True) and split["finish"] == "final"
        finals = {name for name, all_final in final.items() if all_final}
        return before | finals | set(self.offsets["ended"])

    @property
    def over(self) -> bool:
        """Whether every operator that can end the run has finished."""
        ending = {node.id for node in self.stages.plan.nodes if node.ends}
        going_on = {node for node, values in self._nodes() if not values["over"]}
        return bool(ending) and not ending & going_on

    @property
    def stop_requested(self) -> bool:
        """Whether an operator requested the end of the run."""
        return any(values["stop"] for _, values in self._nodes())

    @property
    def rows_in(self) -> int:
        return sum(split.get("rows", 0) for split in self.splits.values())

    @property
    def rows_out(self) -> int:
        sinks = {node.id for node in self.stages.plan.nodes if node.role == "sink"}
        return sum(values["rows_in"] for node, values in self._nodes() if node in sinks)

    def _nodes(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for report in [*self.splits.values(), *self.chains.values()]:
            yield from report.get("nodes", {}).items()

    def subtasks(self) -> Mapping[str, list[SubtaskCheckpointMetadata]]:
        """What every subtask of every operator has saved."""
        subtasks: dict[str, list[SubtaskCheckpointMetadata]] = defaultdict(list)
        for node, values in self._nodes():
            subtasks[node].append(SubtaskCheckpointMetadata.from_json(values["metadata"]))
        return subtasks

    def watermarks(self, context: EpochContext) -> dict[str, dict[str, int | str]]:
        """The watermarks after the epoch: of source lanes, and of the inputs and outputs of operators."""
        marks: dict[str, dict[str, int | str]] = {}
        lanes = {node: dict(values) for node, values in context.lanes.items() if values}
        for split in self.splits.values():
            for node, value in split.get("watermarks", {}).items():
                moved = advance(lanes.get(node, {}).get(split["lane"]), Watermark.from_json(value))
                if moved is not None:
                    lanes.setdefault(node, {})[split["lane"]] = moved
        for node, values in lanes.items():
            marks[f"lanes/{node}"] = {lane: mark.to_json() for lane, mark in values.items()}
        inputs: dict[str, list[int | None]] = defaultdict(list)
        for (_, subtask), report in self.chains.items():
            for node, values in report["nodes"].items():
                inputs[node].append(values["input"])
                outputs = marks.setdefault(f"outputs/{node}", {})
                outputs["parallelism"] = len(inputs[node])
                if values["output"] is not None:
                    outputs[str(subtask)] = values["output"]
        for node, merged in inputs.items():
            times = [value for value in merged if value is not None]
            if times and len(times) == len(merged):
                marks[f"inputs/{node}"] = {"merged": min(times)}
        return marks

    def metrics(self) -> dict[str, dict[str, float]]:
        """The counters of every source and operator, summed over subtasks."""
        metrics: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for split in self.splits.values():
            if "source" in split:
                counters = {"rows_out": split["rows"], **split["metrics"]}
                for name, value in counters.items():
                    metrics[split["source"]][name] += value
        for node, values in self._nodes():
            counters = {"rows_in": values["rows_in"], "rows_out": values["rows_out"], **values["metrics"]}
            for name, value in counters.items():
                metrics[node][name] += value
        return {node: dict(counters) for node, counters in metrics.items()}

    def work(self) -> dict[str, dict[int, Work]]:
        """The work of every subtask; the splits of a source are dealt out to as many as an operator has."""
        work: dict[str, dict[int, Work]] = defaultdict(dict)

        def add(node: str, subtask: int, done: Work) -> None:
            parts = work[node]
            parts[subtask] = parts[subtask] + done if subtask in parts else done

        splits: dict[str, int] = defaultdict(int)
        for split in self.splits.values():
            if "source" not in split:
                continue
            source = split["source"]
            subtask = splits[source] % self.stages.parallelism
            splits[source] += 1
            read = Work(0, split["rows"], 0, split["bytes"], split["nanoseconds"] / 1e9)
            add(source, subtask, read)
            for node, values in split["nodes"].items():
                add(node, subtask, _work_of(values))
        for (_, subtask), report in self.chains.items():
            for node, values in report["nodes"].items():
                add(node, subtask, _work_of(values))
        return dict(work)

    def errors(self) -> tuple[str, ...]:
        """What operators and sources reported without failing."""
        from_sources = [error for split in self.splits.values() for error in split.get("errors", [])]
        return (*from_sources, *(error for _, values in self._nodes() for error in values["errors"]))

    def tapped(self) -> tuple[TappedRows, ...]:
        """What was sampled for those who look at rows."""
        taps = self.stages.taps
        if not taps:
            return ()
        reported = [*self.splits.values(), *(values for _, values in self._nodes())]
        return tuple(read_sample(taps, sample) for values in reported for sample in values.get("tapped", ()))


def _work_of(values: Mapping[str, Any]) -> Work:
    return Work(
        values["rows_in"],
        values["rows_out"],
        values["bytes_in"],
        values["bytes_out"],
        values["nanoseconds"] / 1e9,
    )
