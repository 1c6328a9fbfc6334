"""No part of a query's syntax is left out in silence: the binder reads it, or refuses it."""

from __future__ import annotations

import pytest
from sqlglot import exp

import headrace as hr
from headrace.base.errors import SqlError
from headrace.base.problems import Problems
from headrace.base.spans import Source
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.planning import Planner
from headrace.sql.bind.syntax import READ, check_syntax
from headrace.sql.problems import ReportedError

REFUSED: dict[type[exp.Expr], set[str]] = {
    exp.Select: {"hint", "into", "exclude", "match", "laterals", "connect", "pivots", "prewhere"}
    | {"distribute", "sort", "cluster", "locks", "sample", "settings", "format", "options", "for_"},
    exp.Values: {"pivots"},
    exp.With: {"search", "cycle", "udfs"},
    exp.CTE: {"scalar", "key_expressions"},
    exp.Table: {"laterals", "pivots", "hints", "system_time", "format", "pattern"}
    | {"when", "only", "partition", "changes", "rows_from", "sample", "indexed"},
    exp.Join: {"global_", "hint", "nearest", "directed", "expressions", "pivots"},
    exp.Lateral: {"view", "outer", "cross_apply"},
    exp.Unnest: {"explode_array"},
    exp.Group: {"grouping_sets", "cube", "rollup", "totals"},
    exp.Order: {"siblings"},
    exp.Ordered: {"with_fill"},
    exp.Limit: {"this", "offset", "limit_options", "expressions"},
    exp.Offset: {"this", "expressions"},
    exp.LimitOptions: {"percent"},
    exp.Star: {"ilike"},
    exp.Window: {"first"},
    exp.Array: {"bracket_notation", "struct_name_inheritance", "value_constructor"},
    exp.Bracket: {"safe", "returns_list_for_maps", "json_access"},
    exp.ByteString: {"is_bytes"},
    exp.Cast: {"format", "safe", "action", "default"},
    exp.ColumnDef: set(exp.ColumnDef.arg_types) - {"this", "kind"},
    exp.DataType: set(exp.DataType.arg_types) - {"this", "expressions", "nested", "kind"},
    exp.DataTypeParam: {"expression"},
    exp.Div: {"safe"},
    exp.DPipe: {"safe"},
    exp.Exists: {"expression"},
    exp.HexString: {"is_integer"},
    exp.Identifier: {"global_", "temporary"},
    exp.In: {"unnest", "field", "is_global"},
    exp.JSONBExtract: set(exp.JSONBExtract.arg_types) - {"this", "expression"},
    exp.JSONBExtractScalar: set(exp.JSONBExtractScalar.arg_types) - {"this", "expression"},
    exp.RegexpILike: {"flag"},
    exp.RegexpLike: {"flag", "full_match"},
    exp.Slice: {"step"},
    exp.StrPosition: {"position", "occurrence", "clamp_position"},
    exp.Substring: {"zero_start"},
    exp.Trim: {"collation"},
    exp.TryCast: set(exp.TryCast.arg_types) - {"this", "to", "safe"},
}
for _bitwise in (exp.BitwiseAnd, exp.BitwiseLeftShift, exp.BitwiseOr, exp.BitwiseRightShift, exp.BitwiseXor):
    REFUSED[_bitwise] = set(_bitwise.arg_types) - {"this", "expression"}
REFUSED[exp.ArrayOverlaps] = set(exp.ArrayOverlaps.arg_types) - {"this", "expression"}
REFUSED[exp.Column] = set(exp.Column.arg_types) - {"this", "table", "db", "catalog"}
_READ_OF_SELECT_ALONE = {"where", "group", "having", "windows", "qualify"}
_MODIFIERS = REFUSED[exp.Select] - {"hint", "into", "exclude"} | _READ_OF_SELECT_ALONE
REFUSED[exp.Subquery] = set(_MODIFIERS)
for _kind in (exp.Union, exp.Except, exp.Intersect):
    REFUSED[_kind] = _MODIFIERS | {"by_name", "side", "kind", "on", "joins"}


@pytest.mark.parametrize("kind", READ, ids=lambda kind: kind.__name__)
def test_every_argument_of_a_node_of_a_query_is_read_or_refused(kind: type[exp.Expr]) -> None:
    """A new version of sqlglot may know more syntax: then somebody has to decide what becomes of it."""
    refused = REFUSED.get(kind, set())
    assert not READ[kind] & refused
    assert set(kind.arg_types) == READ[kind] | refused


KINDS = sorted(
    {
        kind
        for kind in vars(exp).values()
        if isinstance(kind, type) and issubclass(kind, exp.Expression) and kind is not exp.Expression
    },
    key=lambda kind: kind.__name__,
)


def test_every_kind_of_node_that_is_not_listed_is_refused_with_its_name() -> None:
    """All of sqlglot's classes, hundreds of which no query here can be made of."""
    refused = [kind for kind in KINDS if kind not in READ]
    assert len(refused) > 500
    for kind in refused:
        problems = Problems()
        context = BindContext(Planner(), Source("query", "SELECT 1"), problems)
        with pytest.raises(ReportedError):
            check_syntax(context, kind())
        assert problems.errors[0].message.endswith(" is not supported")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ('s COLLATE "de_DE"', "COLLATE de_DE is not supported"),
        ("B'101'", "a bit string is not supported"),
        ("$1", "a parameter is not supported"),
        ("s IS JSON", "IS JSON is not supported"),
        ("s @? '$.a'", "`@?` is not supported"),
        ("round(x := 1)", "`:=` is not supported"),
        ("substring(s, 1, VARIADIC x)", "VARIADIC is not supported"),
    ],
)
def test_what_an_expression_is_refused_for_is_named_with_its_place(expression: str, message: str) -> None:
    definition = "CREATE TABLE t (s TEXT) WITH (connector = 'single_file', path = 'x', format = 'json');"
    with pytest.raises(SqlError) as refused:
        hr.Pipeline("p").execute(f"{definition} CREATE VIEW v AS SELECT {expression} AS r FROM t")
    assert refused.value.message == message
    assert refused.value.where is not None


def test_every_node_that_stands_for_rows_is_listed() -> None:
    kinds = {
        kind
        for kind in vars(exp).values()
        if isinstance(kind, type)
        and issubclass(kind, exp.Query | exp.UDTF | exp.DerivedTable)
        and not issubclass(kind, exp.Func)  # a function keeps its name here, and is a call like any other
    }
    abstract = {exp.Query, exp.UDTF, exp.DerivedTable, exp.SetOperation}
    # ROWS FROM is refused with the table that it belongs to.
    assert kinds - set(READ) == abstract | {exp.TableFromRows}
