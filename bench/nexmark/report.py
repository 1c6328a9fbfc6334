"""The tables of the results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.nexmark.queries import QUERIES
from bench.nexmark.runs import PEERS, STORES, Run

NAMES = {"pyflink": "PyFlink", "bytewax": "Bytewax", "pathway": "Pathway"}


def table(runs: Sequence[Run]) -> str:
    """A row for each query that was run: medians, with the range of the runs."""
    lines = [
        "| query | Headrace, events/s | Structured Streaming | ratio | DataFusion | ratio | epoch | memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for query in QUERIES:
        own = of(runs, query, "headrace")
        if not any(run.query == query for run in runs):
            continue
        spark, batch = best_spark(runs, query), of(runs, query, "datafusion")
        cells = [
            query,
            rate(own) or failure(runs, query, "headrace"),
            (rate(spark) or failure(runs, query, "spark")) + _store(spark),
            bound(spark) + times(ratio(own, spark)),
            rate(batch) or failure(runs, query, "datafusion"),
            times(ratio(own, batch)),
            " / ".join(_epoch(some) for some in (own, spark) if some),
            " / ".join(f"{memory(some) / 1e9:.1f}" for some in (own, spark) if some) + " GB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    ratios = [ratio for _, ratio in spark_ratios(runs)]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        lines.append(f"\nGeometric mean of the ratios to Structured Streaming: {mean:.1f}×.")
    return "\n".join(lines)


def short_table(runs: Sequence[Run], beside: Sequence[Run]) -> str:
    """The ratios alone, with those to the peers that were run beside."""
    peers = [peer for peer in PEERS if any(run.engine == peer for run in beside)]
    engines = ["Structured Streaming", "DataFusion, all at once", *(NAMES[peer] for peer in peers)]
    lines = [
        f"| Headrace against | {' | '.join(engines)} |",
        "|---|" + "---|" * len(engines),
    ]
    for query in QUERIES:
        own, spark = of(runs, query, "headrace"), best_spark(runs, query)
        cells = [bound(spark) + times(ratio(own, spark)), times(ratio(own, of(runs, query, "datafusion")))]
        for peer in peers:
            other = of(beside, query, peer)
            cells.append(bound(other) + times(ratio(of(beside, query, "headrace"), other)))
        if own:
            lines.append(f"| {query} | {' | '.join(cells)} |")
    return "\n".join(lines)


def batch_table(runs: Sequence[Run]) -> str:
    """Headrace beside DataFusion, and how large its epochs were."""
    lines = [
        "| query | Headrace, events/s | DataFusion | ratio | events in an epoch | epoch |",
        "|---|---|---|---|---|---|",
    ]
    for query in dict.fromkeys(run.query for run in runs):
        own, batch = of(runs, query, "headrace"), of(runs, query, "datafusion")
        sizes = [rows for run in own for rows, _ in run.steady]
        cells = [
            query,
            rate(own) or failure(runs, query, "headrace"),
            rate(batch) or failure(runs, query, "datafusion"),
            times(ratio(own, batch)),
            f"{statistics.median(sizes):,.0f}" if sizes else "–",
            _epoch(own) if own else "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def peers_table(runs: Sequence[Run]) -> str:
    """Headrace beside each peer that was run."""
    peers = [peer for peer in PEERS if any(run.engine == peer for run in runs)]
    lines = [
        "| query | Headrace, events/s | " + " | ".join(f"{NAMES[peer]} | ratio" for peer in peers) + " |",
        "|---|---|" + "---|---|" * len(peers),
    ]
    for query in QUERIES:
        if not any(run.query == query for run in runs):
            continue
        own = of(runs, query, "headrace")
        cells = [query, rate(own) or failure(runs, query, "headrace")]
        for peer in peers:
            some = of(runs, query, peer)
            cells += [rate(some) or failure(runs, query, peer), bound(some) + times(ratio(own, some))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def of(runs: Sequence[Run], query: str, engine: str) -> list[Run]:
    """The runs of a query in an engine that have a rate."""
    return [run for run in runs if (run.query, run.engine) == (query, engine) and run.counts]


def failure(runs: Sequence[Run], query: str, engine: str) -> str:
    """Why an engine has no rate for a query; a dash if it was not measured."""
    asked = [run for run in runs if run.query == query and run.engine.startswith(engine)]
    return next((run.failure for run in asked if run.failure), "–")


def best_spark(runs: Sequence[Run], query: str) -> list[Run]:
    """The runs with the state store that was faster."""
    by_store = [some for engine in STORES if (some := of(runs, query, engine))]
    return max(by_store, key=median_rate, default=[])


def spark_ratios(runs: Sequence[Run]) -> list[tuple[str, float]]:
    """Each query that both can run, with how many times as fast Headrace is."""
    ratios = ((query, ratio(of(runs, query, "headrace"), best_spark(runs, query))) for query in QUERIES)
    return [(query, figure) for query, figure in ratios if figure is not None]


def ratio(own: Sequence[Run], other: Sequence[Run]) -> float | None:
    """The speed-up over the other engine; None unless both were measured."""
    return median_rate(own) / median_rate(other) if own and other else None


def median_rate(runs: Sequence[Run]) -> float:
    """The median of the events per second."""
    return statistics.median(run.rate for run in runs)


def memory(runs: Sequence[Run]) -> int:
    """The peak memory over all runs."""
    return max(run.memory for run in runs)


def rate(runs: Sequence[Run]) -> str:
    """The median rate with the range, and whether a run was not done; nothing without runs."""
    if not runs:
        return ""
    rates = sorted(run.rate for run in runs)
    spread = f" ({rates[0] / 1e3:,.0f}–{rates[-1] / 1e3:,.0f} k)" if len(rates) > 1 else ""
    failures = "".join(f", {failure}" for failure in {run.failure for run in runs if run.failure})
    return f"{median_rate(runs) / 1e3:,.0f} k{spread}{failures}"


def bound(other: Sequence[Run]) -> str:
    """`> ` if the ratio is a lower bound: the other did not finish, and only its first batches count."""
    return "> " if any(run.failure for run in other) else ""


def times(number: float | None) -> str:
    """A ratio as a string."""
    return "–" if number is None else f"{number:.2f}×" if number < 10 else f"{number:.0f}×"


def _store(spark: Sequence[Run]) -> str:
    return " (RocksDB)" if spark and "rocksdb" in spark[0].engine else ""


def _epoch(runs: Sequence[Run]) -> str:
    return f"{statistics.median(run.batch_seconds for run in runs):.2f} s"
