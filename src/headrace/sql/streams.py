"""SQL over the streams of a pipeline that Python composes: bound call by call, lowered together.

A `Relational` is rows with columns: those that operators of the plan emit, those of a table that SQL
defines, or those of a query over others. Binding happens when a query is written, so that its mistakes are
raised there. Operators are made when the whole pipeline is planned, by one `Lowering`, as for the views of a
SQL file: projections in a row become one, and what several queries read is computed once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import ExpressionError, suggest
from headrace.base.problems import Problems
from headrace.base.secrets import Secrets
from headrace.base.spans import Source
from headrace.model.builder import PlanBuilder, Port
from headrace.model.fragments import Function, plain_schema
from headrace.model.registry import Role
from headrace.sql.bind.catalog import (
    CatalogTable,
    define_table,
    likely_role,
    option_errors,
    roles_of,
)
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.define_function import define_function
from headrace.sql.bind.find_columns import with_columns
from headrace.sql.bind.logical import Relation, StreamScan, Windowing, inputs_of
from headrace.sql.bind.planning import Planner
from headrace.sql.bind.query import bind_query
from headrace.sql.bind.relations import BoundQuery, LazyRelation, cast_columns, rename_query, renamed
from headrace.sql.bind.tables import bind_lookup_table, bind_scan
from headrace.sql.bind.written_names import written_names
from headrace.sql.lower.context import LoweringContext
from headrace.sql.lower.lowering import start_lowering
from headrace.sql.parse.create_function import CreateFunction
from headrace.sql.parse.dialect import copy_position
from headrace.sql.parse.statements import (
    CreateView,
    Insert,
    SelectStatement,
    SetOption,
    Statement,
    parse_statements,
)
from headrace.sql.parse.table_definition import CreateTable
from headrace.sql.problems import ReportedError, fail, sql_error
from headrace.sql.state_ttl import StateTtl, set_ttl


@dataclass(frozen=True, eq=False)
class Relational:
    """Rows that queries can read. `updating` rows may be taken back; `key` identifies a row that may."""

    bound: BoundQuery

    @property
    def columns(self) -> pa.Schema:
        """The columns, event time left out."""
        return plain_schema(self.bound.relation.columns)

    @property
    def updating(self) -> bool:
        """Whether rows may be taken back."""
        return self.bound.relation.updating

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies a row of an updating result."""
        return self.bound.relation.key

    @property
    def windowing(self) -> Windowing | None:
        """The windows that the rows are results of."""
        return self.bound.relation.windowing

    @property
    def origins(self) -> set[str]:
        """The operators of the plan that produce its rows."""
        nodes: set[str] = set()
        relations: list[Relation] = [self.bound.relation]
        while relations:
            relation = relations.pop()
            relations += inputs_of(relation)
            nodes |= {port.node for port in relation.ports} if isinstance(relation, StreamScan) else set()
        return nodes

    @classmethod
    def of_ports(
        cls,
        ports: tuple[Port, ...],
        columns: pa.Schema,
        *,
        updating: bool = False,
        key: tuple[str, ...] = (),
        windowing: Windowing | None = None,
    ) -> Relational:
        """The rows that operators of the plan emit."""
        columns = plain_schema(columns)
        relation = StreamScan(columns, updating, windowing, key, ports=ports)
        return cls(BoundQuery(relation, tuple(columns.names)))


