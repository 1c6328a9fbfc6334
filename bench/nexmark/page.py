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
- **q0** to **q20** are queries of Nexmark, an auction with people, auctions and bids. Structured
  Streaming has no words for q4, q9, q15 and q19: aggregates of updating results, the best rows of a
  group, exact distinct counts. q7 is written with the greatest of a structure in Headrace, with `max_by` in
  Structured Streaming, and with a join in DataFusion: the fastest way that was found in each.
- **hop5**, **hop60**: bids of each auction in windows of 5 and of 60 seconds, every second. **hop3600**:
  bids of 10 lots in windows of an hour, every second. Structured Streaming cannot run it: its plan has a
  projection for each window of a row, which is more code than it can compile. Where that is faster,
  Structured Streaming (hop60) and DataFusion (q5 and all hops) count the seconds first and add them up.
- *Word for word*, among the goals: Structured Streaming with `window` of 60 seconds as it is (hop60), and
  with both sides of the join grouped (q8), which it need not do because nobody registers twice.
- **fanout**: five sinks over one source. One pipeline in Headrace, five streams at once in Structured
  Streaming; a batch is done when all five have it. DataFusion answers one after the other.
- **q1 json**, **q5 json**: the same over JSON lines, in batches of {HALF.per_batch * HALF.per_file:,}
  events.
- **stateful**: a running count of 100 thousand keys in Python: an `ArrowOperator` with a keyed table, and
  `transformWithState` with a value for each key, over rows. DataFusion counts in SQL.
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
    return f"""# How fast it is

The same questions to Headrace on local Spark, to PySpark's Structured Streaming as one would write them
by hand, and to DataFusion over all events at once, which is about the limit of what the machine can do.
`make bench` measures this again. Only the ratios mean something elsewhere.

![Headrace against Structured Streaming](speed.svg)

{_machine(part.about)}"""


def _goals(queries: Part, batch: Part, growth: Part, peers: Part) -> str:
    return f"""## What is to be reached

{goals_table(queries.runs, batch.runs, growth.runs, peers.runs, _latency())}

Memory counts as flat up to 1.25 times. *or more*: the other was not done in time, and has the rate of the
batches that it did."""


def _queries(part: Part) -> str:
    return f"""## Queries

The engines of a query in turns, each run in a process of its own; medians, with the range in brackets where
there were several runs. First every engine has to give the same rows over fewer events. Epochs and
micro-batches read {FULL.per_batch * FULL.per_file:,} events each of {FULL.files * FULL.per_file:,} in
Parquet files, if nothing else is said below. What is counted begins after the first third of them, when
everything has started. Structured Streaming has as many shuffle partitions as there are cores, 4 GB for
the JVM, and the state store that was faster in its first run. A run that is not done in {LIMIT:.0f}
seconds counts with the batches so far, and says so.

{table(part.runs)}

*Epoch* is the median time of an epoch and of a micro-batch, *memory* the most that all processes held
together; Headrace first, then Structured Streaming.

{_CASES}"""


def _batch(part: Part) -> str:
    return f"""## Beside DataFusion

Epochs as large as `headrace run` makes them by itself, over {next(run.events for run in part.runs):,} events:
above they are as large as micro-batches, and what an epoch costs in any case shows more. DataFusion reads
all events at once.

{batch_table(part.runs)}

{_machine(part.about)}"""


def _peers(part: Part) -> str:
    differences = "".join(f"\n- {line}" for line in part.about.get("differences", ()))
    return f"""## Beside others

Engines that can be installed beside Headrace by `make bench-peers`, over the same events. A peer reads
{FULL.per_batch * FULL.per_file:,} of them at once, as many as an epoch of Headrace; one that compiles does
so before. The queries are written in `bench/peers` as its own guide would.

{peers_table(part.runs)}
{f"{chr(10)}Rows that differ:{chr(10)}{differences}" if differences else ""}
{_machine(part.about)}"""


def _growth(part: Part) -> str:
    return f"""## Growth

The same queries over more input, with more keys in the state, and on one core and on two; the cost of an
event and the memory beside those of the first step. A cost below 1 is a gain.

{growth_table(part.runs)}

Epochs have half a million events here, and much of their time is what an epoch costs in any case: that is why
more input costs less, and why a second core gives little. One core is one core for all processes, Java among
them. More keys are more results: of ten thousand keys an epoch changes each many times and gives out one
change, of a million it changes most of them once.
What an epoch costs as the state alone grows is on [its own page](state-growth.md).

{_machine(part.about)}"""


def _more() -> str:
    return """## More

- [How soon results are there](latency.md): from an event to its result, and from the start to the first row.
- [How fast dataflows are](dataflow-speed.md): chains of Python operators.
- [How fast connectors and formats are](connector-speed.md).

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
