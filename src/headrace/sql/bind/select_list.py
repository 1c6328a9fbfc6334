"""The SELECT list: `*`, aliases, and what GROUP BY and ORDER BY take from the list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from headrace.base.errors import suggest
from headrace.sql.bind.calls import find_aggregates
from headrace.sql.bind.scope import Scope, column_of, identifier_name


@dataclass(frozen=True)
class SelectItem:
    """An item of a SELECT list; `field` if it came out of a `*`."""

    node: exp.Expr
    alias: str | None
    field: pa.Field | None = None

    def resolve(self, scope: Scope) -> exp.Expr:
        """The item over the columns of the relation."""
        return self.node if self.field is not None else scope.resolve(self.node)


def select_items(scope: Scope, select: exp.Select) -> list[SelectItem]:
    """The items of a SELECT list, with every `*` expanded."""
    items: list[SelectItem] = []
    for node in select.expressions:
        star = node if isinstance(node, exp.Star) else node.this if isinstance(node, exp.Column) else None
        if isinstance(star, exp.Star):
            items += _expand_star(scope, node, star)
        elif isinstance(node, exp.Alias):
            items.append(SelectItem(node.this, identifier_name(node.args["alias"])))
        else:
            items.append(SelectItem(node, None))
    if not items:
        raise scope.context.fail("SELECT has no columns", select)
    return items


def _expand_star(scope: Scope, node: exp.Expr, star: exp.Star) -> list[SelectItem]:
    qualifier = node.args.get("table") if isinstance(node, exp.Column) else None
    alias = None if qualifier is None else identifier_name(qualifier)
    tables = [table for table in scope.tables if alias is None or table.alias == alias]
    if not tables:
        hint = suggest(alias or "", [table.alias for table in scope.tables], listing="the tables are")
        raise scope.context.fail(f"there is no table `{alias}` here", node, hint)
    for clause in ("replace", "rename"):
        if star.args.get(clause):
            raise scope.context.fail(f"* {clause.upper()} is not supported", node)
    excluded = {
        identifier_name(column.this if isinstance(column, exp.Column) else column): column
        for column in star.args.get("except_") or ()
    }
    names = {name for table in tables for name in table.names}
    for name, column in excluded.items():
        if name not in names:
            message = f"there is no column `{name}` to leave out"
            raise scope.context.fail(message, column, suggest(name, names))
    items = []
    for table in tables:
        for name, field in zip(table.names, table.columns, strict=True):
            if name in excluded or (alias is None and name in table.merged):
                continue
            shown = table.unqualified.get(name, field) if alias is None else field
            reference = column_of(shown.name)
            reference.meta["resolved"] = True
            items.append(SelectItem(reference, name, shown))
    return items


def expand_aliases(scope: Scope, node: exp.Expr, items: Sequence[SelectItem]) -> exp.Expr:
    """A copy in which names of the SELECT list that are no columns are replaced by their expressions."""
    return node.copy().transform(lambda part: _expand_alias(scope, part, items))


def _expand_alias(scope: Scope, node: exp.Expr, items: Sequence[SelectItem]) -> exp.Expr:
    if not isinstance(node, exp.Column):
        return node
    first, *fields = node.parts
    name = identifier_name(first)
    is_column = any(name in table.names for table in scope.tables)
    is_table = bool(fields) and any(name == table.alias for table in scope.tables)
    aliases = {item.alias: item.node for item in items if item.alias is not None and item.field is None}
    if is_column or is_table or name not in aliases:
        return node
    value = aliases[name].copy()
    for field in fields:
        value = exp.Dot(this=value, expression=field.copy())
    return value


def group_keys(scope: Scope, select: exp.Select, items: Sequence[SelectItem]) -> list[exp.Expr]:
    """What GROUP BY groups by: expressions, positions and aliases of the list, or ALL."""
    clause = select.args.get("group")
    if clause is None:
        return []
    context = scope.context
    aggregates = context.planner.aggregates
    for node in clause.expressions:
        if isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets):
            name = type(node).__name__.upper()
            raise context.fail(f"{name} is not supported", node, "write one query for each grouping")
        if any(find_aggregates(node, aggregates)):
            raise context.fail("GROUP BY comes before aggregates", node, "aggregate in a subquery first")
    if clause.args.get("all"):
        return [item.node for item in items if not any(find_aggregates(item.node, aggregates))]
    keys = []
    for node in clause.expressions:
        if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
            index = int(node.name) - 1
            if not 0 <= index < len(items):
                raise context.fail(f"there is no column {node.name} in the SELECT", node)
            keys.append(items[index].node)
        else:
            keys.append(_expand_alias(scope, node, items))
    return keys


def order_items(scope: Scope, select: exp.Select, items: Sequence[SelectItem]) -> list[SelectItem]:
    """What ORDER BY computes beyond the SELECT list, as hidden items; ORDER BY then names these."""
    order = select.args.get("order")
    if order is None or select.args.get("distinct") is not None:
        return []
    names = {
        item.alias or item.node.name for item in items if item.alias or isinstance(item.node, exp.Column)
    }
    tables = {table.alias for table in scope.tables}
    hidden: list[SelectItem] = []
    for ordered in order.expressions:
        columns = [[identifier_name(part) for part in c.parts] for c in ordered.this.find_all(exp.Column)]
        is_shown = all(first in names and not (rest and first in tables) for first, *rest in columns)
        if is_shown and not any(find_aggregates(ordered.this, scope.context.planner.aggregates)):
            continue
        name = f"order:{len(hidden)}"
        hidden.append(SelectItem(expand_aliases(scope, ordered.this, items), name))
        ordered.set("this", exp.column(name, quoted=True))
    return hidden
