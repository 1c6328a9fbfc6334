"""Whether a changed pipeline can go on with its saved state."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace.base.errors import IncompatibleStateError
from headrace.engine.chain import load_operator
from headrace.functions.arithmetic import as_written
from headrace.model.operator import ArrowOperator
from headrace.model.plan import Plan, PlanNode
from headrace.state.config import TableConfig
from headrace.state.metadata import CheckpointMetadata, OperatorCheckpointMetadata

_SHOWN = 120
"""The longest state signature that an error shows."""


@dataclass(frozen=True)
class Change:
    """One thing that keeps a pipeline from its state; dropping that state may be allowed."""

    what: str
    droppable: bool
    migratable: bool = False
    renumbered: str = ""
    """The id that an operator had before others changed places with it."""


def find_changes(
    plan: Plan,
    checkpoint: CheckpointMetadata,
    operators: Mapping[str, OperatorCheckpointMetadata],
    *,
    pending: Sequence[str] = (),
) -> list[Change]:
    """Everything that keeps a plan from the state of a checkpoint, or would lose some of it.

    `pending` are the sinks that had prepared rows and not committed them when the last run ended.
    """
    lost = [
        Change(f"sink `{name}` is gone, and its rows of epoch {checkpoint.epoch} are not committed yet", True)
        for name in pending
        if name not in plan.by_id
    ]
    return [
        *_changed_sources(plan, checkpoint),
        *_changed_operators(plan, operators),
        *_moved(plan, checkpoint, operators),
        *_added_behind_updates(plan, checkpoint, operators),
        *lost,
    ]


def check_compatible(
    plan: Plan,
    checkpoint: CheckpointMetadata,
    operators: Mapping[str, OperatorCheckpointMetadata],
    *,
    pending: Sequence[str] = (),
    allow_drop: bool,
) -> None:
    """Refuse a plan whose operators do not fit the checkpoint, naming each one and the choices."""
    changes = find_changes(plan, checkpoint, operators, pending=pending)
    if allow_drop:
        changes = [change for change in changes if not change.droppable]
    if not changes:
        return
    listed = "\n".join(f"  - {change.what}" for change in changes)
    choices = ["undo the change", "use a new state directory"]
    if all(change.droppable for change in changes):
        choices.insert(1, "pass --allow-drop (allow_drop=True) to go on without that state")
    renumbered = [change.renumbered for change in changes if change.renumbered]
    if renumbered:
        choices.insert(1, f"in Python, give each its old id, such as `id='{renumbered[0]}'`")
    if any(change.migratable for change in changes):
        choices.insert(1, "raise the table's `version` and give the operator a `migrate_table`")
    raise IncompatibleStateError(
        f"pipeline `{plan.name}` does not fit its state of epoch {checkpoint.epoch} any more:\n{listed}",
        hint="; or ".join(choices),
    )


def _changed_sources(plan: Plan, checkpoint: CheckpointMetadata) -> list[Change]:
    changes = []
    for name in checkpoint.offsets.get("sources", {}):
        node = plan.by_id.get(name)
        before = checkpoint.operator_names.get(name, "source")
        if node is None:
            changes.append(Change(f"source `{name}` ({before}) is gone: its position would be lost", True))
        elif node.operator != before:
            changes.append(Change(f"source `{name}` was a {before} and is now a {node.operator}", False))
    return changes


def _changed_operators(plan: Plan, operators: Mapping[str, OperatorCheckpointMetadata]) -> list[Change]:
    changes: list[Change] = []
    for name, saved in operators.items():
        if not saved.table_configs:
            continue
        node = plan.by_id.get(name)
        if node is None:
            if saved.files():
                changes.append(
                    Change(
                        f"operator `{name}` ({saved.operator_name}) is gone: its state would be lost", True
                    )
                )
        elif node.operator != saved.operator_name:
            changes.append(
                Change(f"operator `{name}` was {saved.operator_name} and is now {node.operator}", False)
            )
        elif plan.fingerprint(name) != saved.fingerprint:
            changes.extend(_changed_tables(node, saved))
            if plan.routing(name) != saved.routing:
                changes.append(
                    Change(
                        f"the keys that rows reach `{name}` by have changed from "
                        f"{saved.routing or 'none'} to {plan.routing(name) or 'none'}",
                        False,
                    )
                )
    return changes


def _moved(
    plan: Plan, checkpoint: CheckpointMetadata, operators: Mapping[str, OperatorCheckpointMetadata]
) -> list[Change]:
    """Operators whose ids are numbers in the order of the program, and that have another number now."""
    stateful = {name for name, saved in operators.items() if saved.table_configs and saved.files()}
    changes = []
    for name in sorted({*stateful, *checkpoint.offsets.get("sources", {})}):
        lineage = checkpoint.lineages.get(name)
        if lineage is None or plan.lineages.get(name) == lineage:
            continue
        for other, present in plan.lineages.items():
            if (
                present == lineage
                and checkpoint.lineages.get(other) != lineage
                and _unnumbered(other) == _unnumbered(name)
            ):
                what = f"`{other}` is now what `{name}` was, and would take up the state of something else"
                changes.append(Change(what, False, renumbered=name.partition(".")[0]))
    return changes


def _unnumbered(name: str) -> str:
    return re.sub(r"_\d+(?=\.|$)", "", name)


def _added_behind_updates(
    plan: Plan, checkpoint: CheckpointMetadata, operators: Mapping[str, OperatorCheckpointMetadata]
) -> list[Change]:
    """Operators with state that are new, and read changes of rows that they have never seen."""
    resumed = {name for name, saved in operators.items() if saved.table_configs and saved.files()}
    resumed |= set(checkpoint.offsets.get("sources", {}))
    changes = []
    before = checkpoint.operator_names or plan.by_id  # checkpoints of early versions do not list operators
    for node in plan.nodes:
        if node.role == "operator" and node.tables and node.id not in before:
            origin = _resumed_updates(plan, node.id, resumed)
            if origin is not None:
                what = (
                    f"operator `{node.id}` is new, and reads the changes of `{origin}`: "
                    "it would be told of changes to rows that it has never seen"
                )
                changes.append(Change(what, False))
    return changes


def _resumed_updates(plan: Plan, node_id: str, resumed: Collection[str]) -> str | None:
    """The operator with state, or the source, whose changes reach a node and go on where they stopped."""
    for edge in plan.inputs(node_id):
        if edge.source in resumed:
            origin = edge.source if edge.source in plan.updating else None
        elif plan.by_id[edge.source].tables:  # new as well: it begins with rows, not with changes
            origin = None
        else:
            origin = _resumed_updates(plan, edge.source, resumed)
        if origin is not None:
            return origin
    return None


def _changed_tables(node: PlanNode, saved: OperatorCheckpointMetadata) -> list[Change]:
    changes: list[Change] = []
    declared = {table.name: table for table in node.tables}
    for name, before in saved.table_configs.items():
        after = declared.get(name)
        where = f"table `{name}` of operator `{node.id}`"
        if after is None:
            changes.append(Change(f"{where} is gone: its rows would be lost", True))
        elif after.version < before.version:
            changes.append(
                Change(
                    f"{where} was saved by version {before.version}, this is version {after.version}", False
                )
            )
        elif after.version > before.version:
            if type(load_operator(node)).migrate_table is ArrowOperator.migrate_table:
                changes.append(
                    Change(
                        f"{where} went from version {before.version} to {after.version}, "
                        "and the operator has no `migrate_table`",
                        False,
                    )
                )
        elif (difference := _difference(before, after)) is not None:
            changes.append(Change(f"{where}: {difference}", False, migratable=not after.state_signature))
    return changes


def _difference(before: TableConfig, after: TableConfig) -> str | None:
    if before.kind != after.kind:
        return f"was a {before.kind} table and is now a {after.kind} table"
    if before.key != after.key:
        return f"its key was ({', '.join(before.key)}) and is now ({', '.join(after.key)})"
    if before.schema != after.schema:
        old = {} if before.schema is None else {f.name: str(f.type) for f in before.schema}
        new = {} if after.schema is None else {f.name: str(f.type) for f in after.schema}
        parts = [f"`{c}` {old[c]} → {new[c]}" for c in old if c in new and old[c] != new[c]]
        parts += [f"`{c}` is gone" for c in old if c not in new]
        parts += [f"`{c}` {new[c]} is new" for c in new if c not in old]
        return "columns changed (" + ", ".join(parts or ["nullability"]) + ")"
    signature_before, signature_after = before.state_signature, after.state_signature
    if as_written(signature_before) != as_written(signature_after):
        if max(len(signature_before), len(signature_after)) > _SHOWN:
            return "the query has changed, and what it kept means something else now"
        return f"the query has changed: it held `{signature_before}` and would hold `{signature_after}`"
    if any(
        getattr(before, field) != getattr(after, field) for field in ("generational", "order_by", "route")
    ):
        return "is organised differently"
    return None
