"""Functions that pass rows or end the run: conditions that SQL can check only at run time."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.errors import ExpressionError


def at_most_one_row(counts: pa.Array) -> pa.Array:
    """True for each count of rows; raises an ExpressionError if one is greater than 1."""
    most = pc.max(counts).as_py()
    if most is not None and most > 1:
        raise ExpressionError(
            f"a subquery used as a value gives {most} rows",
            hint="it may give one at most: add LIMIT 1 with ORDER BY, an aggregate, or use IN",
        )
    return pa.array([True] * len(counts), pa.bool_())
