"""Binds the statements of a program: what is read, what is written where, and what is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import ExpressionError, HeadraceError, SqlError, suggest
from headrace.base.problems import Problems
from headrace.base.spans import Source, Span
from headrace.model.fragments import Function, plain_schema, quote
from headrace.model.operator import DEAD_LETTERS
from headrace.model.registry import Role, registry
from headrace.sql.bind.catalog import (
    CatalogTable,
    connector_options,
    define_table,
    likely_role,
    option_errors,
    option_model,
    roles_of,
)
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.define_function import define_function
from headrace.sql.bind.find_columns import with_columns
from headrace.sql.bind.logical import DeadLetters, Expression, Item, LateScan, Relation, Union
from headrace.sql.bind.planning import Planner
from headrace.sql.bind.query import bind_query
from headrace.sql.bind.relations import (
    BoundQuery,
    LazyRelation,
    cast_columns,
    column_item,
    make_map,
    plain_columns,
    rename_query,
    renamed,
    select_columns,
)
from headrace.sql.bind.tables import bind_lookup_table, bind_scan
from headrace.sql.bind.written_names import result_names
from headrace.sql.parse.create_function import CreateFunction
from headrace.sql.parse.statements import (
    BrokenDefinition,
    CreateView,
    Insert,
    SelectStatement,
    SetOption,
    Statement,
)
from headrace.sql.parse.table_definition import CreateTable
from headrace.sql.problems import ReportedError, fail, sql_error
from headrace.sql.state_ttl import StateTtl, set_ttl
from headrace.sql.types import sql_type, type_name

Inserts = Sequence[tuple[Source, Insert]]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class BoundSink(NamedTuple):
    """The relations that are written into a table, and the columns that its connector writes."""

    table: CatalogTable
    relations: list[Relation]
    columns: pa.Schema
    span: Span
    """Where it is written what goes into the table."""


class ProgramBinder:
    """The statements of a program, bound: `sinks` and `previews` are what there is to lower."""

    def __init__(self, problems: Problems, functions: tuple[Function, ...]) -> None:
        self._problems = problems
        self.planner = Planner(functions)
        self.ttl = StateTtl()
        self.sinks: list[BoundSink] = []
        self.previews: list[BoundQuery] = []
        """The results of bare SELECTs."""
        self._tables: dict[str, CatalogTable] = {}
        self._readable: dict[str, CatalogTable | None] = {}
        self._namespace: dict[str, LazyRelation] = {}
        self._inserts: dict[str, list[tuple[Source, Insert]]] = {}
        self._selects: list[tuple[Source, SelectStatement]] = []
        self._broken: set[str] = set()

    def bind(self, statements: Sequence[tuple[Source, Statement]]) -> None:
        """Bind all statements; what is wrong with them goes to the problems."""
        self._define_functions(statements)
        for source, statement in statements:
            self.attempt(self._define, source, statement)
        side_sinks = self._define_side_outputs()
        for relation in list(self._namespace.values()):
            if relation.kind == "query":
                self.attempt(relation)
        self.sinks = [*self._bind_sinks(), *side_sinks]
        shown = [self.attempt(self._bind_preview, source, select.query) for source, select in self._selects]
        self.previews = [bound for bound in shown if bound is not None]
        self._refuse_side_outputs_of_sinks()
        self._check_options()

    def attempt(
        self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result | None:
        """What a function gives; None if it fails, which is then among the problems."""
        try:
            return work(*args, **kwargs)
        except ReportedError:
            return None
        except SqlError as error:
            self._problems.add(error)
            return None

    @property
    def has_output(self) -> bool:
        """Whether anything is selected or inserted."""
        return bool(self._inserts or self._selects)

    @property
    def view_names(self) -> Mapping[Relation, str]:
        """The relations of views and tables in memory → what they are called."""
        names: dict[Relation, str] = {}
        for name, view in self._namespace.items():
            if view.kind == "query":
                names.setdefault(view().relation, name)
        return names

    def _context(self, source: Source) -> BindContext:
        return BindContext(self.planner, source, self._problems)

    def _bind_preview(self, source: Source, query: exp.Expr) -> BoundQuery:
        """A bare SELECT, whose columns are shown under names that people write."""
        written = query.copy()
        bound = self._bind_query(source, query)
        names = result_names(written, bound.names)
        if tuple(names) == bound.names:
            return bound
        relation = cast_columns(bound.relation, renamed(bound.relation.columns, names))
        return BoundQuery(relation, tuple(names))

    def _bind_query(self, source: Source, query: exp.Expr) -> BoundQuery:
        return bind_query(self._context(source), query, self._namespace)

    # ----------------------------------------------------------------------------------- definitions

    def _define_functions(self, statements: Sequence[tuple[Source, Statement]]) -> None:
        """Functions first: tables and queries may use them wherever they stand."""
        functions = dict(self.planner.user_functions)
        failed = any(
            isinstance(statement, BrokenDefinition) and statement.is_function for _, statement in statements
        )
        created = [statement for _, statement in statements if isinstance(statement, CreateFunction)]
        for statement in created:
            function = self.attempt(self._define_function, statement, functions)
            if function is None:
                failed = True
            else:
                functions[function.name] = function
        spans = {statement.name: statement.span for statement in created}
        for name, function in functions.items():
            if not function.arguments:
                hint = "give it one, such as a column: it is called for each row"
                self._problems.add(sql_error(f"function `{name}` takes no arguments", spans.get(name), hint))
                failed = True
        if failed:
            self._problems.raise_all()  # what calls them is not wrong for that
        self.planner = Planner(tuple(functions.values()))

    def _define_function(self, statement: CreateFunction, functions: Mapping[str, Function]) -> Function:
        if statement.name in functions or statement.name in self.planner.names:
            hint = "give yours another name"
            fail(f"there is already a function called `{statement.name}`", statement.span, hint)
        return define_function(statement)

    def _define(self, source: Source, statement: Statement) -> None:
        if isinstance(statement, SetOption):
            self._set(statement)
        elif isinstance(statement, Insert):
            self._inserts.setdefault(statement.table, []).append((source, statement))
        elif isinstance(statement, SelectStatement):
            self._selects.append((source, statement))
        elif isinstance(statement, BrokenDefinition):
            if not statement.is_function:
                self._add_broken(statement.name)
        elif isinstance(statement, CreateView | CreateTable):
            if statement.name in self._namespace:
                fail(f"`{statement.name}` is defined twice", statement.span, "give one of them another name")
            try:
                self._define_relation(source, statement)
            except SqlError:
                self._add_broken(statement.name)
                raise

    def _define_relation(self, source: Source, statement: CreateView | CreateTable) -> None:
        if isinstance(statement, CreateView):
            self._add_view(source, statement, statement.query, statement.columns)
        elif statement.query is None:
            self._add_table(define_table(statement, source))
        elif statement.options or statement.has_columns:
            fail(
                "CREATE TABLE … AS SELECT has neither columns nor options",
                statement.span,
                "create the table with a connector first and INSERT INTO it",
            )
        else:
            self._add_view(source, statement, statement.query, ())

    def _add_broken(self, name: str) -> None:
        """Define the names of failed definitions, so that their uses are not reported as errors too."""

        def fail_silently() -> BoundQuery:
            raise ReportedError

        if name not in self._namespace:
            self._broken.add(name)
            self._namespace[name] = LazyRelation(fail_silently)

    def _add_view(
        self,
        source: Source,
        statement: CreateView | CreateTable,
        query: exp.Expr,
        columns: tuple[str, ...],
    ) -> None:
        def bind() -> BoundQuery:
            return rename_query(self._context(source), self._bind_query(source, query), columns, None)

        hint = "a view cannot read what is made from it"
        cycle = sql_error(f"`{statement.name}` reads itself", statement.span, hint)
        self._namespace[statement.name] = LazyRelation(bind, on_cycle=partial(self._problems.add, cycle))

    def _add_table(self, table: CatalogTable) -> None:
        self._tables[table.name] = table
        context = self._context(table.source)
        if table.kind == "memory":
            cycle = sql_error(f"`{table.name}` reads itself", table.span())
            relation = LazyRelation(
                lambda: self._memory_table(table), on_cycle=partial(self._problems.add, cycle)
            )
        elif table.kind == "lookup":
            relation = LazyRelation(lambda: bind_lookup_table(context, table), kind="lookup")
        else:
            relation = LazyRelation(lambda: bind_scan(context, self._with_columns(table)), kind="source")
        self._namespace[table.name] = relation

    def _with_columns(self, table: CatalogTable) -> CatalogTable:
        """A table that is read, with the columns of its source, which are found once."""
        if table.name not in self._readable:
            self._readable[table.name] = None
            self._readable[table.name] = with_columns(table)
        readable = self._readable[table.name]
        if readable is None:
            raise ReportedError
        return readable

    def _memory_table(self, table: CatalogTable) -> BoundQuery:
        inserts = self._inserts.get(table.name, [])
        if not inserts:
            fail(
                f"nothing is inserted into table `{table.name}`",
                table.span(),
                "it is a table in memory; give it a connector to read from elsewhere",
            )
        if table.columns is None:
            raise AssertionError
        relations = [self._inserted(source, insert, table.columns) for source, insert in inserts]
        return BoundQuery(_union(relations), tuple(table.columns.names))

    def _set(self, statement: SetOption) -> None:
        self.ttl = set_ttl(statement)

    # ------------------------------------------------------------------------------- side outputs

    def _define_side_outputs(self) -> list[BoundSink]:
        """Late rows and bad records: a table of their own, or one that is there to take them."""
        sinks = []
        own: dict[str, list[BoundQuery]] = {}
        for table in list(self._tables.values()):
            for option, bind in (("late_table", self._late_rows), ("dead_letter_table", self._dead_letters)):
                name = table.value(option)
                bound = None if name is None else self.attempt(bind, table)
                if bound is None:
                    continue
                target = self._tables.get(str(name).lower())
                if target is None:
                    self.attempt(self._add_side_output, table, option, bound, own)
                elif sink := self.attempt(self._side_sink, table, option, bound, target):
                    sinks.append(sink)
        return sinks

    def _refuse_side_outputs_of_sinks(self) -> None:
        """A table that is only written has no late rows and no bad records."""
        if self._problems.errors:
            return  # what a query with an error reads is not known
        for name, table in self._tables.items():
            relation = self._namespace.get(name)
            if name not in self._inserts or relation is None or relation.is_used:
                continue
            for option, what in (("late_table", "late rows"), ("dead_letter_table", "bad records")):
                if table.value(option) is not None:
                    message = f"`{table.name}` is only written, and has no {what}"
                    self._problems.add(sql_error(message, table.span(option), f"leave out `{option}`"))

    def _add_side_output(
        self, table: CatalogTable, option: str, bound: BoundQuery, own: dict[str, list[BoundQuery]]
    ) -> None:
        """Define a table of late rows or bad records; several tables may share one."""
        name = str(table.value(option)).lower()
        parts = own.get(name, [])
        is_taken = name in self._namespace and name not in own
        if is_taken or any(len(part.names) != len(bound.names) for part in parts):
            fail(f"`{table.value(option)}` is defined twice", table.span(option), "choose another name")
        own[name] = parts = [*parts, bound]
        union = BoundQuery(_union([part.relation for part in parts]), parts[0].names)
        self._namespace[name] = LazyRelation(lambda: union)

    def _late_rows(self, table: CatalogTable) -> BoundQuery:
        table = self._with_columns(table)
        if table.columns is None:  # they are the connector's own
            fail(f"`{table.name}` has no columns for its late rows", table.span("late_table"), "declare them")
        columns = plain_schema(table.columns)
        return BoundQuery(LateScan(columns, table=table), tuple(columns.names))

    def _dead_letters(self, table: CatalogTable) -> BoundQuery:
        columns = pa.schema([field for field in DEAD_LETTERS if field.name != TIMESTAMP])
        return BoundQuery(DeadLetters(columns, table=self._with_columns(table)), tuple(columns.names))

    def _side_sink(
        self, table: CatalogTable, option: str, bound: BoundQuery, target: CatalogTable
    ) -> BoundSink:
        """A sink for late rows or bad records: columns by their names, or as many as there are, in order."""
        span, what = table.span(option), "late rows" if option == "late_table" else "bad records"
        relation = bound.relation
        inserts = self._inserts.get(target.name)
        written = inserts[0][1].span if inserts else target.span()
        if target.kind == "connector" and target.columns is None:
            return BoundSink(target, [relation], relation.columns, written)
        if target.kind != "connector" or target.columns is None:
            fail(f"{what} cannot go into `{target.name}`", span, "name a sink, or a new table")
        columns = plain_schema(target.columns)
        described = ", ".join(f"{f.name} {type_name(f.type)}" for f in relation.columns)
        if set(columns.names) <= set(bound.names):
            relation = select_columns(relation, columns.names)
        elif len(columns) != len(bound.names):
            fail(f"`{target.name}` must have the columns of {what}", span, f"these are {described}")
        for column, definition in zip(relation.columns, target.definition.columns, strict=True):
            declared = columns.field(definition.name)
            if option == "late_table":
                self._check_cast(column, declared, definition.span)
            elif column.type != declared.type:
                fail(
                    f"column `{definition.name}` of `{target.name}` is {type_name(declared.type)}, "
                    f"and {what} have {type_name(column.type)} there",
                    definition.span,
                    f"their columns are {described}",
                )
        option_model(target, "sink")
        return BoundSink(target, [cast_columns(relation, columns)], target.columns, written)

    # ----------------------------------------------------------------------------------------- sinks

    def _bind_sinks(self) -> list[BoundSink]:
        sinks = []
        for name, inserts in self._inserts.items():
            table = self._tables.get(name)
            if table is None:
                self._no_sink(name, inserts)
            elif table.kind != "memory" and (sink := self.attempt(self._bind_sink, table, inserts)):
                sinks.append(sink)
        return sinks

    def _no_sink(self, name: str, inserts: Inserts) -> None:
        if name in self._broken:
            return
        for _, insert in inserts:
            if name in self._namespace:
                error = sql_error(f"`{name}` is a view and cannot be written", insert.span)
            else:
                hint = suggest(name, self._tables, listing="the tables are") or "define it with CREATE TABLE"
                error = sql_error(f"there is no table `{name}`", insert.span, hint)
            self._problems.add(error)

    def _bind_sink(self, table: CatalogTable, inserts: Inserts) -> BoundSink:
        option_model(table, "sink")
        columns = table.columns
        for column in table.definition.columns:
            if column.generated is not None or column.metadata is not None:
                fail(f"column `{column.name}` is computed, and `{table.name}` is a sink", column.span)
        relations = []
        for source, insert in inserts:
            bound = self._bind_query(source, insert.query)
            if columns is None:
                columns = _result_columns(bound, insert)
            relations.append(self._fit(insert, bound, columns))
        if columns is None:
            raise AssertionError
        for name in table.definition.primary_key:
            if name not in columns.names:
                hint = suggest(name, columns.names, listing="the columns are")
                fail(f"there is no column `{name}` for the primary key", table.span(), hint)
        spans = [insert.span for _, insert in inserts]
        if any(relation.updating for relation in relations):
            _check_accepts_updates(table, relations, spans, columns)
            _check_key(table, relations, spans)
        return BoundSink(table, relations, columns, spans[0])

    def _inserted(self, source: Source, insert: Insert, columns: pa.Schema) -> Relation:
        return self._fit(insert, self._bind_query(source, insert.query), columns)

    def _fit(self, insert: Insert, bound: BoundQuery, columns: pa.Schema) -> Relation:
        """A query's rows with the columns of the table they go to; those that are not named are null."""
        names = insert.columns or tuple(columns.names)
        for name, span in zip(insert.columns, insert.column_spans, strict=True):
            if name not in columns.names:
                hint = suggest(name, columns.names, listing="its columns are")
                fail(f"`{insert.table}` has no column `{name}`", span, hint)
            if insert.columns.count(name) > 1:
                fail(f"column `{name}` is named twice", span)
        if len(bound.names) != len(names):
            fail(
                f"`{insert.table}` takes {len(names)} columns, the query gives {len(bound.names)}",
                insert.span,
                f"the table has {', '.join(names)}; the query {', '.join(bound.names)}",
            )
        target = plain_schema(pa.schema([columns.field(name) for name in names]))
        for column, declared in zip(bound.relation.columns, target, strict=True):
            self._check_cast(column, declared, insert.span)
        relation = cast_columns(bound.relation, target)
        return relation if list(names) == columns.names else _complete(relation, columns)

    def _check_cast(self, column: pa.Field, target: pa.Field, span: Span) -> None:
        """Refuse a column that cannot become the type it is written as."""
        if column.type == target.type:
            return
        text = f"CAST({quote(column.name)} AS {sql_type(target.type)})"
        try:
            self.planner.types([text], pa.schema([column]))
        except ExpressionError as error:
            raise sql_error(
                f"`{column.name}` is {type_name(column.type)} "
                f"and cannot be written as {type_name(target.type)}",
                span,
                error.hint,
            ) from error

    def _check_options(self) -> None:
        """Check the options of every table: also of those that nothing reads or writes."""
        for table in self._tables.values():
            role: Role | None = "sink" if table.name in self._inserts else likely_role(table)
            if table.kind == "memory" or role is None or not roles_of(table.connector):
                continue  # of another engine and not used, or reported already
            for error in option_errors(table, role):
                self._problems.add(error)


