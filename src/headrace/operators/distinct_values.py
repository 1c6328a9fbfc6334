"""State of `count(DISTINCT …)`: one row for each distinct value of a group."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.model.fragments import Fragment, quote
from headrace.model.operator import OperatorContext
from headrace.operators.aggregation import Aggregation
from headrace.operators.changes import UNMATCHED, number_rows
from headrace.state.config import TableConfig, keyed_table_config
from headrace.state.rows import Positions

OCCURRENCES: Final = f"{TIMESTAMP}:occurrences"
"""How often a value occurs: its appends minus its retractions."""


class DistinctValues:
    """The values of one `count(DISTINCT …)`, stored by group and value.

    A value counts while it occurs at least once. For append-only input occurrences are capped at one, so that
    a value that is already stored causes no write.
    """

    def __init__(self, aggregation: Aggregation, index: int, *, keys: pa.Schema) -> None:
        distinct = aggregation.distinct[index]
        self.name = f"values{index}"
        self.part = distinct.part
        self.column = f"{TIMESTAMP}:value{index}"
        self._keys = keys
        self._updating = RETRACT in aggregation.schema.names
        by = [quote(key) for key in aggregation.keys]
        by.append(quote(self.column))
        values = f"SELECT *, {distinct.value} AS {quote(self.column)} FROM input"
        if distinct.where is not None:
            values += f" WHERE {distinct.where}"
        sign = f"sum(CASE WHEN {quote(RETRACT)} THEN -1 ELSE 1 END)" if self._updating else "count(*)"
        times = f"max({quote(TIMESTAMP)}) AS {quote(TIMESTAMP)}"
        self.fragment = Fragment(
            f"SELECT {', '.join([*by, f'{sign} AS {quote(OCCURRENCES)}', times])} FROM ({values})"
            f" WHERE {quote(self.column)} IS NOT NULL GROUP BY {', '.join(by)}",
            {"input": aggregation.schema},
            aggregation.functions,
        )
        self.field: pa.Field = self.fragment.output.field(self.column)

    def config(self) -> TableConfig:
        """The state table of the values."""
        schema = pa.schema([*self._keys, self.field, (OCCURRENCES, pa.int64())])
        return keyed_table_config(
            self.name,
            f"the values of each group that {self.part} counts",
            schema,
            key=[*self._keys.names, self.column],
            route=self._keys.names,
        )

    def update(
        self, groups: pa.Table, group_of: Positions, values: pa.Table, ctx: OperatorContext
    ) -> Positions:
        """Add values, `group_of` their groups; returns by how many distinct values each group grows."""
        numbers, firsts = number_rows([pa.array(group_of), values.column(self.column)], values.num_rows)
        arrived = np.zeros(len(firsts), dtype=np.int64)
        np.add.at(arrived, numbers, values.column(OCCURRENCES).to_numpy())
        group_of = group_of[firsts]
        keys = groups.take(pa.array(group_of)).append_column(
            self.field, values.column(self.column).take(pa.array(firsts))
        )
        table = ctx.keyed_table(self.name)
        stored, exists = table.get(keys)
        before = stored.column(OCCURRENCES).fill_null(0).to_numpy(zero_copy_only=False)
        after = before + arrived
        if self._updating:
            if (after < 0).any():
                ctx.metrics.add(UNMATCHED, -after[after < 0].sum())
            after = np.maximum(after, 0)
        else:
            after = np.minimum(after, 1)
        counted = keys.append_column(OCCURRENCES, pa.array(after))
        table.put(counted.filter(pa.array((after > 0) & (after != before))))
        table.delete(keys.filter(pa.array(exists & (after == 0))))
        grown = np.zeros(groups.num_rows, dtype=np.int64)
        np.add.at(grown, group_of, (after > 0).astype(np.int64) - (before > 0))
        return grown

    def delete(self, groups: pa.Table, ctx: OperatorContext) -> None:
        """Delete the values of these groups."""
        if groups.num_rows:
            table = ctx.keyed_table(self.name)
            table.delete(table.below(groups))
