"""Which columns names stand for, and expressions over them as DataFusion reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import ExpressionError, SqlError, suggest
from headrace.base.problems import Problems
from headrace.base.spans import Source
from headrace.functions.json_path import compile_path
from headrace.functions.signatures import FUNCTION_NAMES, PATH_FUNCTIONS, usage
from headrace.functions.signatures import resolve as resolve_function
from headrace.model.fragments import plain_type
from headrace.sql.bind.logical import PRESENCE, Expression, Path
from headrace.sql.bind.planning import WINDOWS, Planner
from headrace.sql.parse.dialect import Headrace, to_sql
from headrace.sql.problems import FailedError, span_of, sql_error
from headrace.sql.types import type_name


@dataclass(frozen=True)
class Entry:
    """One table of a FROM clause: the names its columns are called by, and what they are called inside."""

    alias: str
    names: tuple[str, ...]
    columns: tuple[pa.Field, ...]
    """In the same order; their names are those of the relation."""
    merged: frozenset[str] = frozenset()
    """Names that a USING has merged into an earlier table's."""
    stands: Mapping[str, pa.Field] = field(default_factory=dict)
    """What a name stands for where no table is named, if an outer join with USING makes it another column."""
    only: str | None = None
    """Another name of the only column, behind that of the table."""

    def column(self, name: str) -> pa.Field:
        """What a name stands for where no table is named."""
        return self.stands.get(name) or self.columns[self.names.index(name)]


def identifier_name(identifier: exp.Expr) -> str:
    """A name as it is compared: lower case unless it was quoted."""
    name = identifier.name
    return name if identifier.args.get("quoted") else name.lower()


def column_of(name: str) -> exp.Column:
    """A reference to a column by its inner name."""
    return exp.Column(this=exp.Identifier(this=name, quoted=True))


