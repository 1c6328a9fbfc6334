"""Runs a query over the rows of each window: joins, window functions, DISTINCT, Top-N."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import PlanError
from headrace.base.watermarks import Watermark
from headrace.model.fragments import Fragment, conform
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext
from headrace.operators.event_time import instants, without_late_rows
from headrace.state.config import TableConfig, timestamp_table_config


class WindowedFragment(ArrowOperator):
    """Buffers rows until the watermark has passed them, then runs a fragment over all of them at once.

    Input i is the table `input{i}` of the fragment. Rows of one window have one `_timestamp`; the fragment
    must not mix rows of different ones, and its result has its own `_timestamp`, by which it is emitted in
    order. `keys[i]` are the columns by which input i is shuffled; without any, all rows go to one subtask.
    Rows behind the watermark of the previous epoch are late: counted as `late_rows` and dropped.
    """

    def __init__(self, fragment: Fragment, keys: Sequence[Sequence[str]]) -> None:
        names = [f"input{index}" for index in range(len(keys))]
        if set(fragment.inputs) != set(names) or not names:
            raise PlanError(
                f"a fragment over {len(keys)} inputs has the tables {', '.join(names) or 'none'};"
                f" this one has {', '.join(fragment.inputs) or 'none'}"
            )
        for name, schema in [*fragment.inputs.items(), ("the result", fragment.output)]:
            if TIMESTAMP not in schema.names:
                raise PlanError(f"{name} of a windowed fragment has no `{TIMESTAMP}`")
        self.fragment = fragment
        self.keys = tuple(tuple(columns) for columns in keys)
        self._names = names
        self._pending: dict[str, list[pa.RecordBatch]] = {name: [] for name in names}

    @property
    def name(self) -> str:
        return "windowed"

    @property
    def output(self) -> pa.Schema:
        """The schema of what it emits."""
        return self.fragment.output

    def tables(self) -> Sequence[TableConfig]:
        # Rows are deleted when the watermark passes them: stored rows are never older than it.
        return [
            timestamp_table_config(
                name, "rows of open windows", "1s", schema=self.fragment.inputs[name], key=key
            )
            for name, key in zip(self._names, self.keys, strict=True)
        ]

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        self.process_batch_index(0, 1, batch, ctx, collector)

    def process_batch_index(
        self, index: int, total: int, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector
    ) -> None:
        name = self._names[index]
        batch = conform(batch, self.fragment.inputs[name])
        if ctx.last_present_watermark is not None:
            batch = without_late_rows(batch, ctx.last_present_watermark, ctx)
        self._pending[name].append(batch)

    def _store(self, ctx: OperatorContext) -> None:
        for name, batches in self._pending.items():
            if batches:
                ctx.time_table(name).insert(pa.Table.from_batches(batches))
                batches.clear()

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: Collector
    ) -> Watermark | None:
        self._store(ctx)
        if watermark.time is None:
            return watermark
        end = None if watermark.is_end else watermark.time
        rows = {name: ctx.time_table(name).range(None, end) for name in self._names}
        if any(table.num_rows for table in rows.values()):
            results = self.fragment.run(**rows)
            order = np.argsort(instants(results), kind="stable")
            for batch in results.take(pa.array(order)).combine_chunks().to_batches():
                collector.collect(batch)
            for name in self._names:
                ctx.time_table(name).delete_time_range(None, end)
        return watermark

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        self._store(ctx)

    def details(self) -> Mapping[str, str]:
        return {"sql": self.fragment.sql}

    def state_signature(self) -> str:
        return self.fragment.sql
