"""GROUP BY: keys, windows of event time and aggregates."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.windows import Hop, Session, Tumble
from headrace.model.fragments import quote
from headrace.sql.bind.calls import aggregate_call, call_name, find_aggregates, is_window_call, replace_parts
from headrace.sql.bind.context import BindContext
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
from headrace.sql.bind.relations import where_map, window_part
from headrace.sql.bind.scope import Scope, as_expression, column_of
from headrace.sql.bind.subqueries import SubqueryBinder
from headrace.sql.parse.dialect import to_sql


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
        self._by_instant = False
        """Whether the rows are in windows already, and are grouped by these."""
        self._parts: dict[str, WindowPart] = {}
        self._columns: dict[str, str] = {}
        """The text of a key or of an aggregate → the column that holds it."""
        self._window_text: str | None = None
        self._taken: set[str] = {TIMESTAMP, RETRACT}

    def bind(
        self,
        nodes: list[exp.Expr],
        group: list[exp.Expr],
        having: exp.Expr | None,
        subqueries: SubqueryBinder,
    ) -> tuple[Relation, list[exp.Expr]]:
        """The relation of the groups with the values of subqueries, and the SELECT list over its columns."""
        for node in group:
            self._add_key(node)
        if self._window is not None:
            self._add_window(self._window)
        nodes = [replace_parts(node, self._grouping_flag) for node in nodes]
        condition = (
            None if having is None else replace_parts(self._scope.resolve(having), self._grouping_flag)
        )
        for node in [*nodes, *([] if condition is None else [condition])]:
            for call in find_aggregates(node, self._context.planner.aggregates):
                if to_sql(call) not in self._columns:
                    name = self._unused_name(f"agg{len(self._calls)}")
                    self._columns[to_sql(call)] = name
                    self._calls.append(aggregate_call(call, name))
        groups = subqueries.join(self._aggregate(), lambda node: replace_parts(node, self._result_column))
        if condition is not None:
            groups = where_map(groups, as_expression(replace_parts(condition, self._result_column)))
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
            self._by_instant = True
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
            self._by_instant, self._window = True, None
            self._keys.append(Item(self._window_name, _window_again(self._relation, window)))
            self._parts[self._window_name] = "window"

    def _grouping_flag(self, part: exp.Expr) -> exp.Expr | None:
        """The value of `grouping(key)` without grouping sets: 0, every group has every key."""
        if call_name(part) != "grouping" or any(to_sql(key) not in self._columns for key in part.expressions):
            return None
        return exp.cast(exp.Literal.number(0), "int")

    def _result_column(self, part: exp.Expr) -> exp.Expr | None:
        """The column that holds a part of an expression, if one does."""
        if isinstance(part, exp.Identifier):
            return None
        text = to_sql(part)
        name = self._window_name if text == self._window_text else self._columns.get(text)
        return None if name is None else column_of(name)

    def _aggregate(self) -> Aggregate:
        windowing: Windowing | None = None
        if self._window is not None and self._window_name is not None:
            windowing = Windowing(self._window, {self._window_name: "window"})
        elif self._by_instant and self._relation.windowing is not None:
            windowing = Windowing(self._relation.windowing.kind, self._parts)
        column = None if self._window is None else self._window_name
        return Aggregate(
            self._schema(column),
            updating=windowing is None,
            windowing=windowing,
            key=tuple(item.name for item in self._keys) if windowing is None else (),
            input=self._relation,
            keys=tuple(self._keys),
            calls=tuple(self._calls),
            window=self._window,
            window_column=column,
            by_instant=self._by_instant and self._window is None,
        )

    def _schema(self, window: str | None) -> pa.Schema:
        items = [f"{item.value.text} AS {quote(item.name)}" for item in self._keys]
        items += [f"{call.call.text} AS {quote(call.name)}" for call in self._calls]
        sql = f"SELECT {', '.join(items) or '1'} FROM input"
        if self._keys:
            sql += " GROUP BY " + ", ".join(item.value.text for item in self._keys)
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
    width = window.width if isinstance(window, Tumble | Hop) else 0
    end = f"arrow_cast(CAST({quote(TIMESTAMP)} AS BIGINT) + 1, 'Timestamp(Nanosecond, None)')"
    start = f"arrow_cast(CAST({quote(TIMESTAMP)} AS BIGINT) + 1 - {width}, 'Timestamp(Nanosecond, None)')"
    return Expression(f"named_struct('start', {start}, 'end', {end})", frozenset([TIMESTAMP]))


_USAGE = {
    "tumble": "tumble(interval '1 minute')",
    "hop": "hop(interval '10 seconds', interval '1 minute'): the slide, then the width",
    "session": "session(interval '30 seconds')",
}


def window_of(context: BindContext, call: exp.Expr, node: exp.Expr) -> WindowKind:
    """The window that a call of tumble, hop or session stands for; errors point at `node`."""
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
