"""The table of the results, and the page of the documentation with it."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.dataflow.runs import ENGINES, EPOCHS, LOADS, RESIDENT, Run

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "dataflow-speed.md"


def table(runs: Sequence[Run]) -> str:
    """A row for each load and engine that was run: medians, with the range of the runs."""
    lines = [
        "| messages | engine | per second | lost | late | send to receive p50/p95/p99 | tick to receive |",
        "|---|---|---|---|---|---|---|",
    ]
    for load in LOADS:
        for engine in ENGINES:
            chosen = [run for run in runs if (run.load, run.engine) == (load.name, engine)]
            if chosen:
                lines.append(f"| {load.name} | {engine} | {_cells(chosen)} |")
    return "\n".join(lines)


def _cells(runs: Sequence[Run]) -> str:
    return " | ".join(
        (
            _spread(runs, lambda run: run.rate, "{:,.0f}"),
            _spread(runs, lambda run: 100 * run.lost, "{:.1f}") + " %",
            f"{statistics.median(run.late for run in runs):,.0f}",
            _times(runs, lambda run: run.from_send),
            _times(runs, lambda run: run.from_tick),
        )
    )


def _spread(runs: Sequence[Run], value: Callable[[Run], float], form: str) -> str:
    """The median, and the least and the greatest where they look different."""
    values = sorted(value(run) for run in runs)
    least, middle, greatest = (
        form.format(value) for value in (values[0], statistics.median(values), values[-1])
    )
    return middle if least == greatest else f"{middle} ({least} – {greatest})"


def _times(runs: Sequence[Run], value: Callable[[Run], tuple[float | None, ...]]) -> str:
    columns = ([number for run in runs if (number := value(run)[at]) is not None] for at in range(3))
    return " / ".join(_milliseconds(statistics.median(column)) if column else "–" for column in columns)


def _milliseconds(time: float) -> str:
    return f"{time:,.3g} ms" if time < 100 else f"{time:,.0f} ms"


def _ratios(runs: Sequence[Run]) -> str:
    """How many times the median rate of each dora, for messages that are sent as fast as it goes."""
    lines = []
    for load in LOADS[:2]:
        rates = {
            engine: statistics.median(
                run.rate for run in runs if (run.load, run.engine) == (load.name, engine)
            )
            for engine in ENGINES
        }
        peers = [(engine, rate) for engine, rate in rates.items() if engine not in {RESIDENT, EPOCHS}]
        compared = " and ".join(
            f"{rates[RESIDENT] / rate:.2g} times that of {engine}" for engine, rate in peers
        )
        lines.append(f"*{load.name}*: the median rate of Headrace is {compared}.")
    return "\n".join(lines)


def write_page(runs: Sequence[Run], *, seconds: float, repeat: int, cores: int, load: float) -> None:
    """Write what was measured into the documentation."""
    PAGE.write_text(
        f"""# Benchmarks of dataflows

Messages through a chain of two Python operators: on each timer tick the first sends a burst of Arrow arrays,
the second counts them and checks their order. The same operator files run in Headrace, on local Spark, by
itself ([resident](dataflows.md#resident-execution)) and with `--execution epochs`, and in dora 1.1.0, with
`queue_policy: backpressure` and with its default policy. Measured by
`python -m bench dataflow`: {repeat} runs of each, {seconds:g} seconds each, alternating between engines;
medians, with the range in brackets.

{table(runs)}

{_ratios(runs)}

The rate is measured in the second operator, from the first message to the last. *Late* messages came behind
one that was sent after them. *Send to receive* is the time from `send_output` to `on_event`. *Tick to
receive* starts at the time of the tick: with epochs it includes the wait for its epoch, as for any external
input. Ticks before the arrival of the first message are excluded, because they waited for the startup. At
maximum rate, both are mostly time in queues. Small arrays are created in advance, large ones for each
message.

{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {cores} cores, load average {load:.1f}.
""",
        encoding="utf-8",
    )
