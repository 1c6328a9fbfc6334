"""The aggregates of a GROUP BY as SQL: complete, or in partial aggregates that can be merged."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.model.fragments import Function


@dataclass(frozen=True)
class Distinct:
    """`count(DISTINCT value) FILTER (WHERE where)` in parts."""

    part: str
    """The name of the part with this count; `merge` and `final` treat it like a count of rows."""
    value: str
    where: str | None = None


@dataclass(frozen=True)
class Aggregation:
    """The aggregates of one GROUP BY, over rows with the columns `schema`.

    `schema` has `_timestamp`, the key columns, the arguments of the aggregates, and, where the rows are an
    updating stream, `_retract`. Each string in the tuples is one item of a SELECT list with its alias.

    `complete` computes the results from all rows of a group (`median("a0") AS "r0"`). If every aggregate can
    be computed in parts, `partial` computes the parts from rows (`sum("a0") AS "p0"`, with signs where rows
    may be retracted), `merge` the parts of a group from parts (`sum("p0") AS "p0"`) and `final` the results
    from merged parts (`"p0" / "p1" AS "r0"`). Otherwise these three are empty. Parts that `distinct` counts
    are not in `partial`: distinct values can be counted only where all values of a group are.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    complete: tuple[str, ...]
    partial: tuple[str, ...] = ()
    merge: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    functions: tuple[Function, ...] = ()
    by: tuple[str, ...] = ()
    """The expressions of the keys, for plans and to detect changed queries."""
    distinct: tuple[Distinct, ...] = ()
    routed: tuple[str, ...] | None = None
    """The keys that rows are shuffled by, if not by all."""

    def describe(self) -> str:
        """The aggregates and their keys, for plans and state signatures."""
        return " ".join([", ".join(self.complete), *(["by", ", ".join(self.by)] if self.by else [])])

    @property
    def route(self) -> tuple[str, ...]:
        """The keys by which rows are shuffled and state is partitioned."""
        return self.keys if self.routed is None else self.routed

    @property
    def in_parts(self) -> bool:
        """Whether the results can be computed from parts."""
        return bool(self.final)
