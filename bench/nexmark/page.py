"""The page of the documentation with all that was measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from typing import Any

from bench.nexmark.chart import chart
from bench.nexmark.data import FULL, HALF
from bench.nexmark.goals import goals_table
from bench.nexmark.report import batch_table, peers_table, short_table, table
from bench.nexmark.results import ROOT, Part, load
from bench.nexmark.runs import LIMIT
from bench.nexmark.series import growth_table

PAGE = ROOT / "docs" / "concepts" / "speed.md"
CHART = PAGE.with_suffix(".svg")
README = ROOT / "README.md"
_MARKS = ("<!-- speed: written by `make bench` -->", "<!-- end of speed -->")
_LATENCY = ROOT / "bench" / "latency" / "results.json"
_CASES = f"""\
- **q0** to **q20** are the Nexmark queries over people, auctions and bids. Structured Streaming cannot
  express q4, q9, q15 and q19: aggregates of updating results, Top-N per group, exact distinct counts. q7 uses
  `max` of a struct in Headrace, `max_by` in Structured Streaming, and a join in DataFusion: the fastest form
  found for each engine.
- **hop5**, **hop60**: bids per auction in hopping windows of 5 and 60 seconds with a slide of one second.
  **hop3600**: bids of 10 lots in windows of an hour with a slide of one second. Structured Streaming cannot
  run it: its plan has a projection for each window of a row, which is more code than it can compile. Where it
  is faster, Structured Streaming (hop60) and DataFusion (q5 and all hops) first count per second and then sum
  the counts.
- *Written literally*, among the goals: Structured Streaming with a plain `window` of 60 seconds (hop60), and
  with both sides of the join grouped (q8), which is not necessary because nobody registers twice.
- **fanout**: five sinks over one source. One pipeline in Headrace, five concurrent streams in Structured
  Streaming; a batch is complete when all five have it. DataFusion runs the five queries one after another.
- **q1 json**, **q5 json**: the same queries over JSON lines, in batches of {HALF.per_batch * HALF.per_file:,}
  events.
- **stateful**: a running count of 100 thousand keys in Python: an `ArrowOperator` with a keyed table, and
  `transformWithState` with one value per key, over rows. DataFusion counts in SQL.
- **keys10k**, **keys1m**, **keys10m**: an updating count per key, drawn from 10 thousand, 1 million and
  10 million keys; {HALF.files * HALF.per_file:,} rows in batches of {HALF.per_batch * HALF.per_file:,}."""


def write_page() -> None:
    """Write the page and the chart again from the results that are kept."""
    queries, batch, growth, peers = (load(part) for part in ("queries", "batch", "growth", "peers"))
    CHART.write_text(chart(queries.runs), encoding="utf-8")
    sections = [_introduction(queries), _goals(queries, batch, growth, peers), _queries(queries)]
    sections += [_batch(batch)] if batch.runs else []
    sections += [_peers(peers)] if peers.runs else []
    sections += [_growth(growth)] if growth.runs else []
    sections.append(_more())
    PAGE.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    _write_readme(queries, peers)


def _write_readme(part: Part, peers: Part) -> None:
    """Put the chart and the ratios between the marks that the README has for them."""
    section = f"""{_MARKS[0]}
![Headrace against Structured Streaming](docs/concepts/speed.svg)

{short_table(part.runs, peers.runs)}

{_machine(part.about)}
{_MARKS[1]}"""
    text = README.read_text(encoding="utf-8")
    before, begun, rest = text.partition(_MARKS[0])
    _, ended, after = rest.partition(_MARKS[1])
    if not (begun and ended):
        raise ValueError(f"{README} has no place for the figures: {' … '.join(_MARKS)}")
    README.write_text(f"{before}{section}{after}", encoding="utf-8")


def _introduction(part: Part) -> str:
    return f"""# Benchmarks

The same queries in Headrace on local Spark, written by hand in PySpark's Structured Streaming, and in
DataFusion reading all events at once, which is roughly the limit of the machine. `make bench` measures this
again. Only the ratios carry over to other machines.

![Headrace against Structured Streaming](speed.svg)

