"""As-of joins: each left row with the version of its key that was valid at its event time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.durations import format_duration
from headrace.base.errors import PlanError
from headrace.base.watermarks import Watermark
from headrace.base.windows import clamp
from headrace.model.fragments import as_batches, conform, plain_schema
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext
from headrace.operators.changes import check_comparable, collect_rows, number_rows
from headrace.operators.event_time import instants, timestamps, without_late_rows
from headrace.state.config import TableConfig
from headrace.state.rows import Mask, Positions, single

SEQUENCE: Final = "_sequence"
"""The column that numbers the versions of a key in the order of arrival, `int64`."""
DELETED: Final = "_deleted"
"""Whether a version says that from its time on there is none."""


@dataclass(frozen=True)
class AsOf:
    """Which version a left row meets: `left.time >= right.time + offset`, the nearest that fulfils it.

    `>=` and `>` look back, `<=` and `<` ahead. The offset is in nanoseconds.
    """

    comparison: Literal[">=", ">", "<=", "<"] = ">="
    offset: int = 0

    @property
    def looks_back(self) -> bool:
        """Whether a row is joined to the last version before it."""
        return self.comparison in (">=", ">")

    @property
    def is_strict(self) -> bool:
        """Whether a version with exactly the time of a row does not match it."""
        return self.comparison in (">", "<")

    def __str__(self) -> str:
        text = f"left {self.comparison} right"
        if not self.offset:
            return text
        sign = "+" if self.offset > 0 else "-"
        return f"{text} {sign} {format_duration(timedelta(microseconds=abs(self.offset) / 1000))}"


def nearest(
    left: pa.Table, right: pa.Table, keys: tuple[Sequence[str], Sequence[str]], match: AsOf
) -> Positions:
    """For each left row the position of the right row that it meets, -1 if there is none.

    Right rows have times that the offset was added to, and a `_sequence`: of several with one time the last
    counts.
    """
    count, total = left.num_rows, left.num_rows + right.num_rows
    columns = [
        pa.concat_arrays([single(left.column(a)), single(right.column(b))])
        for a, b in zip(*keys, strict=True)
    ]
    groups, _ = number_rows(columns, total)
    times = np.concatenate([instants(left), instants(right)])
    is_right = np.arange(total) >= count
    sequence = np.concatenate([np.zeros(count, np.int64), right.column(SEQUENCE).to_numpy()])
    # Of equal times those come first that are met: what looks back meets what is before it.
    first_right = match.looks_back != match.is_strict
    kind = is_right != first_right
    order = np.lexsort((sequence if match.looks_back else -sequence, kind, times, groups))
    if not match.looks_back:
        order = order[::-1]
    last = np.maximum.accumulate(np.where(is_right[order], np.arange(total), -1))
    candidates = order[last]
    met = (last >= 0) & (groups[candidates] == groups[order]) & ~is_right[order]
    result = np.full(count, -1, dtype=np.int64)
    result[order[met]] = candidates[met] - count
    return result


class AsOfJoin(ArrowOperator):
    """Joins each row of an append-only left side with at most one version of its key on the right.

    The inputs have the columns `left` and `right`, each with `_timestamp`, and are shuffled by `keys[0]` and
    `keys[1]`. The result has the columns `output`, by name, and the `_timestamp` of the left row. A left join
    keeps rows that meet no version, with nulls.

    A row of the right side is a version of its key from its event time on. If the right side is `updating`,
    the row that replaces another in an epoch is its next version; a retraction that nothing of its key
    follows in the epoch ends the version at the retraction's event time.

    A left row is answered once, when the watermark has passed it and all versions that it could meet; what
    looks ahead waits until the watermark has passed a version. A version that comes late counts for rows that
    are not answered yet, and corrects nothing. Rows behind the watermark of the previous epoch are late:
    counted as `late_rows` and dropped. Versions that no row can meet any more are removed by the watermark;
    the last one of each key stays where rows look back.
    """

    def __init__(
        self,
        left: pa.Schema,
        right: pa.Schema,
        keys: tuple[Sequence[str], Sequence[str]],
        *,
        output: pa.Schema,
        kind: Literal["inner", "left"],
        match: AsOf,
        updating: bool = False,
    ) -> None:
        self.left = plain_schema(left)
        self.right = plain_schema(right)
        self.keys = (tuple(keys[0]), tuple(keys[1]))
        self.output = plain_schema(output)
        self.kind = kind
        self.match = match
        self.updating = updating
        kinds = [
            [schema.field(key).type for key in own]
            for schema, own in zip((self.left, self.right), self.keys, strict=True)
        ]
        if kinds[0] != kinds[1] or not kinds[0]:
            raise PlanError(
                f"the keys {self.keys[0]} and {self.keys[1]} cannot be compared: {kinds[0]} and {kinds[1]}",
                hint="give both sides keys of one type, if only a constant",
            )
        self._versions = pa.schema([*self.right, (SEQUENCE, pa.int64()), (DELETED, pa.bool_())])
        for schema, side in ((self.left, "the left side"), (self.right, "the right side")):
            check_comparable(schema, side)
        self._batches: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
        self._watermark: int | None = None

    @property
    def name(self) -> str:
        return "as_of_join"

    def tables(self) -> Sequence[TableConfig]:
        time = pa.field(TIMESTAMP, pa.timestamp("ns"))
        due = pa.schema([*(self.right.field(key) for key in self.keys[1]), time])
        configs = [
            TableConfig("left", "time", "left rows that wait", schema=self.left, key=self.keys[0]),
            TableConfig(
                "versions",
                "time",
                "versions that rows can meet",
                schema=self._versions,
                key=self.keys[1],
                order_by="key",
            ),
        ]
        if self.match.looks_back:
            configs.append(
                TableConfig("due", "time", "keys with versions ahead", schema=due, key=self.keys[1])
            )
        return configs

    def on_start(self, ctx: OperatorContext) -> None:
        self._watermark = ctx.last_present_watermark

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        raise PlanError("a join has two inputs", hint="stream.apply(join, other)")

    def process_batch_index(
        self, index: int, total: int, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector
    ) -> None:
        if index == 0 and self._watermark is not None:
            batch = without_late_rows(batch, self._passed(self._watermark), ctx)
        if batch.num_rows:
            self._batches[index].append(batch)

    def _passed(self, watermark: int) -> int:
        """The instant before which neither left rows nor versions, their offset added, can still come."""
        return clamp(watermark + min(0, self.match.offset))

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: Collector
    ) -> Watermark | None:
        self._store(ctx)
        if watermark.time is None:
            return watermark
        end = None if watermark.is_end else self._passed(watermark.time)
        self._answer(end, ctx, collector)
        if end is None:
            return watermark
        self._remove_versions(end, ctx)
        waiting = None if self.match.looks_back else ctx.time_table("left").min_time()
        return Watermark(end if waiting is None else min(end, waiting))

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        self._store(ctx)

    # ------------------------------------------------------------------------------------ what arrives

    def _store(self, ctx: OperatorContext) -> None:
        left, right = self._batches
        self._batches = ([], [])
        if left:
            rows = pa.Table.from_batches([conform(batch, self.left) for batch in left])
            if self.kind == "inner":
                rows = rows.filter(pa.array(_has_key(rows, self.keys[0])))
            ctx.time_table("left").insert(rows)
        if right:
            self._store_versions(right, ctx)

    def _store_versions(self, batches: Sequence[pa.RecordBatch], ctx: OperatorContext) -> None:
        schema = self.right.append(pa.field(RETRACT, pa.bool_())) if self.updating else self.right
        rows = pa.Table.from_batches(as_batches(batches, schema))
        rows = rows.filter(pa.array(_has_key(rows, self.keys[1])))
        deleted = np.zeros(rows.num_rows, dtype=np.bool_)
        if self.updating:
            deleted = rows.column(RETRACT).fill_null(False).to_numpy()
            rows = rows.drop_columns([RETRACT])
        sequence = (ctx.task_info.epoch << 32) + np.arange(rows.num_rows, dtype=np.int64)
        # A retraction that an append of its key follows is the first half of an update.
        is_kept = ~deleted | ~self._is_followed(rows, deleted)
        times = instants(rows) + self.match.offset
        time_index = rows.schema.get_field_index(TIMESTAMP)
        rows = rows.set_column(time_index, rows.schema.field(time_index), timestamps(times))
        rows = rows.append_column(SEQUENCE, pa.array(sequence)).append_column(DELETED, pa.array(deleted))
        rows = rows.filter(pa.array(is_kept)).cast(self._versions)
        if rows.num_rows:
            ctx.time_table("versions").insert(rows)
            if self.match.looks_back:
                ctx.time_table("due").insert(rows.select([*self.keys[1], TIMESTAMP]))

    def _is_followed(self, rows: pa.Table, deleted: Mask) -> Mask:
        """Which rows come before an append of their key."""
        groups, firsts = number_rows([rows.column(key) for key in self.keys[1]], rows.num_rows)
        last = np.full(len(firsts), -1, dtype=np.int64)
        appends = np.flatnonzero(~deleted)
        np.maximum.at(last, groups[appends], appends)
        followed: Mask = last[groups] > np.arange(rows.num_rows)
        return followed

    # --------------------------------------------------------------------------------------- answers

    def _answer(self, end: int | None, ctx: OperatorContext, collector: Collector) -> None:
        """Answer the left rows before an instant, and remove them; those that look ahead may have to wait."""
        table = ctx.time_table("left")
        rows = table.range(None, end).combine_chunks()
        if not rows.num_rows:
            return
        versions = self._read_versions(rows, ctx)
        if end is not None and not self.match.looks_back:
            versions = versions.filter(pa.array(instants(versions) < end))
        met = nearest(rows, versions, self.keys, self.match)
        if end is not None and not self.match.looks_back:
            answered = (met >= 0) | ~_has_key(rows, self.keys[0])  # a key with a null never meets one
            table.delete_value(rows.filter(pa.array(answered)))
            rows, met = rows.filter(pa.array(answered)), met[answered]
        else:
            table.delete_time_range(None, end)
        is_gone = np.append(versions.column(DELETED).to_numpy(), False)
        met = np.where(is_gone[met], -1, met)
        if self.kind == "inner":
            rows, met = rows.filter(pa.array(met >= 0)), met[met >= 0]
        collect_rows(self._joined(rows, versions, met), collector)

    def _read_versions(self, rows: pa.Table, ctx: OperatorContext) -> pa.Table:
        keys = rows.select(self.keys[0]).rename_columns(self.keys[1])
        return ctx.time_table("versions").get(keys).combine_chunks()

    def _joined(self, rows: pa.Table, versions: pa.Table, met: Positions) -> pa.Table:
        indices = pa.array(met, mask=met < 0)
        columns = [
            rows.column(column.name)
            if column.name in self.left.names
            else versions.column(column.name).take(indices)
            for column in self.output
        ]
        return pa.Table.from_arrays(columns, schema=self.output)

    def _remove_versions(self, end: int, ctx: OperatorContext) -> None:
        """Remove the versions that no row from an instant on can meet."""
        table = ctx.time_table("versions")
        if not self.match.looks_back:
            table.delete_time_range(None, end)
            return
        due = ctx.time_table("due")
        keys = due.range(None, end)
        if not keys.num_rows:
            return
        due.delete_time_range(None, end)
        versions = table.get(keys.select(self.keys[1])).combine_chunks()
        versions = versions.filter(pa.array(instants(versions) < end))
        if not versions.num_rows:
            return
        # The last version before the instant is the one that the next rows meet.
        groups, _ = number_rows([versions.column(key) for key in self.keys[1]], versions.num_rows)
        order = np.lexsort((versions.column(SEQUENCE).to_numpy(), instants(versions), groups))
        is_last = np.append(groups[order][1:] != groups[order][:-1], True)
        deleted = versions.column(DELETED).to_numpy()
        unused = order[~is_last | deleted[order]]
        if len(unused):
            table.delete_value(versions.take(pa.array(unused)))

    def display(self) -> str:
        on = ", ".join(f"{left} = {right}" for left, right in zip(*self.keys, strict=True))
        return f"{self.kind} as-of join on {on}, {self.match}"

    def details(self) -> Mapping[str, str]:
        return {"versions": "by event time; the last of each key is kept"}

    def state_signature(self) -> str:
        return f"{self.kind} {self.match}"


def _has_key(rows: pa.Table, keys: Sequence[str]) -> Mask:
    """Which rows have no null in their key."""
    valid = np.ones(rows.num_rows, dtype=np.bool_)
    for key in keys:
        if rows.column(key).null_count:
            valid &= rows.column(key).is_valid().to_numpy()
    return valid
