"""Statements of a database that a suite is written for, as queries over streams."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from headrace.base.errors import UserError
from headrace.sql.parse.dialect import HeadraceDialect, to_sql
from headrace.sql.types import sql_type


def typed_values(values: str, kinds: Sequence[pa.DataType]) -> str:
    """VALUES in which each value is of the type of its column.

    >>> typed_values("VALUES ('2026-01-31', 2), (NULL, 3)", [pa.date32(), pa.int64()])
    "VALUES (CAST('2026-01-31' AS DATE), CAST(2 AS BIGINT)), (CAST(NULL AS DATE), CAST(3 AS BIGINT))"
    """
    try:
        query = parse_one(values, dialect=HeadraceDialect)
    except SqlglotError as error:
        raise UserError(f"VALUES cannot be read: {str(error).splitlines()[0]}") from None
    for row in query.expressions if isinstance(query, exp.Values) else ():
        for value, kind in zip(row.expressions, kinds, strict=False):
            is_row = isinstance(value, exp.Anonymous) and value.name.lower() == "row"
            if not pa.types.is_struct(kind) or isinstance(value, exp.Null) or is_row:
                target = exp.DataType.build(sql_type(kind), dialect=HeadraceDialect)
                value.replace(exp.Cast(this=value.copy(), to=target))
    return to_sql(query)


def without_order(query: str) -> str:
    """A query without its last ORDER BY, where that decides only in which order the rows are shown.

    >>> without_order("SELECT a FROM t ORDER BY a")
    'SELECT a FROM t'
    >>> without_order("SELECT a FROM t ORDER BY a LIMIT 1")
    'SELECT a FROM t ORDER BY a LIMIT 1'
    """
    try:
        parsed = parse_one(query, dialect=HeadraceDialect)
    except SqlglotError:
        return query  # what is wrong with it is said where it is planned
    order, distinct = parsed.args.get("order"), parsed.args.get("distinct")
    is_distinct_on = isinstance(distinct, exp.Distinct) and distinct.args.get("on") is not None
    if order is None or is_distinct_on or any(parsed.args.get(name) for name in ("limit", "offset")):
        return query
    tokens = list(HeadraceDialect().tokenize(query))
    depth = 0
    for token in reversed(tokens):
        depth += (token.text == ")") - (token.text == "(")
        if depth == 0 and token.text.upper() in ("ORDER", "ORDER BY"):
            return query[: token.start].rstrip()
    return query