@dataclass
class Scope:
    """The tables that names in a SELECT can mean."""

    planner: Planner
    source: Source
    problems: Problems
    entries: list[Entry] = field(default_factory=list)
    outer: tuple[str, ...] = ()
    """Aliases of tables outside, which a subquery cannot see."""

    # ------------------------------------------------------------------------------------- names

    @property
    def schema(self) -> pa.Schema:
        """Every column, by its inner name, and event time."""
        fields = [column for e in self.entries for column in (*e.columns, *e.stands.values())]
        fields = list({column.name: column for column in fields}.values())
        return pa.schema([*fields, pa.field(TIMESTAMP, pa.timestamp("ns"), nullable=False)])

    def resolve(self, parts: Sequence[exp.Expr], node: exp.Expr) -> tuple[pa.Field, int]:
        """(the column, how many of the parts name it); the other parts are fields in it."""
        names = [identifier_name(part) for part in parts]
        if len(names) > 1:
            for entry in self.entries:
                if entry.alias == names[0] and names[1] in entry.names:
                    return self._column(entry, names[1], node), 2
                if entry.alias == names[0] and names[1] == entry.only:
                    return entry.columns[0], 2
        owners = [e for e in self.entries if names[0] in e.names and names[0] not in e.merged]
        if len(owners) > 1:
            tables = " or ".join(f"`{entry.alias}.{names[0]}`" for entry in owners)
            raise sql_error(f"`{names[0]}` could be {tables}", span_of(node, self.source), f"write {tables}")
        if owners:
            self._column(owners[0], names[0], node)
            return owners[0].column(names[0]), 1
        # A result that DataFusion calls `rides.place[city]` may also be called `city`.
        fields = [
            c
            for e in self.entries
            for n, c in zip(e.names, e.columns, strict=True)
            if n.endswith(f"[{names[0]}]")
        ]
        if len(fields) == 1:
            return fields[0], 1
        raise self._unknown(names, node)

    def _column(self, entry: Entry, name: str, node: exp.Expr) -> pa.Field:
        positions = [index for index, known in enumerate(entry.names) if known == name]
        if len(positions) > 1:
            raise sql_error(
                f"`{entry.alias}` has {len(positions)} columns called `{name}`",
                span_of(node, self.source),
                "give them different names with AS where they are made",
            )
        return entry.columns[positions[0]]

    def _unknown(self, names: list[str], node: exp.Expr) -> SqlError:
        aliases = [entry.alias for entry in self.entries]
        if len(names) > 1 and names[0] in aliases:
            entry = next(entry for entry in self.entries if entry.alias == names[0])
            columns = (
                _other_case(names[1], entry.names)
                or suggest(names[1], entry.names)
                or f"its columns are {_listed(entry.names)}"
            )
            return sql_error(f"`{names[0]}` has no column `{names[1]}`", span_of(node, self.source), columns)
        known = list(dict.fromkeys(name for entry in self.entries for name in entry.names))
        if len(names) > 1:
            message = f"there is no table or column `{names[0]}` here"
            hint = suggest(names[0], [*aliases, *known])
            if not hint:
                hint = f"the tables are {_listed(aliases)}" if aliases else "there is no FROM"
        else:
            message = f"there is no column `{names[0]}`"
            hint = (
                _other_case(names[0], known)
                or suggest(names[0], known)
                or (f"the columns are {_listed(known)}" if known else "there is no FROM")
            )
            if node.this.args.get("quoted") and names[0].lower() not in known:
                hint = f"double quotes are for names; a text stands in single quotes: '{names[0]}'"
        return sql_error(message, span_of(node, self.source), hint)

    # ------------------------------------------------------------------------------- expressions

    def physical(self, node: exp.Expr) -> exp.Expr:
        """A copy in which every name is an inner column; what is wrong goes to the problems.

        Raises FailedError if anything was.
        """
        failed = False

        def visit(part: exp.Expr) -> exp.Expr:
            nonlocal failed
            try:
                if part.meta.get("physical"):
                    return part
                if isinstance(part, exp.Column) and not isinstance(part.this, exp.Star):
                    return self._reference(list(part.parts), part)
                if isinstance(part, exp.Dot):
                    return self._dotted(part)
            except SqlError as error:
                self.problems.add(error)
                failed = True
                return exp.Null()
            return part

        made = node.copy().transform(visit)
        if failed:
            raise FailedError
        return self._compared(self._functions(made))

    def _reference(self, parts: list[exp.Expr], node: exp.Expr) -> exp.Expr:
        known = [name for entry in self.entries for name in entry.names]
        if len(parts) == 1 and parts[0].name.lower() in _CLOCKS and identifier_name(parts[0]) not in known:
            return exp.Anonymous(this=parts[0].name.lower(), expressions=[])
        column, used = self.resolve(parts, node)
        return self._fields(column, parts[used:], node)

    def _dotted(self, node: exp.Dot) -> exp.Expr:
        parts: list[exp.Expr] = []
        base: exp.Expr = node
        while isinstance(base, exp.Dot):
            parts.insert(0, base.expression)
            base = base.this
        if isinstance(base, exp.Column):
            return self._reference([*base.parts, *parts], node)
        inner = self.physical(base)
        for part in parts:
            inner = _field_access(inner, identifier_name(part))
        return inner

    def _fields(self, column: pa.Field, parts: list[exp.Expr], node: exp.Expr) -> exp.Expr:
        made: exp.Expr = column_of(column.name)
        for key in ("line", "col", "start", "end"):
            if node.find(exp.Identifier) is not None and key in node.find(exp.Identifier).meta:  # type: ignore[union-attr]
                made.this.meta[key] = node.find(exp.Identifier).meta[key]  # type: ignore[union-attr]
        kind = column.type
        for part in parts:
            name = identifier_name(part)
            if not pa.types.is_struct(kind):
                before = to_sql(node).rsplit(".", 1)[0]
                raise sql_error(
                    f"`{before}` has no fields: it is {type_name(kind)}", span_of(node, self.source)
                )
            known = [kind.field(i).name for i in range(kind.num_fields)]
            if name not in known:
                hint = suggest(name, known) or f"its fields are {_listed(known)}"
                raise sql_error(f"there is no field `{name}`", span_of(part, self.source), hint)
            kind = kind.field(known.index(name)).type
            made = _field_access(made, name)
        made.meta["physical"] = True
        return made

    def _functions(self, node: exp.Expr) -> exp.Expr:
        """Bind functions that are not DataFusion's own, and refuse unknown ones."""
        failed = False
        calls = list(node.find_all(exp.Anonymous))
        for call in reversed(calls):  # arguments before the calls they are in
            name = call.name.lower()
            if name in WINDOWS:
                continue
            if name == "count" and any(isinstance(one, exp.Star) for one in _distinct(call)):
                hint = "name the columns: count(DISTINCT a)"
                where = span_of(call, self.source)
                self.problems.add(sql_error("count(DISTINCT *) is not possible", where, hint))
                failed = True
                continue
            if name == "row_time" and not call.expressions:
                replacement = column_of(TIMESTAMP)
                if call is node:
                    return replacement
                call.replace(replacement)
                continue
            if name not in self.planner.names:
                similar = suggest(name, {*self.planner.names, *WINDOWS, "row_time"})
                where = span_of(call, self.source)
                self.problems.add(sql_error(f"there is no function `{name}`", where, similar))
                failed = True
                continue
            if name in self.planner.table_functions:
                hint = f"write FROM …, {name}(…) AS r, and choose its columns"
                where = span_of(call, self.source)
                self.problems.add(sql_error(f"`{name}` gives rows, and stands in FROM", where, hint))
                failed = True
            elif name in self.planner.user_functions:
                failed |= not self._fit_arguments(call, name)
            elif name in FUNCTION_NAMES:
                name = _cast_getter(call, name)
                inner = self._inner_name(call, name)
                failed |= inner is None
                call.set("this", inner or name)
        if failed:
            raise FailedError
        return node

    def _compared(self, node: exp.Expr) -> exp.Expr:
        """Compare a text with a number as texts: not every text is a number, and a run must not end there."""
        for one in list(node.find_all(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)):
            sides = (one.this, one.expression)
            kinds = [self._kind(side) for side in sides]
            for side, kind, other in zip(sides, kinds, kinds[::-1], strict=True):
                is_number = kind is not None and (pa.types.is_integer(kind) or pa.types.is_floating(kind))
                if is_number and other == pa.string():
                    text = exp.DataType.build("TEXT", dialect=Headrace)
                    side.replace(exp.Cast(this=side.copy(), to=text))
        return node

    def _kind(self, node: exp.Expr) -> pa.DataType | None:
        """The type of a side of a comparison; None if it cannot be told."""
        schema = self.schema
        if isinstance(node, exp.Column) and node.name in schema.names:
            return schema.field(node.name).type
        if isinstance(node, exp.Literal):
            return pa.string() if node.is_string else pa.int64()
        if node.find(exp.Window) is not None:
            return None
        try:
            return self.planner.types([to_sql(node)], schema)[0].type
        except ExpressionError:
            return None  # it is found again where the whole is planned

    def _fit_arguments(self, call: exp.Anonymous, name: str) -> bool:
        """Bring the arguments of a user's function to the types it declares."""
        function = self.planner.user_functions[name]
        arguments = call.expressions
        where = span_of(call, self.source)
        if any(isinstance(one, exp.Distinct | exp.Order) for one in arguments):
            hint = "select distinct rows in a subquery before it"
            self.problems.add(sql_error(f"`{name}` takes all values: no DISTINCT, no ORDER BY", where, hint))
            return False
        wanted = function.arguments
        if len(arguments) != len(wanted):
            takes = ", ".join(type_name(kind) for kind in wanted)
            self.problems.add(sql_error(f"`{name}` takes {len(wanted)} arguments", where, f"{name}({takes})"))
            return False
        try:
            found = self.planner.types([to_sql(one) for one in arguments], self.schema)
        except ExpressionError as error:
            self.problems.add(sql_error(error.message, where, error.hint))
            return False
        for argument, kind, target in zip(arguments, found, wanted, strict=True):
            if kind.type != plain_type(target):
                cast = exp.Cast(
                    this=argument.copy(), to=exp.DataType.build(type_name(target), dialect=Headrace)
                )
                argument.replace(cast)
        return True

    def _inner_name(self, call: exp.Anonymous, name: str) -> str | None:
        texts = [to_sql(argument) for argument in call.expressions]
        try:
            types = [one.type for one in self.planner.types(texts, self.schema)]
        except ExpressionError as error:
            self.problems.add(sql_error(error.message, span_of(call, self.source), error.hint))
            return None
        inner = resolve_function(name, types)
        if inner is None:
            self.problems.add(
                sql_error(f"`{name}` cannot take these arguments", span_of(call, self.source), usage(name))
            )
        elif name in PATH_FUNCTIONS and call.expressions[1].is_string:
            try:
                compile_path(call.expressions[1].name)
            except ExpressionError as error:
                self.problems.add(
                    sql_error(error.message, span_of(call.expressions[1], self.source), error.hint)
                )
                return None
        return inner

    def expression(self, node: exp.Expr) -> Expression:
        """An expression over the scope's columns, ready for DataFusion."""
        self.refuse_async(node)
        return as_expression(self.physical(node))

    def refuse_async(self, node: exp.Expr) -> None:
        """Refuse a call of an asynchronous function where rows cannot wait for it."""
        for call in node.find_all(exp.Anonymous):
            if call.name.lower() in self.planner.asynchronous:
                hint = "call it in the SELECT list or in WHERE of a subquery or view, and use its result here"
                where = span_of(call, self.source)
                self.problems.add(
                    sql_error(f"`{call.name}` is asynchronous and cannot stand here", where, hint)
                )
                raise FailedError

    def call_arguments(self, call: exp.Anonymous) -> tuple[Expression, ...]:
        """The arguments of a call of a user's function that stands in FROM, of the types it declares."""
        made = call.copy()
        for argument in made.expressions:
            self.refuse_async(argument)
            argument.replace(self.physical(argument))
        if not self._fit_arguments(made, call.name.lower()):
            raise FailedError
        return tuple(as_expression(argument) for argument in made.expressions)


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
        return _GETTERS.get(parent.to.this, name)
    return name


