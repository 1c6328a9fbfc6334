"""The queries as one would write them by hand in PySpark's Structured Streaming.

Those that it cannot express are not here: an aggregate of an updating result (q4), the best rows of a group
(q9, q19), an exact distinct count (q15). Nor is hop3600: a window function makes a projection for each window
of a row, and code for 3600 of them is more than Spark can compile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from bench.nexmark.running_count import count_keys

DELAY = "1 second"
_ANY = ("spark",)
"""The one engine to try for a query without state."""


@dataclass(frozen=True)
class Tables:
    """The streams of the three kinds of events."""

    events: DataFrame

    @property
    def bids(self) -> DataFrame:
        return self.events.where("bid is not null").select("bid.*")

    @property
    def auctions(self) -> DataFrame:
        return self.events.where("auction is not null").select("auction.*")

    @property
    def people(self) -> DataFrame:
        return self.events.where("person is not null").select("person.*")


@dataclass(frozen=True)
class SparkQuery:
    """A query, how its results come, and whether an event from the future has to close its windows."""

    builds: tuple[Callable[[Tables], DataFrame], ...]
    """Several are several streams over the same files."""
    mode: str = "append"
    keys: tuple[str, ...] = ()
    """With mode `update`, what the last row of is the result."""
    windows: bool = False
    stores: tuple[str, ...] = ("spark", "spark rocksdb")
    """The engines to try: state may be in either store."""
    literal: Callable[[Tables], DataFrame] | None = None
    """The query word for word, where `builds` has it in a way that is known to be faster."""


def _q0(t: Tables) -> DataFrame:
    return t.bids.select("auction", "bidder", "price", "datetime", "extra")


def _q1(t: Tables) -> DataFrame:
    return t.bids.select(
        "auction", "bidder", (f.lit(0.908) * f.col("price")).alias("price"), "datetime", "extra"
    )


def _q2(t: Tables) -> DataFrame:
    return t.bids.where("auction % 123 = 0").select("auction", "price")


def _q3(t: Tables) -> DataFrame:
    auctions = t.auctions.where("category = 10").select("id", "seller")
    people = t.people.where("state in ('OR', 'ID', 'CA')").select(
        f.col("id").alias("person"), "name", "city", "state"
    )
    return auctions.join(people, f.col("seller") == f.col("person")).select("name", "city", "state", "id")


def _q5(t: Tables) -> DataFrame:
    bids = t.bids.withWatermark("datetime", DELAY)
    counts = bids.groupBy(f.window("datetime", "10 seconds", "2 seconds"), "auction").count()
    best = counts.groupBy(f.window(f.window_time("window"), "2 seconds")).agg(
        f.max("count").alias("most"), f.collect_list(f.struct("auction", "count")).alias("all")
    )
    start = f.expr("window.end - interval 10 seconds as window_start")
    chosen = best.select(start, f.expr("inline(filter(all, x -> x.count = most))"))
    return chosen.select("auction", f.col("count").alias("num"), "window_start")


def _q7(t: Tables) -> DataFrame:
    bids = t.bids.withWatermark("datetime", DELAY)
    row = f.struct("auction", "bidder", "price", "datetime")
    highest = bids.groupBy(f.window("datetime", "10 seconds")).agg(f.max_by(row, "price").alias("row"))
    return highest.select("row.*")


def _q8(t: Tables) -> DataFrame:
    people = t.people.withWatermark("datetime", DELAY).select(
        "id", "name", f.window("datetime", "10 seconds")
    )
    auctions = t.auctions.withWatermark("datetime", DELAY)
    sellers = auctions.select("seller", f.window("datetime", "10 seconds").alias("w")).dropDuplicates(
        ["seller", "w"]
    )
    joined = people.join(sellers, (f.col("id") == f.col("seller")) & (f.col("window") == f.col("w")))
    return joined.select("id", "name", f.col("window.start").alias("window_start"))


def _q8_literal(t: Tables) -> DataFrame:
    """Both sides grouped as the query says."""
    people = t.people.withWatermark("datetime", DELAY)
    people = people.groupBy(f.window("datetime", "10 seconds"), "id", "name").agg(f.count("*").alias("n"))
    auctions = t.auctions.withWatermark("datetime", DELAY)
    sellers = auctions.groupBy(f.window("datetime", "10 seconds").alias("w"), "seller").agg(
        f.count("*").alias("m")
    )
    joined = people.join(sellers, (f.col("id") == f.col("seller")) & (f.col("window") == f.col("w")))
    return joined.select("id", "name", f.col("window.start").alias("window_start"))


def _q11(t: Tables) -> DataFrame:
    bids = t.bids.withWatermark("datetime", DELAY)
    counts = bids.groupBy(f.session_window("datetime", "10 seconds").alias("window"), "bidder").count()
    return counts.select("bidder", f.col("count").alias("num"), f.col("window.start").alias("window_start"))


def _q12(t: Tables) -> DataFrame:
    bids = t.bids.withWatermark("datetime", DELAY)
    counts = bids.groupBy(f.window("datetime", "10 seconds"), "bidder").count()
    return counts.select("bidder", f.col("count").alias("num"), f.col("window.start").alias("window_start"))


def _q17(t: Tables) -> DataFrame:
    price = f.col("price")
    ranks = (price < 10_000, (price >= 10_000) & (price < 1_000_000), price >= 1_000_000)
    return t.bids.groupBy("auction", f.date_format("datetime", "yyyy-MM-dd").alias("day")).agg(
        f.count("*").alias("total_bids"),
        *(f.count_if(rank).alias(f"rank{n}_bids") for n, rank in enumerate(ranks, 1)),
        f.min("price").alias("min_price"),
        f.max("price").alias("max_price"),
        f.sum("price").alias("sum_price"),
    )


def _q18(t: Tables) -> DataFrame:
    newest = f.max(f.struct("datetime", "price")).alias("newest")
    return (
        t.bids.groupBy("auction", "bidder")
        .agg(newest)
        .select("auction", "bidder", "newest.price", "newest.datetime")
    )


def _q20(t: Tables) -> DataFrame:
    auctions = t.auctions.where("category = 10").select(
        "id", "item_name", "seller", f.col("datetime").alias("auction_datetime")
    )
    bids = t.bids.select("auction", "bidder", "price", f.col("datetime").alias("bid_datetime"))
    return bids.join(auctions, f.col("auction") == f.col("id")).drop("id")


def _fan_out(condition: str) -> Callable[[Tables], DataFrame]:
    return lambda t: t.bids.where(condition).select("auction", "bidder", "price")


def _counts(t: Tables) -> DataFrame:
    return t.events.groupBy("key").agg(f.count("*").alias("num"))


def _hop5(t: Tables) -> DataFrame:
    bids = t.bids.withWatermark("datetime", DELAY)
    counts = bids.groupBy(f.window("datetime", "5 seconds", "1 second"), "auction").count()
    return counts.select("auction", f.col("count").alias("num"), f.col("window.start").alias("window_start"))


def _hop60(t: Tables) -> DataFrame:
    """Counts of seconds, then of windows: faster than to copy every bid into 60 windows."""
    bids = t.bids.withWatermark("datetime", DELAY)
    seconds = bids.groupBy(f.window("datetime", "1 second"), "auction").count()
    hops = f.window(f.window_time("window"), "60 seconds", "1 second")
    counts = seconds.groupBy(hops, "auction").agg(f.sum("count").alias("num"))
    return counts.select("auction", "num", f.col("window.start").alias("window_start"))


def _hop60_literal(t: Tables) -> DataFrame:
    bids = t.bids.withWatermark("datetime", DELAY)
    counts = bids.groupBy(f.window("datetime", "60 seconds", "1 second"), "auction").count()
    return counts.select("auction", f.col("count").alias("num"), f.col("window.start").alias("window_start"))


SPARK_QUERIES = {
    "q0": SparkQuery((_q0,), stores=_ANY),
    "q1": SparkQuery((_q1,), stores=_ANY),
    "q2": SparkQuery((_q2,), stores=_ANY),
    "q3": SparkQuery((_q3,)),
    "q5": SparkQuery((_q5,), windows=True),
    "q7": SparkQuery((_q7,), windows=True),
    "q8": SparkQuery((_q8,), windows=True, literal=_q8_literal),
    "q11": SparkQuery((_q11,), windows=True),
    "q12": SparkQuery((_q12,), windows=True),
    "q17": SparkQuery((_q17,), mode="update", keys=("auction", "day")),
    "q18": SparkQuery((_q18,), mode="update", keys=("auction", "bidder")),
    "q20": SparkQuery((_q20,)),
    "hop5": SparkQuery((_hop5,), windows=True),
    "hop60": SparkQuery((_hop60,), windows=True, literal=_hop60_literal),
    "fanout": SparkQuery(
        (
            *(_fan_out(f"channel = '{channel}'") for channel in ("Google", "Facebook", "Baidu", "Apple")),
            _fan_out("price > 1000000"),
        ),
        stores=_ANY,
    ),
    "q1 json": SparkQuery((_q1,), stores=_ANY),
    "q5 json": SparkQuery((_q5,), windows=True),
    "stateful": SparkQuery(
        (lambda t: count_keys(t.events),), mode="update", keys=("key",), stores=("spark rocksdb",)
    ),
    "keys10k": SparkQuery((_counts,), mode="update", keys=("key",)),
    "keys1m": SparkQuery((_counts,), mode="update", keys=("key",)),
    "keys10m": SparkQuery((_counts,), mode="update", keys=("key",)),
}
