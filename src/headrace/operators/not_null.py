"""Refuses rows without a value in columns that must have one, before they reach a sink."""

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
    """Passes rows on as they are; a null in one of `columns` of `table` ends the run with the row."""

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

    def _error(self, name: str, batch: pa.RecordBatch, place: int) -> ExpressionError:
        shown = [one for one in batch.schema.names if one != TIMESTAMP]
        row = encode_json_lines(pa.Table.from_batches([batch.slice(place, 1)]).select(shown)).decode().strip()
        return ExpressionError(
            f"column `{name}` of `{self.table}` is NOT NULL, and a row has no value for it: "
            + (row if len(row) <= _SHOWN else row[:_SHOWN] + "…"),
            hint=f"leave such rows out (WHERE {name} IS NOT NULL), give a value (coalesce), "
            "or declare the column without NOT NULL",
        )

    def details(self) -> Mapping[str, str]:
        return {"columns": ", ".join(self.columns)}
