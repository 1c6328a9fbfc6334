"""Binds statements to meaning: names to columns, queries to relations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.errors import ExpressionError, SqlError, near
from headrace.fragments import plain_type, quote
from headrace.operator import TIMESTAMP
from headrace.registry import registry
from headrace.spans import Source, Span
from headrace.sql.calls import (
    aggregate_call,
    call_name,
    find_aggregates,
    find_over,
    is_aggregate,
    is_window_call,
    replace_parts,
)
from headrace.sql.catalog import Table, option_model, watermark_of
from headrace.sql.dialect import to_sql
from headrace.sql.logical import (
    TIES,
    Aggregate,
    Constants,
    Expression,
    Item,
    Join,
    JoinKind,
    LookupJoin,
    Map,
    Ordered,
    Part,
    Relation,
    Scan,
    Union,
    WindowCalls,
    Windowing,
    WindowKind,
)
from headrace.sql.planning import WINDOW_TYPE, WINDOWS, Planner
from headrace.sql.problems import FailedError, Problems, span_of, sql_error
from headrace.sql.scope import (
    Entry,
    Scope,
    as_expression,
    column_of,
    conjuncts,
    identifier_name,
)
from headrace.sql.sql_types import type_name
from headrace.windows import Hop, Session, Tumble


@dataclass(frozen=True)
class Bound:
    """A relation and the names that users call its columns by, in the same order."""

    relation: Relation
    names: tuple[str, ...]


Names = Mapping[str, Callable[[], Bound]]
"""What table names mean: each is bound when it is first used."""


class Binder:
    """Binds the queries of one text."""

    def __init__(self, planner: Planner, source: Source, problems: Problems) -> None:
        self.planner = planner
        self.source = source
        self.problems = problems

    def span(self, node: exp.Expression) -> Span | None:
        return span_of(node, self.source)

    def fail(self, message: str, node: exp.Expression | None, hint: str | None = None) -> FailedError:
        """Remember an error; raise what this returns."""
        self.problems.add(sql_error(message, None if node is None else self.span(node), hint))
        return FailedError()

    # ------------------------------------------------------------------------------------- queries

    def query(self, query: exp.Expression, names: Names) -> Bound:
        """What a query means, where table names mean `names`."""
        names = self.with_names(query, names)
        if isinstance(query, exp.Subquery):
            return self.ordered(query, self.query(query.this, names))
        if isinstance(query, exp.Union):
            return self.ordered(query, self._union(query, names))
        if isinstance(query, exp.Select):
            return _Select(self, query, names).bind()
        if isinstance(query, exp.Values):
            return self.values(query)
        kind = type(query).__name__.upper()
        raise self.fail(f"{kind} is not possible on streams", query, "UNION ALL, joins and filters are")

    def with_names(self, query: exp.Expression, names: Names) -> Names:
        clause = query.args.get("with_")
        if clause is None:
            return names
        if clause.args.get("recursive"):
            raise self.fail("a recursive WITH has no end on a stream", clause, "leave RECURSIVE out")
        known = dict(names)
        for cte in clause.expressions:
            known[cte.alias.lower()] = self._named(cte, dict(known))
        return known

    def _named(self, cte: exp.Expression, names: Names) -> Callable[[], Bound]:
        columns = [identifier_name(c) for c in (cte.args["alias"].args.get("columns") or ())]
        return once(lambda: self.renamed(self.query(cte.this, names), columns, cte))

    def renamed(self, bound: Bound, columns: Sequence[str], node: exp.Expression | None) -> Bound:
        """The same relation under other names, as `AS t (a, b)` gives."""
        if not columns:
            return bound
        if len(columns) > len(bound.names):
            raise self.fail(f"{len(columns)} names for {len(bound.names)} columns", node)
        return Bound(bound.relation, (*columns, *bound.names[len(columns) :]))

    def _union(self, query: exp.Union, names: Names) -> Bound:
        sides = [self.query(query.this, names), self.query(query.expression, names)]
        counts = [len(side.names) for side in sides]
        if counts[0] != counts[1]:
            raise self.fail(
                f"UNION of {counts[0]} and {counts[1]} columns",
                query.expression,
                "both sides need the same number",
            )
        tables = {f"s{i}": _stub(side) for i, side in enumerate(sides)}
        try:
            made = self.planner.schema("SELECT * FROM s0 UNION ALL SELECT * FROM s1", tables)
        except ExpressionError as error:
            raise self.fail(error.message, query.expression, error.hint) from error
        fields = [
            pa.field(name, f.type, f.nullable)
            for name, f in zip(_distinct(sides[0].names), made, strict=True)
        ]
        schema = pa.schema(fields)
        parts = [self.cast(side, schema) for side in sides]
        windows = [part.windowing for part in parts]
        same = windows[0] is not None and windows[1] is not None and windows[0] == windows[1]
        updating = any(part.updating for part in parts)
        union: Relation = Union(
            schema, updating=updating, windowing=windows[0] if same and not updating else None, inputs=parts
        )
        if query.args.get("distinct"):
            union = self.distinct(union)
        return Bound(union, sides[0].names)

    def cast(self, bound: Bound, schema: pa.Schema) -> Relation:
        """The same rows with the names and types of `schema`."""
        items = [
            Item(
                target.name,
                Expression(
                    quote(column.name)
                    if column.type == plain_type(target.type)
                    else f"CAST({quote(column.name)} AS {sql_type(target.type)})",
                    frozenset([column.name]),
                ),
            )
            for column, target in zip(bound.relation.columns, schema, strict=True)
        ]
        return make_map(bound.relation, items, schema)

    def check_cast(self, column: pa.Field, target: pa.Field, span: Span) -> None:
        """Refuse a column that cannot become the type it is written as."""
        if column.type == target.type:
            return
        text = f"CAST({quote(column.name)} AS {sql_type(target.type)})"
        try:
            self.planner.types([text], pa.schema([column]))
        except ExpressionError as error:
            raise sql_error(
                f"`{column.name}` is {type_name(column.type)} and cannot be written as {type_name(target.type)}",
                span,
                error.hint,
            ) from error

    def completed(self, relation: Relation, columns: pa.Schema) -> Relation:
        """The relation with every one of `columns`: those it does not have are null."""
        items = []
        for column in columns:
            if column.name in relation.columns.names:
                items.append(Item(column.name, Expression(quote(column.name), frozenset([column.name]))))
            else:
                items.append(Item(column.name, Expression(f"CAST(NULL AS {sql_type(column.type)})")))
        return make_map(relation, items, _plain_columns(columns))

    def distinct(self, relation: Relation) -> Relation:
        """Each different row once."""
        keys = tuple(Item(f.name, Expression(quote(f.name), frozenset([f.name]))) for f in relation.columns)
        windowing = relation.windowing
        by_instant = windowing is not None and bool(windowing.columns)
        return Aggregate(
            relation.columns,
            updating=not by_instant,
            windowing=windowing if by_instant else None,
            key=() if by_instant else tuple(relation.columns.names),
            input=relation,
            keys=keys,
            calls=(),
            by_instant=by_instant,
        )

    def values(self, query: exp.Expression) -> Bound:
        try:
            bare = query.copy()
            bare.set("alias", None)
            rows = self.planner.rows(to_sql(bare))
        except ExpressionError as error:
            raise self.fail(error.message, query, error.hint) from error
        return _constants(rows)

    # ------------------------------------------------------------------------------ ORDER BY, LIMIT

    def ordered(self, query: exp.Expression, bound: Bound) -> Bound:
        """What ORDER BY, LIMIT and OFFSET leave of a query's rows."""
        order, limit, offset = (query.args.get(name) for name in ("order", "limit", "offset"))
        if order is None and limit is None and offset is None:
            return bound
        count = self._number(limit)
        skip = self._number(offset) or 0
        relation = bound.relation
        by_instant = relation.windowing is not None
        if order is None:
            if not by_instant:
                raise self.fail(
                    "LIMIT without ORDER BY would end the stream after some rows",
                    limit or offset,
                    "add ORDER BY for the first rows of an order, or run with --max-epochs",
                )
            texts: list[str] = []
        else:
            texts = [self._order_item(one, bound) for one in order.expressions]
        if count is None and not by_instant:
            raise self.fail(
                "ORDER BY without LIMIT never knows its first row on a stream",
                order,
                "add LIMIT n, or order within a window",
            )
        if relation.updating and by_instant:
            raise AssertionError
        made = Ordered(
            relation.columns,
            updating=not by_instant,
            windowing=relation.windowing,
            key=relation.key,
            input=relation,
            order=tuple(texts),
            limit=count,
            offset=skip,
            by_instant=by_instant,
        )
        return Bound(made, bound.names)

    def _number(self, node: exp.Expression | None) -> int | None:
        if node is None:
            return None
        value = node.args.get("count") if isinstance(node, exp.Fetch) else node.expression
        if not isinstance(value, exp.Literal) or value.is_string or not value.name.isdigit():
            raise self.fail("a LIMIT is a whole number", value, "such as LIMIT 10")
        return int(value.name)

    def _order_item(self, node: exp.Expression, bound: Bound) -> str:
        made = node.copy()
        target = made.this
        if isinstance(target, exp.Literal) and not target.is_string:
            index = int(target.name) - 1
            if not 0 <= index < len(bound.names):
                raise self.fail(f"there is no column {target.name} in the result", node)
            made.set("this", column_of(bound.relation.columns.names[index]))
            return to_sql(made)
        scope = self.scope([entry_of("", bound)])
        made.set("this", scope.physical(target))
        return to_sql(made)

    def scope(self, entries: list[Entry]) -> Scope:
        """A scope of some tables."""
        return Scope(self.planner, self.source, self.problems, entries)

    # -------------------------------------------------------------------------------------- tables

    def scan(self, table: Table) -> Bound:
        """The rows of a table with a connector."""
        try:
            option_model(table, "source")
            columns, read = self._columns(table)
            return self._scan(table, columns, read)
        except SqlError as error:
            self.problems.add(error)
            raise FailedError from error

    def lookup_table(self, table: Table) -> Bound:
        """A lookup table, for the right side of a join."""
        definition = table.definition
        try:
            option_model(table, "lookup")
            if table.columns is None:
                raise sql_error(
                    f"lookup table `{table.name}` has no columns", table.span(), "write them: (name TYPE, …)"
                )
            if len(definition.primary_key) != 1:
                hint = "declare the column that rows are found by, such as `id TEXT PRIMARY KEY`"
                raise sql_error(
                    f"lookup table `{table.name}` needs a primary key of one column", table.span(), hint
                )
            for column in definition.columns:
                if column.generated is not None:
                    hint = "compute it in the query that joins the table"
                    raise sql_error("a lookup table cannot have generated columns", column.span, hint)
            if definition.watermark is not None:
                raise sql_error("a lookup table has no event time", definition.watermark.span)
        except SqlError as error:
            self.problems.add(error)
            raise FailedError from error
        return Bound(LookupTable(_plain_columns(table.columns), table=table), tuple(table.columns.names))

    def _columns(self, table: Table) -> tuple[pa.Schema, pa.Schema]:
        if table.columns is not None:
            return table.columns, pa.schema([column.field for column in table.physical])
        schema = getattr(registry.constructor("source", table.connector), "table_schema", None)
        if schema is None:
            raise sql_error(
                f"table `{table.name}` has no columns", table.span(), "write them: (name TYPE, …)"
            )
        return schema, schema

    def _scan(self, table: Table, columns: pa.Schema, read: pa.Schema) -> Bound:
        before = Entry(table.name, tuple(read.names), tuple(read))
        after = Entry(table.name, tuple(columns.names), tuple(columns))
        generated = []
        scope = self.scope([before])
        for column in table.definition.columns:
            if column.generated is None:
                continue
            value = scope.expression(column.generated)
            found = self._type_of(value, scope, column.generated)
            if found.type != plain_type(column.field.type):
                value = Expression(f"CAST({value.text} AS {sql_type(column.field.type)})", value.columns)
                self._type_of(value, scope, column.generated)
            generated.append(Item(column.name, value))
        event_time, watermark = watermark_of(table)
        scope = self.scope([after])
        mark: Expression | None = None
        if event_time is not None:
            kind = columns.field(event_time).type
            if not pa.types.is_timestamp(kind):
                raise sql_error(
                    f"event time `{event_time}` is {type_name(kind)}, not TIMESTAMP",
                    table.definition.watermark.span
                    if table.definition.watermark
                    else table.span("event_time_field"),
                    "declare it as TIMESTAMP, or compute one with GENERATED ALWAYS AS (…)",
                )
        if watermark is not None:
            mark = scope.expression(watermark)
            found = self._type_of(mark, scope, watermark)
            if not pa.types.is_timestamp(found.type):
                raise sql_error(
                    f"the watermark is {type_name(found.type)}, not TIMESTAMP",
                    table.definition.watermark.span
                    if table.definition.watermark
                    else table.span("watermark_field"),
                    "it is an expression such as `ts - INTERVAL '5 seconds'`",
                )
        debezium = table.is_debezium
        relation = Scan(
            _plain_columns(columns),
            updating=debezium,
            key=table.definition.primary_key if debezium else (),
            table=table,
            read=read,
            generated=tuple(generated),
            event_time=None
            if event_time is None
            else Expression(f"CAST({quote(event_time)} AS TIMESTAMP(9))", frozenset([event_time])),
            watermark=mark,
        )
        return Bound(relation, tuple(columns.names))

    def _type_of(self, value: Expression, scope: Scope, node: exp.Expression) -> pa.Field:
        try:
            return self.planner.types([value.text], scope.schema)[0]
        except ExpressionError as error:
            raise sql_error(error.message, self.span(node), error.hint) from error


