"""Which columns names stand for, and expressions over them as DataFusion reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import ExpressionError, counted, suggest
from headrace.functions.json_path import compile_path
from headrace.functions.signatures import FUNCTION_NAMES, PATH_FUNCTIONS, usage
from headrace.functions.signatures import resolve as resolve_function
from headrace.model.fragments import EPOCH_CLOCK, plain_type
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.json_forms import ROW_OBJECT, is_json, is_jsonb
from headrace.sql.bind.logical import PRESENCE, ColumnPath, Expression
from headrace.sql.bind.meanings import Meaning, mark
from headrace.sql.bind.planning import WINDOWS
from headrace.sql.bind.respelling import is_rewritten, respell
from headrace.sql.bind.semantics import Semantics
from headrace.sql.bind.volatile import CLOCK, epoch_clock
from headrace.sql.parse.dialect import HeadraceDialect, copy_position, to_sql
from headrace.sql.problems import ReportedError
from headrace.sql.types import type_name


@dataclass(frozen=True)
class ScopeTable:
    """A table of a FROM clause: the names its columns are called by, and the columns of its relation."""

    alias: str
    names: tuple[str, ...]
    columns: tuple[pa.Field, ...]
    """In the same order; their names are those of the relation."""
    merged: frozenset[str] = frozenset()
    """Names that a USING has merged into an earlier table's."""
    unqualified: Mapping[str, pa.Field] = field(default_factory=dict)
    """The column of a name without a table, where an outer join with USING computes another one for it."""
    column_alias: str | None = None
    """Another name of the only column, behind that of the table."""
    is_scalar: bool = False
    """Whether its name alone stands for the value of its only column: that of a function in FROM."""
    is_hidden: bool = False
    """Whether it holds the value of a subquery, and is not in `*`."""
    key: tuple[str, ...] = ()
    """The columns of the relation that are different for each row, if that is known."""
    meanings: Mapping[str, Meaning] = field(default_factory=dict)
    """What columns of the relation mean beyond their types."""

    def column(self, name: str) -> pa.Field:
        """The column that a name without a table stands for."""
        return self.unqualified.get(name) or self.columns[self.names.index(name)]


def identifier_name(identifier: exp.Expr) -> str:
    """A name as it is compared: lower case unless it was quoted."""
    name = identifier.name
    return name if identifier.args.get("quoted") else name.lower()


def alias_of(node: exp.Expr) -> tuple[str | None, list[str]]:
    """The table and the columns that `AS t (a, b)` names; None and no columns where it does not."""
    alias = node.args.get("alias")
    if alias is None:
        return None, []
    columns = [identifier_name(column) for column in alias.args.get("columns") or ()]
    return identifier_name(alias.this) if alias.this else None, columns


def column_of(name: str) -> exp.Column:
    """A reference to a column by the name that it has in its relation."""
    return exp.Column(this=exp.Identifier(this=name, quoted=True))


_BUILDERS: Final = {
    **dict.fromkeys(("json_agg", "row_to_json", "to_json"), ROW_OBJECT),
    **dict.fromkeys(("jsonb_agg", "to_jsonb"), "jsonb_build_object"),
}
"""What makes the JSON that some functions make of a whole row."""


