"""SQL text becomes a plan: parse, bind, lower; every mistake is found in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.durations import parse_duration
from headrace.base.errors import ExpressionError, HeadraceError, SqlError, suggest
from headrace.base.options import parse_options
from headrace.base.problems import Problems
from headrace.base.secrets import Secrets
from headrace.base.spans import Source
from headrace.model.builder import PlanBuilder
from headrace.model.fragments import Function, plain_type
from headrace.model.operator import DEAD_LETTERS
from headrace.model.registry import Role, registry
from headrace.sql.bind.binder import Binder
from headrace.sql.bind.catalog import (
    Table,
    connector_options,
    define_table,
    option_error,
    option_model,
    roles_of,
)
from headrace.sql.bind.define_function import define_function
from headrace.sql.bind.logical import DeadLetters, Late, Relation, Union, inputs_of
from headrace.sql.bind.planning import Planner
from headrace.sql.bind.relations import Bound, Named
from headrace.sql.find_columns import with_columns
from headrace.sql.lower.lowering import Lowering
from headrace.sql.lower.tables import add_sink
from headrace.sql.parse.create_function import CreateFunction
from headrace.sql.parse.statements import (
    BrokenDefinition,
    CreateView,
    Insert,
    SelectStatement,
    SetOption,
    Statement,
    parse_statements,
)
from headrace.sql.parse.table_definition import CreateTable
from headrace.sql.problems import FailedError, sql_error
from headrace.sql.types import type_name

DEFAULT_TTL = timedelta(hours=24)
"""How long an updating result remembers, unless `SET updating_ttl` says otherwise."""


@dataclass(frozen=True)
class Preview:
    """A bare SELECT: what its rows look like, so that a sink can show them."""

    columns: pa.Schema
    updating: bool
    key: tuple[str, ...]


MakeSink = Callable[[Preview], tuple[str, dict[str, Any]]]
"""The sink that shows the rows of a bare SELECT: its name and options."""


ReplaceSink = Callable[[str, Preview], tuple[str, dict[str, Any]]]
"""The sink to use in the place of a table's own: its name and options."""


def print_rows(preview: Preview) -> tuple[str, dict[str, Any]]:
    """Rows go to stdout as JSON lines; changes as Debezium writes them."""
    options: dict[str, Any] = {
        "schema": preview.columns,
        "format": "debezium_json" if preview.updating else "json",
    }
    if preview.key:
        options["primary_key"] = list(preview.key)
    return "stdout", options


def compile_sql(
    sources: Sequence[Source],
    *,
    name: str,
    udfs: Iterable[Function] = (),
    preview: MakeSink = print_rows,
    sinks: ReplaceSink | None = None,
) -> PlanBuilder:
    """The plan of one or several texts, taken as one; raises a SqlError that holds every mistake.

    `preview` chooses the sink for the rows of a bare SELECT, `sinks` one in the place of every table that
    is written, for tests.
    """
    return _Program(sources, name, tuple(udfs), preview, sinks).compile()


