"""`python -m bench connect`: what a small epoch costs over Spark Connect and on RDDs, measured in turns.

Both run on two threads of this machine, the server from the installed package. The time of an epoch is that
between two reports; the first epochs of a run are counted apart, because they start workers.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import headrace as hr
from tests.spark.connect_server import connect_server

WARM_UP = 8
"""Epochs of a run that are not counted."""


def main(argv: list[str] | None = None) -> int:
    """Measure, and print a line for each run and the medians."""
    parser = argparse.ArgumentParser(prog="python -m bench connect", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs on each")
    parser.add_argument("--epochs", type=int, default=40, help="epochs of a run that are counted")
    parser.add_argument("--rows", type=int, default=2_000, help="rows of an epoch")
    options = parser.parse_args(argv)
    epochs: dict[str, list[float]] = {"RDDs": [], "Connect": []}
    first: dict[str, list[float]] = {"RDDs": [], "Connect": []}
    with tempfile.TemporaryDirectory() as folder, connect_server(Path(folder)) as server:
        for number in range(options.rounds):
            for name, master in (("RDDs", "local[2]"), ("Connect", server.url)):
                began, times = run(Path(folder, f"{name}-{number}"), master, options.rows, options.epochs)
                first[name].append(times[0] - began)
                durations = [b - a for a, b in zip(times[WARM_UP - 1 :], times[WARM_UP:], strict=False)]
                epochs[name] += durations
                print(
                    f"{name}: first epoch after {first[name][-1]:.1f} s, "
                    f"then {1000 * statistics.median(durations):.0f} ms",
                    flush=True,
                )
    medians = {name: statistics.median(values) for name, values in epochs.items()}
    for name, median in medians.items():
        print(
            f"{name}: {1000 * median:.0f} ms an epoch, first one after {statistics.median(first[name]):.1f} s"
        )
    print(f"Connect takes {medians['Connect'] / medians['RDDs']:.2f} times as long")
    return 0


def run(state: Path, master: str, rows: int, epochs: int) -> tuple[float, list[float]]:
    """When a run of a windowed count began, and when each of its epochs was committed."""
    times: list[float] = []
    pipeline = hr.Pipeline.from_sql(
        f"CREATE TABLE events WITH (connector = 'impulse', event_rate = 1000000, "
        f"message_count = {rows * (epochs + WARM_UP)});"
        "CREATE TABLE out WITH (connector = 'blackhole');"
        "INSERT INTO out SELECT counter % 100 AS k, count(*) AS n FROM events "
        "GROUP BY 1, tumble(interval '1 second');"
    )
    began = time.perf_counter()
    pipeline.run(
        state,
        parallelism=2,
        epoch_rows=rows,
        master=master,
        on_progress=lambda _: times.append(time.perf_counter()),
    )
    return began, times


if __name__ == "__main__":
    raise SystemExit(main())
