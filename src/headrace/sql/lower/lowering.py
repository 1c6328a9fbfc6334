"""Lowers relations to operators: each relation becomes nodes of a plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.problems import Problems
from headrace.base.windows import Instant, Session
from headrace.model.builder import PlanBuilder, Port
from headrace.model.fragments import Fragment, Function, called_functions, plain_schema, quote
from headrace.model.operator import ArrowOperator
from headrace.operators.aggregation import Aggregation
from headrace.operators.project import Project
from headrace.operators.session_aggregate import PartialSession, SessionAggregate
from headrace.operators.updating_aggregate import PartialUpdatingAggregate, UpdatingAggregate
from headrace.operators.updating_fragment import UpdatingFragment
from headrace.operators.updating_join import UpdatingJoin
from headrace.operators.window_aggregate import PartialAggregate, WindowAggregate
from headrace.operators.windowed_fragment import WindowedFragment
from headrace.sql.bind.catalog import Table
from headrace.sql.bind.logical import (
    Aggregate,
    AsyncCalls,
    Constants,
    DeadLetters,
    Expression,
    Given,
    Join,
    Late,
    LookupJoin,
    Map,
    Ordered,
    Relation,
    Scan,
    TableCall,
    Union,
    WindowCalls,
)
from headrace.sql.bind.planning import Planner
from headrace.sql.lower.calls import lower_async_calls, lower_table_call
from headrace.sql.lower.decompose import make_aggregation
from headrace.sql.lower.flow import LATE, TAKEN_BACK, TIME, Flow, shuffle, without
from headrace.sql.lower.needs import Needs, find_needs, makes_rows
from headrace.sql.lower.over import lower_ordered, lower_window_calls
from headrace.sql.lower.routes import Routes, find_routes
from headrace.sql.lower.share import share
from headrace.sql.lower.tables import lower_dead_letters, lower_late, lower_lookup_join, lower_scan


class Lowering:
    """Adds the operators of relations to a plan, each relation once."""

    def __init__(
        self,
        builder: PlanBuilder,
        planner: Planner,
        problems: Problems,
        *,
        ttl: timedelta,
        functions: tuple[Function, ...],
    ) -> None:
        self.builder = builder
        self.planner = planner
        self.problems = problems
        self.ttl = ttl
        self.functions = functions
        self._flows: dict[Relation, Flow] = {}
        self._shared: Mapping[Relation, Relation] = {}
        self.needs, self.routes = Needs(), Routes()
        self._names: dict[Relation, str] = {}
        self.within = "query"
        self._ids: set[str] = set()
        self.late: dict[Table, list[Flow]] = {}
        self.sources: dict[Table, Port] = {}

    def prepare(self, roots: Sequence[Relation]) -> None:
        """Find out what is the same and which columns anything reads, before anything is lowered."""
        self._shared = share(roots, functions=[one.name for one in self.functions])
        roots = [self._shared[root] for root in roots]
        self.needs, self.routes = find_needs(roots), find_routes(roots)
        for relation, name in list(self._names.items()):
            self._names.setdefault(self._shared.get(relation, relation), name)

    def name(self, relation: Relation, name: str) -> None:
        """Operators of this relation, and of what it is made of, are called after `name`."""
        self._names.setdefault(relation, name)

    def rows(self, relation: Relation) -> Flow:
        """The rows of a relation, with nothing left to be applied to them."""
        relation = self._shared.get(relation, relation)
        with self._inside(relation):
            return self.settle(self.flow(relation))

    @contextmanager
    def _inside(self, relation: Relation) -> Iterator[None]:
        before = self.within
        self.within = self._names.get(relation, before)
        try:
            yield
        finally:
            self.within = before

    def unique(self, name: str) -> str:
        """An id for a node, made of a name, that no other node has."""
        return self._numbered(_plain(name))

    def _id(self, kind: str) -> str:
        return self._numbered(f"{_plain(self.within)}.{kind}")

    def _numbered(self, base: str) -> str:
        made, number = base, 1
        while made in self._ids:
            number += 1
            made = f"{base}_{number}"
        self._ids.add(made)
        return made

    # ------------------------------------------------------------------------------------ relations

    def flow(self, relation: Relation) -> Flow:
        """The rows of a relation; its operators are added at the first call."""
        relation = self._shared.get(relation, relation)
        if relation not in self._flows:
            made = self._lower(relation)
            if made.sql is not None and self.needs.readers.get(relation, 0) > 1:
                with self._inside(relation):
                    made = self.settle(made)
            self._flows[relation] = made
        return self._flows[relation]

    def _lower(self, relation: Relation) -> Flow:
        ways: dict[type[Relation], Callable[[Any], Flow]] = {
            Scan: partial(lower_scan, self),
            Late: partial(lower_late, self),
            DeadLetters: partial(lower_dead_letters, self),
            Given: self._given,
            Constants: self._constants,
            Map: self._map,
            Aggregate: self._aggregate,
            Join: self._join,
            LookupJoin: partial(lower_lookup_join, self),
            TableCall: partial(lower_table_call, self),
            AsyncCalls: partial(lower_async_calls, self),
            WindowCalls: partial(lower_window_calls, self),
            Ordered: partial(lower_ordered, self),
            Union: self._union,
        }
        if isinstance(relation, Scan):
            self._names[relation] = relation.table.name
        with self._inside(relation):
            return ways[type(relation)](relation)

    def settle(self, flow: Flow) -> Flow:
        """Apply the SQL that is still to be applied."""
        if flow.sql is None:
            return flow
        fragment = self.fragment(flow.sql, {"input": flow.schema})
        port = self.add(Project(fragment), [flow.ports], "project")
        return Flow((port,), fragment.output, late_of=flow.late_of)

    def add(self, operator: ArrowOperator, inputs: Sequence[Sequence[Port]], kind: str) -> Port:
        """Add an operator; its id says whose it is, and what it does."""
        return self.builder.add("operator", operator, inputs, id=self._id(kind))

    def fragment(self, sql: str, inputs: dict[str, pa.Schema]) -> Fragment:
        """SQL over inputs, with the functions of the user that it calls."""
        return Fragment(sql, inputs, functions=called_functions(self.functions, [sql]))

    def columns(self, relation: Relation) -> list[str]:
        """The columns of a relation that anything reads."""
        needed = self.needs.columns(relation)
        return [name for name in relation.columns.names if name in needed]

    def batch_schema(self, relation: Relation, names: Sequence[str] | None = None) -> pa.Schema:
        """The columns of a relation's batches: those that are needed, event time, retractions."""
        wanted = self.columns(relation) if names is None else names
        fields = [relation.columns.field(name) for name in wanted]
        return plain_schema(pa.schema([*fields, TIME, *([TAKEN_BACK] if relation.updating else [])]))

    # -------------------------------------------------------------------------------------- sources

    def _given(self, relation: Given) -> Flow:
        return Flow(relation.ports, self.batch_schema(relation, relation.columns.names))

    def _constants(self, relation: Constants) -> Flow:
        port = self.builder.add(
            "source", "memory", [], id=self._id("values"), options={"rows": relation.rows}
        )
        schema = plain_schema(pa.schema([*relation.columns, TIME]))
        return Flow((port,), schema)

    # ------------------------------------------------------------------------------------ row by row

    def _map(self, relation: Map) -> Flow:
        flow = self.flow(relation.input)
        wanted = set(self.columns(relation))
        # An unnest makes rows, even where nobody reads it.
        items = [item for item in relation.items if item.name in wanted or makes_rows(item)]
        hidden = [TIMESTAMP] + ([RETRACT] if relation.updating else [])
        plain = all(item.value.text == quote(item.name) for item in items)
        if plain and relation.where is None and [i.name for i in items] == self.columns(relation.input):
            return flow
        hidden += [LATE] if flow.late_of is not None else []
        texts = [f"{i.value.text} AS {quote(i.name)}" for i in items] + [quote(name) for name in hidden]
        inner = "input" if flow.sql is None else f"({flow.sql})"
        sql = f"SELECT {', '.join(texts)} FROM {inner}"
        if relation.where is not None:
            sql += f" WHERE {relation.where.text}"
        return Flow(flow.ports, flow.schema, sql, late_of=flow.late_of)

    def mapped(self, flow: Flow, items: Sequence[str]) -> Flow:
        """Rows with these SELECT items."""
        inner = "input" if flow.sql is None else f"({flow.sql})"
        return self.settle(Flow(flow.ports, flow.schema, f"SELECT {', '.join(items)} FROM {inner}"))

    def _union(self, relation: Union) -> Flow:
        ports: list[Port] = []
        schema = self.batch_schema(relation)
        for one in relation.inputs:
            flow = self.flow(one)
            items = [quote(name) for name in self.columns(relation)] + [quote(TIMESTAMP)]
            if relation.updating:
                items.append(quote(RETRACT) if one.updating else f"FALSE AS {quote(RETRACT)}")
            ports += self.mapped(flow, items).ports
        return Flow(tuple(ports), schema)

    # ------------------------------------------------------------------------------------ aggregates

    def _aggregate(self, relation: Aggregate) -> Flow:
        flow = self.flow(relation.input)
        needed = self.needs.columns(relation)
        calls = [call for call in relation.calls if call.name in needed]
        raw = sorted({name for call in calls for name in call.call.columns if name != TIMESTAMP})
        keys = tuple(item.name for item in relation.keys)
        items = [f"{item.value.text} AS {quote(item.name)}" for item in relation.keys]
        items += [quote(name) for name in raw if name not in keys]
        items += [quote(TIMESTAMP)] + ([quote(RETRACT)] if relation.input.updating else [])
        late_of = flow.late_of if relation.window is not None else None
        items += [quote(LATE)] if late_of is not None else []
        flow = replace(self.mapped(flow, items), late_of=late_of)
        aggregation = make_aggregation(
            calls,
            keys=keys,
            rows=flow.schema,
            planner=self.planner,
            functions=called_functions(self.functions, [call.call.text for call in calls]),
            by=tuple(item.value.text for item in relation.keys),
            distinct=relation.windowing is None,
        )
        aggregation = replace(aggregation, routed=self.routes.keys.get(relation))
        if relation.windowing is None:
            return self._updating_aggregate(relation, aggregation, flow)
        return self._windowed_aggregate(relation, aggregation, flow)

    def _windowed_aggregate(self, relation: Aggregate, aggregation: Aggregation, flow: Flow) -> Flow:
        column, window, ports = relation.window_column, relation.window or Instant(), flow.ports
        late = None if flow.late_of is None else LATE
        in_parts = aggregation.in_parts and late is None
        operator: ArrowOperator
        if isinstance(window, Session):
            if in_parts:
                ports = (self.add(PartialSession(aggregation, window.gap), [ports], "partial"),)
            operator = SessionAggregate(aggregation, window.gap, window_column=column, late_column=late)
        else:
            if in_parts:
                ports = (self.add(PartialAggregate(aggregation, window), [ports], "partial"),)
            operator = WindowAggregate(aggregation, window, window_column=column, late_column=late)
        kind = type(window).__name__.lower()
        return self._after(
            relation, self.add(operator, [shuffle(ports, aggregation.route)], kind), flow.late_of
        )

    def _updating_aggregate(self, relation: Aggregate, aggregation: Aggregation, flow: Flow) -> Flow:
        ports = flow.ports
        if aggregation.in_parts:
            ports = (self.add(PartialUpdatingAggregate(aggregation), [ports], "partial"),)
        operator = UpdatingAggregate(aggregation, ttl=self.ttl)
        return self._after(relation, self.add(operator, [shuffle(ports, aggregation.keys)], "aggregate"))

    def _after(self, relation: Aggregate, port: Port, late_of: Table | None = None) -> Flow:
        """The rows of groups, reduced to what is needed; late rows go their own way."""
        needed = self.needs.columns(relation)
        unused = {call.name for call in relation.calls if call.name not in needed}
        emitted = [name for name in relation.columns.names if name not in unused]
        items = [quote(name) for name in [*self.columns(relation), TIMESTAMP]]
        if relation.updating:
            items.append(quote(RETRACT))
        schema = self.batch_schema(relation, emitted)
        where = ""
        if late_of is not None:
            if late_of.columns is None:
                raise AssertionError
            row = pa.field(LATE, pa.struct(list(late_of.columns)))
            schema = plain_schema(schema.append(row))
            self.late.setdefault(late_of, []).append(Flow((port,), schema))
            where = f" WHERE {quote(LATE)} IS NULL"
        return Flow((port,), schema, f"SELECT {', '.join(items)} FROM input{where}")

    # ----------------------------------------------------------------------------------------- joins

    def _join(self, relation: Join) -> Flow:
        updating = (relation.left.updating, relation.right.updating)
        either = any(updating)
        inner = relation.kind == "inner" and not relation.windowed
        sides = []
        keys = [_join_keys([pair[index] for pair in relation.keys]) for index in (0, 1)]
        for side, values in zip((relation.left, relation.right), keys, strict=True):
            carried = self.columns(side)
            items = [quote(name) for name in carried]
            items += [f"{v.text} AS {quote(key)}" for key, v in values.items() if key not in carried]
            items += [quote(TIMESTAMP)]
            if either:
                items.append(quote(RETRACT) if side.updating else f"FALSE AS {quote(RETRACT)}")
            sides.append(self.mapped(self.flow(side), items))
        columns = [
            f"{table}.{quote(name)} AS {quote(name)}"
            for table, side in (("l", relation.left), ("r", relation.right))
            for name in self.columns(relation)
            if name in side.columns.names
        ]
        time = f"greatest(l.{quote(TIMESTAMP)}, r.{quote(TIMESTAMP)}) AS {quote(TIMESTAMP)}"
        on = [f"l.{quote(left)} = r.{quote(right)}" for left, right in zip(*keys, strict=True)]
        if relation.windowed:
            on.insert(0, f"l.{quote(TIMESTAMP)} = r.{quote(TIMESTAMP)}")
        if relation.condition is not None:
            on.append(f"({relation.condition.text})")
        hidden = [time]
        if inner and either:
            hidden.append(f"l.{quote(RETRACT)} <> r.{quote(RETRACT)} AS {quote(RETRACT)}")
        sql = (
            f"SELECT {', '.join([*columns, *hidden])} FROM input0 AS l "
            f"{relation.kind.upper()} JOIN input1 AS r ON {' AND '.join(on)}"
        )
        schemas = [side.schema for side in sides]
        if not inner:
            schemas = [without(schema, RETRACT) for schema in schemas]
        fragment = self.fragment(sql, {"input0": schemas[0], "input1": schemas[1]})
        names = (tuple(keys[0]), tuple(keys[1]))
        inputs = [shuffle(side.ports, own) for side, own in zip(sides, names, strict=True)]
        operator: ArrowOperator
        if relation in self.routes.joins:
            inputs = [side.ports for side in sides]
        if relation.windowed:
            operator = WindowedFragment(fragment, names)
            return self.result(relation, self.add(operator, inputs, "window_join"))
        if inner:
            operator = UpdatingJoin(fragment, names, ttl=self.ttl, updating=updating)
        else:
            operator = UpdatingFragment(fragment, names, ttl=self.ttl, updating=(either, either))
        return self.result(relation, self.add(operator, inputs, "join"))

    def result(self, relation: Relation, port: Port) -> Flow:
        """Rows that a fragment has made of just what is needed."""
        return Flow((port,), self.batch_schema(relation))

    def preview(self, relation: Relation, sink: str, options: dict[str, Any]) -> None:
        """Show a relation's rows."""
        self.within = "query"
        flow = self.settle(self.flow(relation))
        self.builder.add("sink", sink, [flow.ports], id=self.unique("preview"), options=options)


def _join_keys(values: Sequence[Expression]) -> dict[str, Expression]:
    """Names for what a side is joined by: a column keeps its own, so that it is not carried twice."""
    keys: dict[str, Expression] = {}
    for index, value in enumerate(values):
        own = next(iter(value.columns)) if value.is_column else TIMESTAMP
        keys[f"{TIMESTAMP}:key{index}" if own == TIMESTAMP or own in keys else own] = value
    return keys


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)
