"""Lowers joins with versions."""

from __future__ import annotations

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.operators.as_of_join import AsOfJoin
from headrace.sql.bind.logical import AsOfRelation, Expression
from headrace.sql.lower.context import LoweredRelation, LoweringContext, shuffle, without
from headrace.sql.lower.joins import key_columns, lower_side


def lower_as_of_join(context: LoweringContext, relation: AsOfRelation) -> LoweredRelation:
    """Rows with the version that they meet."""
    keys = [key_columns([pair[index] for pair in relation.keys]) for index in (0, 1)]
    if not relation.keys:
        keys = [{f"{TIMESTAMP}:key": Expression("0")}] * 2  # all rows meet in one subtask
    left = lower_side(context, relation.left, keys[0], updating=False)
    right = lower_side(context, relation.right, keys[1], updating=relation.right.updating)
    names = (tuple(keys[0]), tuple(keys[1]))
    operator = AsOfJoin(
        left.schema,
        without(right.schema, RETRACT),
        names,
        output=context.batch_schema(relation),
        kind=relation.kind,
        match=relation.match,
        updating=relation.right.updating,
    )
    inputs = [shuffle(side.ports, own) for side, own in zip((left, right), names, strict=True)]
    return context.result(relation, context.add(operator, inputs, "as_of_join"))