@dataclass
class Scope:
    """The tables that names in a SELECT can mean."""

    context: BindContext
    tables: list[ScopeTable] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    """The columns that USING has merged: they stand first in `*`."""

    # ------------------------------------------------------------------------------------- names

    @property
    def schema(self) -> pa.Schema:
        """Every column, by its name in the relation, and event time."""
        fields = [column for table in self.tables for column in (*table.columns, *table.unqualified.values())]
        fields = list({column.name: column for column in fields}.values())
        return pa.schema([*fields, pa.field(TIMESTAMP, pa.timestamp("ns"), nullable=False)])

    def meaning(self, column: pa.Field) -> Meaning | None:
        """What a column of the relation means beyond its type."""
        return next((t.meanings[column.name] for t in self.tables if column.name in t.meanings), None)

    def _find_column(self, parts: Sequence[exp.Expr], node: exp.Expr) -> tuple[pa.Field, int]:
        """(the column, how many of the parts name it); the other parts are fields in it."""
        names = [identifier_name(part) for part in parts]
        if len(names) > 2 and names[0] == "public" and any(table.alias == names[1] for table in self.tables):
            column, used = self._find_column(parts[1:], node)
            return column, used + 1
        if len(names) > 1:
            for table in self.tables:
                if table.alias == names[0] and names[1] in table.names:
                    return self._only_column(table, names[1], node), 2
                if table.alias == names[0] and names[1] == table.column_alias:
                    return table.columns[0], 2
        owners = [table for table in self.tables if names[0] in table.names and names[0] not in table.merged]
        if len(owners) > 1:
            candidates = " or ".join(f"`{table.alias}.{names[0]}`" for table in owners)
            raise self.context.fail(f"`{names[0]}` could be {candidates}", node, f"write {candidates}")
        if owners:
            self._only_column(owners[0], names[0], node)
            return owners[0].column(names[0]), 1
        # A result that DataFusion calls `rides.place[city]` may also be called `city`.
        fields = [
            column
            for table in self.tables
            for name, column in zip(table.names, table.columns, strict=True)
            if name.endswith(f"[{names[0]}]")
        ]
        if len(fields) != 1:
            fields = self._results_of(names[0])
        if len(fields) == 1:
            return fields[0], 1
        for table in self.tables:
            if table.is_scalar and table.alias == names[0]:
                return table.columns[0], 1
        raise self._unknown(names, node)

    def _only_column(self, table: ScopeTable, name: str, node: exp.Expr) -> pa.Field:
        if (count := table.names.count(name)) > 1:
            raise self.context.fail(
                f"`{table.alias}` has {count} columns called `{name}`",
                node,
                "give them different names with AS where they are made",
            )
        return table.columns[table.names.index(name)]

    def _results_of(self, function: str) -> list[pa.Field]:
        """The columns without a name of their own that are results of a function: `sum` is `sum(amount)`."""
        return [
            column
            for table in self.tables
            for name, column in zip(table.names, table.columns, strict=True)
            if name.startswith(f"{function}(") and name.endswith(")")
        ]

    def _unknown(self, names: list[str], node: exp.Expr) -> ReportedError:
        aliases = [table.alias for table in self.tables]
        if len(names) > 1 and names[0] in aliases:
            columns = self.tables[aliases.index(names[0])].names
            hint = _suggest_column(names[1], columns, "its columns are")
            return self.context.fail(f"`{names[0]}` has no column `{names[1]}`", node, hint)
        columns = tuple(dict.fromkeys(name for table in self.tables for name in table.names))
        if len(names) > 1:
            listing = f"the tables are {_listed(aliases)}" if aliases else "there is no FROM"
            hint = suggest(names[0], [*aliases, *columns]) or listing
            return self.context.fail(f"there is no table or column `{names[0]}` here", node, hint)
        hint = _suggest_column(names[0], columns, "the columns are") if columns else "there is no FROM"
        if node.this.args.get("quoted") and names[0].lower() not in columns:
            column, _, field = names[0].partition(".")
            if field and column in columns:
                hint = (
                    f"a field of `{column}` is `{column}.{field}`, or `hr.col('{column}').field('{field}')`"
                )
            elif (near := suggest(names[0], columns, cutoff=0.75)) is not None:
                hint = f"{near} A string is written in single quotes: '{names[0]}'"
            else:
                listing = f"the columns are {_listed(columns)}" if columns else "there is no FROM"
                hint = f"a string is written in single quotes: '{names[0]}'; {listing}"
        return self.context.fail(f"there is no column `{names[0]}`", node, hint)

    # ------------------------------------------------------------------------------- expressions

    def resolve(self, node: exp.Expr, *, plain: bool = False) -> exp.Expr:
        """A copy in which every name is a column of the relation; what is wrong goes to the problems.

        A `plain` copy is written as the user wrote it, whatever DataFusion takes it for. Raises ReportedError
        if anything was wrong.
        """
        failed = False

        def visit(part: exp.Expr) -> exp.Expr:
            nonlocal failed
            try:
                if part.meta.get("resolved"):
                    return part
                if isinstance(part, exp.Column) and isinstance(part.this, exp.Star):
                    return self._whole_row(part)
                if isinstance(part, exp.Column):
                    return self._reference(list(part.parts), part)
                if isinstance(part, exp.Dot):
                    return self._dotted(part)
            except ReportedError:
                failed = True
                return exp.Null()
            return part

        resolved = node.copy().transform(visit)
        if failed:
            raise ReportedError
        if plain:
            return self._bind_functions(resolved)
        bound = self._compare_as_texts(self._bind_functions(respell(self.context, resolved)))
        return Semantics(self.context, self._type_of).apply(bound)

    def _whole_row(self, node: exp.Column) -> exp.Expr:
        """`count(t.*)` counts the rows of the only table; elsewhere a row is no value."""
        call = node.parent
        counted = isinstance(call, exp.Anonymous) and call.name.lower() == "count"
        if counted and [identifier_name(node.args["table"])] == [table.alias for table in self.tables]:
            return exp.Star()
        hint = "name the columns; count(*) counts rows"
        raise self.context.fail(f"`{to_sql(node)}` can stand in the SELECT list only", node, hint)

    def _reference(self, parts: list[exp.Expr], node: exp.Expr) -> exp.Expr:
        columns = [name for table in self.tables for name in table.names]
        if len(parts) == 1 and parts[0].name.lower() in _CLOCKS and identifier_name(parts[0]) not in columns:
            call = exp.Anonymous(this=parts[0].name.lower(), expressions=[])
            copy_position(parts[0], call)
            return call
        if (table := self._row_of(parts)) is not None:
            return self._row_value(table, node)
        column, used = self._find_column(parts, node)
        return self._fields(column, parts[used:], node)

    def _row_of(self, parts: Sequence[exp.Expr]) -> ScopeTable | None:
        """The table that a name without more stands for, if no column is called so."""
        name = identifier_name(parts[0])
        if len(parts) > 1 or any(name in table.names for table in self.tables) or self._results_of(name):
            return None
        named = [table for table in self.tables if table.alias == name]
        return named[0] if named and not named[0].is_scalar and not named[0].is_hidden else None

    def _row_value(self, table: ScopeTable, node: exp.Expr) -> exp.Expr:
        """A whole row: a struct, or the JSON that a function makes of it; NULL if all of it is."""
        call = node.parent
        function = call.name.lower() if isinstance(call, exp.Anonymous) else ""
        builder = _BUILDERS.get(function, "named_struct")
        columns = [
            self._fields(field, [], exp.column(name))
            for name, field in zip(table.names, table.columns, strict=True)
        ]
        pairs = [
            part
            for name, column in zip(table.names, columns, strict=True)
            for part in (exp.Literal.string(name), column)
        ]
        value = exp.Anonymous(this=builder, expressions=pairs)
        tests = [exp.Not(this=exp.Is(this=column.copy(), expression=exp.Null())) for column in columns]
        return exp.Case(ifs=[exp.If(this=exp.or_(*tests, copy=False), true=value)])

    def _dotted(self, node: exp.Dot) -> exp.Expr:
        parts: list[exp.Expr] = []
        base: exp.Expr = node
        while isinstance(base, exp.Dot):
            parts.insert(0, base.expression)
            base = base.this
        if isinstance(base, exp.Column):
            return self._reference([*base.parts, *parts], node)
        inner = self.resolve(base)
        for part in parts:
            inner = _field_access(inner, identifier_name(part))
        return inner

    def _fields(self, column: pa.Field, parts: list[exp.Expr], node: exp.Expr) -> exp.Expr:
        value: exp.Expr = column_of(column.name)
        copy_position(node.find(exp.Identifier), value.this)
        if not parts:
            mark(value, self.meaning(column))
        kind = column.type
        for part in parts:
            name = identifier_name(part)
            if not pa.types.is_struct(kind):
                before = to_sql(node).rsplit(".", 1)[0]
                raise self.context.fail(f"`{before}` has no fields: it is {type_name(kind)}", node)
            fields = [kind.field(i).name for i in range(kind.num_fields)]
            if name not in fields:
                hint = suggest(name, fields) or f"its fields are {_listed(fields)}"
                raise self.context.fail(f"there is no field `{name}`", part, hint)
            kind = kind.field(fields.index(name)).type
            value = _field_access(value, name)
        value.meta["resolved"] = True
        return value

    def _bind_functions(self, node: exp.Expr) -> exp.Expr:
        """Bind functions that are not DataFusion's own, and refuse unknown ones."""
        failed = False
        for call in reversed(list(node.find_all(exp.Anonymous))):  # arguments before the calls they are in
            name = call.name.lower()
            if name == "row_time" and not call.expressions:
                if call is node:
                    return column_of(TIMESTAMP)
                call.replace(column_of(TIMESTAMP))
            elif name in CLOCK and not call.expressions:
                clock = call if name == EPOCH_CLOCK else epoch_clock(call, name)
                if call is node:
                    return clock
                call.replace(clock)
            elif name not in WINDOWS:
                try:
                    self._bind_function(call, name)
                except ReportedError:
                    failed = True
        if failed:
            raise ReportedError
        return node

    def _bind_function(self, call: exp.Anonymous, name: str) -> None:
        planner = self.context.planner
        if name == "count" and any(isinstance(argument, exp.Star) for argument in _distinct(call)):
            hint = "name the columns: count(DISTINCT a)"
            raise self.context.fail("count(DISTINCT *) is not possible", call, hint)
        if name not in planner.names and not (call.meta.get("overload") or is_rewritten(call)):
            near = suggest(name, {*planner.names, *WINDOWS, "row_time"})
            raise self.context.fail(f"there is no function `{name}`", call, near)
        if name in planner.table_functions:
            hint = f"write FROM …, {name}(…) AS r, and choose its columns"
            raise self.context.fail(f"`{name}` gives rows, and stands in FROM", call, hint)
        if (name in planner.user_functions or name in FUNCTION_NAMES) and not call.meta.get("overload"):
            for argument in list(call.expressions):
                # Their types are those of what PostgreSQL means by them.
                argument.replace(Semantics(self.context, self._type_of).apply(argument))
        if name in planner.user_functions:
            self._fit_arguments(call, name)
        elif name in FUNCTION_NAMES:
            call.set("this", self._overload(call, _cast_getter(call, name)))
            call.meta["overload"] = True  # a second look leaves it as it is

    def _compare_as_texts(self, node: exp.Expr) -> exp.Expr:
        """Compare a string with a number as strings: a string that is no number must not fail the run."""
        for comparison in list(node.find_all(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)):
            sides = (comparison.this, comparison.expression)
            kinds = [self._type_of(side) for side in sides]
            for side, kind, other in zip(sides, kinds, kinds[::-1], strict=True):
                is_number = kind is not None and (pa.types.is_integer(kind) or pa.types.is_floating(kind))
                if is_number and other == pa.string():
                    side.replace(_cast(side, "TEXT"))
        return node

    def _type_of(self, node: exp.Expr) -> pa.DataType | None:
        """The type of a side of a comparison; None if it is not known."""
        schema = self.schema
        if isinstance(node, exp.Column) and node.name in schema.names:
            return schema.field(node.name).type
        if isinstance(node, exp.Paren):
            return self._type_of(node.this)
        if isinstance(node, exp.Literal) and node.is_string:
            return pa.string()
        if isinstance(node, exp.Literal) and node.name.isdigit() and int(node.name) < 2**63:
            return pa.int64()
        try:
            return self.context.planner.types([to_sql(node)], schema)[0].type
        except ExpressionError:
            return None  # the error comes again where the whole is planned

    def _fit_arguments(self, call: exp.Anonymous, name: str) -> None:
        """Bring the arguments of a user's function to the types it declares."""
        arguments, declared = call.expressions, self.context.planner.user_functions[name].arguments
        if any(isinstance(argument, exp.Distinct | exp.Order) for argument in arguments):
            hint = "select distinct rows in a subquery before it"
            raise self.context.fail(f"`{name}` takes all values: no DISTINCT, no ORDER BY", call, hint)
        if len(arguments) != len(declared):
            usage_hint = f"{name}({', '.join(type_name(kind) for kind in declared)})"
            raise self.context.fail(f"`{name}` takes {counted(len(declared), 'argument')}", call, usage_hint)
        for argument, kind, target in zip(arguments, self._argument_types(call), declared, strict=True):
            if kind != plain_type(target):
                argument.replace(_cast(argument, type_name(target)))

    def _argument_types(self, call: exp.Anonymous) -> list[pa.DataType]:
        texts = [to_sql(argument) for argument in call.expressions]
        with self.context.planning(call):
            return [argument.type for argument in self.context.planner.types(texts, self.schema)]

    def _overload(self, call: exp.Anonymous, name: str) -> str:
        """The function of DataFusion that one of Headrace's is for the types of its arguments."""
        of_jsonb = bool(call.expressions) and is_jsonb(call.expressions[0])
        overload = resolve_function(name, self._argument_types(call), of_jsonb=of_jsonb)
        if overload is None:
            raise self.context.fail(f"`{name}` cannot take these arguments", call, usage(name))
        if name in PATH_FUNCTIONS and call.expressions[1].is_string:
            with self.context.planning(call.expressions[1]):
                compile_path(call.expressions[1].name)
        return overload

    def expression(self, node: exp.Expr) -> Expression:
        """An expression over the scope's columns, ready for DataFusion."""
        self.refuse_async(node)
        return as_expression(self.resolve(node))

    def refuse_async(self, node: exp.Expr) -> None:
        """Refuse a call of an asynchronous function where rows cannot wait for it."""
        for call in node.find_all(exp.Anonymous):
            if call.name.lower() in self.context.planner.asynchronous:
                hint = "call it in the SELECT list or in WHERE of a subquery or view, and use its result here"
                raise self.context.fail(f"`{call.name}` is asynchronous and cannot stand here", call, hint)

    def call_arguments(self, call: exp.Anonymous) -> tuple[Expression, ...]:
        """The arguments of a call of a user's function that stands in FROM, of the types it declares."""
        resolved = call.copy()
        for argument in resolved.expressions:
            self.refuse_async(argument)
            argument.replace(self.resolve(argument))
        self._fit_arguments(resolved, call.name.lower())
        return tuple(as_expression(argument) for argument in resolved.expressions)


