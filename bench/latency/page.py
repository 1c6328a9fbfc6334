"""The tables of the results, and the page of the documentation with them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.latency.processes import ENGINES, HEADRACE, SPARK
from bench.latency.runs import QUERIES, RATES, Run

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "latency.md"
GOAL_LATENCY, GOAL_START = 0.7, 1.1


@dataclass
class Results:
    """All measurements, and the machine they were made on."""

    date: str
    versions: str
    cores: int
    load_average: float
    seconds: int
    warm_up: int
    repeat: int
    starts: dict[str, list[float]] = field(default_factory=dict)
    """Engine → seconds to the first row."""
    phases: list[tuple[str, float]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)


def tables(results: Results) -> str:
    """Every table, as Markdown."""
    return "\n\n".join(
        table(results) for table in (latency_table, start_table, phase_table) if table(results)
    )


def latency_table(results: Results) -> str:
    """A row for each query, rate and engine: the medians of the runs."""
    lines = [
        "| query | events/s | engine | p50 | p95 | p99 | between commits | p50 against Spark |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for query in QUERIES:
        for rate in RATES:
            for engine in ENGINES:
                runs = _of(results.runs, engine, query, rate)
                if runs:
                    lines.append(f"| {query} | {rate:,} | {_name(engine)} | {_cells(results, runs)} |")
    return "\n".join(lines) if results.runs else ""


def _cells(results: Results, runs: Sequence[Run]) -> str:
    first = runs[0]
    ratio = latency_ratio(results, first.query, first.rate) if first.engine == HEADRACE else None
    cells = [_milliseconds(runs, lambda run: run.p50), _milliseconds(runs, lambda run: run.p95)]
    cells.append(_milliseconds(runs, lambda run: run.p99))
    steady = first.query == "stateless"  # windows become visible once in a second
    cells.append(_milliseconds(runs, lambda run: 1e3 * results.seconds / run.commits) if steady else "–")
    return " | ".join([*cells, "" if ratio is None else f"{ratio:.2f}×"])


def _of(runs: Sequence[Run], engine: str, query: str, rate: int) -> list[Run]:
    return [run for run in runs if (run.engine, run.query, run.rate) == (engine, query, rate)]


def _name(engine: str) -> str:
    return {HEADRACE: "Headrace", SPARK: "Structured Streaming"}[engine]


def _milliseconds(runs: Sequence[Run], value: Callable[[Run], float]) -> str:
    """The median, and the least and the greatest where there are several."""
    values = sorted(value(run) for run in runs)
    spread = f" ({values[0]:,.0f}–{values[-1]:,.0f})" if len(values) > 1 else ""
    return f"{statistics.median(values):,.0f}{spread} ms"


def latency_ratio(results: Results, query: str, rate: int) -> float | None:
    """The p50 of Headrace relative to that of Spark; None unless both were measured."""
    own, other = (_of(results.runs, engine, query, rate) for engine in (HEADRACE, SPARK))
    if not own or not other:
        return None
    return statistics.median(run.p50 for run in own) / statistics.median(run.p50 for run in other)


def start_ratio(results: Results) -> float | None:
    """The time to the first row of Headrace relative to that of Spark; None unless both were measured."""
    own, other = (results.starts.get(engine) for engine in (HEADRACE, SPARK))
    return statistics.median(own) / statistics.median(other) if own and other else None


def start_table(results: Results) -> str:
    """The seconds to the first row, of each engine."""
    if not results.starts:
        return ""
    lines = ["| start to first row | median | range |", "|---|---|---|"]
    for engine, seconds in results.starts.items():
        middle = statistics.median(seconds)
        lines.append(f"| {_name(engine)} | {middle:.2f} s | {min(seconds):.2f} – {max(seconds):.2f} s |")
    ratio = start_ratio(results)
    return "\n".join([*lines, f"| ratio | {ratio:.2f}× | |"] if ratio else lines)


def phase_table(results: Results) -> str:
    """What Headrace does until the first row."""
    if not results.phases:
        return ""
    total = sum(seconds for _, seconds in results.phases)
    lines = ["| `headrace run` until the first row | seconds | share |", "|---|---|---|"]
    lines += [f"| {what} | {seconds:.2f} | {seconds / total:.0%} |" for what, seconds in results.phases]
    return "\n".join(lines)


def write_page(results: Results) -> None:
    """Write what was measured into the documentation."""
    PAGE.write_text(
        f"""# Latency

Measured by `python -m bench.latency`: Headrace started by `headrace run`, and the same queries written by
hand in Structured Streaming with its default trigger and two shuffle partitions. The engines run alternately,
each in its own process on two cores. Only the ratios carry over to other machines.

## From an event to its result

{latency_table(results)}

Events are created at a constant rate. Every 50 ms the events of the last 50 ms appear in the input directory
as one file of JSON lines, the same for both engines. Both use their file source and their file sink with
JSON, exactly once. A third process checks every 5 ms which output is visible to a reader: in Headrace files
that have been renamed, in Structured Streaming files listed in the sink's log.

- *stateless* is a filter and a projection. Its latency is the time from the creation of an event until its
  row is visible.
- *windowed* counts events per second and key, with 100 keys and a watermark without delay. Its latency is the
  time from the end of a window, when the event that closes it is created, until its row is visible.

{_runs(results)}
Each run verifies that every result is present once and that the counts are correct. The wait for the input
file, up to 50 ms, is part of all figures. *Between commits* is the time between two commits: an event waits
for the epoch or micro-batch in progress, and then for its own.

Goal: p50 windowed at 1,000 events/s at most {GOAL_LATENCY}× that of Structured Streaming; it is
{_format_ratio(latency_ratio(results, "windowed", 1_000))}.

## From the start to the first row

{start_table(results)}

From the start of the process until the first row of a file with 1,000 lines is on its standard output:
`headrace run FILE.sql`, and a script that opens a SparkSession and prints the first micro-batch in
`foreachBatch`; {len(results.starts.get(HEADRACE, ()))} times each, after one warm-up run. Goal: at most
{GOAL_START}×; it is {_format_ratio(start_ratio(results))}.

Time breakdown of one more start:

{phase_table(results)}

{results.date}, {results.versions}, {results.cores} cores, load average
{results.load_average:.1f} at the start. The raw results are in `bench/latency/results.json`.
""",
        encoding="utf-8",
    )


def _runs(results: Results) -> str:
    repeated = results.repeat > 1
    runs = f"{results.repeat} runs of each, medians with the range" if repeated else "One run of each"
    return f"{runs}: {results.seconds} s of events, after {results.warm_up} s of warm-up."


def _format_ratio(ratio: float | None) -> str:
    return "not measured" if ratio is None else f"{ratio:.2f}×"
