"""The SELECT of a join of two streams, which are called `input` and `other`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, get_args

import pyarrow as pa

from headrace.api.arguments import check_duration
from headrace.api.expressions import Column, interval
from headrace.api.query_text import QueryText, expression_text
from headrace.base.errors import ConfigurationError, PlanError
from headrace.model.fragments import quote
from headrace.sql.types import type_name

JoinType = Literal["inner", "left", "right", "full", "outer"]
"""Which rows without a partner a join keeps; `outer` is another word for `full`."""
JoinKeys = str | Sequence[str] | Mapping[str, str] | Column
"""What a join is by: columns of both sides, a mapping of one side's to the other's, or a condition."""


def join_text(
    left: pa.Schema, right: pa.Schema, on: JoinKeys, *, how: JoinType, within: str | timedelta | None
) -> tuple[QueryText, str | None]:
    """The SELECT of a join, and the condition of the user in it, if there is one."""
    kinds = get_args(JoinType)
    kind = str(how).lower()
    if kind not in kinds:
        raise PlanError.unknown(
            f"`{how}` is not a kind of join", name=str(how), candidates=kinds, listing="it is one of"
        )
    kind = "full" if kind == "outer" else kind
    shared = _shared_keys(on, left, right)
    pairs = dict(on) if isinstance(on, Mapping) else {name: name for name in shared}
    _check_types(pairs, left, right)
    clashes = [name for name in right.names if name in left.names and name not in shared]
    if clashes:
        raise PlanError(
            f"both streams have a column `{clashes[0]}`",
            hint=f"rename or drop it in one of them before the join: `.rename({clashes[0]}=…)`",
        )
    text = QueryText("SELECT ")
    is_using = bool(shared) and len(shared) == len(pairs) and within is None
    if within is None:
        columns = ["*" if is_using else "input.*, other.*"]
        if shared and not is_using:
            columns = _joined_columns(left, right, shared, kind)
        text.add(", ".join(columns)).add(f" FROM input {kind.upper()} JOIN other ")
    else:
        sides = [
            f"(SELECT *, row_time() AS {quote(f'{side} time')} FROM {side}) AS {side}"
            for side in ("input", "other")
        ]
        text.add(", ".join(_joined_columns(left, right, shared, kind)))
        text.add(f" FROM {sides[0]} {kind.upper()} JOIN {sides[1]} ")
    condition: str | None = None
    if is_using:
        return text.add(f"USING ({', '.join(map(quote, shared))})"), None
    text.add("ON ")
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
    """The columns of both sides with one name that a join is by; none if it is by a condition."""
    if isinstance(on, Column):
        return []
    if isinstance(on, Mapping):
        _check_sides(list(on.keys()), list(on.values()), left, right)
        return [name for name, other in on.items() if name == other]
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


def _check_types(pairs: Mapping[str, str], left: pa.Schema, right: pa.Schema) -> None:
    """Refuse keys whose values are never equal."""
    for own, its in pairs.items():
        kinds = left.field(own).type, right.field(its).type
        families = {_family(kind) for kind in kinds}
        if len(families) > 1 and None not in families:
            names = " and ".join(
                f"`{name}` is {type_name(kind)}" for name, kind in zip((own, its), kinds, strict=True)
            )
            raise PlanError(
                f"join: the values of these columns are never equal: {names}",
                hint=f"convert one of them before the join: `.with_columns({{'{own}': 'CAST(… AS …)'}})`",
            )


def _family(kind: pa.DataType) -> str | None:
    """Types of one family have values that can be equal; None where that is left to SQL."""
    is_a = pa.types
    if is_a.is_integer(kind) or is_a.is_floating(kind) or is_a.is_decimal(kind):
        return "number"
    if is_a.is_string(kind) or is_a.is_large_string(kind) or is_a.is_string_view(kind):
        return "text"
    if is_a.is_timestamp(kind) or is_a.is_date(kind):
        return "time"
    return "boolean" if is_a.is_boolean(kind) else None


def _joined_columns(left: pa.Schema, right: pa.Schema, shared: Sequence[str], how: str) -> list[str]:
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
    length = check_duration(value, option)
    if length <= timedelta(0):
        raise ConfigurationError(f"`{option}` must be greater than zero, got {value!r}")
    return length