def once(bind: Callable[[], Bound], on_cycle: Callable[[], None] = lambda: None) -> Callable[[], Bound]:
    """Bind at the first use and remember; what failed once fails silently afterwards."""
    results: list[Bound] = []
    state = "new"

    def get() -> Bound:
        nonlocal state
        if state == "running":
            on_cycle()
        if state in ("running", "failed"):
            raise FailedError
        if state == "new":
            state = "running"
            try:
                results.append(bind())
            except BaseException:
                state = "failed"
                raise
            state = "bound"
        return results[0]

    return get


def sql_type(kind: pa.DataType) -> str:
    """A type as DataFusion reads it in a CAST."""
    if pa.types.is_time(kind):
        return "TIME"
    return type_name(kind)


def _plain_columns(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, plain_type(f.type), nullable=f.nullable) for f in schema])


def _distinct(names: Sequence[str]) -> list[str]:
    """Names made different from each other."""
    seen: set[str] = set()
    made = []
    for name in names:
        candidate, number = name, 1
        while candidate in seen or candidate in (TIMESTAMP, "_retract"):
            candidate, number = f"{name}:{number}", number + 1
        seen.add(candidate)
        made.append(candidate)
    return made


def entry_of(alias: str, bound: Bound) -> Entry:
    """A bound relation as a table of a FROM clause."""
    return Entry(alias, bound.names, tuple(bound.relation.columns))


def _stub(bound: Bound) -> pa.Schema:
    """The relation's columns under the users' names, for DataFusion to plan with."""
    names = _distinct(bound.names)
    return pa.schema(
        [pa.field(n, f.type, f.nullable) for n, f in zip(names, bound.relation.columns, strict=True)]
    )


