"""FROM: tables, subqueries and joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import ExpressionError, suggest
from headrace.base.problems import Problems
from headrace.base.windows import Session
from headrace.model.fragments import quote
from headrace.sql.bind.function_calls import bind_table_call, called_table
from headrace.sql.bind.logical import Expression, Item, Join, JoinKind, LookupJoin, Part, Relation, Windowing
from headrace.sql.bind.relations import (
    Bound,
    Names,
    column_item,
    lookup_of,
    make_map,
    push_filter,
    stub_schema,
    where_map,
    window_part,
)
from headrace.sql.bind.scope import Entry, Scope, as_expression, conjuncts, identifier_name
from headrace.sql.parse.dialect import to_sql
from headrace.sql.problems import FailedError
from headrace.sql.types import sql_type, type_name

if TYPE_CHECKING:
    from headrace.sql.bind.binder import Binder


class FromClause:
    """Binds what stands in FROM, and knows what DataFusion plans in its place.

    The tables get stubs: empty tables of the same columns, over which DataFusion plans the SELECT as the
    user wrote it, for the names and types of its result and for what is wrong with it.
    """

    def __init__(self, binder: Binder, select: exp.Select, names: Names) -> None:
        self.binder = binder
        self.planner = binder.planner
        self.select = select
        self.names = names
        self.scope = binder.scope([])
        self.stubs: dict[str, pa.Schema] = {}
        where = select.args.get("where")
        self.where = [] if where is None else list(conjuncts(where.this))
        """The conditions of WHERE; a comma join takes those that are its own."""
        self.stub_tables: list[str] = []
        self._unnamed: set[str] = set()

    def bind(self) -> Relation:
        first = self.select.args["from_"].this
        joins = self.select.args.get("joins") or []
        many = bool(joins)
        relation = self._table(first, prefix=many, sql="{}")
        if (lookup := lookup_of(relation)) is not None:
            key = ", ".join(lookup.definition.primary_key)
            raise self.binder.fail(
                f"lookup table `{lookup.name}` can only be joined, on the right",
                first,
                f"write FROM … JOIN {lookup.name} ON … = {lookup.name}.{key}",
            )
        for join in joins:
            relation = self._join(relation, join)
        return relation

    def _table(self, node: exp.Expr, *, prefix: bool, sql: str) -> Relation:
        """Add a table to the scope and return its relation, with names of its own if there are several."""
        bound, alias, named = self._bound(node)
        if any(entry.alias == alias for entry in self.scope.entries):
            raise self.binder.fail(
                f"two tables are called `{alias}` here", node, "give one another name with AS"
            )
        stub = f"s{len(self.stubs)}"
        self.stubs[stub] = stub_schema(bound)
        # A subquery without a name gives its columns none either.
        columns = ""
        if not named:
            self._unnamed.add(alias)
            names = self.stubs[stub].names
            self.stubs[stub] = pa.schema([f.with_name(f"c{i}") for i, f in enumerate(self.stubs[stub])])
            columns = ", ".join(f"c{i} AS {quote(name)}" for i, name in enumerate(names))
        self.stub_tables.append(
            sql.format(f"{stub} AS {quote(alias)}" if named else f"(SELECT {columns} FROM {stub})")
        )
        relation = bound.relation
        if prefix:
            relation = self._prefixed(relation, alias)
        self.scope.entries.append(Entry(alias, bound.names, tuple(relation.columns)))
        return relation

    def _prefixed(self, relation: Relation, alias: str) -> Relation:
        taken = {c.name for entry in self.scope.entries for c in entry.columns}
        items, fields = [], []
        for column in relation.columns:
            name = f"{alias}.{column.name}"
            while name in taken:
                name += "'"
            items.append(Item(name, Expression(quote(column.name), frozenset([column.name]))))
            fields.append(column.with_name(name))
        return make_map(relation, items, pa.schema(fields))

    def _bound(self, node: exp.Expr) -> tuple[Bound, str, bool]:
        """What stands in FROM, the name it goes by, and whether that is a name that users know."""
        binder = self.binder
        alias = node.args.get("alias")
        given = identifier_name(alias.this) if alias is not None and alias.this else None
        columns = [] if alias is None else [identifier_name(c) for c in alias.args.get("columns") or ()]
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            name = node.name.lower()
            if node.args.get("db"):
                raise binder.fail("tables have no schema before their name", node, f"write `{name}`")
            if any(value for key, value in node.args.items() if key not in ("this", "alias")):
                shown = to_sql(node)[:40]
                raise binder.fail(f"`{shown}` cannot stand in FROM", node, f"write `{name}` alone")
            if name not in self.names:
                known = list(self.names)
                listed = f"the tables are {', '.join(known)}" if known else "define it with CREATE TABLE"
                raise binder.fail(f"there is no table `{node.name}`", node, suggest(name, known) or listed)
            bound = binder.renamed(self.names[name](), columns, node)
            return bound, given or identifier_name(node.this), True
        hidden = f"_{len(self.stubs)}"
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query):
            bound = binder.query(node.this, binder.with_names(node, self.names))
        elif isinstance(node, exp.Subquery):
            return self._bound(node.this)
        elif isinstance(node, exp.Values):
            bound = binder.values(node)
        else:
            shown = to_sql(node)[:40]
            call = called_table(node)
            hint = "a table, a view or a subquery can"
            if call is not None and call.name.lower() in self.planner.table_functions:
                hint = f"it gives rows for those of a table before it: FROM t, {call.name}(t.x)"
            raise binder.fail(f"`{shown}` cannot stand in FROM", node, hint)
        return binder.renamed(bound, columns, node), given or hidden, given is not None

    def _join(self, left: Relation, join: exp.Join) -> Relation:
        binder = self.binder
        side, kind_name = (join.args.get("side") or "").upper(), (join.args.get("kind") or "").upper()
        if join.args.get("method"):
            raise binder.fail(f"{join.args['method']} JOIN is not supported", join, "write JOIN … ON …")
        if kind_name in ("SEMI", "ANTI"):
            raise binder.fail(f"{kind_name} JOIN is not supported", join, "use a LEFT JOIN and a filter")
        kind: JoinKind = {"LEFT": "left", "RIGHT": "right", "FULL": "full"}.get(side, "inner")  # type: ignore[assignment]
        if isinstance(join.this, exp.Unnest):
            return self._unnest(left, join)
        if (call := called_table(join.this)) is not None:
            return bind_table_call(self, left, join, call)
        on, using = join.args.get("on"), join.args.get("using")
        if on is not None:
            self.scope.refuse_async(on)
        # Where a pair is meant, the WHERE of a comma join is its condition.
        keyword = f"{side} JOIN" if side else "JOIN"
        before = len(self.scope.entries)
        right = self._table(join.this, prefix=True, sql=f"{keyword} {{}} ON TRUE")
        alias = self.scope.entries[-1].alias
        conditions = [self.scope.physical(one) for one in conjuncts(on)]
        if using:
            conditions += self._using(using, before)
        if on is None and not using:
            conditions += self._claim_where(left, right)
        clause = f"ON {self.stub_text(on)}" if on is not None else "ON TRUE"
        if using:
            clause = f"USING ({', '.join(quote(identifier_name(one)) for one in using)})"
        self.stub_tables[-1] = self.stub_tables[-1].removesuffix("ON TRUE") + clause
        if lookup_of(right) is not None:
            return self._looked_up(left, right, kind, conditions, join)
        made = self._joined(left, right, kind, conditions, join, alias)
        return self._merged(made, [identifier_name(one) for one in using], before) if using else made

    def _merged(self, join: Join, names: Sequence[str], before: int) -> Relation:
        """What names of USING stand for: of a right join the right side, of a full join the present one."""
        later = self.scope.entries[-1]
        items = [column_item(f.name) for f in join.columns]
        fields = list(join.columns)
        windows: dict[str, Part] = {}
        for name in names if join.kind in ("right", "full") else ():
            owner = next(e for e in self.scope.entries[:before] if name in e.names and name not in e.merged)
            sides = (owner.column(name), later.column(name))
            column = sides[1]
            if join.kind == "full":
                text = f"coalesce({quote(sides[0].name)}, {quote(sides[1].name)})"
                column = self.planner.types([text], self.scope.schema)[0].with_name(f"{later.alias}:{name}")
                items.append(Item(column.name, Expression(text, frozenset(side.name for side in sides))))
                fields.append(column)
                if join.windowed and (part := _part_of(join, sides)) is not None:
                    windows[column.name] = part
            place = self.scope.entries.index(owner)
            self.scope.entries[place] = replace(owner, stands={**owner.stands, name: column})
        if join.kind != "full":
            return join
        made = make_map(join, items, pa.schema(fields))
        if made.windowing is None:
            return made
        return replace(made, windowing=Windowing(made.windowing.kind, {**made.windowing.columns, **windows}))

    def _using(self, using: Sequence[exp.Expr], before: int) -> list[exp.Expr]:
        made: list[exp.Expr] = []
        entry = self.scope.entries[-1]
        names = [identifier_name(one) for one in using]
        for node in using:
            earlier = Scope(self.planner, self.scope.source, self.scope.problems, self.scope.entries[:before])
            later = Scope(self.planner, self.scope.source, self.scope.problems, [entry])
            column = exp.Column(this=node.copy())
            made.append(exp.EQ(this=earlier.physical(column), expression=later.physical(column)))
        self.scope.entries[-1] = replace(entry, merged=entry.merged | frozenset(names))
        return made

    def _claim_where(self, left: Relation, right: Relation) -> list[exp.Expr]:
        """Equalities of WHERE between the two sides of a comma join."""
        taken: list[exp.Expr] = []
        rest: list[exp.Expr] = []
        for one in self.where:
            try:
                quiet = Scope(self.planner, self.scope.source, Problems(), self.scope.entries)
                made = quiet.physical(one)
            except FailedError:
                rest.append(one)
                continue
            if isinstance(made, exp.EQ) and _sides(made, left, right) is not None:
                taken.append(made)
            else:
                rest.append(one)
        self.where = rest
        return taken

    def _joined(
        self,
        left: Relation,
        right: Relation,
        kind: JoinKind,
        conditions: list[exp.Expr],
        node: exp.Join,
        alias: str,
    ) -> Join:
        binder = self.binder
        windows = (left.windowing, right.windowing)
        windowed = (
            windows[0] is not None
            and windows[1] is not None
            and windows[0].kind == windows[1].kind
            and not isinstance(windows[0].kind, Session)
        )
        keys, rest = [], []
        for one in conditions:
            pair = _sides(one, left, right) if isinstance(one, exp.EQ) else None
            if pair is None:
                rest.append(one)
                continue
            values = (as_expression(pair[0]), as_expression(pair[1]))
            parts = [None if w is None else window_part(v, w) for v, w in zip(values, windows, strict=True)]
            if windowed and parts[0] is not None and parts[0] == parts[1]:
                continue  # implied: rows of one window meet
            keys.append(self._common(values, left, right, one))
        condition = None
        # What speaks of one side alone filters that side, unless its rows are kept in any case.
        for one in list(rest):
            value = as_expression(one)
            if kind in ("inner", "right") and value.columns and value.columns <= set(left.columns.names):
                left = push_filter(left, value) or where_map(left, value)
            elif kind in ("inner", "left") and value.columns and value.columns <= set(right.columns.names):
                right = push_filter(right, value) or where_map(right, value)
            else:
                continue
            rest.remove(one)
        if rest:
            both = rest[0] if len(rest) == 1 else exp.and_(*rest, copy=False)
            condition = as_expression(both)
        updating = left.updating or right.updating
        if not windowed and not keys:
            raise binder.fail(
                f"the join with `{alias}` compares nothing for equality",
                node,
                "a join without windows needs at least one `a.x = b.y`; "
                "without it every pair would be a result",
            )
        fields = [
            *(pa.field(f.name, f.type, f.nullable or kind in ("right", "full")) for f in left.columns),
            *(pa.field(f.name, f.type, f.nullable or kind in ("left", "full")) for f in right.columns),
        ]
        columns: dict[str, Part] = {}
        if windowed and windows[0] is not None and windows[1] is not None:
            if kind in ("inner", "left"):
                columns.update(windows[0].columns)
            if kind in ("inner", "right"):
                columns.update(windows[1].columns)
        made = Join(
            pa.schema(fields),
            updating=updating or (not windowed and kind != "inner"),
            windowing=Windowing(windows[0].kind, columns) if windowed and windows[0] is not None else None,
            left=left,
            right=right,
            kind=kind,
            keys=tuple(keys),
            condition=condition,
            windowed=windowed and not updating,
        )
        self._see(made)
        return made

    def _see(self, joined: Relation) -> None:
        """Columns of an outer join may be null where their table's are not."""
        self.scope.entries = [
            replace(
                entry,
                columns=tuple(joined.columns.field(c.name) for c in entry.columns),
                stands={name: joined.columns.field(c.name) for name, c in entry.stands.items()},
            )
            for entry in self.scope.entries
        ]

    def _common(
        self, values: tuple[Expression, Expression], left: Relation, right: Relation, node: exp.Expr
    ) -> tuple[Expression, Expression]:
        """Both sides of an equality as one type, so that equal values meet."""
        schema = pa.schema([*left.columns, *right.columns, pa.field(TIMESTAMP, pa.timestamp("ns"))])
        texts = [values[0].text, values[1].text, f"coalesce({values[0].text}, {values[1].text})"]
        known = [type_name(one.type) for one in self.planner.types(texts[:2], schema)]
        try:
            types = [one.type for one in self.planner.types(texts, schema)]
        except ExpressionError as error:
            message = f"{known[0]} cannot be compared with {known[1]}"
            raise self.binder.fail(message, node, "write CAST(… AS …) around one of them") from error
        made = [
            value
            if kind == types[2]
            else Expression(f"CAST({value.text} AS {sql_type(types[2])})", value.columns)
            for value, kind in zip(values, types, strict=False)
        ]
        return made[0], made[1]

    def _unnest(self, left: Relation, join: exp.Join) -> Relation:
        """`CROSS JOIN UNNEST(list) AS u (x)`: a row for each element."""
        binder = self.binder
        node = join.this
        if (join.args.get("side") or "").upper() or len(node.expressions) != 1:
            raise binder.fail("only CROSS JOIN UNNEST(list) is supported", node)
        alias = node.args.get("alias")
        table = identifier_name(alias.this) if alias is not None and alias.this else "unnest"
        names = [identifier_name(c) for c in (alias.args.get("columns") if alias is not None else None) or ()]
        value = self.scope.expression(node.expressions[0])
        name = names[0] if names else table
        inner = f"{table}.{name}"
        text = Expression(f"unnest({value.text})", value.columns)
        try:
            kind = self.planner.types([text.text], self.scope.schema)[0]
        except ExpressionError as error:
            raise binder.fail(error.message, node, error.hint) from error
        items = [column_item(f.name) for f in left.columns]
        columns = pa.schema([*left.columns, pa.field(inner, kind.type)])
        made = make_map(left, [*items, Item(inner, text)], columns)
        self.scope.entries.append(Entry(table, (name,), (columns.field(inner),)))
        stub = f"s{len(self.stubs)}"
        self.stubs[stub] = pa.schema([pa.field(name, kind.type)])
        self.stub_tables.append(f"CROSS JOIN {stub} AS {quote(table)}")
        return made

    def _looked_up(
        self,
        left: Relation,
        right: Relation,
        kind: JoinKind,
        conditions: list[exp.Expr],
        node: exp.Join,
    ) -> Relation:
        """A join whose right side is a lookup table."""
        binder = self.binder
        table = lookup_of(right)
        if table is None or table.columns is None:
            raise AssertionError
        if kind not in ("inner", "left"):
            raise binder.fail(
                f"a lookup table cannot be in a {kind.upper()} JOIN", node, "JOIN and LEFT JOIN are possible"
            )
        if left.updating:
            raise binder.fail(
                f"rows that may change cannot be joined with lookup table `{table.name}`",
                node,
                "what was found when they came may not be found when they go; join it before the aggregate",
            )
        prefix = dict(zip(table.columns.names, right.columns.names, strict=True))
        key = right.columns.field(prefix[table.definition.primary_key[0]])
        values = [_compared_with(one, key.name, right) for one in conditions]
        if len(values) != 1 or values[0] is None:
            raise binder.fail(
                f"the join with lookup table `{table.name}` must compare its key, and nothing else",
                node,
                f"write ON … = {key.name}; other conditions go to WHERE",
            )
        fields = [pa.field(f.name, f.type, f.nullable or kind == "left") for f in right.columns]
        made = LookupJoin(
            pa.schema([*left.columns, *fields]),
            windowing=left.windowing,
            left=left,
            table=table,
            prefix=prefix,
            kind=kind,
            on=self._as_key(values[0], key, left, node),
        )
        self._see(made)
        return made

    def _as_key(self, value: Expression, key: pa.Field, left: Relation, node: exp.Expr) -> Expression:
        """A value in the type of a key; what the key cannot hold equals none, and is null."""
        schema = pa.schema([*left.columns, pa.field(TIMESTAMP, pa.timestamp("ns")), key])
        texts = [value.text, f"coalesce({value.text}, {quote(key.name)})"]
        try:
            given, common = (one.type for one in self.planner.types(texts, schema))
        except ExpressionError as error:
            raise self.binder.fail(error.message, node, error.hint) from error
        if given == key.type:
            return value
        wanted = sql_type(key.type)
        # A whole number has one text, and fits another width or equals no key.
        fits = pa.types.is_integer(given) and (pa.types.is_integer(key.type) or key.type == pa.string())
        if common != key.type and not fits:
            raise self.binder.fail(
                f"key `{key.name}` is {type_name(key.type)}, and is compared with {type_name(given)}",
                node,
                f"write CAST(… AS {wanted}) = {key.name}",
            )
        return Expression(f"TRY_CAST({value.text} AS {wanted})", value.columns)

    def stub_text(self, node: exp.Expr) -> str:
        """An expression as DataFusion plans it for names: bound, over the columns that users know."""
        known = {
            column.name: (entry.alias, name)
            for entry in self.scope.entries
            for name, column in (*entry.stands.items(), *zip(entry.names, entry.columns, strict=True))
        }

        def visit(part: exp.Expr) -> exp.Expr:
            if not isinstance(part, exp.Column):
                return part
            if part.name == TIMESTAMP:
                return exp.Anonymous(this="row_time", expressions=[])
            alias, name = known[part.name]
            table = None if alias in self._unnamed else exp.to_identifier(alias, quoted=True)
            return exp.Column(this=exp.to_identifier(name, quoted=True), table=table)

        physical = node if node.meta.get("physical") else self.scope.physical(node)
        return to_sql(physical.copy().transform(visit))

    def stub_sql(self, items: Sequence[str], group: Sequence[exp.Expr], having: exp.Expr | None) -> str:
        sql = f"SELECT {', '.join(items)} FROM {' '.join(self.stub_tables)}"
        if self.where:
            sql += " WHERE " + " AND ".join(f"({self.stub_text(one)})" for one in self.where)
        if group:
            sql += " GROUP BY " + ", ".join(self.stub_text(one) for one in group)
        if having is not None:
            sql += f" HAVING {self.stub_text(having)}"
        return sql

    def stub_part(self, items: Sequence[str], group: Sequence[exp.Expr] = ()) -> str:
        sql = f"SELECT {', '.join(items)} FROM {' '.join(self.stub_tables)}"
        if group:
            sql += " GROUP BY " + ", ".join(self.stub_text(one) for one in group)
        return sql


