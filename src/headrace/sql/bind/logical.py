"""Logical plans: a query as relations made of relations, before operators are chosen.

Columns of a relation have names that are unique in it; expressions over them are DataFusion SQL with every
name quoted. Event time (`_timestamp`) and retractions (`_retract`) ride along and are not among the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal

import pyarrow as pa

from headrace.base.windows import Cumulate, Hop, Session, Tumble
from headrace.functions.asynchronous import AsyncFunction
from headrace.functions.table import TableFunction
from headrace.model.builder import Port
from headrace.model.fragments import quote
from headrace.operators.as_of_join import AsOf
from headrace.sql.bind.catalog import CatalogTable

WindowKind = Tumble | Hop | Cumulate | Session
TimeBounds = tuple[int, int]
"""The least and the greatest difference of two event times, in nanoseconds."""
JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]
"""Of the left side, a semi join has the rows that match any, an anti join those that match none."""
WindowPart = Literal["window", "start", "end"]


ColumnPath = tuple[str, ...]
"""A column, or a field in it: `("place", "city")`."""
PRESENCE: Final = ""
"""At the end of a path: only whether there is a value."""

TIES: Final = "_timestamp:ties"
"""In the ORDER BY of a window function: stands for all other columns, so that no two rows are alike."""


@dataclass(frozen=True)
class Expression:
    """DataFusion SQL over the columns of a relation."""

    text: str
    columns: frozenset[str] = frozenset()
    fields: frozenset[ColumnPath] = frozenset()
    """All that it reads of columns of which it reads only fields."""

    @property
    def is_column(self) -> bool:
        """Whether it is a column as it is."""
        return len(self.columns) == 1 and self.text == quote(next(iter(self.columns)))

    @property
    def paths(self) -> set[ColumnPath]:
        """What it reads: columns, and fields in them."""
        return {*self.fields, *((name,) for name in self.columns - {path[0] for path in self.fields})}


@dataclass(frozen=True)
class Item:
    """A named expression."""

    name: str
    value: Expression


@dataclass(frozen=True)
class Windowing:
    """Rows belong to windows: which, and the columns that hold the window or one of its ends."""

    kind: WindowKind
    columns: Mapping[str, WindowPart] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Relation:
    """Rows with columns. `updating` rows may be taken back; `key` identifies a row that may."""

    columns: pa.Schema
    updating: bool = False
    windowing: Windowing | None = None
    key: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Scan(Relation):
    """The rows of a table with a connector."""

    table: CatalogTable = field(kw_only=True)
    read: pa.Schema = field(kw_only=True)
    """The columns that the connector gives."""
    generated: tuple[Item, ...] = field(default=(), kw_only=True)
    event_time: Expression | None = field(default=None, kw_only=True)
    watermark: Expression | None = field(default=None, kw_only=True)
    lateness: int | None = field(default=None, kw_only=True)
    """Where the watermark is event time less a fixed time: that time, in nanoseconds."""


@dataclass(frozen=True, eq=False)
class LateScan(Relation):
    """The late rows of a table."""

    table: CatalogTable = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class DeadLetters(Relation):
    """The records of a table that cannot be read as rows."""

    table: CatalogTable = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class StreamScan(Relation):
    """The rows of a stream that is in the plan already."""

    ports: tuple[Port, ...] = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Constants(Relation):
    """Rows that are known while planning."""

    rows: pa.Table = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Map(Relation):
    """Expressions over each row, of the rows that `where` lets through."""

    input: Relation = field(kw_only=True)
    items: tuple[Item, ...] = field(kw_only=True)
    where: Expression | None = field(default=None, kw_only=True)


@dataclass(frozen=True, eq=False)
class ClockFilter(Relation):
    """The rows for which the time of the epoch is neither before `first` nor at `until` or behind it."""

    input: Relation = field(kw_only=True)
    first: Expression | None = field(kw_only=True)
    until: Expression | None = field(kw_only=True)
    tick: timedelta = field(kw_only=True)
    """How often to look for rows that enter or leave while none come."""


@dataclass(frozen=True)
class AggregateCall:
    """One aggregate: `name` of its result, and the call in its pieces."""

    name: str
    function: str
    call: Expression
    """The whole call, such as `sum("x") FILTER (WHERE "y" > 1)`."""
    arguments: tuple[str, ...] = ()
    filter: str | None = None
    plain: bool = True
    """Whether it is `function(arguments) [FILTER …]` alone: no DISTINCT, ORDER BY, WITHIN GROUP."""
    distinct: str | None = None
    """The argument, if it is `function(DISTINCT argument) [FILTER …]` alone."""


@dataclass(frozen=True, eq=False)
class Aggregate(Relation):
    """Groups of rows: by keys, and by a window of event time if there is one."""

    input: Relation = field(kw_only=True)
    keys: tuple[Item, ...] = field(kw_only=True)
    calls: tuple[AggregateCall, ...] = field(kw_only=True)
    window: WindowKind | None = field(default=None, kw_only=True)
    window_column: str | None = field(default=None, kw_only=True)
    by_instant: bool = field(default=False, kw_only=True)
    """The rows come out of windows, and the window is one of the keys."""


@dataclass(frozen=True, eq=False)
class Join(Relation):
    """Pairs of rows; the columns of both sides have different names."""

    left: Relation = field(kw_only=True)
    right: Relation = field(kw_only=True)
    kind: JoinKind = field(kw_only=True)
    keys: tuple[tuple[Expression, Expression], ...] = field(kw_only=True)
    condition: Expression | None = field(default=None, kw_only=True)
    windowed: bool = field(default=False, kw_only=True)
    time_bounds: TimeBounds | None = field(default=None, kw_only=True)
    """How much later a left row can be than a right row that it is paired with."""


@dataclass(frozen=True, eq=False)
class AsOfRelation(Relation):
    """Rows with the version of their key that was valid at their event time."""

    left: Relation = field(kw_only=True)
    right: Relation = field(kw_only=True)
    kind: Literal["inner", "left"] = field(kw_only=True)
    keys: tuple[tuple[Expression, Expression], ...] = field(kw_only=True)
    match: AsOf = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class LookupJoinRelation(Relation):
    """Rows with what a lookup table has for their key."""

    left: Relation = field(kw_only=True)
    table: CatalogTable = field(kw_only=True)
    prefix: Mapping[str, str] = field(kw_only=True)
    """Column of the table → its name in this relation."""
    kind: JoinKind = field(kw_only=True)
    on: Expression = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class TableCall(Relation):
    """Rows with the rows that a function of the user gives for each."""

    left: Relation = field(kw_only=True)
    function: TableFunction = field(kw_only=True)
    arguments: tuple[Expression, ...] = field(kw_only=True)
    prefix: Mapping[str, str] = field(kw_only=True)
    """Column of the function → its name in this relation."""
    kind: JoinKind = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class AsyncCalls(Relation):
    """Rows with the results of calls of one asynchronous function of the user."""

    left: Relation = field(kw_only=True)
    function: AsyncFunction = field(kw_only=True)
    calls: Mapping[str, tuple[Expression, ...]] = field(kw_only=True)
    """The column of a result → the arguments of the call."""


@dataclass(frozen=True, eq=False)
class WindowCalls(Relation):
    """Rows with window functions (`… OVER (…)`) computed over partitions."""

    input: Relation = field(kw_only=True)
    calls: tuple[Item, ...] = field(kw_only=True)
    partition: tuple[Item, ...] = field(kw_only=True)
    """What all calls partition by, the window of event time left out."""
    by_instant: bool = field(kw_only=True)
    numbered: str | None = field(default=None, kw_only=True)
    """The order, if the only call is `row_number()`."""
    limit: Expression | None = field(default=None, kw_only=True)
    """Only rows that pass are kept: the filter of a Top-N."""
    rank: tuple[str, int] | None = field(default=None, kw_only=True)
    """(call, n): a row_number that is at most n, so that only n rows of a partition matter."""


@dataclass(frozen=True, eq=False)
class Ordered(Relation):
    """ORDER BY and LIMIT, in each window or over all rows."""

    input: Relation = field(kw_only=True)
    order: tuple[str, ...] = field(kw_only=True)
    limit: int | None = field(kw_only=True)
    offset: int = field(default=0, kw_only=True)
    with_ties: bool = field(default=False, kw_only=True)
    """Whether the rows that are equal to the last one in the order come too."""
    by_instant: bool = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Union(Relation):
    """The rows of several relations with the same columns."""

    inputs: Sequence[Relation] = field(kw_only=True)


def inputs_of(relation: Relation) -> Sequence[Relation]:
    """The inputs of a relation."""
    if isinstance(relation, Map | ClockFilter | Aggregate | WindowCalls | Ordered):
        return (relation.input,)
    if isinstance(relation, Join | AsOfRelation):
        return (relation.left, relation.right)
    if isinstance(relation, LookupJoinRelation | TableCall | AsyncCalls):
        return (relation.left,)
    if isinstance(relation, Union):
        return relation.inputs
    return ()
