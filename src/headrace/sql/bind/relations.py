"""Bound queries, and the steps that most relations are built with: projections, filters, DISTINCT, casts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.windows import Session
from headrace.model.fragments import plain_schema, plain_type, quote
from headrace.sql.bind.catalog import CatalogTable
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.logical import (
    Aggregate,
    Constants,
    Expression,
    Item,
    Map,
    Relation,
    Union,
    Windowing,
    WindowPart,
)
from headrace.sql.bind.meanings import Meanings
from headrace.sql.problems import ReportedError
from headrace.sql.types import sql_type


@dataclass(frozen=True)
class BoundQuery:
    """A relation and the names that users call its columns by, in the same order."""

    relation: Relation
    names: tuple[str, ...]
    meanings: Meanings = field(default_factory=dict)
    """What columns mean beyond their types."""


class LazyRelation:
    """What a table name means: bound at the first use and remembered; what failed once fails silently."""

    def __init__(
        self,
        bind: Callable[[], BoundQuery],
        *,
        kind: Literal["query", "source", "lookup"] = "query",
        on_cycle: Callable[[], None] = lambda: None,
    ) -> None:
        self.kind = kind
        self._bind = bind
        self._on_cycle = on_cycle
        self._state: Literal["new", "running", "failed"] | BoundQuery = "new"

    @property
    def is_used(self) -> bool:
        """Whether a query has read it."""
        return self._state != "new"

    def __call__(self) -> BoundQuery:
        """What the name stands for; raises a ReportedError if it stands for nothing."""
        if isinstance(self._state, BoundQuery):
            return self._state
        if self._state == "running":
            self._on_cycle()
        if self._state != "new":
            raise ReportedError
        self._state = "running"
        try:
            self._state = self._bind()
        except BaseException:
            self._state = "failed"
            raise
        return self._state


Namespace = Mapping[str, LazyRelation]


def rename_query(
    context: BindContext, bound: BoundQuery, columns: Sequence[str], node: exp.Expr | None
) -> BoundQuery:
    """The same relation with other names for its columns, as `AS t (a, b)` gives."""
    if len(columns) > len(bound.names):
        raise context.fail(f"{len(columns)} names for {len(bound.names)} columns", node)
    return BoundQuery(bound.relation, (*columns, *bound.names[len(columns) :]), bound.meanings)


def column_item(name: str) -> Item:
    """A column as it is."""
    return Item(name, Expression(quote(name), frozenset([name])))


def plain_columns(schema: pa.Schema) -> pa.Schema:
    """Columns of plain types; what must not be null stays so."""
    return pa.schema([pa.field(f.name, plain_type(f.type), nullable=f.nullable) for f in schema])


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, with a number behind those that are there twice or reserved."""
    unique: dict[str, None] = {}
    for name in names:
        candidate, number = name, 1
        while candidate in unique or candidate in (TIMESTAMP, RETRACT):
            candidate, number = f"{name}:{number}", number + 1
        unique[candidate] = None
    return list(unique)


def renamed(fields: Iterable[pa.Field], names: Iterable[str]) -> pa.Schema:
    """Columns under other names, without metadata."""
    return pa.schema([pa.field(n, f.type, f.nullable) for n, f in zip(names, fields, strict=True)])


def stub_schema(bound: BoundQuery) -> pa.Schema:
    """The relation's columns under the users' names, for DataFusion to plan with."""
    return renamed(bound.relation.columns, unique_names(bound.names))


def constants(rows: pa.Table) -> BoundQuery:
    """Rows that are known while planning, as a relation."""
    schema = plain_schema(renamed(rows.schema, unique_names(rows.schema.names)))
    relation = Constants(schema, rows=rows.rename_columns(schema.names).cast(schema))
    return BoundQuery(relation, tuple(rows.schema.names))


def make_map(
    relation: Relation, items: Sequence[Item], columns: pa.Schema, where: Expression | None = None
) -> Map:
    """A Map; windows and keys go along with the columns that hold them."""
    window_columns: dict[str, WindowPart] = {}
    windowing = relation.windowing
    new_names: dict[str, str] = {}
    for item in items:
        for name in item.value.columns:
            if item.value.text == quote(name):
                new_names.setdefault(name, item.name)
        if windowing is not None:
            part = window_part(item.value, windowing)
            if part is not None:
                window_columns[item.name] = part
    has_key = all(name in new_names for name in relation.key)
    key = tuple(new_names[name] for name in relation.key) if has_key else ()
    return Map(
        columns,
        updating=relation.updating,
        windowing=None if windowing is None else Windowing(windowing.kind, window_columns),
        key=key,
        input=relation,
        items=tuple(items),
        where=where,
    )


def where_map(relation: Relation, where: Expression) -> Relation:
    """The rows that pass a condition."""
    items = [column_item(f.name) for f in relation.columns]
    return make_map(relation, items, relation.columns, where)


def select_columns(relation: Relation, names: Sequence[str]) -> Relation:
    """These columns alone, in this order."""
    columns = pa.schema([relation.columns.field(name) for name in names])
    return make_map(relation, [column_item(name) for name in names], columns)


def first_columns(bound: BoundQuery, count: int) -> BoundQuery:
    """The first columns alone."""
    if count == len(bound.names):
        return bound
    names = bound.relation.columns.names[:count]
    return BoundQuery(select_columns(bound.relation, names), bound.names[:count], bound.meanings)


def cast_columns(relation: Relation, schema: pa.Schema) -> Relation:
    """The same rows with the names and types of `schema`."""
    items = [
        Item(target.name, _cast(column, target))
        for column, target in zip(relation.columns, schema, strict=True)
    ]
    return make_map(relation, items, schema)


def _cast(column: pa.Field, target: pa.Field) -> Expression:
    text = quote(column.name)
    if column.type != plain_type(target.type):
        text = f"CAST({text} AS {sql_type(target.type)})"
    return Expression(text, frozenset([column.name]))


def distinct_rows(relation: Relation) -> Relation:
    """Each different row once."""
    windowing = relation.windowing
    by_instant = windowing is not None and bool(windowing.columns)
    return Aggregate(
        relation.columns,
        updating=not by_instant,
        windowing=windowing if by_instant else None,
        key=() if by_instant else tuple(relation.columns.names),
        input=relation,
        keys=tuple(column_item(name) for name in relation.columns.names),
        calls=(),
        by_instant=by_instant,
    )


def union_rows(inputs: Sequence[Relation]) -> Union:
    """The rows of several relations with the same columns."""
    windowing = inputs[0].windowing
    updating = any(relation.updating for relation in inputs)
    is_windowed = not updating and all(relation.windowing == windowing for relation in inputs)
    return Union(
        inputs[0].columns, updating=updating, windowing=windowing if is_windowed else None, inputs=inputs
    )


def window_part(value: Expression, windowing: Windowing) -> WindowPart | None:
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


@dataclass(frozen=True, eq=False)
class LookupTable(Relation):
    """A lookup table on the right of a join: it has no rows of its own to read."""

    table: CatalogTable = field(kw_only=True)


def lookup_of(relation: Relation) -> CatalogTable | None:
    """The lookup table that a relation in FROM is, if it is one."""
    source = relation.input if isinstance(relation, Map) else relation
    return source.table if isinstance(source, LookupTable) else None
