"""The performance goals, and whether they are reached."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.nexmark.queries import QUERIES
from bench.nexmark.report import best_spark, bound, failure, of, ratio, spark_ratios, times
from bench.nexmark.runs import LITERAL, PEERS, Run
from bench.nexmark.series import series

HEAVY, LIGHT = ("q5", "q8"), ("q1", "q2", "q7")
"""The queries that are compared with DataFusion."""
_FLAT = 1.25
"""Memory over 16 times the input, as a multiple: what still counts as flat."""


@dataclass(frozen=True)
class Goal:
    """A figure with a lower or upper bound; None if it was not measured."""

    what: str
    least: float = 0.0
    most: float = 0.0
    figure: float | None = None
    detail: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None if it was not measured."""
        if self.figure is None:
            return None
        return self.figure <= self.most if self.most else self.figure >= self.least

    def __str__(self) -> str:
        goal = f"≤ {self.most:g}×" if self.most else f"≥ {self.least:g}×"
        answer = {True: "reached", False: "**not reached**", None: "not measured"}[self.reached]
        return f"| {self.what} | {goal} | {times(self.figure)}{self.detail} | {answer} |"


def goals_table(
    runs: Sequence[Run],
    batch: Sequence[Run],
    growth: Sequence[Run],
    peers: Sequence[Run],
    latency: Mapping[str, Any],
) -> str:
    """A row for each goal."""
    goals = [
        *_against_spark(runs),
        _against_batch(batch, "heavy", HEAVY, 0.6),
        _against_batch(batch, "light", LIGHT, 0.25),
        _lowest("each query against PyFlink, Bytewax, Pathway", 1.0, _peer_ratios(peers)),
        Goal(
            "p50 latency, windowed, 1 thousand events/s, against Structured Streaming",
            most=0.7,
            figure=latency.get("latency"),
        ),
        Goal(
            "`headrace run` to the first row, against a bare SparkSession",
            most=1.1,
            figure=latency.get("startup"),
        ),
        _memory(growth),
    ]
    return "\n".join(["| what | goal | measured | |", "|---|---|---|---|", *map(str, goals)])


def _against_spark(runs: Sequence[Run]) -> list[Goal]:
    ratios = spark_ratios(runs)
    mean = statistics.geometric_mean([ratio for _, ratio in ratios]) if ratios else None
    return [
        Goal("throughput against Structured Streaming, geometric mean of all queries", 5, figure=mean),
        _lowest("any single query against Structured Streaming", 1.2, ratios),
        *_single(runs, "hop60", "hop(1 s, 60 s) against Structured Streaming", 20),
        *_single(runs, "q8", "windowed join (q8) against Structured Streaming", 20),
        *_single(runs, "stateful", "stateful Python operator against `transformWithState` of PySpark", 10),
    ]


def _single(runs: Sequence[Run], query: str, what: str, least: float) -> Iterator[Goal]:
    """Against the fastest way that was found, and, where that is another, against the query word for word."""
    own, best, literal = of(runs, query, "headrace"), best_spark(runs, query), of(runs, query, LITERAL)
    yield Goal(what, least, figure=ratio(own, best), detail=_more(best))
    if literal:
        yield Goal(f"{what}, written literally", least, figure=ratio(own, literal), detail=_more(literal))
    elif any((run.query, run.engine) == (query, LITERAL) for run in runs):
        yield Goal(f"{what}, written literally", least, detail=f" ({failure(runs, query, LITERAL)})")


def _more(other: Sequence[Run]) -> str:
    return " or more" if bound(other) else ""


def _lowest(what: str, least: float, ratios: Sequence[tuple[str, float]]) -> Goal:
    if not ratios:
        return Goal(what, least)
    query, figure = min(ratios, key=lambda query_and_ratio: query_and_ratio[1])
    return Goal(what, least, figure=figure, detail=f" ({query})")


def _against_batch(runs: Sequence[Run], kind: str, queries: Sequence[str], least: float) -> Goal:
    compared = [
        (query, ratio(of(runs, query, "headrace"), of(runs, query, "datafusion"))) for query in queries
    ]
    ratios = [(query, ratio) for query, ratio in compared if ratio is not None]
    return _lowest(
        f"steady state against DataFusion, all at once, {kind} ({', '.join(queries)})", least, ratios
    )


def _peer_ratios(runs: Sequence[Run]) -> list[tuple[str, float]]:
    compared = [
        (f"{query}, {peer}", ratio(of(runs, query, "headrace"), of(runs, query, peer)))
        for peer in PEERS
        for query in QUERIES
    ]
    return [(name, ratio) for name, ratio in compared if ratio is not None]


def _memory(growth: Sequence[Run]) -> Goal:
    """The worst of the queries over growing input, the last step against the first."""
    own = [
        growth_series
        for growth_series in series(growth)
        if growth_series.kind == "input" and "Headrace" in growth_series.name
    ]
    what = "memory for a bounded run, 16 times the input"
    if not own:
        return Goal(what, most=_FLAT)
    worst = max(own, key=lambda growth_series: growth_series.steps[-1].memory)
    return Goal(what, most=_FLAT, figure=worst.steps[-1].memory, detail=f" ({worst.name})")
