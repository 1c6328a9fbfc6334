"""Rows of a running pipeline as JSON, for those who look at an edge of its graph."""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import UserError, suggest
from headrace.engine.taps import Tap, TappedEpoch, Taps
from headrace.formats.json.format import encode_json_lines
from headrace.model.plan import Plan
from headrace.sql.condition import filter_query

_SHOWN_ROWS = 200
"""Of one epoch, whatever the number of subtasks."""


def look_at_rows(
    taps: Taps, plan: Plan, operator: str, *, target: str | None, where: str, after: int
) -> list[dict[str, Any]]:
    """The sampled rows that an operator has sent to another one, of the epochs behind a number.

    Without a target they are those of its main output. `where` is a SQL condition, empty for all rows.
    """
    if operator not in plan.by_id:
        hint = suggest(operator, plan.by_id, listing="its operators are")
        raise UserError(f"the pipeline has no operator `{operator}`", hint=hint)
    edges = [edge for edge in plan.outputs(operator) if target in (None, edge.target)]
    if not edges:
        targets = ", ".join(f"`{edge.target}`" for edge in plan.outputs(operator))
        what = "nothing" if target is None else f"nothing to `{target}`"
        raise UserError(
            f"`{operator}` sends {what}",
            hint=f"it sends to {targets}" if targets else "it is an end: look at what is sent to it",
        )
    outputs = sorted({edge.output for edge in edges})
    query = _query(where.strip())
    shown = [
        epoch
        for output in outputs[: None if target else 1]
        for epoch in taps.look(Tap(operator, output, query), after)
    ]
    return [_as_json(epoch) for epoch in sorted(shown, key=lambda epoch: epoch.number)]


@functools.lru_cache(maxsize=64)
def _query(where: str) -> str:
    return filter_query(where) if where else ""


def _as_json(shown: TappedEpoch) -> dict[str, Any]:
    lines: list[str] = []
    times: list[int | None] = []
    problem = shown.problem
    for table in shown.tables:
        rows = table.slice(0, _SHOWN_ROWS - len(lines))
        try:
            lines += _lines(rows)
        except Exception as error:  # noqa: BLE001 - rows between operators may be of any type
            problem = problem or f"the rows cannot be shown as JSON: {error}"
            continue
        times += _times(rows)
    return {
        "number": shown.number,
        "epoch": shown.epoch,
        "seen": shown.seen,
        "matched": shown.matched,
        "problem": problem,
        "timestamps": times,
        "batch": f"[{','.join(lines)}]",
    }


def _lines(rows: pa.Table) -> list[str]:
    columns = [name for name in rows.column_names if name != TIMESTAMP]
    return encode_json_lines(rows.select(columns)).decode().splitlines()


def _times(rows: pa.Table) -> list[int | None]:
    """The event times of rows, in microseconds; None for rows without one."""
    if TIMESTAMP not in rows.column_names:
        return [None] * len(rows)
    times = rows.column(TIMESTAMP).cast(pa.int64()).to_pylist()
    return [None if time is None else time // 1000 for time in times]