_CLOCKS = ("current_timestamp", "current_date", "current_time")
"""Functions that are written without brackets."""


def _distinct(call: exp.Anonymous) -> list[exp.Expr]:
    """The arguments that follow DISTINCT."""
    return [arg for one in call.expressions if isinstance(one, exp.Distinct) for arg in one.expressions]


def _field_access(node: exp.Expr, name: str) -> exp.Expr:
    return exp.Bracket(this=node, expressions=[exp.Literal.string(name)])


def as_expression(node: exp.Expr) -> Expression:
    """A physical expression as text, with the columns it needs."""
    paths = [_path(column) for column in node.find_all(exp.Column)]
    whole = {path[0] for path in paths if len(path) == 1}
    return Expression(
        to_sql(node),
        frozenset(path[0] for path in paths),
        frozenset(path for path in paths if path[0] not in whole),
    )


def _path(column: exp.Column) -> Path:
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


def _other_case(name: str, known: Sequence[str]) -> str | None:
    """What to write for a column whose name has large letters."""
    same = next((one for one in known if one.lower() == name.lower() != one), None)
    return None if same is None else f'write "{same}": names without double quotes are in small letters'


def _listed(names: Sequence[str]) -> str:
    shown = [f"`{name}`" for name in list(dict.fromkeys(names))[:12]]
    return ", ".join(shown) + (", …" if len(names) > len(shown) else "")
