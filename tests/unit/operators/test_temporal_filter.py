"""Conditions on the clock let rows enter and leave as time passes, in epochs without rows too."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing.in_process import CrashError, ManualClock, run_in_process

BEGIN = 1_700_000_000.0
SECOND = 1_000_000_000
SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("ts", pa.timestamp("us"))])
Row = tuple[int, int, int | None]
"""An id, a key, and the seconds of `ts` after the beginning."""


class Feed(hr.SourceOperator):
    """A stream that never ends: one lot of rows in each of its first epochs."""

    def __init__(self, lots: Sequence[Sequence[Row]]) -> None:
        self.lots = lots

    def initial_offset(self, *, time: float) -> hr.Offset:
        return {"0": 0}

    def latest_offset(self, start: hr.Offset, limit: hr.Limit, *, parallelism: int) -> hr.Offset:
        return {"0": min(start["0"] + 1, len(self.lots))}

    def splits(self, start: hr.Offset, end: hr.Offset, *, parallelism: int) -> Sequence[hr.Split]:
        return [hr.Split("0", {"lots": [start["0"], end["0"]]})] if start != end else []

    def run(self, ctx: hr.SourceContext, collector: hr.Collector) -> hr.Finish:
        first, end = ctx.split.detail["lots"]
        for id_, k, seconds in (row for lot in self.lots[first:end] for row in lot):
            at = None if seconds is None else instant(seconds)
            row = {"id": [id_], "k": [k], "ts": [at]}
            batch = pa.RecordBatch.from_pydict(row, schema=SCHEMA)
            stamp = pa.array([(0 if seconds is None else seconds) * SECOND + int(BEGIN) * SECOND])
            collector.collect(batch.append_column("_timestamp", stamp.cast(pa.timestamp("ns"))))
        return hr.Finish.GRACEFUL


def instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(BEGIN, UTC).replace(tzinfo=None) + timedelta(seconds=seconds)


class Story:
    """Runs a query over a feed, and tells what stands after each epoch."""

    def __init__(self, lots: Sequence[Sequence[Row]], query: str) -> None:
        self.pipeline = hr.Pipeline("clock")
        feed = self.pipeline.source(Feed(lots), id="feed", schema=SCHEMA)
        feed.sql(query).sink("memory", name="out")
        self.standing: Counter[tuple[Any, ...]] = Counter()

    def run(self, state: Path, clock: ManualClock, *, until: float, parallelism: int = 1) -> hr.RunResult:
        """Run until an instant of the clock, which goes on by half a second whenever nothing is new."""
        result = run_in_process(
            self.pipeline,
            state,
            parallelism=parallelism,
            clock=clock,
            stop=lambda: clock.time >= BEGIN + until,
        )
        table = result.rows["out"]
        names = [name for name in table.schema.names if name not in ("_timestamp", "_retract")]
        for row in table.to_pylist():
            key = tuple(row[name] for name in names)
            taken = row.get("_retract", False)
            assert not taken or self.standing[key] > 0, f"{key} is taken back, and was not there"
            self.standing[key] += -1 if taken else 1
        self.standing = +self.standing
        return result


def test_rows_leave_when_their_time_has_passed_although_no_rows_come(tmp_path: Path) -> None:
    story = Story(
        [[(1, 0, -5), (2, 0, 3), (3, 0, -20), (4, 0, None)]],
        "SELECT id FROM input WHERE ts > now() - INTERVAL '10 seconds'",
    )
    clock = ManualClock(BEGIN, idle_seconds=0.5)
    story.run(tmp_path, clock, until=2)
    assert sorted(story.standing) == [(1,), (2,)]
    story.run(tmp_path, clock, until=7)
    assert sorted(story.standing) == [(2,)]
    story.run(tmp_path, clock, until=15)
    assert not story.standing


def test_rows_of_the_future_enter_when_their_time_has_come_and_are_only_added(tmp_path: Path) -> None:
    story = Story([[(1, 0, -5), (2, 0, 3), (3, 0, 9)]], "SELECT id FROM input WHERE ts <= now()")
    clock = ManualClock(BEGIN, idle_seconds=0.5)
    first = story.run(tmp_path, clock, until=1)
    assert "_retract" not in first.rows["out"].schema.names
    assert sorted(story.standing) == [(1,)]
    story.run(tmp_path, clock, until=5, parallelism=3)
    assert sorted(story.standing) == [(1,), (2,)]
    story.run(tmp_path, clock, until=12)
    assert sorted(story.standing) == [(1,), (2,), (3,)]


def test_aggregates_above_follow_the_rows_that_enter_and_leave(tmp_path: Path) -> None:
    story = Story(
        [[(1, 0, -5), (2, 0, 3), (3, 1, 4)]],
        "SELECT k, count(*) AS n, sum(id) AS ids FROM input "
        "WHERE ts BETWEEN now() - INTERVAL '10 seconds' AND now() GROUP BY k",
    )
    clock = ManualClock(BEGIN, idle_seconds=0.5)
    story.run(tmp_path, clock, until=1)
    assert dict(story.standing) == {(0, 1, 1): 1}
    story.run(tmp_path, clock, until=4.5)
    assert dict(story.standing) == {(0, 2, 3): 1, (1, 1, 3): 1}
    story.run(tmp_path, clock, until=7)
    assert dict(story.standing) == {(0, 1, 2): 1, (1, 1, 3): 1}


CONDITIONS: dict[str, Callable[[float, float], bool]] = {
    "ts > now() - INTERVAL '10 seconds'": lambda ts, now: ts > now - 10,
    "ts >= now() - INTERVAL '10 seconds' AND ts < now()": lambda ts, now: now - 10 <= ts < now,
    "ts + INTERVAL '5 seconds' < current_timestamp": lambda ts, now: ts + 5 < now,
    "now() - ts <= INTERVAL '8 seconds'": lambda ts, now: now - ts <= 8,
    "ts - now() > INTERVAL '2 seconds'": lambda ts, now: ts - now > 2,
    "now() + INTERVAL '3 seconds' BETWEEN ts AND ts + INTERVAL '9 seconds'": lambda ts, now: (
        ts <= now + 3 <= ts + 9
    ),
    "ts >= date_trunc('minute', now())": lambda ts, now: ts >= (BEGIN + now) // 60 * 60 - BEGIN,
    "date_trunc('minute', ts) = date_trunc('minute', now())": lambda ts, now: (
        (BEGIN + ts) // 60 == (BEGIN + now) // 60
    ),
    "ts < date_trunc('minute', now()) - INTERVAL '15 seconds'": lambda ts, now: (
        ts < (BEGIN + now) // 60 * 60 - BEGIN - 15
    ),
}


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("updating", [False, True], ids=["appended", "updating"])
def test_what_stands_is_what_the_condition_says_at_every_time(
    tmp_path: Path, condition: str, *, updating: bool
) -> None:
    """Rows come in random lots; of updating input, the greatest time of each key counts."""
    chance = random.Random(condition)
    lots: list[list[Row]] = [
        [
            (100 * lot + n, chance.randrange(6), chance.choice([None, *range(-70, 70)]))
            for n in range(chance.randrange(6))
        ]
        for lot in range(8)
    ]
    query = f"SELECT id, ts FROM input WHERE {condition}"
    if updating:
        greatest = "SELECT k AS id, max(ts) AS ts FROM input GROUP BY k"
        query = f"SELECT id, ts FROM ({greatest}) WHERE {condition}"
    story, clock = Story(lots, query), ManualClock(BEGIN, idle_seconds=0.5)
    rows = [row for lot in lots for row in lot]
    if updating:
        keys = {
            k: max((s for _, key, s in rows if key == k and s is not None), default=None) for _, k, _ in rows
        }
        rows = [(k, k, seconds) for k, seconds in keys.items()]
    for parallelism, until in ((1, 4), (3, 11), (2, 33)):
        story.run(tmp_path, clock, until=until, parallelism=parallelism)
        # The last epoch was at a whole second: rows are looked for once a second.
        now = int(clock.time - BEGIN - 0.5)
        passes = CONDITIONS[condition]
        expected = Counter(
            (id_, instant(seconds))
            for id_, _, seconds in rows
            if seconds is not None and passes(seconds, now)
        )
        assert story.standing == expected, now


def test_a_replay_sees_the_clock_of_the_epoch(tmp_path: Path) -> None:
    """The clock that `now()` shows is in the checkpoint's epoch, not that of the machine."""
    pipeline = hr.Pipeline("clock")
    feed = pipeline.source(Feed([[(1, 0, 0)], [(2, 0, 0)]]), id="feed", schema=SCHEMA)
    feed.sql("SELECT id, CAST(now() AS TIMESTAMP) AS seen FROM input").sink("memory", name="out")
    clock = ManualClock(BEGIN, idle_seconds=0.5)

    def crash(step: str, epoch: int) -> None:
        if step == "metadata_written" and epoch == 1:
            raise CrashError

    with pytest.raises(CrashError):
        run_in_process(pipeline, tmp_path, clock=clock, on_step=crash)
    clock.advance(100)
    result = run_in_process(pipeline, tmp_path, clock=clock, max_epochs=1)
    seen = {row["id"]: row["seen"].to_pydatetime() for row in result.rows["out"].to_pylist()}
    assert seen == {1: instant(0), 2: instant(100)}
