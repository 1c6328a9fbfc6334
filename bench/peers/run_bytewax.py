"""`run_bytewax.py QUERY …`: a Nexmark query in Bytewax, on two processes with one worker each.

The rows are tuples, as Bytewax's guide has them; only the columns that a query needs are read, in batches.
Each process reads half of the files, but for windows one reads all of them: Bytewax has no watermark over
workers, and drops what another worker was ahead of, which would fail the run here. Nor does it know the end
of a window over all keys: q5 and q7 have one key, and one process, which is faster then. State is not
persisted. Python compiles nothing, so one round is enough; it is counted from the first read to the end of
the last worker.
"""
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import multiprocessing
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import bytewax.operators as op
import pyarrow as pa
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import windowing as win
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import cluster_main

sys.path.append(str(Path(__file__).parents[2]))

from bench.peers.task import CORES, Batches, Task, answer

BATCH = 2_000
START = datetime(2026, 1, 1, tzinfo=UTC)
WAIT = timedelta(seconds=1)
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Events(FixedPartitionedSource):
    """Reads columns of one or more kinds of events: tuples, with the kind in front if there are several."""

    parts: dict[str, list[Path]]
    columns: dict[str, tuple[str, ...]]
    begun: list[float]

    def list_parts(self) -> list[str]:
        return list(self.parts)

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> Part:
        self.begun.append(time.monotonic())
        return Part(self.parts[for_part], self.columns)


class Part(StatefulSourcePartition):
    """Reads some of the files, one after the other."""

    def __init__(self, files: list[Path], columns: dict[str, tuple[str, ...]]) -> None:
        self._columns = columns
        chosen = [f"{kind}.{name}" for kind, names in columns.items() for name in names]
        self._batches = chain.from_iterable(
            pq.ParquetFile(file).iter_batches(batch_size=BATCH, columns=chosen) for file in files
        )

    def next_batch(self) -> list[Row]:
        batch = next(self._batches)  # its StopIteration is the end of the source
        rows: list[Row] = []
        for kind, names in self._columns.items():
            column = batch[kind]
            valid = column.filter(column.is_valid())
            values = [valid.field(name).to_pylist() for name in names]
            kinds = [[kind] * len(valid)] if len(self._columns) > 1 else []
            rows += zip(*kinds, *values, strict=True)
        return rows

    def snapshot(self) -> None:
        return None


@dataclass(frozen=True)
class Rows(DynamicSink):
    """Discards rows, or collects them."""

    rows: list[Row] | None

    def build(self, step_id: str, worker_index: int, worker_count: int) -> RowsPart:
        return RowsPart(self.rows)


class RowsPart(StatelessSinkPartition):
    def __init__(self, rows: list[Row] | None) -> None:
        self._rows = rows

    def write_batch(self, items: list[Row]) -> None:
        if self._rows is not None:
            self._rows += items


@dataclass(frozen=True)
class Query:
    """The input columns of a query, its dataflow, and the names of the result's columns."""

    columns: dict[str, tuple[str, ...]]
    build: Callable[[Any], Any]
    result: tuple[str, ...]
    keys: int = 0
    """If rows are updated: how many leading columns are the key; the last row of a key counts."""
    ordered: bool = True
    """Whether it has windows, and so needs its events in the order of event time, from one reader."""
    processes: int = CORES


def _clock(column: int) -> Any:
    """Event time from a column of the row, and not from the clock: old events are replayed at any speed."""
    return win.EventClock(
        lambda row: row[column].replace(tzinfo=UTC),
        wait_for_system_duration=WAIT,
        now_getter=lambda: START,
        to_system_utc=lambda _: None,
    )


def _closed(windowed: Any) -> Any:
    op.raises("late", windowed.late)
    return windowed.down


def _q1(bids: Any) -> Any:
    return op.map("euros", bids, lambda row: (row[0], row[1], 0.908 * row[2], row[3], row[4]))


def _q2(bids: Any) -> Any:
    return op.filter("chosen", bids, lambda row: row[0] % 123 == 0)


