"""What an aggregate computes, as SQL: whole, or in parts that can be merged."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.model.fragments import Function


@dataclass(frozen=True)
class Distinct:
    """`count(DISTINCT value) FILTER (WHERE where)` in parts."""

    part: str
    """The part that is this count; `merge` and `final` have it as if it were the count of some rows."""
    value: str
    where: str | None = None


@dataclass(frozen=True)
class Aggregation:
    """The aggregates of one GROUP BY, over rows with the columns `schema`.

    `schema` holds `_timestamp`, the key columns, what the aggregates take, and, where the rows are an
    updating stream, `_retract`. Each text in the tuples is one item of a SELECT list with its alias.

    `whole` computes the results from all rows of a group (`median("a0") AS "r0"`). Where every aggregate can
    be computed in parts, `partial` computes the parts from rows (`sum("a0") AS "p0"`, with signs where rows
    may be retracted), `merge` the parts of a group from parts (`sum("p0") AS "p0"`) and `final` the results
    from merged parts (`"p0" / "p1" AS "r0"`). Otherwise these three are empty. Parts that `distinct` counts
    are not in `partial`: only who has all values of a group can count them.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    whole: tuple[str, ...]
    partial: tuple[str, ...] = ()
    merge: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    functions: tuple[Function, ...] = ()
    by: tuple[str, ...] = ()
    """What the keys are computed from, for people and to tell changed queries."""
    distinct: tuple[Distinct, ...] = ()
    routed: tuple[str, ...] | None = None
    """The keys that rows are shuffled by, if these are not all."""

    def describe(self) -> str:
        """What is computed, by what."""
        return " ".join([", ".join(self.whole), *(["by", ", ".join(self.by)] if self.by else [])])

    @property
    def route(self) -> tuple[str, ...]:
        """The keys that rows are shuffled by, and so those that state is kept by."""
        return self.keys if self.routed is None else self.routed

    @property
    def in_parts(self) -> bool:
        """Whether the results can be computed from parts."""
        return bool(self.final)
