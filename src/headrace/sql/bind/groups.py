"""GROUP BY: keys, windows of event time and aggregates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import ExpressionError
from headrace.base.windows import Hop, Session, Tumble
from headrace.model.fragments import quote
from headrace.sql.bind.calls import aggregate_call, call_name, find_aggregates, is_window_call, replace_parts
from headrace.sql.bind.logical import (
    Aggregate,
    AggregateCall,
    Expression,
    Item,
    Part,
    Relation,
    Windowing,
    WindowKind,
)
from headrace.sql.bind.planning import WINDOW_TYPE, WINDOWS
from headrace.sql.bind.relations import where_map, window_part
from headrace.sql.bind.scope import Scope, as_expression, column_of
from headrace.sql.parse.dialect import to_sql

if TYPE_CHECKING:
    from headrace.sql.bind.binder import Binder


class Groups:
    """Binds the groups of one SELECT: adds keys, the window and aggregates, then makes the relation."""

    def __init__(self, binder: Binder, select: exp.Select, scope: Scope, relation: Relation) -> None:
        self.binder = binder
        self.planner = binder.planner
        self.select = select
        self.scope = scope
        self.relation = relation
        self.keys: list[Item] = []
        self.calls: list[AggregateCall] = []
        self.window: WindowKind | None = None
        self.window_name: str | None = None
        self.by_instant = False
        """Whether the rows are in windows already, and are grouped by these."""
        self._parts: dict[str, Part] = {}
        self._known: dict[str, str] = {}
        """The text of a key or of an aggregate → the column that holds it."""
        self._window_text: str | None = None
        self._taken: set[str] = {TIMESTAMP, RETRACT}

    def bind(
        self,
        nodes: list[exp.Expr],
        group: list[exp.Expr],
        having: exp.Expr | None,
    ) -> tuple[Relation, list[exp.Expr]]:
        """The relation of the groups, and the SELECT list over its columns."""
        for node in group:
            self._add_key(node)
        if self.window is not None:
            self._settle_window(self.window)
        nodes = [replace_parts(node, self._rolled_up) for node in nodes]
        condition = None if having is None else replace_parts(self.scope.physical(having), self._rolled_up)
        for node in [*nodes, *([] if condition is None else [condition])]:
            for found in find_aggregates(node, self.planner.aggregates):
                if to_sql(found) not in self._known:
                    name = self._fresh(f"agg{len(self.calls)}")
                    self._known[to_sql(found)] = name
                    self.calls.append(aggregate_call(found, name))
        made: Relation = self._made()
        if condition is not None:
            made = where_map(made, as_expression(replace_parts(condition, self._held)))
        return made, [replace_parts(node, self._held) for node in nodes]

    def _fresh(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self._taken:
            name, number = f"{wanted}:{number}", number + 1
        self._taken.add(name)
        return name

    def _add_key(self, node: exp.Expr) -> None:
        physical = self.scope.physical(node)
        text = to_sql(physical)
        if text in self._known or text == self._window_text:
            return
        if is_window_call(physical):
            if self._window_text is not None:
                raise self.binder.fail("GROUP BY has two windows", node, "one at most; group twice for more")
            self.window, self._window_text = window_of(self.binder, physical, node), text
            return
        value = as_expression(physical)
        self._taken.update(self.relation.columns.names)
        wanted = f"key{len(self.keys)}"
        if isinstance(physical, exp.Column):
            wanted = physical.name
            self._taken.discard(wanted)
        name = self._fresh(wanted)
        windowing = self.relation.windowing
        part = None if windowing is None else window_part(value, windowing)
        if part is not None:
            self.by_instant = True
            self._parts[name] = part
        self._known[text] = name
        self.keys.append(Item(name, value))

    def _settle_window(self, window: WindowKind) -> None:
        if self.relation.updating:
            raise self.binder.fail(
                "a window needs rows that are never taken back, and this input is updating",
                self.select.args["group"],
                "aggregate the updating rows without a window",
            )
        self.window_name = self._fresh("window")
        windowing = self.relation.windowing
        if windowing is not None and windowing.kind == window and not isinstance(window, Session):
            # The same window again: the rows are of one already.
            self.by_instant, self.window = True, None
            self.keys.append(Item(self.window_name, _window_again(self.relation, window)))
            self._parts[self.window_name] = "window"

    def _rolled_up(self, part: exp.Expr) -> exp.Expr | None:
        """What `grouping(key)` is without grouping sets: every key is there in every group."""
        if call_name(part) != "grouping" or any(to_sql(one) not in self._known for one in part.expressions):
            return None
        return exp.cast(exp.Literal.number(0), "int")

    def _held(self, part: exp.Expr) -> exp.Expr | None:
        """The column that holds a part of an expression, if one does."""
        if isinstance(part, exp.Identifier):
            return None
        text = to_sql(part)
        name = self.window_name if text == self._window_text else self._known.get(text)
        return None if name is None else column_of(name)

    def _made(self) -> Aggregate:
        windowing: Windowing | None = None
        if self.window is not None and self.window_name is not None:
            windowing = Windowing(self.window, {self.window_name: "window"})
        elif self.by_instant and self.relation.windowing is not None:
            windowing = Windowing(self.relation.windowing.kind, self._parts)
        column = None if self.window is None else self.window_name
        return Aggregate(
            self._schema(column),
            updating=windowing is None,
            windowing=windowing,
            key=tuple(item.name for item in self.keys) if windowing is None else (),
            input=self.relation,
            keys=tuple(self.keys),
            calls=tuple(self.calls),
            window=self.window,
            window_column=column,
            by_instant=self.by_instant and self.window is None,
        )

    def _schema(self, window: str | None) -> pa.Schema:
        items = [f"{item.value.text} AS {quote(item.name)}" for item in self.keys]
        items += [f"{call.call.text} AS {quote(call.name)}" for call in self.calls]
        sql = f"SELECT {', '.join(items) or '1'} FROM input"
        if self.keys:
            sql += " GROUP BY " + ", ".join(item.value.text for item in self.keys)
        schema = pa.schema([*self.relation.columns, pa.field(TIMESTAMP, pa.timestamp("ns"), nullable=False)])
        try:
            planned = self.planner.schema(sql, {"input": schema})
        except ExpressionError as error:
            raise self.binder.fail(error.message, self.select, error.hint) from error
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


def window_of(binder: Binder, call: exp.Expr, node: exp.Expr) -> WindowKind:
    """The window that a call of tumble, hop or session stands for."""
    name = call_name(call) or ""
    intervals = []
    if len(call.expressions) != WINDOWS[name]:
        usage = {
            "tumble": "tumble(interval '1 minute')",
            "hop": "hop(interval '10 seconds', interval '1 minute'): the slide, then the width",
            "session": "session(interval '30 seconds')",
        }[name]
        raise binder.fail(f"{name} takes {WINDOWS[name]} interval{'s' * (WINDOWS[name] > 1)}", node, usage)
    for argument in call.expressions:
        if argument.is_string:
            argument = exp.Interval(this=argument.copy())  # noqa: PLW2901 - tumble('1 minute')
        if not isinstance(argument, exp.Interval):
            raise binder.fail(f"{name} takes literal intervals", node, f"write {name}(interval '1 minute'…)")
        try:
            months, length = binder.planner.interval(to_sql(argument))
        except ExpressionError as error:
            raise binder.fail(error.message, node, error.hint) from error
        if months:
            raise binder.fail("months have no fixed length", node, "use days")
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
