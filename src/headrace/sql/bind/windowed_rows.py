"""Window functions in FROM that only add columns to the rows: `FROM tumble(t, ts, INTERVAL '1 minute')`."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from headrace.sql.bind.context import BindContext
from headrace.sql.parse.dialect import HeadraceDialect, copy_position, to_sql
from headrace.sql.parse.window_functions import WINDOW_TIME

_USAGE: Final = {
    "tumble": "tumble(t, ts, INTERVAL '1 minute')",
    "hop": "hop(t, ts, INTERVAL '10 seconds', INTERVAL '1 minute'): the slide, then the width",
}
_ORIGIN: Final = "TIMESTAMP '1970-01-01 00:00:00'"


def windowed_rows(context: BindContext, node: exp.Table) -> exp.Subquery | None:
    """The rows of a table with `window_start`, `window_end` and Flink's `window_time`; None for other calls.

    `hop` gives a row for each window that it is in. A row without a time is in none: `tumble` gives NULL.
    """
    call = node.this
    if not isinstance(call, exp.Anonymous) or call.name.lower() not in _USAGE:
        return None
    name, arguments = call.name.lower(), call.expressions
    count = 3 if name == "tumble" else 4
    is_named = all(isinstance(argument, exp.Column) for argument in arguments[:2])
    if not count <= len(arguments) <= count + 1 or not is_named or arguments[0].args.get("table"):
        raise context.fail(f"{name} in FROM takes a table, a column and intervals", call, _USAGE[name])
    for interval in arguments[2:]:
        if not isinstance(interval, exp.Interval):
            raise context.fail(f"{name} takes literal intervals", interval, _USAGE[name])
        with context.planning(interval):
            months, length = context.planner.interval(to_sql(interval))
        if months:
            raise context.fail("months have no fixed length", interval, "use days")
        if length <= 0 and interval in arguments[2:count]:
            raise context.fail("a window must be greater than zero", interval)
    table, time = (to_sql(argument) for argument in arguments[:2])
    slide, width = to_sql(arguments[2]), to_sql(arguments[count - 1])
    origin = _ORIGIN if len(arguments) == count else f"{_ORIGIN} + {to_sql(arguments[-1])}"
    time = f"CAST({time} AS TIMESTAMP)"
    starts = f"date_bin({slide}, {time}, {origin})"
    if name == "hop":
        first = f"date_bin({slide}, {time} - {width}, {origin}) + {slide}"
        starts = f"generate_series({first}, {starts}, {slide})"
    inner = f"SELECT *, {starts} AS window_start FROM {table}"
    end = f"window_start + {width}"
    more = f", {end} - INTERVAL '1 millisecond' AS window_time" if call.meta.get(WINDOW_TIME) else ""
    query = parse_query(f"SELECT *, {end} AS window_end{more} FROM ({inner}) AS rows")
    for part in query.walk():
        copy_position(call, part)
    alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(arguments[0].name))
    return exp.Subquery(this=query, alias=alias.copy())


def parse_query(text: str) -> exp.Expr:
    """A query of our own making."""
    query: exp.Expr = exp.maybe_parse(text, dialect=HeadraceDialect)
    return query
