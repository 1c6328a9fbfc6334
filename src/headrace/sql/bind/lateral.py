"""LATERAL subqueries, without their dependence on the row before them.

The different values that a subquery reads of the rows before it become a table, its *domain*, which is joined
with the subquery's own tables. So the subquery gives the rows of all values at once, each with the values
that it belongs to, and is joined by these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlglot import exp

from headrace.sql.bind.calls import find_aggregates, find_over, replace_parts
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.scope import identifier_name
from headrace.sql.parse.dialect import to_sql

_COUNTS = ("count", "approx_distinct", "approx_count_distinct", "regr_count")
"""Aggregates that are 0 of no rows; others are NULL."""


def inner_aliases(query: exp.Expr) -> set[str]:
    """The names that tables have anywhere in a query."""
    aliases = {identifier_name(alias.this) for alias in query.find_all(exp.TableAlias) if alias.this}
    tables = query.find_all(exp.Table)
    return aliases | {
        identifier_name(table.this)
        for table in tables
        if isinstance(table.this, exp.Identifier) and not table.alias
    }


def with_domain(
    context: BindContext,
    query: exp.Select,
    domain: str,
    columns: Mapping[str, str],
) -> exp.Select:
    """A copy of a subquery over its domain, with the columns of this behind its own, in their order.

    `columns` has the column of the domain for the text of each outer column.
    """

    def visit(part: exp.Expr) -> exp.Expr:
        name = columns.get(to_sql(part)) if isinstance(part, exp.Column) else None
        return part if name is None else _domain_column(domain, name)

    select = query.copy()
    select.transform(visit, copy=False)
    ties = [_domain_column(domain, name) for name in dict.fromkeys(columns.values())]
    _add_domain(context, select, domain)
    _keep_apart(context, select, ties)
    select.set("expressions", [*select.expressions, *(tie.copy() for tie in ties)])
    return select


def _domain_column(domain: str, name: str) -> exp.Column:
    return exp.Column(this=exp.to_identifier(name, quoted=True), table=exp.to_identifier(domain, quoted=True))


def _reads(node: exp.Expr, domain: str) -> bool:
    return any(column.table == domain for column in node.find_all(exp.Column))


def _add_domain(context: BindContext, select: exp.Select, domain: str) -> None:
    """Let FROM begin with the domain."""
    clause, joins = select.args.get("from_"), select.args.get("joins") or []
    table = exp.Table(this=exp.to_identifier(domain, quoted=True))
    select.set("from_", exp.From(this=table))
    if clause is None:
        return
    for node in [clause, *joins]:
        if isinstance(node.this, exp.Subquery) and _reads(node.this, domain):
            alias = node.this.args.get("alias")
            node.this.set("alias", None)
            node.set("this", exp.Lateral(this=node.this, alias=alias))
    first = clause.this
    outer = [join for join in joins if (join.args.get("side") or "").upper() in ("RIGHT", "FULL")]
    if not outer:
        select.set("joins", [exp.Join(this=first), *joins])
        return
    if any(_reads(join, domain) for join in joins) or not isinstance(first, exp.Table):
        hint = "compare columns of the outer row in WHERE"
        raise context.fail("a RIGHT or FULL JOIN in LATERAL cannot read the outer row", outer[0], hint)
    first.set("joins", joins)
    select.set("joins", [exp.Join(this=first)])


def is_global_aggregate(select: exp.Select, aggregates: frozenset[str]) -> bool:
    """Whether a query always has just one row: aggregates without GROUP BY."""
    if select.args.get("group") is not None:
        return False
    return any(any(find_aggregates(item, aggregates)) for item in select.expressions)


def _keep_apart(context: BindContext, select: exp.Select, ties: Sequence[exp.Expr]) -> None:
    """Apply grouping, row numbers and limits to each value of the domain separately."""
    aggregates = context.planner.aggregates
    group = select.args.get("group")
    is_global = is_global_aggregate(select, aggregates)
    if is_global and select.args.get("having") is not None:
        hint = "filter outside of the subquery"
        raise context.fail("HAVING without GROUP BY in LATERAL", select.args["having"], hint)
    if is_global or group is not None:
        keys = [] if group is None else group.expressions
        if group is not None and group.args.get("all"):
            raise context.fail("GROUP BY ALL in LATERAL", group, "name the keys")
        select.set("group", exp.Group(expressions=[*keys, *(tie.copy() for tie in ties)]))
    for node in _own_parts(select):
        for window in find_over(node):
            by = window.args.get("partition_by") or []
            window.set("partition_by", [*by, *(tie.copy() for tie in ties)])
    distinct = select.args.get("distinct")
    if distinct is not None and (on := distinct.args.get("on")) is not None:
        keys = on.expressions if isinstance(on, exp.Tuple) else [on]
        distinct.set("on", exp.Tuple(expressions=[*keys, *(tie.copy() for tie in ties)]))
    elif select.args.get("limit") is not None or select.args.get("offset") is not None:
        if is_global:
            raise context.fail("LIMIT of an aggregate in LATERAL", select.args.get("limit"), "it has one row")
        _limit(context, select, ties)
    else:
        select.set("order", None)


def _own_parts(select: exp.Select) -> Iterator[exp.Expr]:
    yield from select.expressions
    qualify = select.args.get("qualify")
    if qualify is not None:
        yield qualify


def _limit(context: BindContext, select: exp.Select, ties: Sequence[exp.Expr]) -> None:
    """LIMIT and OFFSET of each value of the domain: a condition on the number of the row."""
    limit, offset = select.args.get("limit"), select.args.get("offset")
    for clause in ("distinct", "qualify"):
        if select.args.get(clause) is not None:
            hint = "write the subquery without it in FROM of another, which has the LIMIT"
            raise context.fail(f"LIMIT behind {clause.upper()} in LATERAL", limit or offset, hint)
    counts = []
    for node in (offset, limit):
        value = None if node is None else node.args.get("count") or node.args.get("expression")
        if node is not None and not (isinstance(value, exp.Literal) and value.name.isdigit()):
            raise context.fail("a LIMIT in LATERAL is a number", node, "such as LIMIT 3")
        counts.append(None if value is None else int(value.name))
    order = select.args.get("order")
    keys = [] if order is None else [_order_key(select, key) for key in order.expressions]
    number = exp.Window(
        this=exp.Anonymous(this="row_number", expressions=[]),
        partition_by=[tie.copy() for tie in ties],
        order=exp.Order(expressions=keys) if keys else None,
        over="OVER",
    )
    skipped = counts[0] or 0
    conditions: list[exp.Expr] = []
    if counts[1] is not None:
        last = exp.Literal.number(skipped + counts[1])
        conditions.append(exp.LTE(this=number.copy(), expression=last))
    if skipped:
        conditions.append(exp.GT(this=number.copy(), expression=exp.Literal.number(skipped)))
    for clause in ("order", "limit", "offset"):
        select.set(clause, None)
    if conditions:
        select.set("qualify", exp.Qualify(this=exp.and_(*conditions)))


def _order_key(select: exp.Select, node: exp.Expr) -> exp.Expr:
    """What ORDER BY orders by, where it names an item of the list by its position or name."""
    key, target = node.copy(), node.this
    items = select.expressions
    if isinstance(target, exp.Literal) and target.name.isdigit() and 0 < int(target.name) <= len(items):
        target = items[int(target.name) - 1]
    elif isinstance(target, exp.Column) and not target.table:
        name = identifier_name(target.this)
        aliased = (item for item in items if isinstance(item, exp.Alias))
        target = next((item for item in aliased if identifier_name(item.args["alias"]) == name), target)
    key.set("this", (target.this if isinstance(target, exp.Alias) else target).copy())
    return key


def value_of_no_rows(item: exp.Expr, aggregates: frozenset[str]) -> exp.Expr:
    """The value of an item of a list of aggregates over no rows."""

    def replacement(part: exp.Expr) -> exp.Expr | None:
        call = next(iter(find_aggregates(part, aggregates)), None)
        if call is not part:
            return None
        inner = part
        while not isinstance(inner, exp.Anonymous):
            inner = inner.this
        return exp.Literal.number(0) if inner.name.lower() in _COUNTS else exp.Null()

    return replace_parts(item.this if isinstance(item, exp.Alias) else item, replacement)