def _constants(rows: pa.Table) -> Bound:
    fields = [
        pa.field(n, plain_type(f.type))
        for n, f in zip(_distinct(rows.schema.names), rows.schema, strict=True)
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


class _Select:
    """Binds one SELECT: FROM, WHERE, GROUP BY, HAVING, OVER, the list, DISTINCT, ORDER BY."""

    def __init__(self, binder: Binder, select: exp.Select, names: Names) -> None:
        self.binder = binder
        self.planner = binder.planner
        self.select = select
        self.names = names
        self.scope = binder.scope([])
        self.stubs: dict[str, pa.Schema] = {}
        self.stub_from: list[str] = []
        self.unnamed: set[str] = set()
        self.where = list(conjuncts(_this(select.args.get("where"))))

    def bind(self) -> Bound:
        select, binder = self.select, self.binder
        for clause, value in select.args.items():
            if value and clause not in _CLAUSES:
                raise binder.fail(f"{_OTHER_CLAUSES.get(clause, clause.upper())} is not supported", select)
        if select.args.get("from_") is None:
            return self._without_from()
        self._refuse_subqueries()
        self._inline_windows()
        relation = self._from()
        items = self._items()
        group = self._group(items)
        shown = len(items)
        items += self._order_items(items)
        having = _this(select.args.get("having"))
        if having is not None:
            having = self._dealias(having, items)
        aggregated = bool(group) or any(
            True
            for node in [*(item.node for item in items), *([having] if having is not None else [])]
            for _ in find_aggregates(node, self.planner.aggregates)
        )
        if having is not None and not aggregated:
            raise binder.fail("HAVING without GROUP BY or an aggregate", having, "use WHERE")
        self._refuse_in_where()
        for node in group:
            if is_window_call(node):
                self._window(node, node)  # for its errors
        planned = self._plan(items, group, having)
        relation = self._filtered(relation)
        nodes = [item.physical(self.scope) for item in items]
        if aggregated:
            relation, nodes = self._aggregate(relation, nodes, group, having)
        for node in nodes:
            for part in node.find_all(exp.Anonymous):
                if is_window_call(part):
                    raise binder.fail(
                        f"{call_name(part)}(…) stands in GROUP BY", part, f"add `GROUP BY {to_sql(part)}`"
                    )
        relation, nodes = self._over(relation, nodes)
        distinct = select.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is not None:
            relation = self._distinct_on(relation, distinct, items, aggregated=aggregated)
        fields = [field for field, _ in planned]
        names = [name for _, name in planned]
        inner = _distinct(names)
        schema = pa.schema([pa.field(n, f.type, f.nullable) for n, f in zip(inner, fields, strict=True)])
        made: Relation = make_map(
            relation,
            [Item(name, as_expression(node)) for name, node in zip(inner, nodes, strict=True)],
            schema,
        )
        if distinct is not None and distinct.args.get("on") is None:
            made = binder.distinct(made)
            made = replace(made, columns=schema)
        bound = binder.ordered(select, Bound(made, tuple(names)))
        return bound if shown == len(items) else first_columns(bound, shown)

    def _without_from(self) -> Bound:
        sql = to_sql(self.select)
        try:
            return _constants(self.planner.rows(sql))
        except ExpressionError as error:
            raise self.binder.fail(error.message, self.select, error.hint) from error

    def _refuse_subqueries(self) -> None:
        for clause in ("where", "expressions", "having", "group"):
            value = self.select.args.get(clause)
            for node in value if isinstance(value, list) else [value]:
                found = None if node is None else node.find(exp.Query)
                if found is not None:
                    raise self.binder.fail(
                        "a subquery can stand in FROM only",
                        found,
                        "join it, or write it as a view or in WITH",
                    )

    # ---------------------------------------------------------------------------------------- FROM

    def _from(self) -> Relation:
        first = self.select.args["from_"].this
        joins = self.select.args.get("joins") or []
        many = bool(joins)
        relation = self._table(first, prefix=many, sql="{}")
        if (lookup := lookup_of(relation)) is not None:
            key = ", ".join(lookup.definition.primary_key)
            raise self.binder.fail(
                f"lookup table `{lookup.name}` can only be joined, on the right",
                first,
                f"write FROM … JOIN {lookup.name} ON … = {lookup.name}.{key}",
            )
        for join in joins:
            relation = self._join(relation, join)
        return relation

    def _table(self, node: exp.Expression, *, prefix: bool, sql: str) -> Relation:
        """Add a table to the scope and return its relation, with names of its own if there are several."""
        bound, alias, named = self._bound(node)
        if any(entry.alias == alias for entry in self.scope.entries):
            raise self.binder.fail(
                f"two tables are called `{alias}` here", node, "give one another name with AS"
            )
        stub = f"s{len(self.stubs)}"
        self.stubs[stub] = _stub(bound)
        # A subquery without a name gives its columns none either.
        columns = ""
        if not named:
            self.unnamed.add(alias)
            names = self.stubs[stub].names
            self.stubs[stub] = pa.schema([f.with_name(f"c{i}") for i, f in enumerate(self.stubs[stub])])
            columns = ", ".join(f"c{i} AS {quote(name)}" for i, name in enumerate(names))
        self.stub_from.append(
            sql.format(f"{stub} AS {quote(alias)}" if named else f"(SELECT {columns} FROM {stub})")
        )
        relation = bound.relation
        if prefix:
            relation = self._prefixed(relation, alias)
        self.scope.entries.append(Entry(alias, bound.names, tuple(relation.columns)))
        return relation

    def _prefixed(self, relation: Relation, alias: str) -> Relation:
        taken = {c.name for entry in self.scope.entries for c in entry.columns}
        items, fields = [], []
        for column in relation.columns:
            name = f"{alias}.{column.name}"
            while name in taken:
                name += "'"
            items.append(Item(name, Expression(quote(column.name), frozenset([column.name]))))
            fields.append(column.with_name(name))
        return make_map(relation, items, pa.schema(fields))

    def _bound(self, node: exp.Expression) -> tuple[Bound, str, bool]:
        """What stands in FROM, the name it goes by, and whether that is a name that users know."""
        binder = self.binder
        alias = node.args.get("alias")
        given = identifier_name(alias.this) if alias is not None and alias.this else None
        columns = [] if alias is None else [identifier_name(c) for c in alias.args.get("columns") or ()]
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            name = node.name.lower()
            if node.args.get("db"):
                raise binder.fail("tables have no schema before their name", node, f"write `{name}`")
            if any(value for key, value in node.args.items() if key not in ("this", "alias")):
                shown = to_sql(node)[:40]
                raise binder.fail(f"`{shown}` cannot stand in FROM", node, f"write `{name}` alone")
            if name not in self.names:
                known = list(self.names)
                listed = f"the tables are {', '.join(known)}" if known else "define it with CREATE TABLE"
                raise binder.fail(f"there is no table `{node.name}`", node, near(name, known) or listed)
            lookup = getattr(self.names[name], "lookup", None)
            bound = self.names[name]() if lookup is None else binder.lookup_table(lookup)
            return (
                binder.renamed(bound, columns, node),
                given or identifier_name(node.this),
                True,
            )
        hidden = f"_{len(self.stubs)}"
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query):
            bound = binder.query(node.this, binder.with_names(node, self.names))
        elif isinstance(node, exp.Subquery):
            return self._bound(node.this)
        elif isinstance(node, exp.Values):
            bound = binder.values(node)
        else:
            shown = to_sql(node)[:40]
            raise binder.fail(f"`{shown}` cannot stand in FROM", node, "a table, a view or a subquery can")
        return binder.renamed(bound, columns, node), given or hidden, given is not None

    def _join(self, left: Relation, join: exp.Join) -> Relation:
        binder = self.binder
        side, kind_name = (join.args.get("side") or "").upper(), (join.args.get("kind") or "").upper()
        if join.args.get("method"):
            raise binder.fail(f"{join.args['method']} JOIN is not supported", join, "write JOIN … ON …")
        if kind_name in ("SEMI", "ANTI"):
            raise binder.fail(f"{kind_name} JOIN is not supported", join, "use a LEFT JOIN and a filter")
        kind: JoinKind = {"LEFT": "left", "RIGHT": "right", "FULL": "full"}.get(side, "inner")  # type: ignore[assignment]
        if isinstance(join.this, exp.Unnest):
            return self._unnest(left, join)
        on, using = join.args.get("on"), join.args.get("using")
        # Where a pair is meant, the WHERE of a comma join is its condition.
        keyword = f"{side} JOIN" if side else "JOIN"
        before = len(self.scope.entries)
        right = self._table(join.this, prefix=True, sql=f"{keyword} {{}} ON TRUE")
        alias = self.scope.entries[-1].alias
        conditions = [self.scope.physical(one) for one in conjuncts(on)]
        if using:
            conditions += self._using(using, before)
        if on is None and not using:
            conditions += self._claim_where(left, right)
        clause = f"ON {self._stub_text(on)}" if on is not None else "ON TRUE"
        if using:
            clause = f"USING ({', '.join(quote(identifier_name(one)) for one in using)})"
        self.stub_from[-1] = self.stub_from[-1].removesuffix("ON TRUE") + clause
        if lookup_of(right) is not None:
            return self._looked_up(left, right, kind, conditions, join)
        made = self._joined(left, right, kind, conditions, join, alias)
        return self._merged(made, [identifier_name(one) for one in using], before) if using else made

    def _merged(self, join: Join, names: Sequence[str], before: int) -> Relation:
        """What names of USING stand for: of a right join the right side, of a full join the side that is there."""
        later = self.scope.entries[-1]
        items = [Item(f.name, Expression(quote(f.name), frozenset([f.name]))) for f in join.columns]
        fields = list(join.columns)
        windows: dict[str, Part] = {}
        for name in names if join.kind in ("right", "full") else ():
            owner = next(e for e in self.scope.entries[:before] if name in e.names and name not in e.merged)
            sides = (owner.column(name), later.column(name))
            column = sides[1]
            if join.kind == "full":
                text = f"coalesce({quote(sides[0].name)}, {quote(sides[1].name)})"
                column = self.planner.types([text], self.scope.schema)[0].with_name(f"{later.alias}:{name}")
                items.append(Item(column.name, Expression(text, frozenset(side.name for side in sides))))
                fields.append(column)
                if join.windowed and (part := _part_of(join, sides)) is not None:
                    windows[column.name] = part
            place = self.scope.entries.index(owner)
            self.scope.entries[place] = replace(owner, stands={**owner.stands, name: column})
        if join.kind != "full":
            return join
        made = make_map(join, items, pa.schema(fields))
        if made.windowing is None:
            return made
        return replace(made, windowing=Windowing(made.windowing.kind, {**made.windowing.columns, **windows}))

    def _using(self, using: Sequence[exp.Expression], before: int) -> list[exp.Expression]:
        made = []
        entry = self.scope.entries[-1]
        names = [identifier_name(one) for one in using]
        for name, node in zip(names, using, strict=True):
            earlier = Scope(self.planner, self.scope.source, self.scope.problems, self.scope.entries[:before])
            later = Scope(self.planner, self.scope.source, self.scope.problems, [entry])
            column = exp.Column(this=node.copy())
            made.append(exp.EQ(this=earlier.physical(column), expression=later.physical(column)))
            del name
        self.scope.entries[-1] = replace(entry, merged=entry.merged | frozenset(names))
        return made

    def _claim_where(self, left: Relation, right: Relation) -> list[exp.Expression]:
        """Equalities of WHERE between the two sides of a comma join."""
        taken, rest = [], []
        for one in self.where:
            try:
                quiet = Scope(self.planner, self.scope.source, Problems(), self.scope.entries)
                made = quiet.physical(one)
            except FailedError:
                rest.append(one)
                continue
            if isinstance(made, exp.EQ) and _sides(made, left, right) is not None:
                taken.append(made)
            else:
                rest.append(one)
        self.where = rest
        return taken

    def _joined(
        self,
        left: Relation,
        right: Relation,
        kind: JoinKind,
        conditions: list[exp.Expression],
        node: exp.Join,
        alias: str,
    ) -> Join:
        binder = self.binder
        windows = (left.windowing, right.windowing)
        windowed = (
            windows[0] is not None
            and windows[1] is not None
            and windows[0].kind == windows[1].kind
            and not isinstance(windows[0].kind, Session)
        )
        keys, rest = [], []
        for one in conditions:
            pair = _sides(one, left, right) if isinstance(one, exp.EQ) else None
            if pair is None:
                rest.append(one)
                continue
            values = (as_expression(pair[0]), as_expression(pair[1]))
            parts = [None if w is None else window_part(v, w) for v, w in zip(values, windows, strict=True)]
            if windowed and parts[0] is not None and parts[0] == parts[1]:
                continue  # implied: rows of one window meet
            keys.append(self._common(values, left, right, one))
        condition = None
        # What speaks of one side alone filters that side, unless its rows are kept in any case.
        for one in list(rest):
            value = as_expression(one)
            if kind in ("inner", "right") and value.columns and value.columns <= set(left.columns.names):
                left = push_filter(left, value) or where_map(left, value)
            elif kind in ("inner", "left") and value.columns and value.columns <= set(right.columns.names):
                right = push_filter(right, value) or where_map(right, value)
            else:
                continue
            rest.remove(one)
        if rest:
            both = rest[0] if len(rest) == 1 else exp.and_(*rest, copy=False)
            condition = as_expression(both)
        updating = left.updating or right.updating
        if not windowed and not keys:
            raise binder.fail(
                f"the join with `{alias}` compares nothing for equality",
                node,
                "a join without windows needs at least one `a.x = b.y`; without it every pair would be a result",
            )
        fields = [
            *(pa.field(f.name, f.type, f.nullable or kind in ("right", "full")) for f in left.columns),
            *(pa.field(f.name, f.type, f.nullable or kind in ("left", "full")) for f in right.columns),
        ]
        columns: dict[str, Part] = {}
        if windowed and windows[0] is not None and windows[1] is not None:
            if kind in ("inner", "left"):
                columns.update(windows[0].columns)
            if kind in ("inner", "right"):
                columns.update(windows[1].columns)
        made = Join(
            pa.schema(fields),
            updating=updating or (not windowed and kind != "inner"),
            windowing=Windowing(windows[0].kind, columns) if windowed and windows[0] is not None else None,
            left=left,
            right=right,
            kind=kind,
            keys=tuple(keys),
            condition=condition,
            windowed=windowed and not updating,
        )
        self._see(made)
        return made

    def _see(self, joined: Relation) -> None:
        """Columns of an outer join may be null where their table's are not."""
        self.scope.entries = [
            replace(
                entry,
                columns=tuple(joined.columns.field(c.name) for c in entry.columns),
                stands={name: joined.columns.field(c.name) for name, c in entry.stands.items()},
            )
            for entry in self.scope.entries
        ]

    def _common(
        self, values: tuple[Expression, Expression], left: Relation, right: Relation, node: exp.Expression
    ) -> tuple[Expression, Expression]:
        """Both sides of an equality as one type, so that equal values meet."""
        schema = pa.schema([*left.columns, *right.columns, pa.field(TIMESTAMP, pa.timestamp("ns"))])
        texts = [values[0].text, values[1].text, f"coalesce({values[0].text}, {values[1].text})"]
        known = [type_name(one.type) for one in self.planner.types(texts[:2], schema)]
        try:
            types = [one.type for one in self.planner.types(texts, schema)]
        except ExpressionError as error:
            message = f"{known[0]} cannot be compared with {known[1]}"
            raise self.binder.fail(message, node, "write CAST(… AS …) around one of them") from error
        made = [
            value
            if kind == types[2]
            else Expression(f"CAST({value.text} AS {sql_type(types[2])})", value.columns)
            for value, kind in zip(values, types, strict=False)
        ]
        return made[0], made[1]

    def _unnest(self, left: Relation, join: exp.Join) -> Relation:
        """`CROSS JOIN UNNEST(list) AS u (x)`: a row for each element."""
        binder = self.binder
        node = join.this
        if (join.args.get("side") or "").upper() or len(node.expressions) != 1:
            raise binder.fail("only CROSS JOIN UNNEST(list) is supported", node)
        alias = node.args.get("alias")
        table = identifier_name(alias.this) if alias is not None and alias.this else "unnest"
        names = [identifier_name(c) for c in (alias.args.get("columns") if alias is not None else None) or ()]
        value = self.scope.expression(node.expressions[0])
        name = names[0] if names else table
        inner = f"{table}.{name}"
        text = Expression(f"unnest({value.text})", value.columns)
        try:
            kind = self.planner.types([text.text], self.scope.schema)[0]
        except ExpressionError as error:
            raise binder.fail(error.message, node, error.hint) from error
        items = [Item(f.name, Expression(quote(f.name), frozenset([f.name]))) for f in left.columns]
        columns = pa.schema([*left.columns, pa.field(inner, kind.type)])
        made = make_map(left, [*items, Item(inner, text)], columns)
        self.scope.entries.append(Entry(table, (name,), (columns.field(inner),)))
        stub = f"s{len(self.stubs)}"
        self.stubs[stub] = pa.schema([pa.field(name, kind.type)])
        self.stub_from.append(f"CROSS JOIN {stub} AS {quote(table)}")
        return made

    # -------------------------------------------------------------------------------------- lookup

    def _looked_up(
        self,
        left: Relation,
        right: Relation,
        kind: JoinKind,
        conditions: list[exp.Expression],
        node: exp.Join,
    ) -> Relation:
        """A join whose right side is a lookup table."""
        binder = self.binder
        table = lookup_of(right)
        if table is None or table.columns is None:
            raise AssertionError
        if kind not in ("inner", "left"):
            raise binder.fail(
                f"a lookup table cannot be in a {kind.upper()} JOIN", node, "JOIN and LEFT JOIN are possible"
            )
        if left.updating:
            raise binder.fail(
                f"rows that may change cannot be joined with lookup table `{table.name}`",
                node,
                "what was found when they came may not be found when they go; join it before the aggregate",
            )
        prefix = dict(zip(table.columns.names, right.columns.names, strict=True))
        key = right.columns.field(prefix[table.definition.primary_key[0]])
        values = [_compared_with(one, key.name, right) for one in conditions]
        if len(values) != 1 or values[0] is None:
            raise binder.fail(
                f"the join with lookup table `{table.name}` must compare its key, and nothing else",
                node,
                f"write ON … = {key.name}; other conditions go to WHERE",
            )
        fields = [pa.field(f.name, f.type, f.nullable or kind == "left") for f in right.columns]
        made = LookupJoin(
            pa.schema([*left.columns, *fields]),
            windowing=left.windowing,
            left=left,
            table=table,
            prefix=prefix,
            kind=kind,
            on=self._as_key(values[0], key, left, node),
        )
        self._see(made)
        return made

    def _as_key(self, value: Expression, key: pa.Field, left: Relation, node: exp.Expression) -> Expression:
        """A value in the type of a key; what the key cannot hold equals none, and is null."""
        schema = pa.schema([*left.columns, pa.field(TIMESTAMP, pa.timestamp("ns")), key])
        texts = [value.text, f"coalesce({value.text}, {quote(key.name)})"]
        try:
            given, common = (one.type for one in self.planner.types(texts, schema))
        except ExpressionError as error:
            raise self.binder.fail(error.message, node, error.hint) from error
        if given == key.type:
            return value
        wanted = sql_type(key.type)
        # A whole number has one text, and fits another width or equals no key.
        fits = pa.types.is_integer(given) and (pa.types.is_integer(key.type) or key.type == pa.string())
        if common != key.type and not fits:
            raise self.binder.fail(
                f"key `{key.name}` is {type_name(key.type)}, and is compared with {type_name(given)}",
                node,
                f"write CAST(… AS {wanted}) = {key.name}",
            )
        return Expression(f"TRY_CAST({value.text} AS {wanted})", value.columns)

    # --------------------------------------------------------------------------------- SELECT list

    def _items(self) -> list[_Item]:
        items: list[_Item] = []
        for node in self.select.expressions:
            star = node if isinstance(node, exp.Star) else node.this if isinstance(node, exp.Column) else None
            if isinstance(star, exp.Star):
                items += self._expand(node, star)
            elif isinstance(node, exp.Alias):
                items.append(_Item(node.this, identifier_name(node.args["alias"])))
            else:
                items.append(_Item(node, None))
        if not items:
            raise self.binder.fail("SELECT has no columns", self.select)
        return items

    def _expand(self, node: exp.Expression, star: exp.Star) -> list[_Item]:
        table = (
            identifier_name(node.args["table"])
            if isinstance(node, exp.Column) and node.args.get("table")
            else None
        )
        entries = [e for e in self.scope.entries if table is None or e.alias == table]
        if not entries:
            aliases = [e.alias for e in self.scope.entries]
            hint = near(table or "", aliases) or f"the tables are {', '.join(aliases)}"
            raise self.binder.fail(f"there is no table `{table}` here", node, hint)
        for clause in ("replace", "rename"):
            if star.args.get(clause):
                raise self.binder.fail(f"* {clause.upper()} is not supported", node)
        left_out = {identifier_name(_identifier(one)): one for one in star.args.get("except_") or ()}
        known = {name for entry in entries for name in entry.names}
        for name, one in left_out.items():
            if name not in known:
                raise self.binder.fail(f"there is no column `{name}` to leave out", one, near(name, known))
        items = []
        for entry in entries:
            for name, column in zip(entry.names, entry.columns, strict=True):
                if name in left_out or (table is None and name in entry.merged):
                    continue
                shown = entry.stands.get(name, column) if table is None else column
                made = column_of(shown.name)
                made.meta["physical"] = True
                items.append(_Item(made, name, shown))
        return items

    def _group(self, items: list[_Item]) -> list[exp.Expression]:
        clause = self.select.args.get("group")
        if clause is None:
            return []
        for node in clause.expressions:
            if isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets):
                name = type(node).__name__.upper()
                raise self.binder.fail(f"{name} is not supported", node, "write one query for each grouping")
            if next(find_aggregates(node, self.planner.aggregates), None) is not None:
                raise self.binder.fail(
                    "GROUP BY comes before aggregates", node, "aggregate in a subquery first"
                )
        if clause.args.get("all"):
            return [
                item.node for item in items if not any(find_aggregates(item.node, self.planner.aggregates))
            ]
        group = []
        for node in clause.expressions:
            if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
                index = int(node.name) - 1
                if not 0 <= index < len(items):
                    raise self.binder.fail(f"there is no column {node.name} in the SELECT", node)
                group.append(items[index].node)
            else:
                group.append(self._dealias(node, items, whole=True))
        return group

    def _order_items(self, items: list[_Item]) -> list[_Item]:
        """What ORDER BY computes beyond the SELECT list, as more items, which it is made to name."""
        order = self.select.args.get("order")
        if order is None or self.select.args.get("distinct") is not None:
            return []
        names = {item.alias or item.node.name for item in items if item.alias or isinstance(item.node, exp.Column)}
        tables = {entry.alias for entry in self.scope.entries}
        made: list[_Item] = []
        for one in order.expressions:
            columns = [[identifier_name(part) for part in c.parts] for c in one.this.find_all(exp.Column)]
            shown = all(first in names and not (rest and first in tables) for first, *rest in columns)
            if shown and not any(find_aggregates(one.this, self.planner.aggregates)):
                continue
            name = f"order:{len(made)}"
            made.append(_Item(self._dealias(one.this, items), name))
            one.set("this", exp.column(name, quoted=True))
        return made

    def _dealias(self, node: exp.Expression, items: list[_Item], *, whole: bool = False) -> exp.Expression:
        """Names of the SELECT list that are no columns stand for their expressions."""
        aliases = {item.alias: item.node for item in items if item.alias is not None and item.field is None}

        def visit(part: exp.Expression) -> exp.Expression:
            if not isinstance(part, exp.Column):
                return part
            name, *fields = part.parts
            entries = self.scope.entries
            taken = any(identifier_name(name) in entry.names for entry in entries)
            taken |= bool(fields) and any(identifier_name(name) == entry.alias for entry in entries)
            if taken or identifier_name(name) not in aliases:
                return part
            made = aliases[identifier_name(name)].copy()
            for one in fields:
                made = exp.Dot(this=made, expression=one.copy())
            return made

        if whole:
            return visit(node)
        return node.copy().transform(visit)

    def _plan(
        self, items: list[_Item], group: list[exp.Expression], having: exp.Expression | None
    ) -> list[tuple[pa.Field, str]]:
        """What DataFusion says about the SELECT: the type and the name of each item."""
        self._check_names(
            [*(i.node for i in items if i.field is None), *self.where, *group, *([having] if having else [])]
        )
        called: list[str] = []
        written: list[str | None] = []
        texts: list[str] = []
        columns = {name for entry in self.scope.entries for name in entry.names}
        for item in items:
            if item.field is None:
                text = self._stub_text(item.node)
                is_column = isinstance(item.node, exp.Column) and not text.endswith("]")  # not a field of one
                written.append(identifier_name(item.node.this) if is_column else None)
                name = item.alias or written[-1] or text
                # What is called the same twice, or as a column, is planned under a name of its own.
                clash = name in called or item.alias in columns
                texts.append(text + _as(f"{name}:{len(texts)}" if clash else item.alias))
                called.append(name)
        try:
            planned = self.planner.schema(self._stub_sql(texts or ["1"], group, having), self.stubs)
        except ExpressionError as error:
            if "unique expression names" in error.message:
                hint = "name each of them with AS"
                raise self.binder.fail("two columns come out under one name", self.select, hint) from error
            raise self._explain(error, items, group, having) from error
        named = [planned.field(called.index(name)).name for name in called]
        fields = zip(planned, [own or name for own, name in zip(written, named, strict=True)], strict=False)
        made = []
        for item in items:
            if item.field is not None:
                made.append((item.field, item.alias or item.field.name))
            else:
                field, name = next(fields)
                made.append((field, item.alias or self._unnamed(item.node, name)))
        return made

    def _check_names(self, nodes: Sequence[exp.Expression]) -> None:
        """Find every name that stands for nothing."""
        failed = False
        for node in nodes:
            try:
                self.scope.physical(node)
            except FailedError:
                failed = True
        if failed:
            raise FailedError

    def _unnamed(self, node: exp.Expression, name: str) -> str:
        """What an item without a name is called: as DataFusion calls it, or as it is written."""
        calls = self.scope.physical(node).find_all(exp.Anonymous)
        return to_sql(node) if any("__" in call.name for call in calls) else name

    def _stub_text(self, node: exp.Expression) -> str:
        """An expression as DataFusion plans it for names: bound, over the columns that users know."""
        known = {
            column.name: (entry.alias, name)
            for entry in self.scope.entries
            for name, column in (*entry.stands.items(), *zip(entry.names, entry.columns, strict=True))
        }

        def visit(part: exp.Expression) -> exp.Expression:
            if not isinstance(part, exp.Column):
                return part
            if part.name == TIMESTAMP:
                return exp.Anonymous(this="row_time", expressions=[])
            alias, name = known[part.name]
            table = None if alias in self.unnamed else exp.to_identifier(alias, quoted=True)
            return exp.Column(this=exp.to_identifier(name, quoted=True), table=table)

        physical = node if node.meta.get("physical") else self.scope.physical(node)
        return to_sql(physical.copy().transform(visit))

    def _stub_sql(
        self, items: Sequence[str], group: Sequence[exp.Expression], having: exp.Expression | None
    ) -> str:
        sql = f"SELECT {', '.join(items)} FROM {' '.join(self.stub_from)}"
        if self.where:
            sql += " WHERE " + " AND ".join(f"({self._stub_text(one)})" for one in self.where)
        if group:
            sql += " GROUP BY " + ", ".join(self._stub_text(one) for one in group)
        if having is not None:
            sql += f" HAVING {self._stub_text(having)}"
        return sql

    def _explain(
        self,
        error: ExpressionError,
        items: list[_Item],
        group: Sequence[exp.Expression],
        having: exp.Expression | None,
    ) -> FailedError:
        """Find the part that DataFusion does not like, to point at it."""
        binder = self.binder
        candidates = [(one, f"{self._stub_sql_of(['1'])} WHERE {self._stub_text(one)}") for one in self.where]
        candidates += [(one, self._stub_sql_of([self._stub_text(one)])) for one in group]
        candidates += [
            (item.node, self._stub_sql_of([self._stub_text(item.node)], group))
            for item in items
            if item.field is None
        ]
        for node, sql in candidates:
            try:
                self.planner.schema(sql, self.stubs)
            except ExpressionError as found:
                return binder.fail(found.message, node, found.hint)
        return binder.fail(error.message, self._culprit(error, items) or having or self.select, error.hint)

    def _culprit(self, error: ExpressionError, items: list[_Item]) -> exp.Expression | None:
        """The column that is neither grouped nor aggregated, where an aggregate is beside it."""
        found = re.match(r"`(?:[^`]*\.)?([^`.]+)` is neither grouped", error.message)
        for item in items if found is not None else ():
            if next(find_aggregates(item.node, self.planner.aggregates), None) is None:
                for column in item.node.find_all(exp.Column):
                    if found is not None and identifier_name(column.this) == found[1]:
                        return column
        return None

    def _stub_sql_of(self, items: Sequence[str], group: Sequence[exp.Expression] = ()) -> str:
        sql = f"SELECT {', '.join(items)} FROM {' '.join(self.stub_from)}"
        if group:
            sql += " GROUP BY " + ", ".join(self._stub_text(one) for one in group)
        return sql

    # ---------------------------------------------------------------------------- WHERE and groups

    def _refuse_in_where(self) -> None:
        for node in self.where:
            if node.find(exp.Window) is not None:
                raise self.binder.fail("WHERE comes before OVER", node, "filter in an outer SELECT")
            for part in node.find_all(exp.Anonymous):
                if is_aggregate(part, self.planner.aggregates):
                    raise self.binder.fail("WHERE comes before aggregates", part, "use HAVING")
                if is_window_call(part):
                    raise self.binder.fail(
                        f"{call_name(part)}(…) stands in GROUP BY", part, "filter windows in an outer SELECT"
                    )

    def _filtered(self, relation: Relation) -> Relation:
        if not self.where:
            return relation
        nodes = [self.scope.physical(one) for one in self.where]
        left_over = []
        for node in nodes:
            pushed = push_filter(relation, as_expression(node))
            if pushed is None:
                left_over.append(node)
            else:
                relation = pushed
        if not left_over:
            return relation
        both = left_over[0] if len(left_over) == 1 else exp.and_(*left_over, copy=False)
        return where_map(limit_ranks(relation, left_over), as_expression(both))

    def _aggregate(
        self,
        relation: Relation,
        nodes: list[exp.Expression],
        group: list[exp.Expression],
        having: exp.Expression | None,
    ) -> tuple[Relation, list[exp.Expression]]:
        binder = self.binder
        texts: dict[str, str] = {}
        keys: list[Item] = []
        columns = set(relation.columns.names)
        window: WindowKind | None = None
        window_texts: set[str] = set()
        by_instant = False
        key_parts: dict[str, Part] = {}
        taken: set[str] = {TIMESTAMP, "_retract"}

        def fresh(wanted: str) -> str:
            name, number = wanted, 1
            while name in taken:
                name, number = f"{wanted}:{number}", number + 1
            taken.add(name)
            return name

        for node in group:
            physical = self.scope.physical(node)
            text = to_sql(physical)
            if text in texts or text in window_texts:
                continue
            if is_window_call(physical):
                if window_texts:
                    raise binder.fail("GROUP BY has two windows", node, "one at most; group twice for more")
                window = self._window(physical, node)
                window_texts.add(text)
                continue
            value = as_expression(physical)
            taken.update(columns)
            if isinstance(physical, exp.Column):
                taken.discard(physical.name)
            name = fresh(physical.name if isinstance(physical, exp.Column) else f"key{len(keys)}")
            part = None if relation.windowing is None else window_part(value, relation.windowing)
            if part is not None:
                by_instant = True
                key_parts[name] = part
            texts[text] = name
            keys.append(Item(name, value))
        window_name: str | None = None
        if window is not None:
            if relation.updating:
                raise binder.fail(
                    "a window needs rows that are never taken back, and this input is updating",
                    self.select.args["group"],
                    "aggregate the updating rows without a window",
                )
            if (
                relation.windowing is not None
                and relation.windowing.kind == window
                and not isinstance(window, Session)
            ):
                # The same window again: the rows are of one already.
                by_instant = True
                window_name = fresh("window")
                again = self._window_again(relation, window)
                keys.append(Item(window_name, again))
                key_parts[window_name] = "window"
                window = None
            else:
                window_name = fresh("window")
        calls: dict[str, str] = {}
        aggregates = []
        physical_having = None if having is None else self.scope.physical(having)

        def rolled_up(part: exp.Expression) -> exp.Expression | None:
            """What `grouping(key)` is without grouping sets: every key is there in every group."""
            if call_name(part) != "grouping" or any(to_sql(one) not in texts for one in part.expressions):
                return None
            return exp.cast(exp.Literal.number(0), "int")

        nodes = [replace_parts(node, rolled_up) for node in nodes]
        if physical_having is not None:
            physical_having = replace_parts(physical_having, rolled_up)
        for node in [*nodes, *([physical_having] if physical_having is not None else [])]:
            for found in find_aggregates(node, self.planner.aggregates):
                text = to_sql(found)
                if text not in calls:
                    calls[text] = fresh(f"agg{len(calls)}")
                    aggregates.append(aggregate_call(found, calls[text]))
        schema = self._aggregate_schema(
            relation, keys, aggregates, window_name if window is not None else None
        )
        windowing: Windowing | None = None
        if window is not None and window_name is not None:
            windowing = Windowing(window, {window_name: "window"})
        elif by_instant and relation.windowing is not None:
            windowing = Windowing(relation.windowing.kind, key_parts)
        made: Relation = Aggregate(
            schema,
            updating=windowing is None,
            windowing=windowing,
            key=tuple(item.name for item in keys) if windowing is None else (),
            input=relation,
            keys=tuple(keys),
            calls=tuple(aggregates),
            window=window,
            window_column=window_name if window is not None else None,
            by_instant=by_instant and window is None,
        )

        def replacement(part: exp.Expression) -> exp.Expression | None:
            text = to_sql(part) if not isinstance(part, exp.Identifier) else ""
            if text in window_texts and window_name is not None:
                return column_of(window_name)
            if text in texts:
                return column_of(texts[text])
            if text in calls:
                return column_of(calls[text])
            return None

        nodes = [replace_parts(node, replacement) for node in nodes]
        if physical_having is not None:
            made = where_map(made, as_expression(replace_parts(physical_having, replacement)))
        return made, nodes

    def _window_again(self, relation: Relation, window: WindowKind) -> Expression:
        """The window of rows that are in windows already: from their event time, which is its end less 1 ns."""
        if relation.windowing is not None:
            for name, part in relation.windowing.columns.items():
                if part == "window":
                    return Expression(quote(name), frozenset([name]))
        width = window.width if isinstance(window, Tumble | Hop) else 0
        end = f"arrow_cast(CAST({quote(TIMESTAMP)} AS BIGINT) + 1, 'Timestamp(Nanosecond, None)')"
        start = f"arrow_cast(CAST({quote(TIMESTAMP)} AS BIGINT) + 1 - {width}, 'Timestamp(Nanosecond, None)')"
        return Expression(f"named_struct('start', {start}, 'end', {end})", frozenset([TIMESTAMP]))

    def _window(self, call: exp.Expression, node: exp.Expression) -> WindowKind:
        binder = self.binder
        name = call_name(call) or ""
        intervals = []
        if len(call.expressions) != WINDOWS[name]:
            usage = {
                "tumble": "tumble(interval '1 minute')",
                "hop": "hop(interval '10 seconds', interval '1 minute'): the slide, then the width",
                "session": "session(interval '30 seconds')",
            }[name]
            raise binder.fail(
                f"{name} takes {WINDOWS[name]} interval{'s' * (WINDOWS[name] > 1)}", node, usage
            )
        for argument in call.expressions:
            if argument.is_string:
                argument = exp.Interval(this=argument.copy())  # noqa: PLW2901 - tumble('1 minute')
            if not isinstance(argument, exp.Interval):
                raise binder.fail(
                    f"{name} takes literal intervals", node, f"write {name}(interval '1 minute'…)"
                )
            try:
                value: Any = self.planner.constant(to_sql(argument))
            except ExpressionError as error:
                raise binder.fail(error.message, node, error.hint) from error
            months, days, nanoseconds = value
            if months:
                raise binder.fail("months have no fixed length", node, "use days")
            length = days * 86_400_000_000_000 + nanoseconds
            if length <= 0:
                raise binder.fail("a window must be longer than nothing", node)
            intervals.append(length)
        if name == "tumble":
            return Tumble(intervals[0])
        if name == "session":
            return Session(intervals[0])
        slide, width = intervals
        if slide == width:
            return Tumble(width)
        if slide > width:
            raise binder.fail(
                "a hop that slides further than its width leaves rows out",
                node,
                "hop(slide, width): the slide comes first",
            )
        return Hop(slide, width)

    def _aggregate_schema(
        self, relation: Relation, keys: list[Item], calls: Sequence[Any], window: str | None
    ) -> pa.Schema:
        items = [f"{item.value.text} AS {quote(item.name)}" for item in keys]
        items += [f"{call.call.text} AS {quote(call.name)}" for call in calls]
        sql = f"SELECT {', '.join(items) or '1'} FROM input"
        if keys:
            sql += " GROUP BY " + ", ".join(item.value.text for item in keys)
        schema = pa.schema([*relation.columns, pa.field(TIMESTAMP, pa.timestamp("ns"), nullable=False)])
        try:
            planned = self.planner.schema(sql, {"input": schema})
        except ExpressionError as error:
            raise self.binder.fail(error.message, self.select, error.hint) from error
        fields = list(planned) if items else []
        if window is not None:
            fields.append(pa.field(window, WINDOW_TYPE, nullable=False))
        return pa.schema(fields)

    # ---------------------------------------------------------------------------------------- OVER

    def _over(self, relation: Relation, nodes: list[exp.Expression]) -> tuple[Relation, list[exp.Expression]]:
        calls: dict[str, str] = {}
        windows: list[exp.Window] = []
        for node in nodes:
            for found in find_over(node):
                text = to_sql(found)
                if text not in calls:
                    calls[text] = f"over{len(calls)}"
                    windows.append(found)
        if not calls:
            return relation, nodes
        made = self.window_calls(relation, [(calls[to_sql(one)], one) for one in windows])

        def replacement(part: exp.Expression) -> exp.Expression | None:
            name = calls.get(to_sql(part)) if isinstance(part, exp.Window) else None
            return None if name is None else column_of(name)

        return made, [replace_parts(node, replacement) for node in nodes]

    def _inline_windows(self) -> None:
        """`OVER w` becomes what `WINDOW w AS (…)` says."""
        named = {identifier_name(one.this): one for one in self.select.args.get("windows") or ()}
        for found in (one for node in self.select.expressions for one in find_over(node)):
            alias = found.args.get("alias")
            if alias is None:
                continue
            known = named.get(identifier_name(alias))
            if known is None:
                hint = near(identifier_name(alias), named) or "write OVER (…)"
                raise self.binder.fail(f"there is no WINDOW `{identifier_name(alias)}`", found, hint)
            for key, value in known.copy().args.items():
                if key in ("partition_by", "order", "spec"):
                    found.set(key, value)
            found.set("alias", None)

    def window_calls(self, relation: Relation, calls: list[tuple[str, exp.Window]]) -> WindowCalls:
        """Rows with window functions beside them."""
        calls = [(name, _without_ties(call, self.planner.aggregates)) for name, call in calls]
        partitions = [{to_sql(one): one for one in call.args.get("partition_by") or ()} for _, call in calls]
        common = [text for text in partitions[0] if all(text in other for other in partitions)]
        windowing = relation.windowing
        by_instant = False
        keys: list[Item] = []
        for text in common:
            value = as_expression(partitions[0][text])
            if windowing is not None and window_part(value, windowing) is not None:
                by_instant = True
            else:
                keys.append(Item(f"by{len(keys)}", value))
        items = [Item(name, as_expression(call)) for name, call in calls]
        hidden = [pa.field(name, pa.timestamp("ns"), nullable=False) for name in (TIMESTAMP, TIES)]
        schema = pa.schema([*relation.columns, *hidden])
        try:
            types = self.planner.types([item.value.text for item in items], schema)
        except ExpressionError as error:
            raise self.binder.fail(error.message, self.select, error.hint) from error
        columns = pa.schema(
            [*relation.columns, *(f.with_name(item.name) for f, item in zip(types, items, strict=True))]
        )
        return WindowCalls(
            columns,
            updating=not by_instant,
            windowing=windowing if by_instant else None,
            key=relation.key,
            input=relation,
            calls=tuple(items),
            partition=tuple(keys),
            by_instant=by_instant,
        )

    def _distinct_on(
        self, relation: Relation, distinct: exp.Distinct, items: list[_Item], *, aggregated: bool
    ) -> Relation:
        """DISTINCT ON (a) is the first row of each a, in the order of ORDER BY."""
        if aggregated:
            raise self.binder.fail("DISTINCT ON over aggregates", distinct, "group in a subquery first")
        on = distinct.args["on"]
        by = [self.scope.physical(one) for one in (on.expressions if isinstance(on, exp.Tuple) else [on])]
        order = self.select.args.get("order")
        ordered = None
        if order is not None:
            made = [self._order_by(one, items) for one in order.expressions]
            ordered = exp.Order(expressions=made)
            self.select.set("order", None)
        call = exp.Window(
            this=exp.Anonymous(this="row_number", expressions=[]), partition_by=by, order=ordered, over="OVER"
        )
        numbered = self.window_calls(relation, [("over_on", call)])
        return replace(
            numbered, limit=Expression('"over_on" = 1', frozenset(["over_on"])), rank=("over_on", 1)
        )

    def _order_by(self, node: exp.Expression, items: list[_Item]) -> exp.Expression:
        made = node.copy()
        made.set("this", self.scope.physical(self._dealias(node.this, items)))
        return made


