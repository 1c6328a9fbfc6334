"""No part of a query's syntax is left out in silence: the binder reads it, or refuses it."""

from __future__ import annotations

import pytest
from sqlglot import exp

from headrace.sql.bind.syntax import READ

REFUSED: dict[type[exp.Expr], set[str]] = {
    exp.Select: {"hint", "into", "exclude", "match", "laterals", "connect", "pivots", "prewhere", "qualify"}
    | {"distribute", "sort", "cluster", "locks", "sample", "settings", "format", "options", "for_"},
    exp.Values: {"pivots"},
    exp.With: {"search", "cycle", "udfs"},
    exp.CTE: {"scalar", "key_expressions"},
    exp.Table: {"laterals", "pivots", "hints", "system_time", "version", "format", "pattern", "ordinality"}
    | {"when", "only", "partition", "changes", "rows_from", "sample", "indexed"},
    exp.Join: {"global_", "hint", "match_condition", "nearest", "directed", "expressions", "pivots"},
    exp.Lateral: {"view", "outer", "cross_apply", "ordinality"},
    exp.Unnest: {"offset", "explode_array"},
    exp.Group: {"grouping_sets", "cube", "rollup", "totals"},
    exp.Order: {"siblings"},
    exp.Ordered: {"with_fill"},
    exp.Limit: {"this", "offset", "limit_options", "expressions"},
    exp.Offset: {"this", "expressions"},
    exp.LimitOptions: {"percent", "with_ties"},
    exp.Star: {"ilike"},
    exp.Window: {"first"},
    exp.WindowSpec: {"exclude"},
}
_MODIFIERS = REFUSED[exp.Select] - {"hint", "into", "exclude"} | {"where", "group", "having", "windows"}
REFUSED[exp.Subquery] = set(_MODIFIERS)
for _kind in (exp.Union, exp.Except, exp.Intersect):
    REFUSED[_kind] = _MODIFIERS | {"by_name", "side", "kind", "on", "joins"}


@pytest.mark.parametrize("kind", READ, ids=lambda kind: kind.__name__)
def test_every_argument_of_a_node_of_a_query_is_read_or_refused(kind: type[exp.Expr]) -> None:
    """A new version of sqlglot may know more syntax: then somebody has to decide what becomes of it."""
    refused = REFUSED.get(kind, set())
    assert not READ[kind] & refused
    assert set(kind.arg_types) == READ[kind] | refused


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