def _result_columns(bound: BoundQuery, insert: Insert) -> pa.Schema:
    """The columns of a sink that declares none: those of the first query that is written to it."""
    for name in bound.names:
        if name in (TIMESTAMP, RETRACT):
            fail(f"`{name}` is a name of the engine", insert.span, "give it another name with AS")
    if len(set(bound.names)) != len(bound.names):
        fail(f"two columns for `{insert.table}` have one name", insert.span, "name them with AS")
    return renamed(bound.relation.columns, bound.names)


def _complete(relation: Relation, columns: pa.Schema) -> Relation:
    """The relation with all of `columns`: those it does not have are null."""
    items = [
        column_item(column.name)
        if column.name in relation.columns.names
        else Item(column.name, Expression(f"CAST(NULL AS {sql_type(column.type)})"))
        for column in columns
    ]
    return make_map(relation, items, plain_columns(columns))


def _union(relations: Sequence[Relation]) -> Relation:
    """The rows of several relations with the same columns."""
    if len(relations) == 1:
        return relations[0]
    updating = any(relation.updating for relation in relations)
    return Union(relations[0].columns, updating=updating, inputs=relations)


def _check_key(table: CatalogTable, relations: Sequence[Relation], spans: Sequence[Span]) -> None:
    """A key that several rows of the result share would let one overwrite the other."""
    declared = table.definition.primary_key
    for relation, span in zip(relations, spans, strict=True):
        if declared and relation.updating and not set(relation.key) <= set(declared):
            fail(
                f"several rows of the result can have one primary key of `{table.name}` "
                f"({', '.join(declared)})",
                span,
                f"its rows are identified by {', '.join(relation.key)}: make that the primary key",
            )


def _check_accepts_updates(
    table: CatalogTable, relations: Sequence[Relation], spans: Sequence[Span], columns: pa.Schema
) -> None:
    """Refuse an updating result for a sink that can only append."""
    try:
        sink = registry.build("sink", table.connector, connector_options(table, "sink", columns))
    except SqlError:
        raise
    except HeadraceError:
        return  # its options are wrong, which is reported where they are checked
    if getattr(sink, "accepts_updates", False):
        return
    way = getattr(sink, "updates_with", "write format = 'debezium_json'")
    for relation, span in zip(relations, spans, strict=True):
        if relation.updating:
            fail(
                f"`{table.name}` cannot take an updating result: rows already written would have to change",
                span,
                f"{way}, or aggregate in windows: GROUP BY tumble(…)",
            )
