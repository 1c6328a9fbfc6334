"""The SQL of an aggregation: from rows to parts, from parts to merged parts, from either to results."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.model.fragments import Fragment, quote
from headrace.operators.aggregation import Aggregation

ROWS = "_rows"
"""How many rows of the source a part stands for."""
COUNT_ROWS = f'count(*) AS "{ROWS}"'
ADD_ROWS = f'sum("{ROWS}") AS "{ROWS}"'


def grouped(
    aggregation: Aggregation, items: Sequence[str], *, by: Sequence[str], schema: pa.Schema
) -> Fragment:
    """The items for each group of rows with equal columns `by`, which come first."""
    return Fragment(_select(items, by=by), {"input": schema}, aggregation.functions)


def results_of_rows(aggregation: Aggregation, *, by: Sequence[str], schema: pa.Schema) -> Fragment:
    """The results of each group of rows."""
    return grouped(aggregation, aggregation.complete, by=by, schema=schema)


def results_of_parts(aggregation: Aggregation, *, by: Sequence[str], schema: pa.Schema) -> Fragment:
    """The results of each group of parts."""
    columns = [quote(name) for name in by]
    merged = _select(aggregation.merge, by=by)
    sql = f"SELECT {', '.join([*columns, *aggregation.final])} FROM ({merged})"
    return Fragment(sql, {"input": schema}, aggregation.functions)


def _select(items: Sequence[str], *, by: Sequence[str]) -> str:
    columns = [quote(name) for name in by]
    return f"SELECT {', '.join([*columns, *items])} FROM input GROUP BY {', '.join(columns)}"
