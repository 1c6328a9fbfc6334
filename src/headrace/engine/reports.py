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
from headrace.engine.stages import StagePlan
from headrace.engine.task import failure_of
from headrace.state.metadata import SubtaskCheckpointMetadata


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
    """Whether an operator asked for the end of the run."""
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    errors: tuple[str, ...] = ()


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
        """Whether a source asked to stop at once."""
        return any(split.get("finish") == "immediate" for split in self.splits.values())

    def ended(self, before: frozenset[str]) -> frozenset[str]:
        """The sources that have ended: `before`, by their offset, or because all their splits said so."""
        final: dict[str, bool] = {}
        for split in self.splits.values():
            if "source" in split:
                name = split["source"]
                final[name] = final.get(name, True) and split["finish"] == "final"
        finals = {name for name, all_final in final.items() if all_final}
        return before | finals | set(self.offsets["ended"])

    @property
    def over(self) -> bool:
        """Whether every operator that ends the run by itself has said that it is over."""
        ending = {node.id for node in self.stages.plan.nodes if node.ends}
        going_on = {node for node, values in self._nodes() if not values["over"]}
        return bool(ending) and not ending & going_on

    @property
    def stop_requested(self) -> bool:
        """Whether an operator asked for the end of the run."""
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
        """Where event time stands after the epoch: lanes of sources, outputs and inputs of operators."""
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

    def errors(self) -> tuple[str, ...]:
        """What operators and sources reported without failing."""
        from_sources = [error for split in self.splits.values() for error in split.get("errors", [])]
        return (*from_sources, *(error for _, values in self._nodes() for error in values["errors"]))
