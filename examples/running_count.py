"""Keyed state and two sinks: number the visits of every user, and write the round ones to the screen.

`RunningCount` keeps one row per user in a keyed table, which may hold any number of users: a read costs the
users in the batch. Every visit with its number goes to the file `visits.jsonl`; every 30th visit of a user
also goes to standard output. Both sinks read the same operator, and the source is read once.
"""

import numpy as np
import pyarrow as pa

import headrace as hr


def to_visits(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Make a visit of every number."""
    user = batch.column("counter").to_numpy() * 7919 % 31
    return pa.record_batch({"user": pa.array(user), "_timestamp": batch.column("_timestamp")})


class RunningCount(hr.ArrowOperator):
    """Adds the column `visit`: which visit of its user a row is, counted over the life of the pipeline."""

    def tables(self) -> list[hr.TableConfig]:
        schema = pa.schema([("user", pa.int64()), ("visits", pa.int64())])
        return [hr.keyed_table_config("counts", "visits so far", schema, key=["user"])]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        table = ctx.keyed_table("counts")
        users, inverse = np.unique(batch.column("user").to_numpy(), return_inverse=True)
        saved, _ = table.get(pa.record_batch({"user": users}))
        counts = saved.column("visits").fill_null(0).to_numpy().copy()
        visit = np.empty(batch.num_rows, dtype=np.int64)
        for row, user in enumerate(inverse):
            counts[user] += 1
            visit[row] = counts[user]
        table.put(pa.record_batch({"user": users, "visits": counts}))
        collector.collect(batch.append_column("visit", pa.array(visit)))


def round_visits(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Keep every 30th visit."""
    return batch.filter(pa.array(batch.column("visit").to_numpy() % 30 == 0))


pipeline = hr.Pipeline("running-count")
visits = (
    pipeline.source("impulse", message_count=1000, event_time_interval="1s", start_time="2026-01-01")
    .map(to_visits)
    .key_by("user")
    .apply(RunningCount(), id="running_count")
)
visits.sink("single_file", path="visits.jsonl", id="file")
visits.map(round_visits).sink("stdout", id="screen")
