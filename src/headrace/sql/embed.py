"""SQL inside a plan that is composed otherwise: tables to read, and queries over streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import TIMESTAMP
from headrace.base.problems import Problems
from headrace.base.spans import Source
from headrace.model.builder import PlanBuilder, Port
from headrace.model.fragments import Function, plain_schema
from headrace.sql.bind.calls import find_aggregates, is_window_call
from headrace.sql.bind.catalog import define_table
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.define_function import define_function
from headrace.sql.bind.find_columns import with_columns
from headrace.sql.bind.logical import StreamScan
from headrace.sql.bind.planning import Planner
from headrace.sql.bind.query import bind_query
from headrace.sql.bind.relations import BoundQuery, LazyRelation
from headrace.sql.bind.tables import bind_scan
from headrace.sql.lower.lowering import start_lowering
from headrace.sql.parse.create_function import CreateFunction
from headrace.sql.parse.dialect import to_sql
from headrace.sql.parse.statements import SelectStatement, parse_statements
from headrace.sql.parse.table_definition import CreateTable
from headrace.sql.problems import fail
from headrace.sql.state_ttl import StateTtl


@dataclass(frozen=True)
class PlannedStream:
    """A stream of a plan: the ports its rows come from and its columns, event time apart."""

    ports: tuple[Port, ...]
    columns: pa.Schema
    updating: bool = False
    key: tuple[str, ...] = ()


class EmbeddedSql:
    """Adds tables and queries to a plan; mistakes raise a SqlError that holds all of one text."""

    def __init__(self, builder: PlanBuilder, *, functions: Sequence[Function] = ()) -> None:
        self._builder = builder
        self._functions = tuple(functions)
        self._planner = Planner(self._functions)

    def table(self, definition: Source) -> PlannedStream:
        """The rows of the table that a CREATE TABLE defines, with all of its columns and its watermark."""
        problems = Problems()
        statements = parse_statements(definition, problems)
        problems.raise_all()
        (source, statement) = statements[0]
        if not isinstance(statement, CreateTable):
            raise TypeError("a definition of a table is needed")
        table = define_table(statement, source)
        for option in ("late_table", "dead_letter_table"):
            if table.value(option) is not None:
                fail(f"`{option}` is for SQL files", table.span(option), "set rows aside there")
        context = BindContext(self._planner, source, problems)
        return self._lower(lambda: bind_scan(context, with_columns(table)), table.name, context)

    def query(self, text: Source, tables: Mapping[str, PlannedStream], *, name: str) -> PlannedStream:
        """The rows of a SELECT over streams; `name` is what its operators are called after."""
        problems = Problems()
        select, functions = self._read(text, problems)
        planner = self._planner if functions == self._functions else Planner(functions)
        names = {
            table: LazyRelation(partial(_scan_stream, stream), kind="source")
            for table, stream in tables.items()
        }
        context = BindContext(planner, text, problems)
        return self._lower(lambda: bind_query(context, select.query, names), name, context)

    def row_query(self, text: Source) -> tuple[str, tuple[Function, ...]]:
        """A SELECT that looks at one row at a time, with event time kept, for any columns; and its functions.

        Without the columns nothing else can be planned: a query that needs more than one row is refused.
        """
        select, functions = self._read(text, Problems())
        query, planner = select.query, Planner(functions)
        refused = (exp.Window, exp.Join, exp.Subquery, exp.Group, exp.Order, exp.Limit, exp.Distinct)
        aggregates = planner.aggregates
        not_row_by_row = {*planner.asynchronous, *planner.table_functions}
        if (
            not isinstance(query, exp.Select)
            or any(query.find(kind) for kind in refused)
            or any(any(find_aggregates(item, aggregates)) for item in query.expressions)
            or any(is_window_call(part) for part in query.walk())
            or any(call.name.lower() in not_row_by_row for call in query.find_all(exp.Anonymous))
        ):
            fail(
                "this step needs to know the columns of its input",
                None,
                "give the input a `schema`, as in `{source: node/output, schema: {id: BIGINT}}`; "
                "without it a step can only choose, compute and filter: SELECT … FROM input WHERE …",
            )
        return to_sql(query.select(exp.column(TIMESTAMP, quoted=True))), functions

    def _read(self, text: Source, problems: Problems) -> tuple[SelectStatement, tuple[Function, ...]]:
        """The SELECT of a step, and the functions that it may call: those it creates before it, too."""
        statements = [statement for _, statement in parse_statements(text, problems)]
        problems.raise_all()
        created = [define_function(item) for item in statements if isinstance(item, CreateFunction)]
        rest = [item for item in statements if not isinstance(item, CreateFunction)]
        if len(rest) != 1 or not isinstance(rest[0], SelectStatement):
            hint = "tables are the inputs of the node; write `SELECT … FROM input`"
            fail("a step is one SELECT", None, hint)
        return rest[0], (*self._functions, *created)

    def _lower(self, bind: Callable[[], BoundQuery], name: str, context: BindContext) -> PlannedStream:
        bound: BoundQuery | None = None
        try:
            bound = bind()
        finally:
            context.problems.raise_all()
        assert bound is not None
        relation = bound.relation
        lowering = start_lowering(
            [relation],
            builder=self._builder,
            planner=context.planner,
            problems=context.problems,
            ttl=StateTtl(),
            names={relation: name},
        )
        rows = lowering.rows(relation)
        context.problems.raise_all()
        return PlannedStream(rows.ports, plain_schema(relation.columns), relation.updating, relation.key)


def _scan_stream(stream: PlannedStream) -> BoundQuery:
    scan = StreamScan(stream.columns, stream.updating, key=stream.key, ports=stream.ports)
    return BoundQuery(scan, tuple(stream.columns.names))


def columns_of(text: Source) -> pa.Schema:
    """The columns of a list like `id BIGINT, name TEXT`."""
    problems = Problems()
    before = "CREATE TABLE t ("
    statements = parse_statements(Source(text.name, f"{before}{text.text})"), problems)
    for error in problems.errors:
        error.offset = max(0, error.offset - len(before))
    problems.raise_all()
    statement = statements[0][1]
    if not isinstance(statement, CreateTable):
        raise TypeError("columns are needed")
    return plain_schema(pa.schema([column.field for column in statement.columns]))
