"""Lowers relations to operators: each relation becomes nodes of a plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from headrace.builder import PlanBuilder, Port
from headrace.errors import HeadraceError, SqlError
from headrace.fragments import Fragment, Function, plain_schema, quote
from headrace.operator import DEAD_LETTER, DEAD_LETTERS, TIMESTAMP, ArrowOperator
from headrace.operators.aggregation import Aggregation
from headrace.operators.async_call import AsyncCall
from headrace.operators.lookup_join import CacheOptions
from headrace.operators.lookup_join import LookupJoin as LookupOperator
from headrace.operators.not_null import NotNull
from headrace.operators.numbered import NumberedFragment
from headrace.operators.project import Project
from headrace.operators.session_aggregate import PartialSession, SessionAggregate
from headrace.operators.table_function import TableFunctionCall
from headrace.operators.top_n import PartialTopN, Ranking, TopN
from headrace.operators.updating_aggregate import PartialUpdatingAggregate, UpdatingAggregate
from headrace.operators.updating_fragment import UpdatingFragment
from headrace.operators.updating_join import UpdatingJoin
from headrace.operators.watermark import ExpressionWatermark
from headrace.operators.window_aggregate import PartialAggregate, WindowAggregate
from headrace.operators.windowed_fragment import WindowedFragment
from headrace.options import parse_options
from headrace.problems import Problems
from headrace.registry import registry
from headrace.sql.catalog import Table, connector_options, option_error
from headrace.sql.decompose import RETRACT, make_aggregation
from headrace.sql.find_columns import column_lines
from headrace.sql.logical import (
    TIES,
    Aggregate,
    AsyncCalls,
    Constants,
    DeadLetters,
    Expression,
    Given,
    Item,
    Join,
    Late,
    LookupJoin,
    Map,
    Ordered,
    Path,
    Relation,
    Scan,
    TableCall,
    Union,
    WindowCalls,
)
from headrace.sql.needs import Needs, find_needs, makes_rows, narrow
from headrace.sql.planning import Planner
from headrace.sql.problems import sql_error
from headrace.sql.routes import Routes, find_routes
from headrace.sql.share import share
from headrace.windows import Instant, Session

_TIME = pa.field(TIMESTAMP, pa.timestamp("ns"))
_TAKEN_BACK = pa.field(RETRACT, pa.bool_())
_WATERMARK = f"{TIMESTAMP}:watermark"
_LATE = f"{TIMESTAMP}:late"
"""The row as it was read, carried to the windows of a table with a late_table."""
_READS_FIELDS = ("json", "parquet")
"""Formats of which single fields of a column can be read."""
_DEFAULT_WATERMARK = ExpressionWatermark(TIMESTAMP, drop=False, lateness=1_000_000_000)
"""One second behind event time, where a table says nothing."""


@dataclass(frozen=True)
class Flow:
    """Rows of a relation on their way: where they come from, and SQL still to be applied to them."""

    ports: tuple[Port, ...]
    schema: pa.Schema
    """The columns of the rows at the ports, with event time and, if they are updating, retractions."""
    sql: str | None = None
    """A SELECT over `input`, the rows at the ports."""
    late_of: Table | None = None
    """The table whose late rows are wanted; rows carry what they were when they were read."""


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
        self._needs, self._routes = Needs(), Routes()
        self._names: dict[Relation, str] = {}
        self._within = "query"
        self._ids: set[str] = set()
        self._late: dict[Table, list[Flow]] = {}
        self._sources: dict[Table, Port] = {}

    def prepare(self, roots: Sequence[Relation]) -> None:
        """Find out what is the same and which columns anything reads, before anything is lowered."""
        self._shared = share(roots, functions=[one.name for one in self.functions])
        roots = [self._shared[root] for root in roots]
        self._needs, self._routes = find_needs(roots), find_routes(roots)
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
        before = self._within
        self._within = self._names.get(relation, before)
        try:
            yield
        finally:
            self._within = before

    def _id(self, kind: str) -> str:
        base = re.sub(r"[^A-Za-z0-9_-]", "_", self._within) + f".{kind}"
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
            if made.sql is not None and self._needs.readers.get(relation, 0) > 1:
                with self._inside(relation):
                    made = self.settle(made)
            self._flows[relation] = made
        return self._flows[relation]

    def _lower(self, relation: Relation) -> Flow:
        ways: dict[type[Relation], Callable[[Any], Flow]] = {
            Scan: self._scan,
            Late: self._late_rows,
            DeadLetters: self._dead_letters,
            Given: self._given,
            Constants: self._constants,
            Map: self._map,
            Aggregate: self._aggregate,
            Join: self._join,
            LookupJoin: self._lookup_join,
            TableCall: self._table_call,
            AsyncCalls: self._async_calls,
            WindowCalls: self._window_calls,
            Ordered: self._ordered,
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
        fragment = self._fragment(flow.sql, {"input": flow.schema})
        port = self.add(Project(fragment), [flow.ports], "project")
        return Flow((port,), fragment.output, late_of=flow.late_of)

    def add(self, operator: ArrowOperator, inputs: Sequence[Sequence[Port]], kind: str) -> Port:
        return self.builder.add("operator", operator, inputs, id=self._id(kind))

    def _fragment(self, sql: str, inputs: dict[str, pa.Schema]) -> Fragment:
        return Fragment(sql, inputs, functions=called_functions(self.functions, [sql]))

    def _columns(self, relation: Relation) -> list[str]:
        needed = self._needs.columns(relation)
        return [name for name in relation.columns.names if name in needed]

    def batch_schema(self, relation: Relation, names: Sequence[str] | None = None) -> pa.Schema:
        """The columns of a relation's batches: those that are needed, event time, retractions."""
        wanted = self._columns(relation) if names is None else names
        fields = [relation.columns.field(name) for name in wanted]
        return plain_schema(pa.schema([*fields, _TIME, *([_TAKEN_BACK] if relation.updating else [])]))

    # -------------------------------------------------------------------------------------- sources

    def _scan(self, relation: Scan) -> Flow:
        table = relation.table
        # Values of CSV without a header have only their places.
        whole = table.value("format") == "csv" or any(
            table.value(option) is not None for option in ("late_table", "dead_letter_table")
        )
        paths: set[Path] = {(name,) for name in relation.columns.names}
        if not whole:
            paths = set(self._needs.paths[relation])
        for value in (relation.event_time, relation.watermark):
            paths |= set() if value is None else value.paths
        for item in relation.generated:
            if any(path[0] == item.name for path in paths):
                paths |= item.value.paths
        wanted = {path[0] for path in paths}
        read = relation.read
        if not relation.updating and table.columns is not None:
            read = pa.schema([one for one in relation.read if one.name in wanted])
            if table.value("format") in _READS_FIELDS:
                read = pa.schema([narrow(one, paths) for one in read])
        if not len(read):
            read = pa.schema([relation.read.field(0)])
        found = {"columns found": ", ".join(column_lines(table.found))} if table.found else {}
        port = self._connector("source", table, [], read, f"source_{table.name}", details=found)
        self._sources[table] = port
        schema = plain_schema(pa.schema([*read, _TIME, *([_TAKEN_BACK] if relation.updating else [])]))
        hidden = [quote(TIMESTAMP)] + ([quote(RETRACT)] if relation.updating else [])
        inner = [quote(name) for name in read.names]
        inner += [f"{i.value.text} AS {quote(i.name)}" for i in relation.generated if i.name in wanted]
        source = f"(SELECT {', '.join([*inner, *hidden])} FROM input)"
        time = quote(TIMESTAMP) if relation.event_time is None else relation.event_time.text
        columns = [quote(name) for name in relation.columns.names if name in wanted]
        middle = [*columns, f"{time} AS {quote(TIMESTAMP)}", *hidden[1:]]
        outer = [quote(name) for name in self._columns(relation)]
        late_of = table if table.value("late_table") is not None else None
        if late_of is not None:
            fields = ", ".join(f"{_text(name)}, {quote(name)}" for name in relation.columns.names)
            outer.append(f"named_struct({fields}) AS {quote(_LATE)}")
        outer += hidden
        marks = ExpressionWatermark(TIMESTAMP, drop=False, lateness=relation.lateness or 0)
        if relation.watermark is None:
            marks = _DEFAULT_WATERMARK
        elif relation.lateness is None:
            marks = ExpressionWatermark(_WATERMARK)
            outer.append(f"CAST({relation.watermark.text} AS TIMESTAMP(9)) AS {quote(_WATERMARK)}")
        sql = f"SELECT {', '.join(outer)} FROM (SELECT {', '.join(middle)} FROM {source})"
        flow = self.settle(Flow((port,), schema, sql))
        marked = self.add(marks, [flow.ports], "watermark")
        return Flow((marked,), _without(flow.schema, _WATERMARK), late_of=late_of)

    def _late_rows(self, relation: Late) -> Flow:
        flows = self._late.get(relation.table)
        if not flows:
            table = relation.table
            raise sql_error(
                f"no row of `{table.name}` can be late: no window reads it",
                table.span("late_table"),
                "late rows are those of GROUP BY tumble(…), hop(…) or session(…) over the table itself",
            )
        names = self._columns(relation)
        items = [f"{quote(_LATE)}[{_text(name)}] AS {quote(name)}" for name in names] + [quote(TIMESTAMP)]
        where = f"WHERE {quote(_LATE)} IS NOT NULL"
        ports: list[Port] = []
        for flow in flows:
            sql = f"SELECT {', '.join(items)} FROM input {where}"
            ports += self.settle(Flow(flow.ports, flow.schema, sql)).ports
        return Flow(tuple(ports), self.batch_schema(relation))

    def _dead_letters(self, relation: DeadLetters) -> Flow:
        table = relation.table
        if table not in self._sources:
            raise sql_error(
                f"no record of `{table.name}` can be bad: nothing reads it",
                table.span("dead_letter_table"),
                f"records are read by a query: SELECT … FROM {table.name}",
            )
        port = replace(self._sources[table], output=DEAD_LETTER)
        columns = [quote(name) for name in self._columns(relation)]
        sql = f"SELECT {', '.join([*columns, quote(TIMESTAMP)])} FROM input"
        flow = self.settle(Flow((port,), DEAD_LETTERS, sql))
        marked = self.add(_DEFAULT_WATERMARK, [flow.ports], "watermark")
        return Flow((marked,), flow.schema)

    def _connector(
        self,
        role: Any,
        table: Table,
        inputs: Sequence[Sequence[Port]],
        columns: pa.Schema,
        name: str,
        *,
        key: Sequence[str] = (),
        details: Mapping[str, str] | None = None,
    ) -> Port:
        with self._options_of(table):
            options = connector_options(table, role, columns, key=key)
            return self.builder.add(
                role, table.connector, inputs, id=self._unique(name), options=options, details=details
            )

    @contextmanager
    def _options_of(self, table: Table) -> Iterator[None]:
        """Let errors of a table's options point at them."""
        try:
            yield
        except SqlError:
            raise
        except HeadraceError as error:
            first, *others = option_error(error, table)
            for other in others:
                self.problems.add(other)
            raise first from error

    def _unique(self, name: str) -> str:
        made, number = re.sub(r"[^A-Za-z0-9_-]", "_", name), 1
        base = made
        while made in self._ids:
            number += 1
            made = f"{base}_{number}"
        self._ids.add(made)
        return made

    def _given(self, relation: Given) -> Flow:
        return Flow(relation.ports, self.batch_schema(relation, relation.columns.names))

    def _constants(self, relation: Constants) -> Flow:
        port = self.builder.add(
            "source", "memory", [], id=self._id("values"), options={"rows": relation.rows}
        )
        schema = plain_schema(pa.schema([*relation.columns, _TIME]))
        return Flow((port,), schema)

    # ------------------------------------------------------------------------------------ row by row

    def _map(self, relation: Map) -> Flow:
        flow = self.flow(relation.input)
        wanted = set(self._columns(relation))
        # An unnest makes rows, even where nobody reads it.
        items = [item for item in relation.items if item.name in wanted or makes_rows(item)]
        hidden = [TIMESTAMP] + ([RETRACT] if relation.updating else [])
        plain = all(item.value.text == quote(item.name) for item in items)
        if plain and relation.where is None and [i.name for i in items] == self._columns(relation.input):
            return flow
        hidden += [_LATE] if flow.late_of is not None else []
        texts = [f"{i.value.text} AS {quote(i.name)}" for i in items] + [quote(name) for name in hidden]
        inner = "input" if flow.sql is None else f"({flow.sql})"
        sql = f"SELECT {', '.join(texts)} FROM {inner}"
        if relation.where is not None:
            sql += f" WHERE {relation.where.text}"
        return Flow(flow.ports, flow.schema, sql, late_of=flow.late_of)

    def _mapped(self, flow: Flow, items: Sequence[str]) -> Flow:
        """Rows with these SELECT items."""
        inner = "input" if flow.sql is None else f"({flow.sql})"
        return self.settle(Flow(flow.ports, flow.schema, f"SELECT {', '.join(items)} FROM {inner}"))

    def _union(self, relation: Union) -> Flow:
        ports: list[Port] = []
        schema = self.batch_schema(relation)
        for one in relation.inputs:
            flow = self.flow(one)
            items = [quote(name) for name in self._columns(relation)] + [quote(TIMESTAMP)]
            if relation.updating:
                items.append(quote(RETRACT) if one.updating else f"FALSE AS {quote(RETRACT)}")
            ports += self._mapped(flow, items).ports
        return Flow(tuple(ports), schema)

    # ------------------------------------------------------------------------------------ aggregates

    def _aggregate(self, relation: Aggregate) -> Flow:
        flow = self.flow(relation.input)
        needed = self._needs.columns(relation)
        calls = [call for call in relation.calls if call.name in needed]
        raw = sorted({name for call in calls for name in call.call.columns if name != TIMESTAMP})
        keys = tuple(item.name for item in relation.keys)
        items = [f"{item.value.text} AS {quote(item.name)}" for item in relation.keys]
        items += [quote(name) for name in raw if name not in keys]
        items += [quote(TIMESTAMP)] + ([quote(RETRACT)] if relation.input.updating else [])
        late_of = flow.late_of if relation.window is not None else None
        items += [quote(_LATE)] if late_of is not None else []
        flow = replace(self._mapped(flow, items), late_of=late_of)
        aggregation = make_aggregation(
            calls,
            keys=keys,
            rows=flow.schema,
            planner=self.planner,
            functions=called_functions(self.functions, [call.call.text for call in calls]),
            by=tuple(item.value.text for item in relation.keys),
            distinct=relation.windowing is None,
        )
        aggregation = replace(aggregation, routed=self._routes.keys.get(relation))
        if relation.windowing is None:
            return self._updating_aggregate(relation, aggregation, flow)
        return self._windowed_aggregate(relation, aggregation, flow)

    def _windowed_aggregate(self, relation: Aggregate, aggregation: Aggregation, flow: Flow) -> Flow:
        column, window, ports = relation.window_column, relation.window or Instant(), flow.ports
        late = None if flow.late_of is None else _LATE
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
            relation, self.add(operator, [_shuffle(ports, aggregation.route)], kind), flow.late_of
        )

    def _updating_aggregate(self, relation: Aggregate, aggregation: Aggregation, flow: Flow) -> Flow:
        ports = flow.ports
        if aggregation.in_parts:
            ports = (self.add(PartialUpdatingAggregate(aggregation), [ports], "partial"),)
        operator = UpdatingAggregate(aggregation, ttl=self.ttl)
        return self._after(relation, self.add(operator, [_shuffle(ports, aggregation.keys)], "aggregate"))

    def _after(self, relation: Aggregate, port: Port, late_of: Table | None = None) -> Flow:
        """The rows of groups, reduced to what is needed; late rows go their own way."""
        needed = self._needs.columns(relation)
        unused = {call.name for call in relation.calls if call.name not in needed}
        emitted = [name for name in relation.columns.names if name not in unused]
        items = [quote(name) for name in [*self._columns(relation), TIMESTAMP]]
        if relation.updating:
            items.append(quote(RETRACT))
        schema = self.batch_schema(relation, emitted)
        where = ""
        if late_of is not None:
            if late_of.columns is None:
                raise AssertionError
            row = pa.field(_LATE, pa.struct(list(late_of.columns)))
            schema = plain_schema(schema.append(row))
            self._late.setdefault(late_of, []).append(Flow((port,), schema))
            where = f" WHERE {quote(_LATE)} IS NULL"
        return Flow((port,), schema, f"SELECT {', '.join(items)} FROM input{where}")

    # ----------------------------------------------------------------------------------------- joins

    def _join(self, relation: Join) -> Flow:
        updating = (relation.left.updating, relation.right.updating)
        either = any(updating)
        inner = relation.kind == "inner" and not relation.windowed
        sides = []
        keys = [_join_keys([pair[index] for pair in relation.keys]) for index in (0, 1)]
        for side, values in zip((relation.left, relation.right), keys, strict=True):
            carried = self._columns(side)
            items = [quote(name) for name in carried]
            items += [f"{v.text} AS {quote(key)}" for key, v in values.items() if key not in carried]
            items += [quote(TIMESTAMP)]
            if either:
                items.append(quote(RETRACT) if side.updating else f"FALSE AS {quote(RETRACT)}")
            sides.append(self._mapped(self.flow(side), items))
        columns = [
            f"{table}.{quote(name)} AS {quote(name)}"
            for table, side in (("l", relation.left), ("r", relation.right))
            for name in self._columns(relation)
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
            schemas = [_without(schema, RETRACT) for schema in schemas]
        fragment = self._fragment(sql, {"input0": schemas[0], "input1": schemas[1]})
        names = (tuple(keys[0]), tuple(keys[1]))
        inputs = [_shuffle(side.ports, own) for side, own in zip(sides, names, strict=True)]
        operator: ArrowOperator
        if relation in self._routes.joins:
            inputs = [side.ports for side in sides]
        if relation.windowed:
            operator = WindowedFragment(fragment, names)
            return self._result(relation, self.add(operator, inputs, "window_join"))
        if inner:
            operator = UpdatingJoin(fragment, names, ttl=self.ttl, updating=updating)
        else:
            operator = UpdatingFragment(fragment, names, ttl=self.ttl, updating=(either, either))
        return self._result(relation, self.add(operator, inputs, "join"))

    def _lookup_join(self, relation: LookupJoin) -> Flow:
        key = f"{TIMESTAMP}:key"
        flow = self.flow(relation.left)
        hidden = [TIMESTAMP] + ([_LATE] if flow.late_of is not None else [])
        names = self._columns(relation)
        kept = [name for name in names if name in relation.left.columns.names]
        items = [*(quote(name) for name in [*kept, *hidden]), f"{relation.on.text} AS {quote(key)}"]
        rows = self._mapped(flow, items)
        columns = {column: name for column, name in relation.prefix.items() if name in names}
        operator = self._looking_up(relation, key, columns)
        port = self.add(operator, [rows.ports], f"lookup_{relation.table.name}")
        schema = pa.schema([*rows.schema, *(relation.columns.field(name) for name in columns.values())])
        sql = f"SELECT {', '.join(quote(name) for name in [*names, *hidden])} FROM input"
        return Flow((port,), plain_schema(schema), sql, late_of=flow.late_of)

    def _looking_up(self, relation: LookupJoin, key: str, columns: dict[str, str]) -> LookupOperator:
        table = relation.table
        with self._options_of(table):
            options = connector_options(table, "lookup", table.columns)
            cache = {
                name: table.value(name)
                for name in ("lookup.cache.max_bytes", "lookup.cache.ttl")
                if table.value(name) is not None
            }
            return LookupOperator(
                registry.build_lookup(table.connector, options),
                on=key,
                columns=columns,
                kind="left" if relation.kind == "left" else "inner",
                cache=parse_options(CacheOptions, cache, what=table.connector),
            )

    # ------------------------------------------------------------------------- functions of the user

    def _table_call(self, relation: TableCall) -> Flow:
        # A row becomes several, so it does not go on to be told as late: that would be several times.
        flow, names = replace(self.flow(relation.left), late_of=None), self._columns(relation)
        hidden = self._hidden(relation, flow)
        given = {f"{TIMESTAMP}:arg{index}": value for index, value in enumerate(relation.arguments)}
        rows = self._with_arguments(relation, flow, hidden, given)
        columns = {column: name for column, name in relation.prefix.items() if name in names}
        operator = TableFunctionCall(
            relation.function, tuple(given), columns=columns, outer=relation.kind == "left", drop=tuple(given)
        )
        port = self.add(operator, [rows.ports], f"rows_{relation.function.name}")
        return self._called(relation, rows, port, given, list(columns.values()), hidden)

    def _async_calls(self, relation: AsyncCalls) -> Flow:
        flow, names = self.flow(relation.left), self._columns(relation)
        hidden = self._hidden(relation, flow)
        given: dict[str, Expression] = {}
        calls: dict[str, tuple[str, ...]] = {}
        for output, arguments in relation.calls.items():
            if output in names:
                taken = [f"{TIMESTAMP}:arg{len(given) + index}" for index in range(len(arguments))]
                given |= dict(zip(taken, arguments, strict=True))
                calls[output] = tuple(taken)
        rows = self._with_arguments(relation, flow, hidden, given)
        port = rows.ports[0]
        if calls:
            operator = AsyncCall(relation.function, calls, schema=rows.schema, drop=tuple(given))
            port = self.add(operator, [rows.ports], f"async_{relation.function.name}")
        return self._called(relation, rows, port, given, list(calls), hidden)

    def _hidden(self, relation: Relation, flow: Flow) -> list[str]:
        """The columns that ride along with the rows of a relation."""
        back = [RETRACT] if relation.updating else []
        return [TIMESTAMP, *back, *([_LATE] if flow.late_of is not None else [])]

    def _with_arguments(
        self,
        relation: TableCall | AsyncCalls,
        flow: Flow,
        hidden: Sequence[str],
        given: dict[str, Expression],
    ) -> Flow:
        kept = [name for name in self._columns(relation) if name in relation.left.columns.names]
        items = [quote(name) for name in [*kept, *hidden]]
        items += [f"{value.text} AS {quote(name)}" for name, value in given.items()]
        return replace(self._mapped(flow, items), late_of=flow.late_of)

    def _called(
        self,
        relation: Relation,
        rows: Flow,
        port: Port,
        given: dict[str, Expression],
        added: Sequence[str],
        hidden: Sequence[str],
    ) -> Flow:
        fields = [one for one in rows.schema if one.name not in given]
        schema = plain_schema(pa.schema([*fields, *(relation.columns.field(name) for name in added)]))
        sql = f"SELECT {', '.join(quote(name) for name in [*self._columns(relation), *hidden])} FROM input"
        return Flow((port,), schema, sql, late_of=rows.late_of)

    def _result(self, relation: Relation, port: Port) -> Flow:
        """Rows that a fragment has made of just what is needed."""
        return Flow((port,), self.batch_schema(relation))

    # ---------------------------------------------------------------- window functions and ordering

    def _window_calls(self, relation: WindowCalls) -> Flow:
        source = relation.input
        names = self._columns(source)
        keys = tuple(f"{TIMESTAMP}:{item.name}" for item in relation.partition)
        items = [quote(name) for name in names]
        items += [f"{i.value.text} AS {quote(k)}" for i, k in zip(relation.partition, keys, strict=True)]
        items.append(quote(TIMESTAMP))
        if source.updating:
            items.append(quote(RETRACT))
        flow = self._mapped(self.flow(source), items)
        rows = _without(flow.schema, RETRACT)
        ties = ", ".join(tie_breakers(rows))
        calls = [f"{i.value.text.replace(quote(TIES), ties)} AS {quote(i.name)}" for i in relation.calls]
        columns = [quote(name) for name in self._columns(relation)] + [quote(TIMESTAMP)]
        kept = [quote(name) for name in rows.names]
        inner = f"SELECT {', '.join([*kept, *calls])} FROM input0"
        where = "" if relation.limit is None else f" WHERE {relation.limit.text}"
        inputs = [_shuffle(flow.ports, keys)]
        if relation.by_instant:
            fragment = self._fragment(f"SELECT {', '.join(columns)} FROM ({inner}){where}", {"input0": rows})
            windowed = WindowedFragment(fragment, [keys])
            return self._result(relation, self.add(windowed, inputs, "over"))

        order = "" if relation.numbered is None else relation.numbered.replace(quote(TIES), ties)
        if order and relation.rank is not None and not source.updating:
            functions = called_functions(self.functions, [order])
            return self._top_n(relation, flow, Ranking(rows, keys, order, relation.rank[1], functions))
        prune = None
        if relation.rank is not None and not source.updating:
            name, count = relation.rank
            prune = self._fragment(
                f"SELECT {', '.join(kept)} FROM ({inner}) WHERE {quote(name)} <= {count}", {"input0": rows}
            )
        sql = f"SELECT {', '.join(columns)} FROM ({inner}){where}"
        computed: Fragment | NumberedFragment = self._fragment(sql, {"input0": rows})
        if order:
            by = f"SELECT {', '.join(kept)} FROM input0 ORDER BY {', '.join([*map(quote, keys), order])}"
            number = pa.field(relation.calls[0].name, pa.uint64())
            result = self._fragment(
                f"SELECT {', '.join(columns)} FROM input0{where}", {"input0": rows.append(number)}
            )
            ordered = self._fragment(by, {"input0": rows})
            computed = NumberedFragment(sql, ordered, keys, number.name, result)
        operator = UpdatingFragment(computed, [keys], ttl=self.ttl, updating=(source.updating,), prune=prune)
        return self._result(relation, self.add(operator, inputs, "over"))

    def _top_n(self, relation: WindowCalls, flow: Flow, ranking: Ranking) -> Flow:
        partial = self.add(PartialTopN(ranking), [flow.ports], "partial")
        names = [*self._columns(relation), TIMESTAMP]
        operator = TopN(ranking, names, number=relation.calls[0].name, ttl=self.ttl)
        return self._result(relation, self.add(operator, [_shuffle([partial], ranking.keys)], "over"))

    def _ordered(self, relation: Ordered) -> Flow:
        source = relation.input
        flow = self.settle(self.flow(source))
        rows = _without(flow.schema, RETRACT)
        order = ", ".join([*relation.order, *tie_breakers(rows)])
        partition = f"PARTITION BY {quote(TIMESTAMP)} " if relation.by_instant else ""
        rank = quote(f"{TIMESTAMP}:rank")
        kept = [quote(name) for name in rows.names]
        inner = (
            f"SELECT {', '.join(kept)}, row_number() OVER ({partition}ORDER BY {order}) AS {rank} FROM input0"
        )
        last = None if relation.limit is None else relation.offset + relation.limit
        conditions = [f"{rank} > {relation.offset}"] if relation.offset else []
        conditions += [f"{rank} <= {last}"] if last is not None else []
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        columns = [quote(name) for name in self._columns(relation)] + [quote(TIMESTAMP)]
        sql = f"SELECT {', '.join(columns)} FROM ({inner}){where} ORDER BY {quote(TIMESTAMP)}, {rank}"
        fragment = self._fragment(sql, {"input0": rows})
        inputs = [_shuffle(flow.ports, ())]
        if relation.by_instant:
            windowed = WindowedFragment(fragment, [()])
            return self._result(relation, self.add(windowed, inputs, "order"))
        prune = None
        if not source.updating:
            kept_sql = f"SELECT {', '.join(kept)} FROM ({inner}) WHERE {rank} <= {last}"
            prune = self._fragment(kept_sql, {"input0": rows})
        operator = UpdatingFragment(fragment, [()], ttl=self.ttl, updating=(source.updating,), prune=prune)
        return self._result(relation, self.add(operator, inputs, "order"))

    # ----------------------------------------------------------------------------------------- sinks

    def sink(
        self,
        table: Table,
        relations: Sequence[Relation],
        columns: pa.Schema,
        *,
        instead: tuple[str, dict[str, Any]] | None = None,
    ) -> None:
        """Write relations, whose columns are the table's, into a table, or into another sink `instead`."""
        self._within = table.name
        ports: list[Port] = []
        updating = any(relation.updating for relation in relations)
        for relation in relations:
            flow = self.flow(relation)
            if updating and not relation.updating:
                items = [
                    *(quote(name) for name in relation.columns.names),
                    quote(TIMESTAMP),
                    f"FALSE AS {quote(RETRACT)}",
                ]
                flow = self._mapped(flow, items)
            ports += self.settle(flow).ports
        required = [column.name for column in table.definition.columns if column.not_null]
        if required:
            ports = [self.add(NotNull(table.name, required), [ports], "not_null")]
        if instead is None:
            key = relations[0].key if len(relations) == 1 else ()
            self._connector("sink", table, [ports], columns, f"sink_{table.name}", key=key)
        else:
            name, options = instead
            self.builder.add("sink", name, [ports], id=self._unique(f"sink_{table.name}"), options=options)

    def preview(self, relation: Relation, sink: str, options: dict[str, Any]) -> None:
        """Show a relation's rows."""
        self._within = "query"
        flow = self.settle(self.flow(relation))
        self.builder.add("sink", sink, [flow.ports], id=self._unique("preview"), options=options)


def _text(value: str) -> str:
    """A text as a SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def called_functions(functions: Sequence[Function], texts: Sequence[str]) -> tuple[Function, ...]:
    """The functions of the user that are called in some SQL: an operator carries no others."""
    words = {word for text in texts for word in re.findall(r"\w+", text.lower())}
    return tuple(function for function in functions if function.name in words)


def _shuffle(ports: Sequence[Port], keys: Sequence[str]) -> tuple[Port, ...]:
    return tuple(replace(port, kind="shuffle", keys=tuple(keys)) for port in ports)


def _join_keys(values: Sequence[Expression]) -> dict[str, Expression]:
    """Names for what a side is joined by: a column keeps its own, so that it is not carried twice."""
    keys: dict[str, Expression] = {}
    for index, value in enumerate(values):
        own = next(iter(value.columns)) if value.is_column else TIMESTAMP
        keys[f"{TIMESTAMP}:key{index}" if own == TIMESTAMP or own in keys else own] = value
    return keys


def _without(schema: pa.Schema, name: str) -> pa.Schema:
    index = schema.get_field_index(name)
    return schema if index < 0 else schema.remove(index)


def tie_breakers(rows: pa.Schema) -> list[str]:
    """Columns that put rows in one order where the user's order leaves it open."""
    return [
        quote(one.name)
        for one in rows
        if not (pa.types.is_nested(one.type) or pa.types.is_interval(one.type) or pa.types.is_null(one.type))
    ]


__all__ = ["Expression", "Item", "Lowering"]