{_machine(part.about)}"""


def _goals(queries: Part, batch: Part, growth: Part, peers: Part) -> str:
    return f"""## Goals

{goals_table(queries.runs, batch.runs, growth.runs, peers.runs, _latency())}

Memory counts as constant up to a factor of 1.25. *or more*: the other engine did not finish in time; its
rate is that of the batches it completed."""


def _queries(part: Part) -> str:
    return f"""## Queries

The engines run alternately, each run in its own process. Figures are medians, with the range in brackets if
there were several runs. Every engine must first produce the same rows over fewer events. Unless stated
otherwise, epochs and micro-batches read {FULL.per_batch * FULL.per_file:,} events each of
{FULL.files * FULL.per_file:,} in Parquet files. Measurement starts after the first third of them, when
everything is warm. Structured Streaming has as many shuffle partitions as there are cores, 4 GB for
the JVM, and the state store that was faster in its first run. A run that does not finish in {LIMIT:.0f}
seconds counts with the batches completed so far, and is marked.

{table(part.runs)}

*Epoch* is the median time of an epoch and of a micro-batch, *memory* the peak of all processes together;
Headrace first, then Structured Streaming.

{_CASES}"""


def _batch(part: Part) -> str:
    return f"""## Compared with DataFusion

Epochs of the default size of `headrace run`, over {next(run.events for run in part.runs):,} events.
Above, epochs are as large as the micro-batches, and their fixed cost weighs more. DataFusion reads all events
at once.

{batch_table(part.runs)}

{_machine(part.about)}"""


def _peers(part: Part) -> str:
    differences = "".join(f"\n- {line}" for line in part.about.get("differences", ()))
    return f"""## Compared with other engines

Engines that `make bench-peers` installs, over the same events. An engine reads
{FULL.per_batch * FULL.per_file:,} of them at once, as many as an epoch of Headrace; compilation is not
counted. The queries in `bench/peers` follow the documentation of each engine.

{peers_table(part.runs)}
{f"{chr(10)}Rows that differ:{chr(10)}{differences}" if differences else ""}
{_machine(part.about)}"""


def _growth(part: Part) -> str:
    return f"""## Scaling

The same queries over more input, with more keys in the state, and on one and two cores. The cost per event
and the memory are relative to the first step. A cost below 1 is an improvement.

{growth_table(part.runs)}

Epochs have half a million events here, and much of their time is the fixed cost of an epoch. That is why more
input costs less per event, and why a second core gains little. One core means one core for all processes,
including Java. More keys give more results: with ten thousand keys an epoch changes each key many times and
emits one change, with a million it changes most of them once.
[Epoch time as state grows](state-growth.md) measures the effect of the state size alone.

{_machine(part.about)}"""


def _more() -> str:
    return """## More

- [Latency](latency.md): from an event to its result, and from the start to the first row.
- [Benchmarks of dataflows](dataflow-speed.md): chains of Python operators.
- [Benchmarks of connectors and formats](connector-speed.md).

The raw results are in `bench/nexmark/results.json`; `python -m bench.nexmark --report` writes this page
from them."""


def _machine(about: Mapping[str, Any]) -> str:
    if not about:
        return "Not measured yet."
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"{about['date']}: {versions}; {about['cores']} cores, {about['memory'] / 2**30:.0f} GiB, "
        f"{about['processor']}; load average {about['load_average']:.1f} at the start."
    )


def _latency() -> dict[str, float]:
    """Latency and start-up of Headrace, in those of Structured Streaming, if they were measured."""
    if not _LATENCY.exists():
        return {}
    saved = json.loads(_LATENCY.read_text(encoding="utf-8"))
    windowed: dict[str, list[float]] = {}
    for run in saved["runs"]:
        if (run["query"], run["rate"]) == ("windowed", 1_000):
            windowed.setdefault(run["engine"], []).append(run["p50"])
    measured = {"latency": windowed, "startup": saved["starts"]}
    return {
        name: statistics.median(engines["headrace"]) / statistics.median(engines["spark"])
        for name, engines in measured.items()
        if {"headrace", "spark"} <= engines.keys()
    }