class StreamSql:
    """The tables, views and functions of a pipeline, and queries over them and over streams."""

    def __init__(self, *, functions: Sequence[Function] = ()) -> None:
        self._functions = tuple(functions)
        self._planner = Planner(self._functions)
        self._ttl = StateTtl()
        self._tables: dict[str, CatalogTable] = {}
        self._names: dict[str, Relational] = {}
        self._texts: list[str] = []

    @property
    def names(self) -> list[str]:
        """The tables and views that are defined."""
        return [*self._tables, *(name for name in self._names if name not in self._tables)]

    @property
    def secrets(self) -> Secrets:
        """What the definitions name as `{{ NAME }}`."""
        return Secrets.named_in(self._texts)

    def query(self, text: Source, tables: Mapping[str, Relational] | None = None) -> Relational:
        """The rows of a SELECT over these tables and those that are defined."""
        problems = Problems(self.secrets)
        statements = [statement for _, statement in parse_statements(text, problems)]
        problems.raise_all()
        if len(statements) != 1 or not isinstance(statements[0], SelectStatement):
            fail("one SELECT is expected here", None, "definitions go to `pipeline.execute(…)`")
        query = statements[0].query
        _check_all_read(query, tables or {})
        for select in query.find_all(exp.Select):
            names = written_names(select.expressions)
            select.set("expressions", list(map(_under_name, select.expressions, names)))
        return self._bind(text, query, problems, tables or {})

    def define(self, text: Source) -> dict[str, Relational]:
        """Define tables, views and functions, and return the views; SET changes a setting."""
        problems = Problems(self.secrets)
        statements = [statement for _, statement in parse_statements(text, problems)]
        problems.raise_all()
        self._texts.append(text.text)
        for statement in statements:
            self._define(text, statement, problems)
        problems.raise_all()
        defined = [statement.name for statement in statements if isinstance(statement, CreateView)]
        return {name: self._names[name] for name in defined}

    def register(self, name: str, rows: Relational) -> None:
        """Let queries read rows as the table `name`."""
        if not re.fullmatch(r"[^\W\d]\w*", name):
            fail(f"`{name}` cannot name a table", None, "use letters, digits and `_`")
        self._check_free(name.lower())
        self._names[name.lower()] = rows

    def table(self, name: str) -> Relational:
        """The rows of a table or view."""
        if name.lower() not in self.names:
            hint = suggest(name.lower(), self.names, listing="the tables are")
            fail(f"there is no table `{name}`", None, hint or "define it with `pipeline.execute(…)`")
        problems = Problems(self.secrets)
        bound: BoundQuery | None = None
        try:
            bound = self._named(name.lower(), problems)()
        except ReportedError:
            problems.raise_all()
        if bound is None or name.lower() not in self._names:
            fail(f"`{name}` is a lookup table, and can only be joined", None, "join it in `pipeline.sql(…)`")
        return self._names[name.lower()]

    def check_expression(self, text: Source) -> None:
        """Refuse SQL that is not one expression, with an optional `AS name`."""
        problems = Problems()
        parsed = [
            statement
            for _, statement in parse_statements(Source(text.name, f"SELECT {text.text}\n"), problems)
        ]
        for error in problems.errors:
            error.offset = max(0, error.offset - len("SELECT "))
        problems.raise_all()
        query = parsed[0].query if len(parsed) == 1 and isinstance(parsed[0], SelectStatement) else None
        clauses = (
            [] if query is None else [key for key, value in query.args.items() if value and key != "kind"]
        )
        if not isinstance(query, exp.Select) or clauses != ["expressions"] or len(query.expressions) != 1:
            fail("one SQL expression is expected here", None, "such as `price * 2` or `upper(name) AS name`")

    def lower(
        self, builder: PlanBuilder, roots: Sequence[Relational], *, names: Mapping[Relational, str]
    ) -> LoweredStreams:
        """Get ready to add the operators of `roots` to a plan; `names` is what operators are called after."""
        return LoweredStreams(
            start_lowering(
                [rows.bound.relation for rows in roots],
                builder=builder,
                planner=self._planner,
                problems=Problems(self.secrets),
                ttl=self._ttl,
                names={rows.bound.relation: name for rows, name in names.items()},
            )
        )

    # ----------------------------------------------------------------------------------- definitions

    def _define(self, source: Source, statement: Statement, problems: Problems) -> None:
        if isinstance(statement, CreateFunction):
            self._functions = (*self._functions, define_function(statement))
            self._planner = Planner(self._functions)
        elif isinstance(statement, SetOption):
            self._set(statement)
        elif isinstance(statement, CreateView):
            self._check_free(statement.name)
            rows = self._bind(source, statement.query, problems, {}, statement.columns)
            self._names[statement.name] = rows
        elif isinstance(statement, CreateTable) and statement.query is None:
            self._check_free(statement.name)
            self._add_table(define_table(statement, source))
        elif isinstance(statement, CreateTable):
            fail("CREATE TABLE … AS SELECT is for SQL files", statement.span, "write CREATE VIEW … AS SELECT")
        else:
            word = "INSERT" if isinstance(statement, Insert) else "SELECT"
            span = statement.span if isinstance(statement, Insert | SelectStatement) else None
            fail(
                f"{word} is not a definition",
                span,
                "a query is `pipeline.sql('SELECT …')`, and its rows are written with `.sink(…)`",
            )

    def _add_table(self, table: CatalogTable) -> None:
        for option in ("late_table", "dead_letter_table"):
            if table.value(option) is not None:
                fail(f"`{option}` is for SQL files", table.span(option), "use `stream.output(…)` instead")
        if table.kind == "memory":
            fail(
                f"table `{table.name}` has no connector",
                table.span(),
                "write WITH (connector = '…', …), or name a stream with `stream.as_table(…)`",
            )
        role = likely_role(table)
        if role is not None and roles_of(table.connector):
            _check_options(table, role)
        self._tables[table.name] = table

    def _check_free(self, name: str) -> None:
        if name in self._tables or name in self._names:
            fail(f"there is already a table or view called `{name}`", None, "give one of them another name")

    def _set(self, statement: SetOption) -> None:
        self._ttl = set_ttl(statement)

    # --------------------------------------------------------------------------------------- binding

    def _bind(
        self,
        text: Source,
        query: exp.Expr,
        problems: Problems,
        tables: Mapping[str, Relational],
        columns: Sequence[str] = (),
    ) -> Relational:
        context = BindContext(self._planner, text, problems)
        names = {name: self._named(name, problems) for name in self.names}
        names |= {name.lower(): _constant(rows) for name, rows in tables.items()}
        bound: BoundQuery | None = None
        try:
            bound = rename_query(context, bind_query(context, query, names), columns, None)
        except ReportedError:
            pass
        except ExpressionError as error:
            raise sql_error(error.message, None, error.hint) from error
        problems.raise_all()
        assert bound is not None
        _check_names(bound.names)
        if list(bound.names) != bound.relation.columns.names:
            schema = renamed(bound.relation.columns, bound.names)
            bound = BoundQuery(cast_columns(bound.relation, schema), bound.names)
        return Relational(bound)

    def _named(self, name: str, problems: Problems) -> LazyRelation:
        """What a defined name means; a table is bound when something first reads it."""
        if name in self._names:
            return _constant(self._names[name])
        table = self._tables[name]
        context = BindContext(self._planner, table.source, problems)
        if table.kind == "lookup":
            return LazyRelation(lambda: bind_lookup_table(context, table), kind="lookup")

        def scan() -> BoundQuery:
            with context.reporting():
                readable = with_columns(table)
                _check_options(readable, "source")
            rows = Relational(bind_scan(context, readable))
            self._names[name] = rows
            return rows.bound

        return LazyRelation(scan, kind="source")


