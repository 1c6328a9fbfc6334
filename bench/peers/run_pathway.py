"""`run_pathway.py QUERY …`: a Nexmark query in Pathway, on two threads.

Pathway reads no Parquet, and tables of Delta only with a licence key. So the events become flat CSV files
once, with times in microseconds, and a query reads only the columns that it needs. Windows have no behavior:
their results are updated, as Pathway has it unless told otherwise, and nothing can be late. Files are read as
`static`, in minibatches to their end; nothing is persisted. Pathway compiles nothing, so one round is enough;
what is counted is the whole run.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

sys.path.append(str(Path(__file__).parents[2]))

from bench.peers.task import CORES, Batches, Task, answer, flat

os.environ["PATHWAY_THREADS"] = str(CORES)  # it is read by the import

import pathway as pw

SECOND = 1_000_000
Table = Any
"""One of Pathway."""


@dataclass(frozen=True)
class Events:
    """The kinds of events as tables, of the columns that are asked for."""

    folder: Path

    def bids(self, *columns: str) -> Table:
        return self._read("bid", columns)

    def auctions(self, *columns: str) -> Table:
        return self._read("auction", columns)

    def people(self, *columns: str) -> Table:
        return self._read("person", columns)

    def _read(self, kind: str, columns: Iterable[str]) -> Table:
        """Its `id` is called `number` here, because `id` is reserved in Pathway."""
        names = {name: _column(kind, name) for name in columns}
        types = {name: str | None if _is_text(name) else int | None for name in names.values()}
        events = pw.io.csv.read(self.folder, schema=pw.schema_from_types(**types), mode="static")
        first = next(name for name in names.values() if name != "datetime")
        chosen = events.filter(pw.this[first].is_not_none())
        return chosen.select(**{name: pw.unwrap(pw.this[column]) for name, column in names.items()})


def _column(kind: str, name: str) -> str:
    return name if name == "datetime" else f"{kind}_{'id' if name == 'number' else name}"


def _is_text(name: str) -> bool:
    return name.endswith(("extra", "name", "city", "state"))


def _q0(events: Events) -> Table:
    return events.bids("auction", "bidder", "price", "datetime", "extra")


def _q1(events: Events) -> Table:
    return _q0(events).with_columns(price=0.908 * pw.this.price)


def _q2(events: Events) -> Table:
    return events.bids("auction", "price").filter(pw.this.auction % 123 == 0)


def _q3(events: Events) -> Table:
    auctions = events.auctions("number", "seller", "category").filter(pw.this.category == 10)
    people = events.people("number", "name", "city", "state").filter(
        (pw.this.state == "OR") | (pw.this.state == "ID") | (pw.this.state == "CA")
    )
    joined = auctions.join(people, pw.left.seller == pw.right.number)
    return joined.select(pw.right.name, pw.right.city, pw.right.state, pw.left.number)


def _bids_of_auctions(events: Events, *columns: str) -> Any:
    bids = events.bids("auction", "bidder", "price", "datetime")
    auctions = events.auctions("number", "datetime", "expires", *columns)
    joined = bids.join(auctions, pw.left.auction == pw.right.number)
    return joined.filter((pw.left.datetime >= pw.right.datetime) & (pw.left.datetime <= pw.right.expires))


def _q4(events: Events) -> Table:
    joined = _bids_of_auctions(events, "category").select(pw.right.number, pw.right.category, pw.left.price)
    final = joined.groupby(pw.this.number, pw.this.category).reduce(
        pw.this.category, final=pw.reducers.max(pw.this.price)
    )
    return final.groupby(pw.this.category).reduce(pw.this.category, average=pw.reducers.avg(pw.this.final))


def _q5(events: Events) -> Table:
    counts = _hop(2, 10)(events)
    most = counts.groupby(pw.this.window_start).reduce(
        pw.this.window_start, most=pw.reducers.max(pw.this.num)
    )
    joined = counts.join(most, pw.left.window_start == pw.right.window_start, pw.left.num == pw.right.most)
    return joined.select(pw.left.auction, pw.left.num, pw.left.window_start)


def _q7(events: Events) -> Table:
    bids = events.bids("auction", "bidder", "price", "datetime")
    row = pw.make_tuple(pw.this.auction, pw.this.bidder, pw.this.price, pw.this.datetime)
    highest = bids.windowby(pw.this.datetime, window=pw.temporal.tumbling(10 * SECOND)).reduce(
        row=pw.reducers.argmax(pw.this.price, row)
    )
    return highest.select(
        auction=pw.this.row[0], bidder=pw.this.row[1], price=pw.this.row[2], datetime=pw.this.row[3]
    )


def _q8(events: Events) -> Table:
    people = events.people("number", "name", "datetime")
    auctions = events.auctions("seller", "datetime")
    joined = pw.temporal.window_join(
        people,
        auctions,
        people.datetime,
        auctions.datetime,
        pw.temporal.tumbling(10 * SECOND),
        people.number == auctions.seller,
    ).select(people.number, people.name, window_start=pw.this._pw_window_start)  # noqa: SLF001
    return joined.groupby(pw.this.number, pw.this.name, pw.this.window_start).reduce(
        pw.this.number, pw.this.name, pw.this.window_start
    )


def _q9(events: Events) -> Table:
    chosen = ("item_name", "seller", "category")
    joined = _bids_of_auctions(events, *chosen).select(
        pw.right.number,
        *(pw.right[name] for name in chosen),
        pw.left.auction,
        pw.left.bidder,
        pw.left.price,
        bid_datetime=pw.left.datetime,
    )
    best = joined.groupby(pw.this.number).reduce(
        best=pw.reducers.argmax(pw.make_tuple(pw.this.price, -pw.this.bid_datetime))
    )
    return best.select(*(joined.ix(pw.this.best)[name] for name in joined.column_names()))


def _windows(key: str, window: Any) -> Callable[[Events], Table]:
    def build(events: Events) -> Table:
        bids = events.bids(key, "datetime")
        counted = bids.windowby(pw.this.datetime, window=window, instance=pw.this[key])
        return counted.reduce(
            **{key: pw.this._pw_instance},  # noqa: SLF001
            num=pw.reducers.count(),
            window_start=pw.this._pw_window_start,  # noqa: SLF001
        )

    return build


def _hop(slide: int, width: int) -> Callable[[Events], Table]:
    return _windows("auction", pw.temporal.sliding(hop=slide * SECOND, duration=width * SECOND))


def _day() -> Any:
    return pw.this.datetime.dt.utc_from_timestamp(unit="us").dt.strftime("%Y-%m-%d")


def _count_if(condition: Any) -> Any:
    return pw.reducers.sum(pw.if_else(condition, 1, 0))


def _q15(events: Events) -> Table:
    bids = events.bids("auction", "bidder", "price", "datetime").with_columns(day=_day())
    return bids.groupby(pw.this.day).reduce(
        pw.this.day,
        total_bids=pw.reducers.count(),
        rank1_bids=_count_if(pw.this.price < 10_000),
        total_bidders=pw.reducers.count_distinct(pw.this.bidder),
        total_auctions=pw.reducers.count_distinct(pw.this.auction),
    )


def _q17(events: Events) -> Table:
    bids = events.bids("auction", "price", "datetime").with_columns(day=_day())
    price = pw.this.price
    return bids.groupby(pw.this.auction, pw.this.day).reduce(
        pw.this.auction,
        pw.this.day,
        total_bids=pw.reducers.count(),
        rank1_bids=_count_if(price < 10_000),
        rank2_bids=_count_if((price >= 10_000) & (price < 1_000_000)),
        rank3_bids=_count_if(price >= 1_000_000),
        min_price=pw.reducers.min(price),
        max_price=pw.reducers.max(price),
        sum_price=pw.reducers.sum(price),
    )


def _q18(events: Events) -> Table:
    newest = events.bids("auction", "bidder", "price", "datetime").groupby(pw.this.auction, pw.this.bidder)
    return newest.reduce(
        pw.this.auction,
        pw.this.bidder,
        price=pw.reducers.argmax(pw.this.datetime, pw.this.price),
        datetime=pw.reducers.max(pw.this.datetime),
    )


def _q20(events: Events) -> Table:
    bids = events.bids("auction", "bidder", "price", "datetime")
    auctions = events.auctions("number", "item_name", "seller", "datetime", "category")
    joined = bids.join(auctions.filter(pw.this.category == 10), pw.left.auction == pw.right.number)
    return joined.select(
        pw.left.auction,
        pw.left.bidder,
        pw.left.price,
        pw.right.item_name,
        pw.right.seller,
        bid_datetime=pw.left.datetime,
        auction_datetime=pw.right.datetime,
    )


QUERIES: dict[str, Callable[[Events], Table]] = {
    "q0": _q0,
    "q1": _q1,
    "q2": _q2,
    "q3": _q3,
    "q4": _q4,
    "q5": _q5,
    "q7": _q7,
    "q8": _q8,
    "q9": _q9,
    "q11": _windows("bidder", pw.temporal.session(max_gap=10 * SECOND)),
    "q12": _windows("bidder", pw.temporal.tumbling(10 * SECOND)),
    "q15": _q15,
    "q17": _q17,
    "q18": _q18,
    "q20": _q20,
    "hop5": _hop(1, 5),
}


def run(task: Task) -> Batches:
    """Run the query; if rows are requested, apply its changes and write the final rows."""
    result = QUERIES[task.query](Events(task.converted("csv", _convert)))
    left: dict[Any, dict[str, Any]] = {}

    def change(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:  # noqa: ARG001
        if is_addition:
            left[key] = row
        elif left.get(key) == row:  # an update may come before what it replaces is gone
            del left[key]

    if task.rows:
        pw.io.subscribe(result, on_change=change)
    else:
        pw.io.null.write(result)
    begun = time.perf_counter()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    seconds = time.perf_counter() - begun
    if task.rows:
        pq.write_table(_as_others(pa.Table.from_pylist(list(left.values()))), task.rows)
    return [(task.count, seconds)]


def _as_others(table: pa.Table) -> pa.Table:
    for at, name in enumerate(table.column_names):
        if name.endswith("datetime") or name == "window_start":
            table = table.set_column(at, name, table[name].cast(pa.timestamp("us")))
    return table.rename_columns(["id" if name == "number" else name for name in table.column_names])


def _convert(files: list[Path], to: Path) -> None:
    for file in files:
        table = flat(pq.read_table(file))
        for at, field in enumerate(table.schema):
            if pa.types.is_timestamp(field.type):
                table = table.set_column(at, field.name, table[field.name].cast(pa.int64()))
        pyarrow.csv.write_csv(table, to / f"{file.stem}.csv")


if __name__ == "__main__":
    sys.exit(answer(QUERIES, run))
