"""Whether a changed pipeline can go on with its saved state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.base.errors import IncompatibleStateError
from headrace.engine.chain import load_operator
from headrace.model.operator import ArrowOperator
from headrace.model.plan import Node, Plan
from headrace.state.config import TableConfig
from headrace.state.metadata import CheckpointMetadata, OperatorCheckpointMetadata

_SHOWN = 120
"""How long a changed meaning may be to be shown."""


@dataclass(frozen=True)
class Change:
    """One thing that keeps a pipeline from its state; dropping that state may be allowed."""

    what: str
    droppable: bool
    migratable: bool = False


def check_compatible(
    plan: Plan,
    checkpoint: CheckpointMetadata,
    operators: Mapping[str, OperatorCheckpointMetadata],
    *,
    pending: Sequence[str] = (),
    allow_drop: bool,
) -> None:
    """Refuse a plan whose operators do not fit the checkpoint, naming each one and the choices.

    `pending` are the sinks that had prepared rows and not committed them when the last run ended.
    """
    lost = [
        Change(f"sink `{name}` is gone, and its rows of epoch {checkpoint.epoch} are not committed yet", True)
        for name in pending
        if name not in plan.by_id
    ]
    changes = [*_changed_sources(plan, checkpoint), *_changed_operators(plan, operators), *lost]
    if allow_drop:
        changes = [change for change in changes if not change.droppable]
    if not changes:
        return
    listed = "\n".join(f"  - {change.what}" for change in changes)
    choices = ["undo the change", "use a new state directory"]
    if all(change.droppable for change in changes):
        choices.insert(1, "pass --allow-drop (allow_drop=True) to go on without that state")
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


def _changed_tables(node: Node, saved: OperatorCheckpointMetadata) -> list[Change]:
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
            changes.append(Change(f"{where}: {difference}", False, migratable=not after.meaning))
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
    if before.meaning != after.meaning:
        if max(len(before.meaning), len(after.meaning)) > _SHOWN:
            return "the query has changed, and what it kept means something else now"
        return f"the query has changed: it held `{before.meaning}` and would hold `{after.meaning}`"
    if any(
        getattr(before, field) != getattr(after, field) for field in ("generational", "order_by", "route")
    ):
        return "is organised differently"
    return None