class LoweredStreams:
    """Adds the operators of relations to a plan, each when it is first needed."""

    def __init__(self, lowering: LoweringContext) -> None:
        self._lowering = lowering

    def ports(self, rows: Relational) -> tuple[Port, ...]:
        """The ports of the rows; raises a SqlError if they cannot be computed."""
        try:
            lowered = self._lowering.rows(rows.bound.relation)
        except ExpressionError as error:
            raise sql_error(error.message, None, error.hint) from error
        self._lowering.problems.raise_all()
        return lowered.ports


def _check_all_read(query: exp.Expr, tables: Mapping[str, Relational]) -> None:
    """Refuse a stream that was passed and that the query does not read; `input` is passed by every method."""
    read = {table.name.lower() for table in query.find_all(exp.Table)}
    for name in tables:
        if name != "input" and name.lower() not in read:
            fail(
                f"the query does not read the stream `{name}`",
                None,
                suggest(name, sorted(read)) or "leave it out, or read it: `… FROM " + name + "`",
            )


def _constant(rows: Relational) -> LazyRelation:
    return LazyRelation(lambda: rows.bound, kind="source")


def _under_name(item: exp.Expr, name: str | None) -> exp.Expr:
    """An item of a SELECT list under a name, unless it has one."""
    if name is None or isinstance(item, exp.Alias):
        return item
    alias = exp.Alias(this=item, alias=exp.to_identifier(name, quoted=True))
    copy_position(item, alias)
    return alias


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if name in (TIMESTAMP, RETRACT):
            fail(f"`{name}` is a name of the engine", None, "give the column another name with AS")
        if names.count(name) > 1:
            fail(f"two columns are called `{name}`", None, "give one of them another name with AS")


def _check_options(table: CatalogTable, role: Role) -> None:
    """Refuse wrong options of a table, where they are written."""
    errors = option_errors(table, role)
    if errors:
        first, *others = errors
        first.more = tuple(others)
        raise first