_CLAUSES = frozenset(
    ("expressions", "from_", "joins", "where", "group", "having", "windows", "distinct", "order", "limit")
    + ("offset", "with_", "kind", "operation_modifiers")
)
_OTHER_CLAUSES = {"laterals": "LATERAL", "connect": "CONNECT BY", "locks": "FOR UPDATE", "into": "SELECT INTO"}


@dataclass(frozen=True)
class _Item:
    """One item of a SELECT list; `field` if it came out of a `*`."""

    node: exp.Expression
    alias: str | None
    field: pa.Field | None = None

    def physical(self, scope: Scope) -> exp.Expression:
        return self.node if self.field is not None else scope.physical(self.node)


def first_columns(bound: Bound, count: int) -> Bound:
    """The first columns alone."""
    columns = pa.schema(list(bound.relation.columns)[:count])
    items = [Item(f.name, Expression(quote(f.name), frozenset([f.name]))) for f in columns]
    return Bound(make_map(bound.relation, items, columns), bound.names[:count])


def where_map(relation: Relation, where: Expression) -> Relation:
    """The rows that pass a condition."""
    items = [Item(f.name, Expression(quote(f.name), frozenset([f.name]))) for f in relation.columns]
    return make_map(relation, items, relation.columns, where)


_ONE_ROW = ("row_number", "lag", "lead", "ntile", "first_value")
"""Window functions whose result depends on which of two rows in the same place of the order comes first."""


