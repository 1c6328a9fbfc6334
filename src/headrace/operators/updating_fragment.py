"""SQL over rows stored by key: outer joins, window functions and Top-N without event-time windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pyarrow as pa

from headrace.base.columns import RETRACT
from headrace.base.errors import PlanError
from headrace.model.fragments import Fragment
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext
from headrace.operators.changes import (
    UNMATCHED,
    Revision,
    StoredRows,
    check_comparable,
    collect_rows,
    cutoff,
    describe_ttl,
    difference,
    expiry_detail,
    expiry_tick,
    number_rows,
)
from headrace.operators.numbered import NumberedFragment
from headrace.state.config import TableConfig


class UpdatingFragment(ArrowOperator):
    """Keeps the result of a SELECT over its inputs up to date, recomputing only the keys that changed.

    Input i is the fragment's `input{i}`, shuffled by the columns `keys[i]`; `updating[i]` says whether it
    has retractions. Once per epoch the fragment runs over the old and over the new rows of the touched keys.
    The difference is emitted: what is no longer in the result as retractions, then what is new; a change of
    `_timestamp` alone does not count. Without keys all rows are one group in one subtask.

    The result must be a union over the keys, and for each key depend on its rows alone. Where it depends on
    their order, as `row_number()` does among ties or a sum of floats, the fragment orders by `_sequence`: for
    an input that declares this column (`int64`) it numbers the rows in the order of arrival.

    `prune` is for a single input without retractions: a SELECT over `input0` that returns the rows which can
    still affect the result, such as the first n. The others are removed, so that the state of a Top-N stays
    small.

    A row expires `ttl` after its arrival, by the wall clock: it is removed and its contribution is retracted;
    rows that `prune` removed do not come back. Idle keys are scanned for expired rows every tenth of `ttl`
    (1 s to 10 minutes). A retraction without a matching row is ignored and counted as
    `unmatched_retractions`.
    """

    def __init__(
        self,
        fragment: Fragment | NumberedFragment,
        keys: Sequence[Sequence[str]],
        *,
        ttl: timedelta | None,
        updating: Sequence[bool],
        prune: Fragment | None = None,
    ) -> None:
        self.fragment = fragment
        self.keys = tuple(tuple(names) for names in keys)
        self.ttl = ttl
        self.updating = tuple(updating)
        self.prune = prune
        self.tick_interval = expiry_tick(ttl)
        self.max_parallelism = None if any(self.keys) else 1
        self._check()
        self._inputs = [
            StoredRows(name, fragment.inputs[name], key=names)
            for name, names in zip(self._names(), self.keys, strict=True)
        ]
        for table in self._inputs:
            check_comparable(table.columns, f"`{table.name}`")
        check_comparable(fragment.output, "the result")
        self._batches: list[list[pa.RecordBatch]] = [[] for _ in self._inputs]
        self._due = False

    def _names(self) -> list[str]:
        return [f"input{index}" for index in range(len(self.keys))]

    def _check(self) -> None:
        if set(self._names()) != set(self.fragment.inputs) or len(self.updating) != len(self.keys):
            raise PlanError(
                f"{len(self.keys)} lists of keys and {len(self.updating)} flags were given for the inputs"
                f" {', '.join(self.fragment.inputs)}",
                hint="give one list of key columns and one flag for each of input0, input1, …",
            )
        kinds = [
            [self.fragment.inputs[name].field(key).type for key in keys]
            for name, keys in zip(self._names(), self.keys, strict=True)
        ]
        if any(kind != kinds[0] for kind in kinds):
            raise PlanError(
                f"the key columns of the inputs have different types: {kinds}",
                hint="cast them to one type before the shuffle",
            )
        if self.prune is not None and self.updating != (False,):
            raise PlanError(
                "only the state of a single input without retractions can be pruned",
                hint="leave `prune` out: a retraction may bring back any row",
            )

    @property
    def output(self) -> pa.Schema:
        """The columns of the result."""
        return self.fragment.output.append(pa.field(RETRACT, pa.bool_()))

    def tables(self) -> Sequence[TableConfig]:
        return [table.config(f"the rows of {table.name}") for table in self._inputs]

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        self._batches[0].append(batch)

    def process_batch_index(
        self,
        index: int,
        total: int,
        batch: pa.RecordBatch,
        ctx: OperatorContext,
        collector: Collector,
    ) -> None:
        self._batches[index].append(batch)

    def handle_tick(self, n: int, ctx: OperatorContext, collector: Collector) -> None:
        self._due = True

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        before = cutoff(ctx, self.ttl)
        arrived = [
            table.arrived(batches, ctx, updating=updating)
            for table, batches, updating in zip(self._inputs, self._batches, self.updating, strict=True)
        ]
        touched = [pa.concat_tables(tables) for tables in arrived]
        if self._due:
            expired = [table.expired(before, ctx) for table in self._inputs]
            touched = [pa.concat_tables(tables) for tables in zip(touched, expired, strict=True)]
        keys = self._distinct_keys(touched)
        if not keys.num_rows:
            return
        revisions = {
            table.name: self._revised(table, keys, appended, retractions, ctx)
            for table, (appended, retractions) in zip(self._inputs, arrived, strict=True)
        }
        old = self._result({name: revision.before for name, revision in revisions.items()})
        if self.prune is not None:
            only = revisions["input0"]
            only.keep(self.prune.run(input0=only.after))
        new = self._result({name: revision.after for name, revision in revisions.items()})
        for table in self._inputs:
            table.write(revisions[table.name], ctx)
            if self._due:  # all expired rows were among the touched keys, and need no tombstones
                table.expire(before, ctx)
        collect_rows(difference(old, new), collector)

    def _result(self, rows: Mapping[str, pa.Table]) -> pa.Table:
        """The result over these rows; a key without rows has none, not even of a global aggregate."""
        if not any(table.num_rows for table in rows.values()):
            return self.fragment.output.empty_table()
        return self.fragment.run(**rows)

    def _distinct_keys(self, touched: Sequence[pa.Table]) -> pa.Table:
        """The distinct keys of these rows of all inputs, with the column names of the first input."""
        names = self._inputs[0].key
        keys = pa.concat_tables(
            rows.select(table.key).rename_columns(names)
            for table, rows in zip(self._inputs, touched, strict=True)
        )
        _, firsts = number_rows(keys.columns, keys.num_rows)
        return keys.take(pa.array(firsts))

    def _revised(
        self,
        table: StoredRows,
        keys: pa.Table,
        appended: pa.Table,
        retractions: pa.Table,
        ctx: OperatorContext,
    ) -> Revision:
        revision = table.revision(table.read(keys.rename_columns(table.key), ctx), appended)
        revision.expire(cutoff(ctx, self.ttl))
        unmatched = revision.retract(retractions)
        if unmatched:
            ctx.metrics.add(UNMATCHED, unmatched)
        return revision

    def display(self) -> str:
        keys = ", ".join(self.keys[0]) or "nothing"
        return f"updating result by {keys}, {describe_ttl(self.ttl, 'retracted')}"

    def details(self) -> Mapping[str, str]:
        return {"sql": self.fragment.sql, **expiry_detail(self.ttl, "retracted")}

    def state_signature(self) -> str:
        return self.fragment.sql
