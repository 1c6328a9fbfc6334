"""GROUP BY: keys, windows of event time and aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.windows import Cumulate, Hop, Session, Tumble
from headrace.model.fragments import quote
from headrace.sql.bind.calls import aggregate_call, call_name, find_aggregates, is_window_call, replace_parts
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.grouping_sets import Grouping
from headrace.sql.bind.logical import (
    Aggregate,
    AggregateCall,
    Expression,
    Item,
    Relation,
    Windowing,
    WindowKind,
    WindowPart,
)
from headrace.sql.bind.planning import WINDOW_TYPE, WINDOWS
from headrace.sql.bind.postgres_calls import parse_expression
from headrace.sql.bind.relations import column_item, make_map, union_rows, where_map, window_part
from headrace.sql.bind.scope import Scope, as_expression, column_of
from headrace.sql.bind.subqueries import SubqueryBinder
from headrace.sql.bind.temporal import filter_by_clock, split_by_clock
from headrace.sql.parse.dialect import to_sql
from headrace.sql.types import sql_type

_FLAG: Final = "grouping:"
"""Before the name of a key: the column with 1 where the grouping of a row does not have it, 0 elsewhere."""


class GroupBinder:
    """Binds the groups of one SELECT: adds keys, the window and aggregates, then makes the relation."""

    def __init__(self, scope: Scope, select: exp.Select, relation: Relation) -> None:
        self._context = scope.context
        self._select = select
        self._scope = scope
        self._relation = relation
        self._keys: list[Item] = []
        self._calls: list[AggregateCall] = []
        self._window: WindowKind | None = None
        self._window_name: str | None = None
        self._parts: dict[str, WindowPart] = {}
        """The keys that are windows which the rows are in already, or parts of these."""
        self._columns: dict[str, str] = {}
        """The text of a key or of an aggregate → the column that holds it."""
        self._window_text: str | None = None
        self._taken: set[str] = {TIMESTAMP, RETRACT}

    def bind(
        self,
        nodes: list[exp.Expr],
        group: Grouping,
        having: exp.Expr | None,
        subqueries: SubqueryBinder,
    ) -> tuple[Relation, list[exp.Expr]]:
        """The relation of the groups with the values of subqueries, and the SELECT list over its columns."""
        for node in group.keys:
            self._add_key(node)
        if self._window is not None:
            self._add_window(self._window)
        flags = partial(self._grouping_flag, has_sets=group.sets is not None)
        nodes = [replace_parts(node, flags) for node in nodes]
        condition = None if having is None else replace_parts(self._scope.resolve(having), flags)
        for node in [*nodes, *([] if condition is None else [condition])]:
            for call in find_aggregates(node, self._context.planner.aggregates):
                if to_sql(call) not in self._columns:
                    name = self._unused_name(f"agg{len(self._calls)}")
                    self._columns[to_sql(call)] = name
                    self._calls.append(aggregate_call(call, name))
        relation = self._aggregate(self._keys) if group.sets is None else self._sets(group)
        groups = subqueries.join(relation, lambda node: replace_parts(node, self._result_column))
        if condition is not None:
            moving, others = split_by_clock(replace_parts(condition, self._result_column))
            for other in others:
                groups = where_map(groups, as_expression(other))
            groups = filter_by_clock(self._context, groups, moving)
        return groups, [replace_parts(node, self._result_column) for node in nodes]

    def _unused_name(self, base: str) -> str:
        name, number = base, 1
        while name in self._taken:
            name, number = f"{base}:{number}", number + 1
        self._taken.add(name)
        return name

    def _add_key(self, node: exp.Expr) -> None:
        resolved = self._scope.resolve(node)
        text = to_sql(resolved)
        if text in self._columns or text == self._window_text:
            return
        if is_window_call(resolved):
            if self._window_text is not None:
                raise self._context.fail(
                    "GROUP BY has two windows", node, "one at most; group twice for more"
                )
            self._window, self._window_text = window_of(self._context, resolved, node), text
            return
        value = as_expression(resolved)
        self._taken.update(self._relation.columns.names)
        base = f"key{len(self._keys)}"
        if isinstance(resolved, exp.Column):
            base = resolved.name
            self._taken.discard(base)
        name = self._unused_name(base)
        windowing = self._relation.windowing
        part = None if windowing is None else window_part(value, windowing)
        if part is not None:
            self._parts[name] = part
        self._columns[text] = name
        self._keys.append(Item(name, value))

    def _add_window(self, window: WindowKind) -> None:
        if self._relation.updating:
            raise self._context.fail(
                "a window needs rows that are never taken back, and this input is updating",
                self._select.args["group"],
                "aggregate the updating rows without a window",
            )
        self._window_name = self._unused_name("window")
        windowing = self._relation.windowing
        if windowing is not None and windowing.kind == window and not isinstance(window, Session):
            # The same window again: the rows are of one already.
            self._window = None
            self._keys.append(Item(self._window_name, _window_again(self._relation, window)))
            self._parts[self._window_name] = "window"

    def _grouping_flag(self, part: exp.Expr, *, has_sets: bool) -> exp.Expr | None:
        """The value of `grouping(a, b)`: a bit for each key that the grouping of a row does not have."""
        if call_name(part) != "grouping":
            return None
        names = [self._key_name(to_sql(key)) for key in part.expressions]
        if not names or None in names:
            return None
        if not has_sets:
            return exp.cast(exp.Literal.number(0), "int")
        flags = [f"{quote(_FLAG + str(name))} * {2**bit}" for bit, name in enumerate(reversed(names))]
        flag = parse_expression(f"CAST({' + '.join(flags)} AS INT)")
        flag.meta["resolved"] = True
        return flag

    def _key_name(self, text: str) -> str | None:
        """The column that holds a key."""
        return self._window_name if text == self._window_text else self._columns.get(text)

    def _result_column(self, part: exp.Expr) -> exp.Expr | None:
        """The column that holds a part of an expression, if one does."""
        if isinstance(part, exp.Identifier):
            return None
        name = self._key_name(to_sql(part))
        return None if name is None else column_of(name)

    def _sets(self, group: Grouping) -> Relation:
        """The groups of all grouping sets, each with NULL for the keys that its set does not have."""
        names = [self._key_name(to_sql(self._scope.resolve(node))) for node in group.keys]
        sets = [{names[index] for index in indexes} for indexes in group.sets or ()]
        parts: list[Aggregate] = []
        for keys in sets:
            own = [item for item in self._keys if item.name in keys]
            parts.append(self._aggregate(own, has_window=self._window_name in keys))
        fields = {column.name: column for part in parts for column in part.columns}
        schema = pa.schema(
            [
                column.with_nullable(column.nullable or any(name not in part.columns.names for part in parts))
                for name, column in fields.items()
            ]
        )
        flags = [name for name in dict.fromkeys(names) if name is not None]
        schema = pa.schema([*schema, *(pa.field(_FLAG + name, pa.int64(), nullable=False) for name in flags)])
        return union_rows([self._with_all_keys(part, schema) for part in parts])

    def _with_all_keys(self, part: Aggregate, schema: pa.Schema) -> Relation:
        """The groups of one set with the columns of all: NULL for other keys, and 1 as their flags."""
        items: list[Item] = []
        for column in schema:
            if column.name in part.columns.names:
                items.append(column_item(column.name))
            elif column.name.startswith(_FLAG):
                is_grouped = column.name.removeprefix(_FLAG) in part.columns.names
                items.append(Item(column.name, Expression(f"CAST({0 if is_grouped else 1} AS BIGINT)")))
            else:
                items.append(Item(column.name, Expression(f"CAST(NULL AS {sql_type(column.type)})")))
        return make_map(part, items, schema)

    def _aggregate(self, keys: Sequence[Item], *, has_window: bool = True) -> Aggregate:
        windowing: Windowing | None = None
        window = self._window if has_window else None
        parts = {item.name: self._parts[item.name] for item in keys if item.name in self._parts}
        if window is not None and self._window_name is not None:
            windowing = Windowing(window, {self._window_name: "window"})
        elif parts and self._relation.windowing is not None:
            windowing = Windowing(self._relation.windowing.kind, parts)
        column = None if window is None else self._window_name
        return Aggregate(
            self._schema(keys, column),
            updating=windowing is None,
            windowing=windowing,
            key=tuple(item.name for item in keys) if windowing is None else (),
            input=self._relation,
            keys=tuple(keys),
            calls=tuple(self._calls),
            window=window,
            window_column=column,
            by_instant=bool(parts) and window is None,
        )

    def _schema(self, keys: Sequence[Item], window: str | None) -> pa.Schema:
        items = [f"{item.value.text} AS {quote(item.name)}" for item in keys]
        items += [f"{call.call.text} AS {quote(call.name)}" for call in self._calls]
        sql = f"SELECT {', '.join(items) or '1'} FROM input"
        if keys:
            sql += " GROUP BY " + ", ".join(item.value.text for item in keys)
        schema = pa.schema([*self._relation.columns, pa.field(TIMESTAMP, pa.timestamp("ns"), nullable=False)])
        with self._context.planning(self._select):
            planned = self._context.planner.schema(sql, {"input": schema})
        fields = list(planned) if items else []
        if window is not None:
            fields.append(pa.field(window, WINDOW_TYPE, nullable=False))
        return pa.schema(fields)


def _window_again(relation: Relation, window: WindowKind) -> Expression:
    """The window of rows that are in windows already: from their event time, which is its end less 1 ns."""
    if relation.windowing is not None:
        for name, part in relation.windowing.columns.items():
            if part == "window":
                return Expression(quote(name), frozenset([name]))
    width = 0 if isinstance(window, Session) else window.width
    last = f"CAST({quote(TIMESTAMP)} AS BIGINT)"
    first = f"{last} + 1 - {width}"
    if isinstance(window, Cumulate):
        first = f"{last} - ({last} % {width} + {width}) % {width}"
    start, end = (f"arrow_cast({text}, 'Timestamp(Nanosecond, None)')" for text in (first, f"{last} + 1"))
    return Expression(f"named_struct('start', {start}, 'end', {end})", frozenset([TIMESTAMP]))


_USAGE = {
    "tumble": "tumble(interval '1 minute')",
    "hop": "hop(interval '10 seconds', interval '1 minute'): the slide, then the width",
    "cumulate": "cumulate(interval '1 hour', interval '1 day'): the step, then the size",
    "session": "session(interval '30 seconds')",
}


def window_of(context: BindContext, call: exp.Expr, node: exp.Expr) -> WindowKind:
    """The window that a call of tumble, hop, cumulate or session stands for; errors point at `node`."""
    name = call_name(call) or ""
    if len(call.expressions) != WINDOWS[name]:
        message = f"{name} takes {WINDOWS[name]} interval{'s' * (WINDOWS[name] > 1)}"
        raise context.fail(message, node, _USAGE[name])
    intervals = [_interval(context, argument, name, node) for argument in call.expressions]
    if name == "tumble":
        return Tumble(intervals[0])
    if name == "session":
        return Session(intervals[0])
    slide, width = intervals
    if slide == width:
        return Tumble(width)
    if name == "cumulate":
        if width % slide:
            raise context.fail(
                "the size of cumulating windows is a multiple of their step",
                node,
                "cumulate(step, size): the step comes first",
            )
        return Cumulate(slide, width)
    if slide > width:
        raise context.fail(
            "a hop that slides further than its width leaves rows out",
            node,
            "hop(slide, width): the slide comes first",
        )
    return Hop(slide, width)


def _interval(context: BindContext, argument: exp.Expr, name: str, node: exp.Expr) -> int:
    """An interval of a window in nanoseconds."""
    if argument.is_string:
        argument = exp.Interval(this=argument.copy())  # tumble('1 minute')
    if not isinstance(argument, exp.Interval):
        raise context.fail(f"{name} takes literal intervals", node, f"write {name}(interval '1 minute'…)")
    with context.planning(node):
        months, length = context.planner.interval(to_sql(argument))
    if months:
        raise context.fail("months have no fixed length", node, "use days")
    if length <= 0:
        raise context.fail("a window must be greater than zero", node)
    return length
