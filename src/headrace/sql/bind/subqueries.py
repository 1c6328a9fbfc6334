"""Subqueries in expressions: IN, EXISTS, comparisons with ANY and ALL, scalar subqueries.

Each becomes a join. `EXISTS` and `IN` that stand alone in WHERE are semi joins, `NOT EXISTS` is an anti join.
Any other gives the rows a hidden column with its value: that of one row for all, or, where the subquery
compares columns of the outer query for equality (it is correlated), that of one row for each value of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from sqlglot import exp, parse_one

from headrace.base.errors import ExpressionError
from headrace.base.problems import Problems
from headrace.model.fragments import literal, quote
from headrace.sql.bind.calls import find_aggregates
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.correlation import Correlated, CorrelationFinder, has_subquery, inner_columns, query_in
from headrace.sql.bind.from_clause import BindQuery
from headrace.sql.bind.from_tables import FromTables
from headrace.sql.bind.joins import join_relations
from headrace.sql.bind.logical import Expression, Item, JoinKind, Relation
from headrace.sql.bind.relations import (
    BoundQuery,
    LazyRelation,
    Namespace,
    column_item,
    make_map,
    renamed,
    where_map,
)
from headrace.sql.bind.scope import ScopeTable, as_expression, column_of
from headrace.sql.parse.dialect import HeadraceDialect, copy_position, to_sql
from headrace.sql.problems import ReportedError
from headrace.sql.types import sql_type

_SYMBOLS: dict[type[exp.Expr], str] = {exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)


@dataclass(frozen=True)
class _Step:
    """A join that gives rows something of a subquery."""

    right: Relation
    kind: JoinKind
    keys: tuple[tuple[exp.Expr, str], ...] = ()
    value: tuple[str, exp.Expr, pa.DataType] | None = None
    """The name of the column with the value, computed after the join, and its type."""


@dataclass
class SubqueryBinder:
    """Binds the subqueries of one SELECT, and joins them to its rows."""

    tables: FromTables
    namespace: Namespace
    bind_query: BindQuery
    _steps: list[_Step] = field(default_factory=list)
    _count: int = 0

    @property
    def _ties(self) -> CorrelationFinder:
        return CorrelationFinder(self.tables, self.namespace, self.bind_query)

    @property
    def _context(self) -> BindContext:
        return self.tables.context

    # ---------------------------------------------------------------------------------- the clauses

    def filter(self, relation: Relation, condition: exp.Expr) -> Relation:
        """The rows that pass a condition of WHERE with subqueries in it."""
        node, negated = condition.unnest(), False
        while isinstance(node, exp.Not):
            node, negated = node.this.unnest(), not negated
        if isinstance(node, exp.Exists):
            correlated = self._ties.find(node.this)
            is_tied = bool(correlated.keys or correlated.conditions)
            if is_tied and not self._is_global_aggregate(correlated.select):
                return self._semi_join(relation, correlated, [], negated=negated)
        elif (looked_in := _looked_in(node)) is not None and not has_subquery(node.this):
            values = _values(node.this)
            correlated = self._ties.find(looked_in)
            is_one_row = bool(correlated.keys) and self._is_global_aggregate(correlated.select)
            if not is_one_row and (not negated or len(values) > 1):
                return self._semi_join(relation, correlated, values, negated=negated)
        self.tables.where.append(self.replace(condition))
        return self.join(relation)

    def replace(self, node: exp.Expr) -> exp.Expr:
        """A copy of an expression in which a column stands for each subquery; `join` adds these columns."""
        return node.copy().transform(self._replacement)

    def _replacement(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Exists):
            return self._exists(node)
        if _is_in(node):
            return self._in(node, node.this, query_in(node), negated=False)
        if isinstance(node, _COMPARISONS) and isinstance(node.expression, exp.Any | exp.All):
            return self._quantified(node) if has_subquery(node.expression) else node
        if isinstance(node, exp.Anonymous) and node.name.lower() == "array" and has_subquery(node):
            return self._array(node)
        return self._scalar(node) if isinstance(node, exp.Query) else node

    def join(self, relation: Relation, over: Callable[[exp.Expr], exp.Expr] = lambda node: node) -> Relation:
        """The rows with the values of the subqueries; `over` puts an expression over their columns."""
        steps, self._steps = self._steps, []
        for step in steps:
            conditions: list[exp.Expr] = [
                exp.EQ(this=over(outer.copy()), expression=column_of(inner)) for outer, inner in step.keys
            ]
            missing = [
                column
                for condition in conditions
                for column in condition.find_all(exp.Column)
                if column.name not in {*relation.columns.names, *step.right.columns.names}
            ]
            if missing:
                message = f"`{missing[0].name}` is neither grouped nor aggregated, and a subquery compares it"
                raise self._context.fail(message, missing[0], "add it to GROUP BY")
            relation = join_relations(self._context, relation, step.right, step.kind, conditions)
            if step.value is not None:
                name, node, kind = step.value
                items = [*(column_item(column) for column in relation.columns.names)]
                items.append(Item(name, as_expression(over(node.copy()))))
                relation = make_map(relation, items, relation.columns.append(pa.field(name, kind)))
        return relation

    def _semi_join(
        self, relation: Relation, correlated: Correlated, values: list[exp.Expr], *, negated: bool
    ) -> Relation:
        names = [f"v{index}" for index in range(len(values))]
        if values:
            rows, keys = self._rows(correlated, len(values))
        else:
            rows, keys = self._rows(_any_columns(correlated), 0)
        right, prefix = self._prefixed(rows)
        conditions: list[exp.Expr] = [
            exp.EQ(this=self.tables.scope.resolve(value), expression=column_of(prefix + name))
            for value, name in zip(values, names, strict=True)
        ]
        if negated:  # NOT IN: a row passes only if it is known to differ from each
            conditions = [exp.Not(this=exp.Is(this=same, expression=exp.false())) for same in conditions]
        conditions += [
            exp.EQ(this=outer.copy(), expression=column_of(prefix + name))
            for (outer, _), name in zip(correlated.keys, keys, strict=True)
        ]
        inner = {to_sql(column): f"{prefix}c{i}" for i, column in enumerate(inner_columns(correlated))}
        for condition in correlated.conditions:
            conditions.append(self._over_both(condition, inner))
        return join_relations(self._context, relation, right, "anti" if negated else "semi", conditions)

    def _over_both(self, condition: exp.Expr, inner: dict[str, str]) -> exp.Expr:
        """A condition on outer and inner columns over the columns of a join."""

        def visit(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Column) and not part.meta.get("resolved"):
                name = inner.get(to_sql(part))
                if name is not None:
                    column = column_of(name)
                    column.meta["resolved"] = True
                    return column
            return part

        return self.tables.scope.resolve(condition.copy().transform(visit))

    # ------------------------------------------------------------------------------- kinds of subqueries

    def _exists(self, node: exp.Exists) -> exp.Expr:
        correlated = self._ties.find(node.this)
        self._refuse_conditions(correlated)
        if correlated.keys and self._is_global_aggregate(correlated.select):
            self._rows(correlated, 0)  # for its errors
            return exp.Boolean(this=True)  # it has a row where no rows are aggregated, too
        if correlated.keys:
            rows, keys = self._rows(_any_columns(correlated), 0)
            step, names = self._one_row(correlated, rows, keys, "TRUE AS r0")
            value = exp.Not(this=exp.Is(this=column_of(names["r0"]), expression=exp.Null()))
            return self._hidden(step, value, pa.bool_(), "exists", node)
        rows, _ = self._rows(replace(correlated, select=_wrapped(correlated.select, "1 AS v0")), 1)
        only = self._template("SELECT count(*) > 0 AS r0 FROM (SELECT DISTINCT v0 FROM q) AS d", rows)
        right, prefix = self._prefixed(only)
        return self._hidden(_Step(right, "inner"), column_of(f"{prefix}r0"), pa.bool_(), "exists", node)

    def _in(self, node: exp.Expr, value: exp.Expr, query: exp.Expr, *, negated: bool) -> exp.Expr:
        """`value IN (query)`: true, false, or NULL where a NULL could be what is looked for."""
        if len(_values(value)) > 1:
            hint = "a row IN (SELECT …) can stand alone in WHERE, joined with AND; or use NOT EXISTS"
            raise self._context.fail("a row cannot be looked up here", node, hint)
        correlated = self._ties.find(query)
        self._refuse_conditions(correlated)
        if correlated.keys and self._is_global_aggregate(correlated.select):
            comparison = exp.NEQ if negated else exp.EQ
            return comparison(this=self.replace(value), expression=self._scalar(query))
        looked_up = self.tables.scope.resolve(self.replace(value))
        rows, keys = self._rows(correlated, 1)
        by = "".join(f"{key}, " for key in keys)
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        stats = self._template(
            f"SELECT {by}max(z) AS z FROM (SELECT DISTINCT {by}CASE WHEN v0 IS NULL THEN 1 ELSE 0 END AS z "
            f"FROM q) AS d{group}",
            rows,
        )
        right, prefix = self._prefixed(stats)
        ties = tuple((outer, prefix + key) for (outer, _), key in zip(correlated.keys, keys, strict=True))
        self._steps.append(_Step(right, "left" if keys else "inner", ties))
        matches = self._template(f"SELECT DISTINCT {by}v0 FROM q WHERE v0 IS NOT NULL", rows)
        right, own = self._prefixed(matches)
        ties = tuple((outer, own + key) for (outer, _), key in zip(correlated.keys, keys, strict=True))
        step = _Step(right, "left", (*ties, (looked_up, f"{own}v0")))
        text = (
            f"CASE WHEN {quote(own + 'v0')} IS NOT NULL THEN {not negated} "
            f"WHEN {quote(prefix + 'z')} IS NULL THEN {negated} "
            f"WHEN ({to_sql(looked_up)}) IS NULL OR {quote(prefix + 'z')} = 1 THEN NULL ELSE {negated} END"
        )
        return self._hidden(step, _parsed(text), pa.bool_(), "in", node)

    def _quantified(self, node: exp.Expr) -> exp.Expr:
        """`value > ANY (query)`, `value <= ALL (query)` and the like."""
        query, is_all = query_in(node.expression), isinstance(node.expression, exp.All)
        if isinstance(node, exp.EQ) and not is_all:
            return self._in(node, node.this, query, negated=False)
        if isinstance(node, exp.NEQ) and is_all:
            return self._in(node, node.this, query, negated=True)
        correlated = self._ties.find(query)
        self._refuse_conditions(correlated)
        if correlated.keys and self._is_global_aggregate(correlated.select):
            return type(node)(this=self.replace(node.this), expression=self._scalar(query))
        value = self.tables.scope.resolve(self.replace(node.this))
        rows, keys = self._rows(correlated, 1)
        step, names = self._one_row(
            correlated,
            rows,
            keys,
            "min(v0) AS lo, max(v0) AS hi, count(*) AS n, count(v0) AS c",
        )
        left, (lo, hi, n, c) = f"({to_sql(value)})", (quote(names[name]) for name in ("lo", "hi", "n", "c"))
        is_equal = isinstance(node, exp.EQ)
        if isinstance(node, exp.EQ | exp.NEQ):  # = ALL: all are this one; <> ANY: not all are
            decided = f"{left} = {lo} AND {left} = {hi}"
            decided = decided if is_equal else f"NOT ({decided})"
        else:
            least = isinstance(node, exp.GT | exp.GTE) != is_all
            symbol = _SYMBOLS[type(node)]
            decided = f"{left} {symbol} {lo if least else hi}"
        text = f"CASE WHEN coalesce({n}, 0) = 0 THEN {is_all} "
        text += f"WHEN {c} > 0 AND ({decided}) IS {'FALSE' if is_all else 'TRUE'} THEN {not is_all} "
        text += f"WHEN {left} IS NULL OR {c} < {n} THEN NULL ELSE {is_all} END"
        return self._hidden(step, _parsed(text), pa.bool_(), "any", node)

    def _array(self, node: exp.Anonymous) -> exp.Expr:
        query = query_in(node.expressions[0])
        order = query.args.get("order") if isinstance(query, exp.Select) else None
        if not isinstance(query, exp.Select) or query.args.get("limit") or query.args.get("distinct"):
            hint = "write SELECT array_agg(x) FROM (SELECT …)"
            raise self._context.fail("ARRAY takes a plain SELECT", node, hint)
        select = query.copy()
        item = select.expressions[0]
        value = item.this if isinstance(item, exp.Alias) else item
        if len(select.expressions) != 1 or any(find_aggregates(value, self._context.planner.aggregates)):
            hint = "write SELECT array_agg(x) FROM (SELECT …)"
            raise self._context.fail("ARRAY takes a SELECT of one column", node, hint)
        ordered = (
            value.copy() if order is None else exp.Order(this=value.copy(), expressions=order.expressions)
        )
        select.set("order", None)
        select.set("expressions", [exp.Anonymous(this="array_agg", expressions=[ordered])])
        scalar = self._scalar(select, name="array")
        return exp.Anonymous(
            this="coalesce", expressions=[scalar, exp.Anonymous(this="make_array", expressions=[])]
        )

    def _scalar(self, node: exp.Expr, name: str | None = None) -> exp.Expr:
        query = query_in(node)
        correlated = self._ties.find(query)
        self._refuse_conditions(correlated)
        select = correlated.select
        is_one_row = self._is_global_aggregate(select)
        rows, keys = self._rows(correlated, 1)
        kind = rows.relation.columns.field(0).type
        name = name or query_name(query)
        if not keys and is_one_row:
            right, prefix = self._prefixed(rows)
            return self._hidden(_Step(right, "inner"), column_of(f"{prefix}v0"), kind, name, node)
        if is_one_row:
            step, names = self._one_row(correlated, rows, keys, "v0 AS r0, TRUE AS m", grouped=False)
            default = self._default(correlated)
            value: exp.Expr = column_of(names["r0"])
            if default is not None:
                text = f"CASE WHEN {quote(names['m'])} THEN {quote(names['r0'])} ELSE {default} END"
                value = _parsed(text)
            return self._hidden(step, value, kind, name, node)
        step, names = self._one_row(correlated, rows, keys, "first_value(v0) AS r0, count(*) AS n")
        count = names["n"]
        checked = where_map(step.right, Expression(f"at_most_one_row({quote(count)})", frozenset([count])))
        return self._hidden(replace(step, right=checked), column_of(names["r0"]), kind, name, node)

    # ----------------------------------------------------------------------------------------- pieces

    def _hidden(self, step: _Step, value: exp.Expr, kind: pa.DataType, name: str, node: exp.Expr) -> exp.Expr:
        """A reference to a new hidden column with the value of a subquery."""
        self._count += 1
        column = pa.field(f"subquery:{self.tables.next_stub}", kind)
        self._steps.append(replace(step, value=(column.name, value, kind)))
        table = ScopeTable(column.name, (column.name,), (column,), is_hidden=True)
        self.tables.add(table, pa.schema([column]), join="CROSS JOIN")
        reference = column_of(column.name)
        reference.meta["subquery"] = name
        copy_position(next((part for part in node.walk() if part.meta.get("line")), None), reference.this)
        return reference

    def _one_row(
        self,
        correlated: Correlated,
        rows: BoundQuery,
        keys: Sequence[str],
        items: str,
        *,
        grouped: bool = True,
    ) -> tuple[_Step, dict[str, str]]:
        """A step that joins one row for each value of the keys, or one at all; and its columns."""
        by = "".join(f"{key}, " for key in keys)
        group = f" GROUP BY {', '.join(keys)}" if keys and grouped else ""
        right, prefix = self._prefixed(self._template(f"SELECT {by}{items} FROM q{group}", rows))
        ties = tuple((outer, prefix + key) for (outer, _), key in zip(correlated.keys, keys, strict=True))
        names = {name.removeprefix(prefix): name for name in right.columns.names}
        return _Step(right, "left" if keys else "inner", ties), names

    def _template(self, sql: str, rows: BoundQuery) -> BoundQuery:
        """A query over the rows of a subquery, `q`."""
        query = parse_one(sql, dialect=HeadraceDialect)
        return self.bind_query(query, {"q": LazyRelation(lambda: rows)})

    def _prefixed(self, rows: BoundQuery) -> tuple[Relation, str]:
        """The relation under names that no other has."""
        self._count += 1
        prefix = f"subquery:{self.tables.next_stub}:{self._count}:"
        schema = renamed(rows.relation.columns, [prefix + name for name in rows.names])
        items = [
            Item(new, Expression(quote(old), frozenset([old])))
            for old, new in zip(rows.relation.columns.names, schema.names, strict=True)
        ]
        return make_map(rows.relation, items, schema), prefix

    def _rows(self, correlated: Correlated, values: int) -> tuple[BoundQuery, list[str]]:
        """The rows of a subquery with what ties them to outer rows: `v0` … and `k0` …; the names of these."""
        select = correlated.select.copy()
        keys = [f"k{index}" for index in range(len(correlated.keys))]
        if keys or correlated.conditions:
            self._add_ties(select, correlated, keys)
        bound = self.bind_query(select, self.namespace)
        extra = len(keys) + len(inner_columns(correlated))
        count = len(bound.names) - extra
        if values and count != values:
            message = f"the subquery has {count} column{'s' * (count > 1)}, not {values}"
            raise self._context.fail(message, correlated.select, "select as many as are compared")
        names = [*(f"v{index}" for index in range(count)), *keys]
        names += [f"c{index}" for index in range(extra - len(keys))]
        return BoundQuery(bound.relation, tuple(names)), keys

    def _add_ties(self, select: exp.Expr, correlated: Correlated, keys: Sequence[str]) -> None:
        ties = [inner.copy() for _, inner in correlated.keys]
        items = [exp.alias_(tie.copy(), key, quoted=True) for tie, key in zip(ties, keys, strict=True)]
        items += [
            exp.alias_(column.copy(), f"c{i}", quoted=True)
            for i, column in enumerate(inner_columns(correlated))
        ]
        group, is_global = select.args.get("group"), self._is_global_aggregate(select)
        if (group is not None or is_global) and correlated.conditions:
            raise self._context.fail(
                "groups of a subquery are tied to the outer row by equalities only",
                correlated.conditions[0],
                "write an equality, or join and group in FROM",
            )
        having = select.args.get("having")
        if having is not None and group is None:
            hint = "group by what is compared with the outer row, or compute it in FROM and use WHERE"
            raise self._context.fail("HAVING without GROUP BY in a correlated subquery", having, hint)
        if select.args.get("limit") is not None:
            self._limit(select, ties)
        elif select.args.get("offset") is not None:
            raise self._context.fail(
                "OFFSET in a correlated subquery", select.args["offset"], "use row_number()"
            )
        else:
            select.set("order", None)
        if group is not None:
            group.set("expressions", [*group.expressions, *(tie.copy() for tie in ties)])
        elif is_global:
            select.set("group", exp.Group(expressions=[tie.copy() for tie in ties]))
        select.set("expressions", [*select.expressions, *items])

    def _limit(self, select: exp.Expr, ties: Sequence[exp.Expr]) -> None:
        """LIMIT 1 of each outer row: the first of each value of the keys."""
        limit = select.args["limit"]
        number = limit.args.get("count") if isinstance(limit, exp.Fetch) else limit.expression
        is_one = isinstance(number, exp.Literal) and number.name == "1"
        plain = not any(select.args.get(name) for name in ("distinct", "group", "offset"))
        if not is_one or not plain or not ties or self._is_global_aggregate(select):
            hint = "LIMIT 1 of plain rows is; use row_number() OVER (PARTITION BY …) in FROM"
            raise self._context.fail("this LIMIT in a correlated subquery is not possible", limit, hint)
        select.set("limit", None)
        select.set("distinct", exp.Distinct(on=exp.Tuple(expressions=[tie.copy() for tie in ties])))

    def _is_global_aggregate(self, select: exp.Expr) -> bool:
        """Whether it always has just one row: aggregates without GROUP BY."""
        if not isinstance(select, exp.Select) or select.args.get("group") or select.args.get("having"):
            return False
        if select.args.get("limit") is not None or select.args.get("offset") is not None:
            return False
        aggregates = self._context.planner.aggregates
        return any(any(find_aggregates(item, aggregates)) for item in select.expressions)

    def _default(self, correlated: Correlated) -> str | None:
        """The value of an aggregate for an outer row without inner rows, if it is not NULL."""
        if correlated.tables is None:
            return None
        tables, item = correlated.tables, correlated.select.expressions[0]
        value = item.this if isinstance(item, exp.Alias) else item
        sql = tables.stub_sql([f"{tables.stub_text(value)} AS v"])
        with self._context.planning(value):
            kind = self._context.planner.schema(sql, tables.stubs).field(0).type
            result = self._context.planner.rows(sql).column(0)[0].as_py()
        if result is None:
            return None
        return f"CAST({literal(str(result))} AS {sql_type(kind)})"

    def _refuse_conditions(self, correlated: Correlated) -> None:
        if correlated.conditions:
            raise self._context.fail(
                "this subquery is tied to the outer row by more than equalities",
                correlated.conditions[0],
                "write inner = outer; other comparisons are possible in EXISTS that stands alone in WHERE",
            )


@dataclass(frozen=True)
class SubqueriesOfJoins:
    """Computes the subqueries in ON of the outer joins of one SELECT."""

    namespace: Namespace
    bind_query: BindQuery

    def __call__(self, tables: FromTables, relation: Relation, on: exp.Expr) -> Relation:
        """The rows of one side, with a column for each subquery in `on` that reads this side alone."""
        binder = SubqueryBinder(tables, self.namespace, self.bind_query)
        for part in list(_outermost(on)):
            quiet = tables.with_context(replace(tables.context, problems=Problems()))
            try:
                SubqueryBinder(quiet, self.namespace, self.bind_query.quietly()).replace(part)
            except (ReportedError, ExpressionError):
                continue  # it reads the other side
            part.replace(binder.replace(part))
        return binder.join(relation)


def _outermost(node: exp.Expr) -> Iterator[exp.Expr]:
    """The parts of a condition that are or look into a subquery, and not inside another one."""
    is_quantified = isinstance(node, _COMPARISONS) and isinstance(node.expression, exp.Any | exp.All)
    is_array = isinstance(node, exp.Anonymous) and node.name.lower() == "array"
    if (
        isinstance(node, exp.Exists | exp.Query)
        or _is_in(node)
        or ((is_quantified or is_array) and has_subquery(node))
    ):
        yield node
    else:
        for child in node.iter_expressions():
            yield from _outermost(child)


def subquery_name(node: exp.Expr) -> str | None:
    """What an item of a SELECT list that is a subquery alone is called; None for any other."""
    if isinstance(node, exp.Exists):
        return "exists"
    return query_name(query_in(node)) if isinstance(node, exp.Subquery) else None


def query_name(query: exp.Expr) -> str:
    """What the value of a subquery is called."""
    item = query.selects[0] if isinstance(query, exp.Query) and query.selects else None
    if item is None:
        return "column"
    if isinstance(item, exp.Anonymous):
        return item.name.lower()
    return item.alias_or_name or "column"


def _is_in(node: exp.Expr) -> bool:
    return isinstance(node, exp.In) and node.args.get("query") is not None


def _looked_in(node: exp.Expr) -> exp.Expr | None:
    """The query of `x IN (SELECT …)`, or of `x = ANY (SELECT …)`."""
    if isinstance(node, exp.EQ) and isinstance(node.expression, exp.Any) and has_subquery(node.expression):
        return query_in(node.expression)
    return query_in(node) if _is_in(node) else None


def _values(node: exp.Expr) -> list[exp.Expr]:
    """The values of a row, `(a, b)` or `ROW(a, b)`, or the value alone."""
    node = node.unnest()
    is_row = isinstance(node, exp.Anonymous) and node.name.lower() == "row"
    return node.expressions if is_row or isinstance(node, exp.Tuple) else [node]


def _any_columns(correlated: Correlated) -> Correlated:
    """A subquery of which only matters whether it has rows: without its list."""
    select = correlated.select.copy()
    is_tied = bool(correlated.keys or inner_columns(correlated))  # it then has the columns of the ties
    select.set("expressions", [] if is_tied else [exp.Literal.number(1)])
    if not select.args.get("group"):
        select.set("distinct", None)
    limit = select.args.get("limit")
    number = None if limit is None else limit.args.get("expression") or limit.args.get("count")
    if isinstance(number, exp.Literal) and number.name not in ("", "0"):
        select.set("limit", None)
    select.set("order", None)
    return replace(correlated, select=select)


def _wrapped(query: exp.Expr, items: str) -> exp.Select:
    """A SELECT over a query."""
    inner = exp.Subquery(this=query.copy(), alias=exp.TableAlias(this=exp.to_identifier("q")))
    return exp.Select(expressions=[_parsed(items)], from_=exp.From(this=inner))


def _parsed(text: str) -> exp.Expr:
    """An expression over columns of relations."""
    return parse_one(text, dialect=HeadraceDialect)
