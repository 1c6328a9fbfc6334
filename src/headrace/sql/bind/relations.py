"""What binding makes relations with: projections that know windows and keys, filters where they help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.windows import Session
from headrace.model.fragments import plain_type, quote
from headrace.sql.bind.catalog import Table
from headrace.sql.bind.logical import (
    AsyncCalls,
    Constants,
    Expression,
    Item,
    Join,
    LookupJoin,
    Map,
    Part,
    Relation,
    TableCall,
    WindowCalls,
    Windowing,
)
from headrace.sql.bind.scope import Entry
from headrace.sql.problems import FailedError


@dataclass(frozen=True)
class Bound:
    """A relation and the names that users call its columns by, in the same order."""

    relation: Relation
    names: tuple[str, ...]


class Named:
    """What a table name means: bound at the first use and remembered; what failed once fails silently."""

    def __init__(
        self,
        bind: Callable[[], Bound],
        *,
        kind: Literal["query", "source", "lookup"] = "query",
        on_cycle: Callable[[], None] = lambda: None,
    ) -> None:
        self.kind = kind
        self._bind = bind
        self._on_cycle = on_cycle
        self._state: Literal["new", "running", "failed"] | Bound = "new"

    def __call__(self) -> Bound:
        """What the name stands for; raises a FailedError if it stands for nothing."""
        if isinstance(self._state, Bound):
            return self._state
        if self._state == "running":
            self._on_cycle()
        if self._state != "new":
            raise FailedError
        self._state = "running"
        try:
            self._state = self._bind()
        except BaseException:
            self._state = "failed"
            raise
        return self._state


Names = Mapping[str, Named]


def column_item(name: str) -> Item:
    """A column as it is."""
    return Item(name, Expression(quote(name), frozenset([name])))


def plain_columns(schema: pa.Schema) -> pa.Schema:
    """Columns of plain types; what must not be null stays so."""
    return pa.schema([pa.field(f.name, plain_type(f.type), nullable=f.nullable) for f in schema])


def distinct_names(names: Sequence[str]) -> list[str]:
    """Names made different from each other."""
    seen: set[str] = set()
    made = []
    for name in names:
        candidate, number = name, 1
        while candidate in seen or candidate in (TIMESTAMP, RETRACT):
            candidate, number = f"{name}:{number}", number + 1
        seen.add(candidate)
        made.append(candidate)
    return made


def entry_of(alias: str, bound: Bound) -> Entry:
    """A bound relation as a table of a FROM clause."""
    return Entry(alias, bound.names, tuple(bound.relation.columns))


def stub_schema(bound: Bound) -> pa.Schema:
    """The relation's columns under the users' names, for DataFusion to plan with."""
    names = distinct_names(bound.names)
    return pa.schema(
        [pa.field(n, f.type, f.nullable) for n, f in zip(names, bound.relation.columns, strict=True)]
    )


def constants(rows: pa.Table) -> Bound:
    """Rows that are known while planning, as a relation."""
    fields = [
        pa.field(n, plain_type(f.type))
        for n, f in zip(distinct_names(rows.schema.names), rows.schema, strict=True)
    ]
    schema = pa.schema(fields)
    made = Constants(schema, rows=rows.rename_columns(schema.names).cast(schema))
    return Bound(made, tuple(rows.schema.names))


def make_map(
    relation: Relation, items: Sequence[Item], columns: pa.Schema, where: Expression | None = None
) -> Map:
    """A Map; windows and keys go along with the columns that hold them."""
    kept: dict[str, Part] = {}
    windowing = relation.windowing
    renamed: dict[str, str] = {}
    for item in items:
        for name in item.value.columns:
            if item.value.text == quote(name):
                renamed.setdefault(name, item.name)
        if windowing is not None:
            part = window_part(item.value, windowing)
            if part is not None:
                kept[item.name] = part
    key = tuple(renamed[name] for name in relation.key) if all(n in renamed for n in relation.key) else ()
    return Map(
        columns,
        updating=relation.updating,
        windowing=None if windowing is None else Windowing(windowing.kind, kept),
        key=key,
        input=relation,
        items=tuple(items),
        where=where,
    )


def where_map(relation: Relation, where: Expression) -> Relation:
    """The rows that pass a condition."""
    items = [column_item(f.name) for f in relation.columns]
    return make_map(relation, items, relation.columns, where)


def first_columns(bound: Bound, count: int) -> Bound:
    """The first columns alone."""
    columns = pa.schema(list(bound.relation.columns)[:count])
    items = [column_item(f.name) for f in columns]
    return Bound(make_map(bound.relation, items, columns), bound.names[:count])


def window_part(value: Expression, windowing: Windowing) -> Part | None:
    """Which part of the window an expression is, if it is one."""
    for name, part in windowing.columns.items():
        if value.text == quote(name):
            return part
        if part == "window" and not isinstance(windowing.kind, Session):
            if value.text == f"{quote(name)}['start']":
                return "start"
            if value.text == f"{quote(name)}['end']":
                return "end"
    return None


def push_filter(relation: Relation, where: Expression) -> Relation | None:
    """The relation with a condition below its joins, which then keep less; None if it must stay above."""
    if not isinstance(relation, Join | LookupJoin | TableCall | AsyncCalls):
        return None
    kind = "inner" if isinstance(relation, AsyncCalls) else relation.kind
    if kind in ("inner", "left") and _speaks_of(where, relation.left):
        return replace(relation, left=push_filter(relation.left, where) or where_map(relation.left, where))
    if (
        isinstance(relation, Join)
        and relation.kind in ("inner", "right")
        and _speaks_of(where, relation.right)
    ):
        return replace(relation, right=push_filter(relation.right, where) or where_map(relation.right, where))
    return None


def _speaks_of(where: Expression, relation: Relation) -> bool:
    return bool(where.columns) and where.columns <= set(relation.columns.names)


def limit_ranks(relation: Relation, conditions: Sequence[exp.Expr]) -> Relation:
    """Tell the window functions below a filter such as `rn <= 3` that only so many rows matter."""
    if (
        not isinstance(relation, Map)
        or not isinstance(relation.input, WindowCalls)
        or relation.where is not None
    ):
        return relation
    over = relation.input
    called = {quote(item.name): item for item in over.calls}
    for one in conditions:
        found = _at_most(one)
        if found is None:
            continue
        column, count = found
        source = next((item.value.text for item in relation.items if item.name == column), "")
        call = called.get(source)
        if call is None or not call.value.text.lower().startswith(("row_number()", "rank()", "dense_rank()")):
            continue
        limit = Expression(f"{source} <= {count}", frozenset([call.name]))
        rank = (call.name, count) if len(over.calls) == 1 else None
        return replace(relation, input=replace(over, limit=limit, rank=rank))
    return relation


def _at_most(node: exp.Expr) -> tuple[str, int] | None:
    """(column, n) of a condition that holds for no number above n."""
    left, right = node.args.get("this"), node.args.get("expression")
    kind: type[exp.Expr] = type(node)
    if isinstance(left, exp.Literal):
        left, right = right, left
        kind = exp.LT if kind is exp.GT else exp.LTE if kind is exp.GTE else kind
    if not isinstance(left, exp.Column) or not isinstance(right, exp.Literal) or not right.name.isdigit():
        return None
    count = int(right.name)
    if kind in (exp.LTE, exp.EQ):
        return left.name, count
    return (left.name, count - 1) if kind is exp.LT else None


@dataclass(frozen=True, eq=False)
class LookupTable(Relation):
    """A lookup table on the right of a join: it has no rows of its own to read."""

    table: Table = field(kw_only=True)


def lookup_of(relation: Relation) -> Table | None:
    """The lookup table that a relation in FROM is, if it is one."""
    source = relation.input if isinstance(relation, Map) else relation
    return source.table if isinstance(source, LookupTable) else None