def _compared_with(node: exp.Expr, key: str, right: Relation) -> Expression | None:
    """What an equality compares the column `key` of a lookup table with, if that is all that it does."""
    if not isinstance(node, exp.EQ):
        return None
    sides = node.this.unnest(), node.expression.unnest()
    for one, other in (sides, sides[::-1]):
        value = as_expression(one)
        if isinstance(other, exp.Cast):
            other = other.this  # noqa: PLW2901 - a number that is compared with a text
        if (
            isinstance(other, exp.Column)
            and other.name == key
            and value.columns.isdisjoint(right.columns.names)
        ):
            return value
    return None


def _part_of(join: Join, sides: tuple[pa.Field, pa.Field]) -> Part | None:
    """The part of the window that both sides of a windowed join hold in these columns."""
    parts = [
        None if side.windowing is None else side.windowing.columns.get(column.name)
        for side, column in zip((join.left, join.right), sides, strict=True)
    ]
    return parts[0] if parts[0] == parts[1] else None


def _sides(node: exp.Expr, left: Relation, right: Relation) -> tuple[exp.Expr, exp.Expr] | None:
    """(left part, right part) of an equality between the two sides of a join."""
    a, b = as_expression(node.this).columns, as_expression(node.expression).columns
    names = (set(left.columns.names), set(right.columns.names))
    if a and b and a <= names[0] and b <= names[1]:
        return node.this, node.expression
    if a and b and a <= names[1] and b <= names[0]:
        return node.expression, node.this
    return None