class _Program:
    """The statements of a program on their way to a plan."""

    def __init__(
        self,
        sources: Sequence[Source],
        name: str,
        functions: tuple[Function, ...],
        preview: MakeSink,
        sinks: ReplaceSink | None,
    ) -> None:
        self.sources = sources
        secrets = Secrets.named_in(source.text for source in sources)
        self.problems = Problems(secrets)
        self.planner = Planner(functions)
        self.functions = functions
        self.builder = PlanBuilder(name, secrets=secrets)
        self.make_preview = preview
        self.replace_sink = sinks
        self.ttl = DEFAULT_TTL
        self.tables: dict[str, Table] = {}
        self.readable: dict[str, Table | None] = {}
        self.names: dict[str, Named] = {}
        self.inserts: dict[str, list[tuple[Source, Insert]]] = {}
        self.selects: list[tuple[Source, SelectStatement]] = []
        self.broken: set[str] = set()

    def compile(self) -> PlanBuilder:
        """Parse, bind and lower."""
        statements = [one for source in self.sources for one in parse_statements(source, self.problems)]
        self._define_functions(statements)
        for source, statement in statements:
            self._try(lambda source=source, statement=statement: self._define(source, statement))  # type: ignore[misc]
        asides = self._define_asides()
        for named in list(self.names.values()):
            if named.kind == "query":
                self._try(named)
        sinks = [*self._bind_sinks(), *asides]
        shown = [
            bound
            for source, one in self.selects
            if (bound := self._try(lambda s=source, o=one: self._binder(s).query(o.query, self.names)))  # type: ignore[misc]
        ]
        self._check_unused()
        if not statements and not self.problems.errors:
            raise SqlError("there is no SQL here", where=self.sources[0].name if self.sources else None)
        if not self.inserts and not self.selects and not self.problems.errors:
            where = self.sources[-1].name
            raise SqlError(
                "nothing is selected or inserted",
                where=where,
                hint="end with SELECT … or INSERT INTO … SELECT …",
            )
        self.problems.raise_all()
        lowering = Lowering(self.builder, self.planner, self.problems, ttl=self.ttl, functions=self.functions)
        for name, named in self.names.items():
            if named.kind == "query":
                lowering.name(named().relation, name)
        lowering.prepare([*(r for _, relations, _ in sinks for r in relations), *(b.relation for b in shown)])
        # What reads late rows or bad records comes after the windows and sources that give them.
        for aside in (False, True):
            for table, relations, columns in sinks:
                if aside == any(_reads_aside(relation) for relation in relations):
                    self._try(lambda t=table, r=relations, c=columns: self._write(lowering, t, r, c))  # type: ignore[misc]
            for bound in shown:
                if aside == _reads_aside(bound.relation):
                    self._try(lambda b=bound: self._show(lowering, b))  # type: ignore[misc]
        self.problems.raise_all()
        return self.builder

    def _try(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except FailedError:
            return None
        except SqlError as error:
            self.problems.add(error)
            return None

    def _binder(self, source: Source) -> Binder:
        return Binder(self.planner, source, self.problems)

    # ----------------------------------------------------------------------------------- definitions

    def _define(self, source: Source, statement: Statement) -> None:
        if isinstance(statement, CreateFunction):
            return  # functions were defined before all else
        if isinstance(statement, SetOption):
            self._set(statement)
        elif isinstance(statement, Insert):
            self.inserts.setdefault(statement.table, []).append((source, statement))
        elif isinstance(statement, SelectStatement):
            self.selects.append((source, statement))
        elif isinstance(statement, BrokenDefinition):
            if not statement.is_function:
                self._set_aside(statement.name)
        elif isinstance(statement, CreateView):
            self._free(statement.name, statement)
            self._add_view(source, statement.name, statement.query, statement.columns, statement)
        elif statement.query is not None:
            self._free(statement.name, statement)
            if statement.options or statement.has_columns:
                self._set_aside(statement.name)
                raise sql_error(
                    "CREATE TABLE … AS SELECT has neither columns nor options",
                    statement.span,
                    "create the table with a connector first and INSERT INTO it",
                )
            self._add_view(source, statement.name, statement.query, (), statement)
        else:
            self._free(statement.name, statement)
            try:
                self._add_table(define_table(statement, source))
            except SqlError:
                self._set_aside(statement.name)
                raise

    def _define_functions(self, statements: Sequence[tuple[Source, Statement]]) -> None:
        """Functions first: tables and queries may use them wherever they stand."""
        made = {function.name: function for function in self.functions}
        failed = any(isinstance(one, BrokenDefinition) and one.is_function for _, one in statements)
        for _, statement in statements:
            if isinstance(statement, CreateFunction):
                defined = self._try(lambda s=statement: self._function(s, made))  # type: ignore[misc]
                if defined is not None:
                    made[defined.name] = defined
                failed |= defined is None
        spans = {one.name: one.span for _, one in statements if isinstance(one, CreateFunction)}
        for name, function in made.items():
            if not function.arguments:
                hint = "give it one, such as a column: it is called for each row"
                self.problems.add(sql_error(f"function `{name}` takes no arguments", spans.get(name), hint))
                failed = True
        if failed:
            self.problems.raise_all()  # what calls them is not wrong for that
        self.functions = tuple(made.values())
        self.planner = Planner(self.functions)

    def _function(self, statement: CreateFunction, known: Mapping[str, Function]) -> Function:
        if statement.name in known or statement.name in self.planner.names:
            hint = "give yours another name"
            raise sql_error(f"there is already a function called `{statement.name}`", statement.span, hint)
        return define_function(statement)

    def _free(self, name: str, statement: CreateTable | CreateView) -> None:
        if name in self.names:
            raise sql_error(f"`{name}` is defined twice", statement.span, "give one of them another name")

    def _set_aside(self, name: str) -> None:
        """What uses a definition that failed is not wrong for that."""

        def fail() -> Bound:
            raise FailedError

        if name not in self.names:
            self.broken.add(name)
            self.names[name] = Named(fail)

    def _add_view(
        self,
        source: Source,
        name: str,
        query: Any,
        columns: tuple[str, ...],
        statement: CreateView | CreateTable,
    ) -> None:
        binder = self._binder(source)

        def cycle() -> None:
            hint = "a view cannot read what is made from it"
            self.problems.add(sql_error(f"`{name}` reads itself", statement.span, hint))

        self.names[name] = Named(
            lambda: binder.renamed(binder.query(query, self.names), columns, None), on_cycle=cycle
        )

    def _add_table(self, table: Table) -> None:
        self.tables[table.name] = table
        binder = self._binder(table.source)
        if table.kind == "memory":
            self.names[table.name] = Named(
                lambda: self._memory(table),
                on_cycle=lambda: self.problems.add(sql_error(f"`{table.name}` reads itself", table.span())),
            )
        elif table.kind == "lookup":
            self.names[table.name] = Named(lambda: binder.lookup_table(table), kind="lookup")
        else:
            self.names[table.name] = Named(lambda: binder.scan(self._readable(table)), kind="source")

    def _readable(self, table: Table) -> Table:
        """A table that is read, with its columns, which are found out once."""
        if table.name not in self.readable:
            self.readable[table.name] = None
            self.readable[table.name] = with_columns(table)
        found = self.readable[table.name]
        if found is None:
            raise FailedError
        return found

    def _define_asides(self) -> list[tuple[Table, list[Relation], pa.Schema]]:
        """Late rows and bad records: a table of their own, or one that is there to take them."""
        sinks = []
        asides: dict[str, list[Bound]] = {}
        for table in list(self.tables.values()):
            for option, make in (("late_table", self._late), ("dead_letter_table", self._dead_letters)):
                name = table.value(option)
                bound = None if name is None else self._try(lambda t=table, m=make: m(t))  # type: ignore[misc]
                if bound is None:
                    continue
                own = str(name).lower()
                target = self.tables.get(own)
                if target is None:
                    taken = own in self.names and own not in asides
                    if taken or any(len(b.names) != len(bound.names) for b in asides.get(own, ())):
                        span = table.span(option)
                        self.problems.add(
                            sql_error(f"`{name}` is defined twice", span, "choose another name")
                        )
                        continue
                    asides.setdefault(own, []).append(bound)
                    self.names[own] = Named(lambda bounds=asides[own]: _all_of(bounds))  # type: ignore[misc]
                elif target.kind == "connector" and target.columns is None:
                    sinks.append((target, [bound.relation], bound.relation.columns))
                elif made := self._try(lambda t=table, o=option, b=bound, g=target: self._into(t, o, b, g)):  # type: ignore[misc]
                    sinks.append(made)
        return sinks

    def _late(self, table: Table) -> Bound:
        table = self._readable(table)
        if table.columns is None:  # they are the connector's own
            raise sql_error(
                f"`{table.name}` has no columns for its late rows", table.span("late_table"), "declare them"
            )
        columns = pa.schema([pa.field(f.name, plain_type(f.type)) for f in table.columns])
        return Bound(Late(columns, table=table), tuple(columns.names))

    def _dead_letters(self, table: Table) -> Bound:
        columns = pa.schema([field for field in DEAD_LETTERS if field.name != TIMESTAMP])
        return Bound(DeadLetters(columns, table=self._readable(table)), tuple(columns.names))

    def _into(
        self, table: Table, option: str, bound: Bound, target: Table
    ) -> tuple[Table, list[Relation], pa.Schema]:
        """The sink for what is set aside: its columns by their names, or as many as there are, in order."""
        span, what = table.span(option), "late rows" if option == "late_table" else "bad records"
        if target.kind != "connector" or target.columns is None:
            raise sql_error(f"{what} cannot go into `{target.name}`", span, "name a sink, or a new table")
        binder, columns = self._binder(table.source), _plain(target.columns)
        described = ", ".join(f"{f.name} {type_name(f.type)}" for f in bound.relation.columns)
        if set(columns.names) <= set(bound.names):
            bound = binder.pick(bound, columns.names)
        elif len(columns) != len(bound.names):
            raise sql_error(
                f"`{target.name}` must have the columns of {what}", span, f"these are {described}"
            )
        for given, column in zip(bound.relation.columns, target.definition.columns, strict=True):
            wanted = columns.field(column.name)
            if option == "late_table":
                binder.check_cast(given, wanted, column.span)
            elif given.type != wanted.type:
                raise sql_error(
                    f"column `{column.name}` of `{target.name}` is {type_name(wanted.type)}, "
                    f"and {what} have {type_name(given.type)} there",
                    column.span,
                    f"their columns are {described}",
                )
        option_model(target, "sink")
        return target, [binder.cast(bound, columns)], target.columns

    def _set(self, statement: SetOption) -> None:
        if statement.name != "updating_ttl":
            hint = suggest(statement.name, ["updating_ttl"]) or "the only setting in SQL is updating_ttl"
            raise sql_error(f"there is no setting `{statement.name}`", statement.span, hint)
        try:
            self.ttl = parse_duration(statement.value)
        except (HeadraceError, TypeError, AttributeError):
            raise sql_error(
                f"`{statement.value}` is not a duration", statement.span, "write interval '1 hour'"
            ) from None
        if self.ttl <= timedelta(0):
            raise sql_error("updating_ttl must be longer than nothing", statement.span)

    def _memory(self, table: Table) -> Bound:
        inserts = self.inserts.get(table.name, [])
        if not inserts:
            raise sql_error(
                f"nothing is inserted into table `{table.name}`",
                table.span(),
                "it is a table in memory; give it a connector to read from elsewhere",
            )
        if table.columns is None:
            raise AssertionError
        relations = [self._inserted(source, one, table.columns) for source, one in inserts]
        if len(relations) == 1:
            return Bound(relations[0], tuple(table.columns.names))
        updating = any(relation.updating for relation in relations)
        union = Union(relations[0].columns, updating=updating, inputs=relations)
        return Bound(union, tuple(table.columns.names))

    # ----------------------------------------------------------------------------------------- sinks

    def _bind_sinks(self) -> list[tuple[Table, list[Relation], pa.Schema]]:
        sinks = []
        for name, inserts in self.inserts.items():
            table = self.tables.get(name)
            if table is None:
                self._no_sink(name, inserts)
            elif table.kind == "memory":
                continue  # read as what it is
            elif (bound := self._try(lambda t=table, i=inserts: self._bind_sink(t, i))) is not None:  # type: ignore[misc]
                sinks.append(bound)
        return sinks

    def _no_sink(self, name: str, inserts: list[tuple[Source, Insert]]) -> None:
        if name in self.broken:
            return
        for _, one in inserts:
            if name in self.names:
                error = sql_error(f"`{name}` is a view and cannot be written", one.span)
            else:
                tables = list(self.tables)
                hint = suggest(name, tables) or (f"the tables are {', '.join(tables)}" if tables else None)
                error = sql_error(
                    f"there is no table `{name}`", one.span, hint or "define it with CREATE TABLE"
                )
            self.problems.add(error)

    def _bind_sink(
        self, table: Table, inserts: list[tuple[Source, Insert]]
    ) -> tuple[Table, list[Relation], pa.Schema]:
        option_model(table, "sink")
        columns = table.columns
        for column in table.definition.columns:
            if column.generated is not None or column.metadata is not None:
                raise sql_error(
                    f"column `{column.name}` is computed, and `{table.name}` is a sink", column.span
                )
        relations = []
        for source, one in inserts:
            if columns is None:
                first = self._binder(source).query(one.query, self.names)
                fields = [
                    pa.field(name, f.type, f.nullable)
                    for name, f in zip(first.names, first.relation.columns, strict=True)
                ]
                for name in first.names:
                    if name in (TIMESTAMP, RETRACT):
                        hint = "give it another name with AS"
                        raise sql_error(f"`{name}` is a name of the engine", one.span, hint)
                if len({f.name for f in fields}) != len(fields):
                    raise sql_error(
                        f"two columns for `{table.name}` have one name", one.span, "name them with AS"
                    )
                columns = pa.schema(fields)
                relations.append(self._fitted(source, one, first, columns))
            else:
                relations.append(self._inserted(source, one, columns))
        if columns is None:
            raise AssertionError
        for name in table.definition.primary_key:
            if name not in columns.names:
                hint = suggest(name, columns.names) or f"the columns are {', '.join(columns.names)}"
                raise sql_error(f"there is no column `{name}` for the primary key", table.span(), hint)
        if any(relation.updating for relation in relations):
            self._check_changes(table, relations, inserts, columns)
            self._check_key(table, relations, inserts)
        return table, relations, columns

    def _check_key(
        self, table: Table, relations: list[Relation], inserts: list[tuple[Source, Insert]]
    ) -> None:
        """A key that several rows of the result share would let one overwrite the other."""
        declared = table.definition.primary_key
        for relation, (_, one) in zip(relations, inserts, strict=True):
            if declared and relation.updating and not set(relation.key) <= set(declared):
                raise sql_error(
                    f"several rows of the result can have one primary key of `{table.name}` "
                    f"({', '.join(declared)})",
                    one.span,
                    f"its rows are told apart by {', '.join(relation.key)}: make that the primary key",
                )

    def _check_changes(
        self,
        table: Table,
        relations: list[Relation],
        inserts: list[tuple[Source, Insert]],
        columns: pa.Schema,
    ) -> None:
        try:
            options = connector_options(table, "sink", columns)
            sink = registry.build("sink", table.connector, options)
            if getattr(sink, "accepts_updates", False):
                return
        except SqlError:
            raise
        except HeadraceError:
            return  # its options are wrong, which is found where they are checked
        way = getattr(sink, "updates_with", "write format = 'debezium_json'")
        for relation, (_, one) in zip(relations, inserts, strict=True):
            if relation.updating:
                raise sql_error(
                    f"`{table.name}` cannot take an updating result: "
                    "rows already written would have to change",
                    one.span,
                    f"{way}, or aggregate in windows: GROUP BY tumble(…)",
                )

    def _inserted(self, source: Source, insert: Insert, columns: pa.Schema) -> Relation:
        bound = self._binder(source).query(insert.query, self.names)
        return self._fitted(source, insert, bound, columns)

    def _fitted(self, source: Source, insert: Insert, bound: Bound, columns: pa.Schema) -> Relation:
        """A query's rows with the columns of the table they go to."""
        names = insert.columns or tuple(columns.names)
        for name, span in zip(insert.columns, insert.column_spans, strict=True):
            if name not in columns.names:
                hint = suggest(name, columns.names) or f"its columns are {', '.join(columns.names)}"
                raise sql_error(f"`{insert.table}` has no column `{name}`", span, hint)
            if insert.columns.count(name) > 1:
                raise sql_error(f"column `{name}` is named twice", span)
        if len(bound.names) != len(names):
            raise sql_error(
                f"`{insert.table}` takes {len(names)} columns, the query gives {len(bound.names)}",
                insert.span,
                f"the table has {', '.join(names)}; the query {', '.join(bound.names)}",
            )
        binder = self._binder(source)
        target = pa.schema([pa.field(n, plain_type(columns.field(n).type)) for n in names])
        for name, column in zip(names, bound.relation.columns, strict=True):
            binder.check_cast(column, target.field(name), insert.span)
        relation = binder.cast(bound, target)
        if len(names) == len(columns.names) and list(names) == columns.names:
            return relation
        return binder.completed(relation, columns)

    # --------------------------------------------------------------------------------------- the rest

    def _check_unused(self) -> None:
        """Options of tables that nothing reads or writes are checked too."""
        for table in self.tables.values():
            if table.kind == "memory":
                continue
            roles: list[Role] = roles_of(table.connector)
            if not roles:
                continue  # of another engine, and not used: or that has been said
            declared = table.value("type")
            role = declared if declared in roles else roles[0]
            if table.kind == "lookup":
                role = "lookup"
            if table.name in self.inserts:
                role = "sink"
            try:
                options = connector_options(table, role, _read_columns(table))
                parse_options(option_model(table, role), options, what=table.connector)
            except SqlError as error:
                self.problems.add(error)
            except HeadraceError as error:
                for one in option_error(error, table):
                    self.problems.add(one)

    def _write(self, lowering: Lowering, table: Table, relations: list[Relation], columns: pa.Schema) -> None:
        try:
            self._sink(lowering, table, relations, columns)
        except ExpressionError as error:  # of a constant, which DataFusion computes while it plans
            inserts = self.inserts.get(table.name)
            span = inserts[0][1].span if inserts else table.span()
            hint = f"what is inserted into `{table.name}` must fit its columns"
            raise sql_error(error.message, span, hint) from error

    def _sink(self, lowering: Lowering, table: Table, relations: list[Relation], columns: pa.Schema) -> None:
        if self.replace_sink is None:
            add_sink(lowering, table, relations, columns)
            return
        updating = any(relation.updating for relation in relations)
        key = table.definition.primary_key or (relations[0].key if len(relations) == 1 else ())
        sink, options = self.replace_sink(table.name, Preview(columns, updating, key))
        add_sink(lowering, table, relations, columns, instead=(sink, options))

    def _show(self, lowering: Lowering, bound: Bound) -> None:
        names = list(bound.names)
        relation = bound.relation
        key = tuple(names[relation.columns.names.index(one)] for one in relation.key)
        columns = pa.schema(
            [f.with_name(n) for n, f in zip(relation.columns.names, relation.columns, strict=True)]
        )
        sink, options = self.make_preview(Preview(columns, relation.updating, key))
        try:
            lowering.preview(relation, sink, options)
        except ExpressionError as error:
            raise sql_error(error.message, None) from error


def _all_of(bounds: Sequence[Bound]) -> Bound:
    """The rows of several tables with the same columns as one."""
    if len(bounds) == 1:
        return bounds[0]
    relations = [bound.relation for bound in bounds]
    return Bound(Union(relations[0].columns, inputs=relations), bounds[0].names)


def _reads_aside(relation: Relation) -> bool:
    """Whether late rows or bad records are among what a relation is made of."""
    return isinstance(relation, Late | DeadLetters) or any(map(_reads_aside, inputs_of(relation)))


def _plain(columns: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, plain_type(f.type)) for f in columns])


def _read_columns(table: Table) -> pa.Schema | None:
    if table.columns is None:
        return None
    return pa.schema([column.field for column in table.physical])
