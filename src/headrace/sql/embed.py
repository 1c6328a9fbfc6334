"""SQL inside a plan that another front door composes: tables to read, and queries over streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import TIMESTAMP
from headrace.base.problems import Problems
from headrace.base.spans import Source
from headrace.model.builder import PlanBuilder, Port
from headrace.model.fragments import Function, plain_schema
from headrace.sql.bind.binder import Binder
from headrace.sql.bind.calls import find_aggregates, is_window_call
from headrace.sql.bind.catalog import define_table
from headrace.sql.bind.define_function import define_function
from headrace.sql.bind.logical import Given
from headrace.sql.bind.planning import Planner
from headrace.sql.bind.relations import Bound, Named
from headrace.sql.compile import DEFAULT_TTL
from headrace.sql.find_columns import with_columns
from headrace.sql.lower.lowering import Lowering
from headrace.sql.parse.create_function import CreateFunction
from headrace.sql.parse.dialect import to_sql
from headrace.sql.parse.statements import SelectStatement, parse_statements
from headrace.sql.parse.table_definition import CreateTable
from headrace.sql.problems import fail


@dataclass(frozen=True)
class Rows:
    """Rows of a plan: where they come from and their columns, event time apart."""

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

    def table(self, definition: Source) -> Rows:
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
        binder = Binder(self._planner, source, problems)
        return self._lower(
            Named(lambda: binder.scan(with_columns(table)), kind="source"), table.name, problems
        )

    def query(self, text: Source, tables: Mapping[str, Rows], *, name: str) -> Rows:
        """The rows of a SELECT over streams; `name` is what its operators are called after."""
        problems = Problems()
        select, functions = self._read(text, problems)
        planner = self._planner if functions == self._functions else Planner(functions)
        names = {
            table: Named(lambda rows=rows: _given(rows), kind="source")  # type: ignore[misc]
            for table, rows in tables.items()
        }
        binder = Binder(planner, text, problems)
        return self._lower(Named(lambda: binder.query(select.query, names)), name, problems, planner=planner)

    def row_query(self, text: Source) -> tuple[str, tuple[Function, ...]]:
        """A SELECT that looks at one row at a time, with event time kept, for any columns; and its functions.

        Without the columns nothing else can be planned: a query that needs more than one row is refused.
        """
        select, functions = self._read(text, Problems())
        query, planner = select.query, Planner(functions)
        refused = (exp.Window, exp.Join, exp.Subquery, exp.Group, exp.Order, exp.Limit, exp.Distinct)
        known = planner.aggregates
        wide = {*planner.asynchronous, *planner.table_functions}
        if (
            not isinstance(query, exp.Select)
            or any(query.find(kind) for kind in refused)
            or any(True for one in query.expressions for _ in find_aggregates(one, known))
            or any(is_window_call(part) for part in query.walk())
            or any(call.name.lower() in wide for call in query.find_all(exp.Anonymous))
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
        statements = [one for _, one in parse_statements(text, problems)]
        problems.raise_all()
        created = [define_function(one) for one in statements if isinstance(one, CreateFunction)]
        rest = [one for one in statements if not isinstance(one, CreateFunction)]
        if len(rest) != 1 or not isinstance(rest[0], SelectStatement):
            hint = "tables are the inputs of the node; write `SELECT … FROM input`"
            fail("a step is one SELECT", None, hint)
        return rest[0], (*self._functions, *created)

    def _lower(self, bind: Named, name: str, problems: Problems, *, planner: Planner | None = None) -> Rows:
        bound: Bound | None = None
        try:
            bound = bind()
        finally:
            problems.raise_all()
        assert bound is not None
        relation = bound.relation
        planner = planner or self._planner
        lowering = Lowering(self._builder, planner, problems, ttl=DEFAULT_TTL, functions=planner.functions)
        lowering.name(relation, name)
        lowering.prepare([relation])
        flow = lowering.rows(relation)
        problems.raise_all()
        return Rows(flow.ports, plain_schema(relation.columns), relation.updating, relation.key)


def _given(rows: Rows) -> Bound:
    given = Given(rows.columns, rows.updating, key=rows.key, ports=rows.ports)
    return Bound(given, tuple(rows.columns.names))


def columns_of(text: Source) -> pa.Schema:
    """The columns of a list like `id BIGINT, name TEXT`."""
    problems = Problems()
    definition = Source(text.name, f"CREATE TABLE t ({text.text})")
    statements = parse_statements(definition, problems)
    problems.raise_all()
    statement = statements[0][1]
    if not isinstance(statement, CreateTable):
        raise TypeError("columns are needed")
    return plain_schema(pa.schema([column.field for column in statement.columns]))