def _without_ties(call: exp.Window, aggregates: frozenset[str]) -> exp.Window:
    """Let no two rows have the same place, so that a replay and another parallelism give the same.

    An aggregate over a whole partition goes through it in that order too: a sum of floats depends on it.
    """
    inner = call.this
    while not isinstance(inner, exp.Anonymous) and isinstance(inner.this, exp.Expression):
        inner = inner.this
    name, order = call_name(inner), call.args.get("order")
    whole = name in aggregates and name not in _ONE_ROW and order is None
    if call.args.get("spec") is not None or not (whole or name in _ONE_ROW):
        return call
    made = call.copy()
    ties = [exp.Ordered(this=column_of(column)) for column in (TIMESTAMP, TIES)]
    made.set("order", exp.Order(expressions=[*(order.expressions if order is not None else ()), *ties]))
    if whole:
        spec = exp.WindowSpec(
            kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end="UNBOUNDED", end_side="FOLLOWING"
        )
        made.set("spec", spec)
    return made


def push_filter(relation: Relation, where: Expression) -> Relation | None:
    """The relation with a condition below its joins, where fewer rows have to be kept; None if it must stay above."""
    if isinstance(relation, LookupJoin):
        sides: tuple[str, ...] = ("left",)
    elif isinstance(relation, Join):
        sides = {"inner": ("left", "right"), "left": ("left",), "right": ("right",), "full": ()}[
            relation.kind
        ]
    else:
        return None
    for side in sides:
        below: Relation = getattr(relation, side)
        if where.columns and where.columns <= set(below.columns.names):
            made = push_filter(below, where) or where_map(below, where)
            return replace(relation, **{side: made})
    return None