def _q3(both: Any) -> Any:
    def select(row: Row) -> tuple[str, Row] | None:
        good = row[3] == 10 if row[0] == "auction" else row[4] in {"OR", "ID", "CA"}
        return (str(row[1]), row) if good else None

    def joined(state: tuple[list[Row], list[int]] | None, row: Row) -> tuple[Any, Iterable[Row]]:
        people, auctions = state or ([], [])
        if row[0] == "person":
            people.append(row[2:])
            return (people, auctions), [(*row[2:], auction) for auction in auctions]
        auctions.append(row[2])
        return (people, auctions), [(*person, row[2]) for person in people]

    keyed = op.filter_map("wanted", both, select)
    return op.key_rm("rows", op.stateful_flat_map("joined", keyed, joined))


def _q5(bids: Any) -> Any:
    def add(counts: Counter[int], row: Row) -> Counter[int]:
        counts[row[0]] += 1
        return counts

    def best(item: tuple[str, tuple[int, Counter[int]]]) -> list[Row]:
        window, counts = item[1]
        most = max(counts.values())
        start = START + timedelta(seconds=2 * window)
        return [(auction, most, start) for auction, count in counts.items() if count == most]

    windower = win.SlidingWindower(timedelta(seconds=10), timedelta(seconds=2), align_to=START)
    keyed = op.key_on("one key", bids, lambda _: "all")
    counted = win.fold_window(
        "counted", keyed, _clock(1), windower, Counter, add, lambda a, b: a + b, ordered=False
    )
    return op.flat_map("best", _closed(counted), best)


def _q7(bids: Any) -> Any:
    windower = win.TumblingWindower(length=timedelta(seconds=10), align_to=START)
    keyed = op.key_on("one key", bids, lambda _: "all")
    highest = win.max_window("highest", keyed, _clock(3), windower, by=lambda row: row[2])
    return op.map("rows", _closed(highest), lambda item: item[1][1])


def _q8(both: Any) -> Any:
    windower = win.TumblingWindower(length=timedelta(seconds=10), align_to=START)
    split = op.branch("kinds", both, lambda row: row[0] == "person")
    people = op.key_on("by id", split.trues, lambda row: str(row[1]))
    sellers = op.key_on("by seller", split.falses, lambda row: str(row[1]))
    joined = win.join_window("joined", _clock(2), windower, people, sellers, ordered=False)

    def complete(item: tuple[str, tuple[int, tuple[Row | None, Row | None]]]) -> Row | None:
        window, (person, seller) = item[1]
        if person is None or seller is None:
            return None
        return (person[1], person[3], START + timedelta(seconds=10 * window))

    return op.filter_map("complete", _closed(joined), complete)


def _q11(bids: Any) -> Any:
    def add(state: Row | None, row: Row) -> Row:
        return (1, row[1]) if state is None else (state[0] + 1, min(state[1], row[1]))

    def merge(first: Row, second: Row) -> Row:
        return (first[0] + second[0], min(first[1], second[1]))

    windower = win.SessionWindower(gap=timedelta(seconds=10))
    keyed = op.key_on("by bidder", bids, lambda row: str(row[0]))
    counted = win.fold_window("counted", keyed, _clock(1), windower, lambda: None, add, merge, ordered=False)
    return op.map("rows", _closed(counted), lambda item: (int(item[0]), *item[1][1]))


def _counts(windower: Any, slide: int) -> Callable[[Any], Any]:
    def build(bids: Any) -> Any:
        counted = win.count_window("counted", bids, _clock(1), windower, key=lambda row: str(row[0]))
        start = timedelta(seconds=slide)
        return op.map(
            "rows", _closed(counted), lambda item: (int(item[0]), item[1][1], START + start * item[1][0])
        )

    return build


def _hop(width: int) -> Query:
    windower = win.SlidingWindower(timedelta(seconds=width), timedelta(seconds=1), align_to=START)
    return Query({"bid": ("auction", "datetime")}, _counts(windower, 1), ("auction", "num", "window_start"))


def _q17(bids: Any) -> Any:
    def add(state: list[int] | None, row: Row) -> tuple[list[int], Row]:
        price = row[1]
        state = state or [0, 0, 0, 0, price, price, 0]
        state[0] += 1
        state[1 if price < 10_000 else 2 if price < 1_000_000 else 3] += 1
        state[4] = min(state[4], price)
        state[5] = max(state[5], price)
        state[6] += price
        return state, (row[0], row[2].strftime("%Y-%m-%d"), *state)

    keyed = op.key_on("by auction and day", bids, lambda row: f"{row[0]} {row[2].toordinal()}")
    return op.key_rm("rows", op.stateful_map("counted", keyed, add))


