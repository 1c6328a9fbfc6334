"""`row_number()` over partitions by a sort: DataFusion's window functions are slow with many partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.model.fragments import Fragment, Rows
from headrace.state.rows import equal_rows, single


class NumberedFragment:
    """A SELECT over rows that are numbered in each partition; its result is that of `sql`.

    `ordered` sorts the rows of its input `input0` by the columns `keys` and then in the order of each
    partition. Their numbers are the column `name` of `result`'s input `input0`.
    """

    def __init__(self, sql: str, ordered: Fragment, keys: Sequence[str], name: str, result: Fragment) -> None:
        self.sql = sql
        self.ordered = ordered
        self.keys = tuple(keys)
        self.name = name
        self.result = result

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """The rows to number, as `input0`."""
        return self.ordered.inputs

    @property
    def output(self) -> pa.Schema:
        """The columns of the result."""
        return self.result.output

    def run(self, *, input0: Rows) -> pa.Table:
        """The result over these rows."""
        rows = self.ordered.run(input0=input0)
        return self.result.run(input0=rows.append_column(self.name, self._numbers(rows)))

    def _numbers(self, rows: pa.Table) -> pa.Array:
        count = rows.num_rows
        begins = np.zeros(count, dtype=np.bool_)
        begins[:1] = True
        if self.keys and count > 1:
            columns = [single(rows.column(key)) for key in self.keys]
            begins[1:] = ~equal_rows([column[1:] for column in columns], [column[:-1] for column in columns])
        positions = np.arange(count)
        first = np.maximum.accumulate(np.where(begins, positions, 0))
        return pa.array(positions - first + 1, pa.uint64())