def limit_ranks(relation: Relation, conditions: Sequence[exp.Expression]) -> Relation:
    """Tell the window functions below a filter such as `rn <= 3` that only so many rows of a partition matter."""
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


def _at_most(node: exp.Expression) -> tuple[str, int] | None:
    """(column, n) of a condition that holds for no number above n."""
    left, right = node.args.get("this"), node.args.get("expression")
    kind = type(node)
    if isinstance(left, exp.Literal):
        left, right = right, left
        kind = {exp.GT: exp.LT, exp.GTE: exp.LTE}.get(kind, kind)
    if not isinstance(left, exp.Column) or not isinstance(right, exp.Literal) or not right.name.isdigit():
        return None
    count = int(right.name)
    if kind in (exp.LTE, exp.EQ):
        return left.name, count
    return (left.name, count - 1) if kind is exp.LT else None


def _this(node: exp.Expression | None) -> exp.Expression | None:
    return None if node is None else node.this


def _identifier(node: exp.Expression) -> exp.Expression:
    return node.this if isinstance(node, exp.Column) else node


def _as(alias: str | None) -> str:
    return "" if alias is None else f" AS {quote(alias)}"


@dataclass(frozen=True, eq=False)
class LookupTable(Relation):
    """A lookup table on the right of a join: it has no rows of its own to read."""

    table: Table = field(kw_only=True)


