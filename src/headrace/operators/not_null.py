"""Fails on nulls in NOT NULL columns before rows reach a sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import ExpressionError
from headrace.formats.json.write import encode_json_lines
from headrace.model.operator import ArrowOperator, Collector, OperatorContext

_SHOWN = 300


class NotNull(ArrowOperator):
    """Forwards rows unchanged; a null in one of `columns` of `table` is an error that shows the row."""

    def __init__(self, table: str, columns: Sequence[str]) -> None:
        self.table = table
        self.columns = tuple(columns)

    @property
    def name(self) -> str:
        return "not_null"

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        for name in self.columns:
            column = batch.column(name)
            if column.null_count:
                raise self._error(name, batch, pc.index(column.is_null(), True).as_py())
        collector.collect(batch)

    def _error(self, name: str, batch: pa.RecordBatch, index: int) -> ExpressionError:
        columns = [column for column in batch.schema.names if column != TIMESTAMP]
        table = pa.Table.from_batches([batch.slice(index, 1)]).select(columns)
        row = encode_json_lines(table).decode().strip()
        return ExpressionError(
            f"column `{name}` of `{self.table}` is NOT NULL, and a row has no value for it: "
            + (row if len(row) <= _SHOWN else row[:_SHOWN] + "…"),
            hint=f"leave such rows out (WHERE {name} IS NOT NULL), give a value (coalesce), "
            "or declare the column without NOT NULL",
        )

    def details(self) -> Mapping[str, str]:
        return {"columns": ", ".join(self.columns)}