_GETTERS = {
    exp.DataType.Type.TEXT: "json_get_str",
    exp.DataType.Type.VARCHAR: "json_get_str",
    exp.DataType.Type.BIGINT: "json_get_int",
    exp.DataType.Type.INT: "json_get_int",
    exp.DataType.Type.DOUBLE: "json_get_float",
    exp.DataType.Type.FLOAT: "json_get_float",
    exp.DataType.Type.BOOLEAN: "json_get_bool",
}


def _cast_getter(call: exp.Anonymous, name: str) -> str:
    """`CAST(json_get(…) AS BIGINT)` asks for the number, not for its text."""
    parent = call.parent
    while isinstance(parent, exp.Paren):
        parent = parent.parent
    if name == "json_get" and isinstance(parent, exp.Cast) and parent.this.unnest() is call:
        if parent.to.this in exp.DataType.TEXT_TYPES and is_json(call.expressions[0]):
            return name  # the text of an element that is JSON is its JSON, as to PostgreSQL
        return _GETTERS.get(parent.to.this, name)
    return name


_CLOCKS = ("current_timestamp", "current_date", "current_time")
"""Functions that are written without brackets."""


def _distinct(call: exp.Anonymous) -> list[exp.Expr]:
    """The arguments that follow DISTINCT."""
    return [arg for part in call.expressions if isinstance(part, exp.Distinct) for arg in part.expressions]


