"""The table and the chart of the results, and the page of the documentation with them."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.nexmark.queries import QUERIES
from bench.nexmark.runs import Run

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "speed.md"
CHART = PAGE.with_suffix(".svg")


def table(runs: Sequence[Run]) -> str:
    """A row for each query that was run: medians, with the range of the runs."""
    lines = [
        "| query | Headrace, events/s | Structured Streaming | ratio | DataFusion | ratio | epoch | memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for query in QUERIES:
        own = _of(runs, query, "headrace")
        if not own:
            continue
        spark, batch = best_spark(runs, query), _of(runs, query, "datafusion")
        store = " (RocksDB)" if spark and "rocksdb" in spark[0].engine else ""
        cells = [
            query,
            _rate(own),
            _rate(spark) + store if spark else "–",
            _times(ratio(own, spark)),
            _rate(batch) if batch else "–",
            _times(ratio(own, batch)),
            f"{statistics.median(one.batch_seconds for one in own) * 1000:,.0f} ms",
            " / ".join(f"{max(one.memory for one in some) / 1e9:.1f}" for some in (own, spark) if some)
            + " GB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    ratios = [found for _, found in spark_ratios(runs)]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        lines.append(f"\nGeometric mean of the ratios to Structured Streaming: {mean:.1f}×.")
    return "\n".join(lines)


def _of(runs: Sequence[Run], query: str, engine: str) -> list[Run]:
    return [one for one in runs if (one.query, one.engine) == (query, engine)]


def _median(runs: Sequence[Run]) -> float:
    return statistics.median(one.rate for one in runs)


def best_spark(runs: Sequence[Run], query: str) -> list[Run]:
    """The runs with the state store that was faster."""
    found = [some for engine in ("spark", "spark rocksdb") if (some := _of(runs, query, engine))]
    return max(found, key=_median, default=[])


def spark_ratios(runs: Sequence[Run]) -> list[tuple[str, float]]:
    """Each query that both can run, with how many times as fast Headrace is."""
    found = ((query, ratio(_of(runs, query, "headrace"), best_spark(runs, query))) for query in QUERIES)
    return [(query, one) for query, one in found if one is not None]


def ratio(own: Sequence[Run], other: Sequence[Run]) -> float | None:
    """How many times as fast; none without both."""
    return _median(own) / _median(other) if own and other else None


def _rate(runs: Sequence[Run]) -> str:
    rates = sorted(one.rate for one in runs)
    spread = f" ({rates[0] / 1e3:,.0f}–{rates[-1] / 1e3:,.0f} k)" if len(rates) > 1 else ""
    return f"{_median(runs) / 1e3:,.0f} k{spread}"


def _times(number: float | None) -> str:
    return "–" if number is None else f"{number:.2f}×" if number < 10 else f"{number:.0f}×"


def chart(runs: Sequence[Run]) -> str:
    """Bars of the ratios to Structured Streaming, on a logarithmic scale, as SVG."""
    bars = spark_ratios(runs)
    longest = max((found for _, found in bars), default=1.0)
    height, left, width = 26, 70, 560
    scale = width / math.log10(max(10.0, longest * 1.2) / 0.5)

    def at(value: float) -> float:
        return left + scale * math.log10(max(value, 0.5) / 0.5)

    total = height * len(bars) + 60
    size = f'width="{left + width + 70}" height="{total}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">',
        f'<rect {size} fill="white"/>',
        f'<text x="{left}" y="20">Headrace against Structured Streaming, events per second (2 cores)</text>',
    ]
    for mark in (1, 2, 5, 10, 20, 50, 100):
        if mark <= longest * 1.2:
            x = at(mark)
            parts.append(f'<line x1="{x:.0f}" y1="30" x2="{x:.0f}" y2="{total - 24}" stroke="#ddd"/>')
            parts.append(f'<text x="{x:.0f}" y="{total - 8}" fill="#666" text-anchor="middle">{mark}×</text>')
    for place, (query, found) in enumerate(bars):
        y, x = 34 + place * height, at(min(1.0, found))
        end = at(max(1.0, found))
        fill = "#2a6f97" if found >= 1 else "#c1121f"
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{query}</text>')
        parts.append(f'<rect x="{x:.0f}" y="{y}" width="{max(1, end - x):.0f}" height="18" fill="{fill}"/>')
        parts.append(f'<text x="{end + 6:.0f}" y="{y + 14}">{_times(found)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def write_page(runs: Sequence[Run], *, repeat: int, load: float) -> None:
    """Write what was measured into the documentation."""
    CHART.write_text(chart(runs), encoding="utf-8")
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("headrace", "pyspark", "datafusion", "pyarrow")
    )
    PAGE.write_text(
        f"""# How fast it is

The queries of the Nexmark benchmark over the same Parquet files: in Headrace on local Spark, in Structured
Streaming as one would write it by hand, and in DataFusion over all events at once, which is about the limit
of what the machine can do. Measured by `make bench`: {repeat} runs of each, the engines in turns, each in
a process of its own; medians, with the range in brackets. Every engine gives the same rows, which is checked
first. Epochs and micro-batches read {_batch(runs):,} events each; what is counted begins after the first
third of them, when everything has started. Only the ratios mean something elsewhere.

![ratios](speed.svg)

{table(runs)}

*Epoch* is the median time of an epoch, *memory* the most that all processes held together, in Headrace and in
Structured Streaming. Where it has no figure, Structured Streaming has no words for the query (q15, q19).

{datetime.now(UTC):%Y-%m-%d}, {versions}, Python {platform.python_version()}, {os.cpu_count()} cores, load
average {load:.1f} at the start. The raw results are in `bench/nexmark/results.json`.
""",
        encoding="utf-8",
    )


def _batch(runs: Sequence[Run]) -> int:
    return max(rows for one in runs if one.engine == "spark" for rows, _ in one.batches)
