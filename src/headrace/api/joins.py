"""The SELECT of a join of two streams, which are called `input` and `other`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, get_args

import pyarrow as pa

from headrace.api.expressions import Column, interval
from headrace.api.query_text import QueryText, expression_text
from headrace.base.durations import parse_duration
from headrace.base.errors import ConfigurationError, HeadraceError, PlanError
from headrace.model.fragments import quote

JoinType = Literal["inner", "left", "right", "full"]
JoinKeys = str | Sequence[str] | Mapping[str, str] | Column
"""What a join is by: columns of both sides, a mapping of one side's to the other's, or a condition."""


def join_text(
    left: pa.Schema, right: pa.Schema, on: JoinKeys, *, how: JoinType, within: str | timedelta | None
) -> tuple[QueryText, str | None]:
    """The SELECT of a join, and the condition of the user in it, if there is one."""
    if how not in get_args(JoinType):
        kinds = get_args(JoinType)
        raise PlanError.unknown(
            f"`{how}` is not a kind of join", name=str(how), candidates=kinds, listing="it is one of"
        )
    shared = _shared_keys(on, left, right)
    clashes = [name for name in right.names if name in left.names and name not in shared]
    if clashes:
        raise PlanError(
            f"both streams have a column `{clashes[0]}`",
            hint=f"rename or drop it in one of them before the join: `.rename({clashes[0]}=…)`",
        )
    text = QueryText("SELECT ")
    if within is None:
        text.add("*" if shared else "input.*, other.*")
        text.add(f" FROM input {how.upper()} JOIN other ")
    else:
        sides = [
            f"(SELECT *, row_time() AS {quote(f'{side} time')} FROM {side}) AS {side}"
            for side in ("input", "other")
        ]
        text.add(", ".join(_joined_columns(left, right, shared, how)))
        text.add(f" FROM {sides[0]} {how.upper()} JOIN {sides[1]} ")
    condition: str | None = None
    if shared and within is None:
        return text.add(f"USING ({', '.join(map(quote, shared))})"), None
    text.add("ON ")
    pairs = {name: name for name in shared} or (on if isinstance(on, Mapping) else {})
    if pairs:
        text.add(" AND ".join(f"input.{quote(own)} = other.{quote(its)}" for own, its in pairs.items()))
    else:
        condition = expression_text(on, [], "join")
        text.add("(").expression(condition).add(")")
    if within is not None:
        far = interval(_positive(within, "within"))
        time = 'other."other time"'
        text.add(f' AND input."input time" BETWEEN {time} - {far} AND {time} + {far}')
    return text, condition


def _shared_keys(on: JoinKeys, left: pa.Schema, right: pa.Schema) -> list[str]:
    """The columns of both sides that a join is by; none if it is by a condition or a mapping."""
    if isinstance(on, Column):
        return []
    if isinstance(on, Mapping):
        _check_sides(list(on.keys()), list(on.values()), left, right)
        same = [name for name, other in on.items() if name == other]
        if same and len(same) < len(on):
            raise PlanError(
                f"column `{same[0]}` has one name on both sides, and others have two",
                hint="rename it on one side before the join",
            )
        return same
    if isinstance(on, str):
        if not on.isidentifier() and not (on in left.names and on in right.names):
            return []
        names = [on]
    elif isinstance(on, Sequence):
        names = [str(name) for name in on]
    else:
        raise PlanError(
            f"`on` takes columns or a condition, got {type(on).__name__} {on!r}",
            hint="such as `on='id'`, `on={'id': 'order_id'}` or `on='input.id = other.order_id'`",
        )
    _check_sides(names, names, left, right)
    return names


def _check_sides(own: Sequence[Any], its: Sequence[Any], left: pa.Schema, right: pa.Schema) -> None:
    if not own:
        raise PlanError("a join needs at least one column in `on`")
    for names, schema, side in ((own, left, "this stream"), (its, right, "the other stream")):
        for name in names:
            if name not in schema.names:
                raise PlanError.unknown(
                    f"join: {side} has no column `{name}`",
                    name=str(name),
                    candidates=schema.names,
                    listing="its columns are",
                )


def _joined_columns(left: pa.Schema, right: pa.Schema, shared: Sequence[str], how: JoinType) -> list[str]:
    """The columns of a join by shared keys, written out."""
    items = []
    for name in left.names:
        if name in shared and how == "full":
            items.append(f"coalesce(input.{quote(name)}, other.{quote(name)}) AS {quote(name)}")
        else:
            table = "other" if name in shared and how == "right" else "input"
            items.append(f"{table}.{quote(name)}")
    return items + [f"other.{quote(name)}" for name in right.names if name not in shared]


def _positive(value: str | timedelta, option: str) -> timedelta:
    try:
        length = parse_duration(value)
    except (HeadraceError, TypeError, AttributeError):
        raise ConfigurationError(
            f"`{option}` takes a duration, got {value!r}", hint="such as `'10s'`, `'1h 30m'` or a timedelta"
        ) from None
    if length <= timedelta(0):
        raise ConfigurationError(f"`{option}` must be greater than zero, got {value!r}")
    return length