def _q18(bids: Any) -> Any:
    def newest(state: Row | None, row: Row) -> tuple[Row, Row]:
        last = row if state is None or row[3] >= state[3] else state
        return last, last

    keyed = op.key_on("by bidder and auction", bids, lambda row: f"{row[1]} {row[0]}")
    return op.key_rm("rows", op.stateful_map("newest", keyed, newest))


_BID = ("auction", "bidder", "price", "datetime", "extra")
_TUMBLE = win.TumblingWindower(length=timedelta(seconds=10), align_to=START)
_RANKS = ("total_bids", "rank1_bids", "rank2_bids", "rank3_bids", "min_price", "max_price", "sum_price")

QUERIES = {
    "q0": Query({"bid": _BID}, lambda bids: bids, _BID, ordered=False),
    "q1": Query({"bid": _BID}, _q1, _BID, ordered=False),
    "q2": Query({"bid": ("auction", "price")}, _q2, ("auction", "price"), ordered=False),
    "q3": Query(
        {"person": ("id", "name", "city", "state"), "auction": ("seller", "id", "category")},
        _q3,
        ("name", "city", "state", "id"),
        ordered=False,
    ),
    "q5": Query({"bid": ("auction", "datetime")}, _q5, ("auction", "num", "window_start"), processes=1),
    "q7": Query({"bid": _BID[:4]}, _q7, _BID[:4], processes=1),
    "q8": Query(
        {"person": ("id", "datetime", "name"), "auction": ("seller", "datetime")},
        _q8,
        ("id", "name", "window_start"),
    ),
    "q11": Query({"bid": ("bidder", "datetime")}, _q11, ("bidder", "num", "window_start")),
    "q12": Query({"bid": ("bidder", "datetime")}, _counts(_TUMBLE, 10), ("bidder", "num", "window_start")),
    "q17": Query(
        {"bid": ("auction", "price", "datetime")}, _q17, ("auction", "day", *_RANKS), keys=2, ordered=False
    ),
    "q18": Query({"bid": _BID[:4]}, _q18, _BID[:4], keys=2, ordered=False),
    "hop5": _hop(5),
}


def work(task: Task, addresses: list[str], number: int, times: Any) -> None:
    """One of the processes of a cluster."""
    query = QUERIES[task.query]
    files = sorted(task.folder.glob("*.parquet"))
    readers = 1 if query.ordered else query.processes
    parts = {str(reader): files[reader::readers] for reader in range(readers)}
    begun: list[float] = []
    rows: list[Row] | None = [] if task.rows else None
    flow = Dataflow("nexmark")
    results = query.build(op.input("events", flow, Events(parts, query.columns, begun)))
    op.output("result", results, Rows(rows))
    cluster_main(flow, addresses, number)
    times.put((min(begun, default=None), time.monotonic()))
    if task.rows and rows is not None:
        if query.keys:
            rows = list({row[: query.keys]: row for row in rows}.values())
        records = [dict(zip(query.result, row, strict=True)) for row in rows]
        pq.write_table(pa.Table.from_pylist(records), task.rows.with_suffix(f".{number}"))


def run(task: Task) -> Batches:
    """Start the cluster on free ports, and combine its results."""
    numbers = range(QUERIES[task.query].processes)
    context = multiprocessing.get_context("spawn")
    times = context.Queue()
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in numbers]
    addresses = [f"127.0.0.1:{socket_.getsockname()[1]}" for socket_ in sockets]
    for socket_ in sockets:
        socket_.close()
    processes = [context.Process(target=work, args=(task, addresses, number, times)) for number in numbers]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a process of the cluster failed")
    spans = [times.get() for _ in processes]
    if task.rows:
        parts = [task.rows.with_suffix(f".{number}") for number in numbers]
        tables = [pq.read_table(part) for part in parts]
        pq.write_table(pa.concat_tables(table for table in tables if table.num_rows), task.rows)
        for part in parts:
            part.unlink()
    return [(task.count, max(end for _, end in spans) - min(begun for begun, _ in spans if begun))]


if __name__ == "__main__":
    sys.exit(answer(QUERIES, run))