def _cast(node: exp.Expr, kind: str) -> exp.Cast:
    return exp.Cast(this=node.copy(), to=exp.DataType.build(kind, dialect=HeadraceDialect))


def _field_access(node: exp.Expr, name: str) -> exp.Expr:
    return exp.Bracket(this=node, expressions=[exp.Literal.string(name)])


def as_expression(node: exp.Expr) -> Expression:
    """A resolved expression as SQL, with the columns it needs."""
    paths = [_path(column) for column in node.find_all(exp.Column)]
    whole = {path[0] for path in paths if len(path) == 1}
    return Expression(
        to_sql(node),
        frozenset(path[0] for path in paths),
        frozenset(path for path in paths if path[0] not in whole),
    )


def _path(column: exp.Column) -> ColumnPath:
    """What is read of a column: all of it, a field, or whether there is a value."""
    path: list[str] = [column.name]
    node: exp.Expr = column
    while isinstance(node.parent, exp.Bracket) and node.parent.this is node:
        keys = node.parent.expressions
        if len(keys) != 1 or not keys[0].is_string or not keys[0].name:
            return tuple(path)
        path.append(keys[0].name)
        node = node.parent
    if isinstance(node.parent, exp.Is) and isinstance(node.parent.expression, exp.Null):
        path.append(PRESENCE)
    return tuple(path)


def conjuncts(node: exp.Expr | None) -> Iterator[exp.Expr]:
    """The conditions that AND joins."""
    if node is None:
        return
    node = node.unnest()
    if isinstance(node, exp.And):
        yield from conjuncts(node.this)
        yield from conjuncts(node.expression)
    else:
        yield node


def _suggest_column(name: str, columns: Sequence[str], listing: str) -> str:
    """A hint for a name that is not a column: the same in another case, similar ones, or all."""
    same = next((column for column in columns if column.lower() == name.lower() != column), None)
    if same is not None:
        return f'write "{same}": names without double quotes are lower-cased'
    return suggest(name, columns) or f"{listing} {_listed(columns)}"


def _listed(names: Sequence[str]) -> str:
    shown = [f"`{name}`" for name in list(dict.fromkeys(names))[:12]]
    return ", ".join(shown) + (", …" if len(names) > len(shown) else "")
