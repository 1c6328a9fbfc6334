"""Binds statements to meaning: names to columns, queries to relations."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp

from headrace.base.errors import ExpressionError, SqlError
from headrace.base.problems import Problems
from headrace.base.spans import Source, Span
from headrace.model.fragments import plain_type, quote
from headrace.model.registry import registry
from headrace.sql.bind.catalog import Table, check_event_time, check_source_key, option_model, watermark_of
from headrace.sql.bind.logical import (
    Aggregate,
    Expression,
    Item,
    Ordered,
    Relation,
    Scan,
    Union,
)
from headrace.sql.bind.planning import Planner
from headrace.sql.bind.relations import (
    Bound,
    LookupTable,
    Named,
    Names,
    column_item,
    constants,
    distinct_names,
    entry_of,
    make_map,
    plain_columns,
    stub_schema,
)
from headrace.sql.bind.scope import (
    Entry,
    Scope,
    column_of,
    identifier_name,
)
from headrace.sql.bind.select import SelectBinder
from headrace.sql.parse.dialect import to_sql
from headrace.sql.problems import FailedError, span_of, sql_error
from headrace.sql.types import sql_type, type_name


class Binder:
    """Binds the queries of one text."""

    def __init__(self, planner: Planner, source: Source, problems: Problems) -> None:
        self.planner = planner
        self.source = source
        self.problems = problems

    def span(self, node: exp.Expr) -> Span | None:
        return span_of(node, self.source)

    def fail(self, message: str, node: exp.Expr | None, hint: str | None = None) -> FailedError:
        """Remember an error; raise what this returns."""
        self.problems.add(sql_error(message, None if node is None else self.span(node), hint))
        return FailedError()

    # ------------------------------------------------------------------------------------- queries

    def query(self, query: exp.Expr, names: Names) -> Bound:
        """What a query means, where table names mean `names`."""
        names = self.with_names(query, names)
        if isinstance(query, exp.Subquery):
            return self.ordered(query, self.query(query.this, names))
        if isinstance(query, exp.Union):
            return self.ordered(query, self._union(query, names))
        if isinstance(query, exp.Select):
            return SelectBinder(self, query, names).bind()
        if isinstance(query, exp.Values):
            return self.values(query)
        kind = type(query).__name__.upper()
        raise self.fail(f"{kind} is not possible on streams", query, "UNION ALL, joins and filters are")

    def with_names(self, query: exp.Expr, names: Names) -> Names:
        clause = query.args.get("with_")
        if clause is None:
            return names
        if clause.args.get("recursive"):
            raise self.fail("a recursive WITH has no end on a stream", clause, "leave RECURSIVE out")
        known = dict(names)
        for cte in clause.expressions:
            known[cte.alias.lower()] = self._named(cte, dict(known))
        return known

    def _named(self, cte: exp.Expr, names: Names) -> Named:
        columns = [identifier_name(c) for c in (cte.args["alias"].args.get("columns") or ())]
        return Named(lambda: self.renamed(self.query(cte.this, names), columns, cte))

    def renamed(self, bound: Bound, columns: Sequence[str], node: exp.Expr | None) -> Bound:
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
        tables = {f"s{i}": stub_schema(side) for i, side in enumerate(sides)}
        try:
            made = self.planner.schema("SELECT * FROM s0 UNION ALL SELECT * FROM s1", tables)
        except ExpressionError as error:
            raise self.fail(error.message, query.expression, error.hint) from error
        fields = [
            pa.field(name, f.type, f.nullable)
            for name, f in zip(distinct_names(sides[0].names), made, strict=True)
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

    def pick(self, bound: Bound, names: Sequence[str]) -> Bound:
        """These columns of a query's result, in this order."""
        relation = bound.relation
        items = [Item(name, Expression(quote(name), frozenset([name]))) for name in names]
        columns = pa.schema([relation.columns.field(name) for name in names])
        return Bound(make_map(relation, items, columns), tuple(names))

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
                f"`{column.name}` is {type_name(column.type)} "
                f"and cannot be written as {type_name(target.type)}",
                span,
                error.hint,
            ) from error

    def completed(self, relation: Relation, columns: pa.Schema) -> Relation:
        """The relation with every one of `columns`: those it does not have are null."""
        items = []
        for column in columns:
            if column.name in relation.columns.names:
                items.append(column_item(column.name))
            else:
                items.append(Item(column.name, Expression(f"CAST(NULL AS {sql_type(column.type)})")))
        return make_map(relation, items, plain_columns(columns))

    def distinct(self, relation: Relation) -> Relation:
        """Each different row once."""
        keys = tuple(column_item(f.name) for f in relation.columns)
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

    def values(self, query: exp.Expr) -> Bound:
        try:
            bare = query.copy()
            bare.set("alias", None)
            rows = self.planner.rows(to_sql(bare))
        except ExpressionError as error:
            raise self.fail(error.message, query, error.hint) from error
        return constants(rows)

    # ------------------------------------------------------------------------------ ORDER BY, LIMIT

    def ordered(self, query: exp.Expr, bound: Bound) -> Bound:
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

    def _number(self, node: exp.Expr | None) -> int | None:
        if node is None:
            return None
        value = node.args.get("count") if isinstance(node, exp.Fetch) else node.expression
        if not isinstance(value, exp.Literal) or value.is_string or not value.name.isdigit():
            raise self.fail("a LIMIT is a whole number", value, "such as LIMIT 10")
        return int(value.name)

    def _order_item(self, node: exp.Expr, bound: Bound) -> str:
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
            check_source_key(table)
            columns, read = self._columns(table)
            check_event_time(table, columns.names)
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
        return Bound(LookupTable(plain_columns(table.columns), table=table), tuple(table.columns.names))

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
        updating = table.has_changes
        relation = Scan(
            plain_columns(columns),
            updating=updating,
            key=table.definition.primary_key if updating else (),
            table=table,
            read=read,
            generated=tuple(generated),
            event_time=None
            if event_time is None
            else Expression(f"CAST({quote(event_time)} AS TIMESTAMP(9))", frozenset([event_time])),
            watermark=mark,
            lateness=None if watermark is None else self._lateness(watermark, event_time),
        )
        return Bound(relation, tuple(columns.names))

    def _lateness(self, watermark: exp.Expr, event_time: str | None) -> int | None:
        """How far behind event time a watermark is, if it is `event_time - INTERVAL '…'` without months."""
        behind: exp.Expr | None = None
        if isinstance(watermark, exp.Sub):
            watermark, behind = watermark.this, watermark.expression
        if not isinstance(watermark, exp.Column) or identifier_name(watermark.this) != event_time:
            return None
        if behind is None:
            return 0
        if not isinstance(behind, exp.Interval):
            return None
        months, nanoseconds = self.planner.interval(to_sql(behind))
        return None if months else nanoseconds

    def _type_of(self, value: Expression, scope: Scope, node: exp.Expr) -> pa.Field:
        try:
            return self.planner.types([value.text], scope.schema)[0]
        except ExpressionError as error:
            raise sql_error(error.message, self.span(node), error.hint) from error
