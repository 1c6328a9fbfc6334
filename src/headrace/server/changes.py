"""What a changed program would do with the state of its pipeline, before anything is changed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.base.private import process_directory
from headrace.engine.compatibility import find_changes
from headrace.engine.stages import cut_stages
from headrace.model.plan import Plan
from headrace.server.checkpoints import storage_of
from headrace.server.graph import graph_of
from headrace.server.planning import program_errors
from headrace.server.program import StoredProgram
from headrace.state.inspect import latest_checkpoint
from headrace.state.metadata import CheckpointMetadata, OperatorCheckpointMetadata


def compare_program(program: StoredProgram, parallelism: int, state_dir: str | None) -> dict[str, Any]:
    """The graph of a program or what is wrong with it, and what becomes of the state in `state_dir`.

    `kept` are positions and state that it goes on with, `fresh` what begins without any, `dropped` what would
    be lost, `refused` what keeps it from the state altogether.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-plan-", dir=process_directory()) as folder:
        try:
            plan = program.load(Path(folder)).plan()
            graph = graph_of(plan, parallelism=parallelism)
            plan = cut_stages(plan, parallelism=parallelism).plan
        except HeadraceError as error:
            return {"graph": None, "errors": program_errors(error, program, folder), **_nothing(None)}
    storage = storage_of(state_dir)
    latest = None if storage is None else latest_checkpoint(storage)
    if latest is None:
        return {"graph": graph, "errors": [], **_nothing(None), "fresh": _with_state(plan)}
    return {"graph": graph, "errors": [], **_compared(plan, *latest)}


def _nothing(epoch: int | None) -> dict[str, Any]:
    return {"epoch": epoch, "kept": [], "fresh": [], "dropped": [], "refused": []}


def _with_state(plan: Plan) -> list[str]:
    """The sources and the operators with tables."""
    return [node.id for node in plan.nodes if node.role == "source" or node.tables]


def _compared(
    plan: Plan, checkpoint: CheckpointMetadata, operators: Sequence[OperatorCheckpointMetadata]
) -> dict[str, Any]:
    if checkpoint.pipeline != plan.name:
        what = f"the state belongs to the pipeline `{checkpoint.pipeline}`, not to `{plan.name}`"
        return {**_nothing(checkpoint.epoch), "refused": [what]}
    saved = {operator.operator_id: operator for operator in operators}
    changes = find_changes(plan, checkpoint, saved)
    sources = set(checkpoint.offsets.get("sources", {}))
    resumed = [
        _kept(node, saved, is_source=node in sources)
        for node in _with_state(plan)
        if node in sources or (node in saved and saved[node].files())
    ]
    resumed_ids = {each["operator_id"] for each in resumed}
    return {
        "epoch": checkpoint.epoch,
        "kept": resumed,
        "fresh": [node for node in _with_state(plan) if node not in resumed_ids],
        "dropped": [change.what for change in changes if change.droppable],
        "refused": [change.what for change in changes if not change.droppable],
    }


def _kept(node: str, saved: dict[str, OperatorCheckpointMetadata], *, is_source: bool) -> dict[str, Any]:
    sizes = saved[node].table_sizes().values() if node in saved else ()
    return {
        "operator_id": node,
        "kind": "position" if is_source else "state",
        "rows": sum(size.rows for size in sizes),
        "bytes": sum(size.bytes for size in sizes),
    }