def lookup_of(relation: Relation) -> Table | None:
    """The lookup table that a relation in FROM is, if it is one."""
    source = relation.input if isinstance(relation, Map) else relation
    return source.table if isinstance(source, LookupTable) else None


def _compared_with(node: exp.Expression, key: str, right: Relation) -> Expression | None:
    """What an equality compares the column `key` of a lookup table with, if that is all that it does."""
    if not isinstance(node, exp.EQ):
        return None
    sides = node.this.unnest(), node.expression.unnest()
    for one, other in (sides, sides[::-1]):
        value = as_expression(one)
        if (
            isinstance(other, exp.Column)
            and other.name == key
            and value.columns.isdisjoint(right.columns.names)
        ):
            return value
    return None


def _part_of(join: Join, sides: tuple[pa.Field, pa.Field]) -> Part | None:
    """The part of the window that both sides of a windowed join hold in these columns."""
    parts = [
        None if side.windowing is None else side.windowing.columns.get(column.name)
        for side, column in zip((join.left, join.right), sides, strict=True)
    ]
    return parts[0] if parts[0] == parts[1] else None


def _sides(
    node: exp.Expression, left: Relation, right: Relation
) -> tuple[exp.Expression, exp.Expression] | None:
    """(left part, right part) of an equality between the two sides of a join."""
    a, b = as_expression(node.this).columns, as_expression(node.expression).columns
    names = (set(left.columns.names), set(right.columns.names))
    if a and b and a <= names[0] and b <= names[1]:
        return node.this, node.expression
    if a and b and a <= names[1] and b <= names[0]:
        return node.expression, node.this
    return None
