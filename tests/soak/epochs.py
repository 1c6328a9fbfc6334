"""Many small epochs with a shuffle in one process: nothing may grow.

    python -m tests.soak epochs --epochs 100000 --minutes 90 --csv build/soak.csv

Every few seconds a line is added to the file: what the driver, Java, the daemon and the workers use, and how
many files there are. At the end the second quarter of the samples is compared with the last one. Java's heap
has its whole size from the beginning: it would grow for hours with garbage that nobody needs to collect yet.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import headrace as hr
from headrace.base.private import process_directory, socket_directory
from tests import flows
from tests.soak.processes import ROLES, count_files, usage

ROWS = 4
"""Rows in an epoch."""
HEAP = {"HEADRACE__SPARK__MEMORY": "512m", "SPARK_SUBMIT_OPTS": "-Xms512m -XX:+AlwaysPreTouch"}


def build(epochs: int) -> hr.Pipeline:
    """Counts per key and window behind a shuffle: a keyed and a windowed state."""
    pipeline = hr.Pipeline("soak")
    rows = pipeline.source(flows.impulse(epochs * ROWS)).watermark(lateness="5s").map(flows.keyed(3))
    keyed = rows.key_by("k")
    keyed.apply(flows.TumblingCount(), id="windows").sink("blackhole")
    return pipeline


def sample(state: Path) -> dict[str, float]:
    """What this process and its children use now, and the files they have made."""
    numbers: dict[str, float] = {}
    for role, used in usage(os.getpid()).items():
        numbers |= {
            f"{role}_processes": used.processes,
            f"{role}_mb": round(used.megabytes, 1),
            f"{role}_fds": used.descriptors,
            f"{role}_threads": used.threads,
        }
    scratch = process_directory()
    numbers["shuffle_files"] = count_files(scratch, prefix="shuffle_")
    numbers["scratch_files"] = count_files(scratch)
    numbers["sockets"] = count_files(socket_directory() or scratch, prefix=".")
    numbers["state_files"] = count_files(state)
    return numbers


def run(
    epochs: int, *, minutes: float, every: float, parallelism: int, output: Path
) -> list[dict[str, float]]:
    """Run the epochs and return the samples, which are in the file too."""
    samples: list[dict[str, float]] = []
    begun = time.monotonic()
    stop, over = threading.Event(), threading.Event()
    done = 0

    def on_progress(progress: hr.Progress) -> None:
        nonlocal done
        done = progress.epoch
        if time.monotonic() - begun > minutes * 60:
            stop.set()

    def watch(state: Path) -> None:
        before, since = 0, time.monotonic()
        while not over.wait(every):
            now = time.monotonic()
            rate = (done - before) / (now - since)
            before, since = done, now
            samples.append(
                {"seconds": round(now - begun, 1), "epochs": done, "rate": round(rate, 2)} | sample(state)
            )
            with output.open("a", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, samples[0])
                if len(samples) == 1:
                    writer.writeheader()
                writer.writerow(samples[-1])

    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as state:
        watching = threading.Thread(target=watch, args=[Path(state)])
        watching.start()
        try:
            build(epochs).run(
                state,
                parallelism=parallelism,
                master=f"local[{parallelism}]",
                epoch_rows=ROWS,
                on_progress=on_progress,
                stop=stop,
            )
        finally:
            over.set()
            watching.join()
    return samples


def table(samples: list[dict[str, float]]) -> str:
    """The second quarter of the samples beside the last, as a table."""
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    lines = [
        f"{samples[-1]['epochs']:,.0f} epochs in {samples[-1]['seconds'] / 60:,.0f} minutes",
        f"{'':18} {'2nd quarter':>12} {'last quarter':>12} {'highest':>12}",
    ]
    names = [name for name in samples[0] if name not in {"seconds", "epochs"}]
    for name in names:
        means = [statistics.fmean(one[name] for one in part) for part in (early, late)]
        highest = max(one[name] for one in samples)
        lines.append(f"{name:18} {means[0]:12,.1f} {means[1]:12,.1f} {highest:12,.1f}")
    return "\n".join(lines)


def growing(samples: list[dict[str, float]]) -> list[str]:
    """What has grown by more than a tenth and a little between the second quarter and the last."""
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    found = []
    for name in (f"{role}_{what}" for role in ROLES for what in ("mb", "fds", "threads")):
        before, after = (statistics.fmean(one[name] for one in part) for part in (early, late))
        if after > before * 1.1 + 5:
            found.append(name)
    for name in ("shuffle_files", "scratch_files", "sockets", "state_files"):
        before, after = (max(one[name] for one in part) for part in (early, late))
        if after > before * 1.5 + 20:
            found.append(name)
    return found


def main(arguments: list[str]) -> int:
    """Run as the command line says; 1 if something grows."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak epochs", description=__doc__)
    parser.add_argument("--epochs", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=24 * 60.0, help="stop after this time")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two samples")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--csv", type=Path, default=Path("build/soak-epochs.csv"))
    chosen = parser.parse_args(arguments)
    for name, value in HEAP.items():
        os.environ.setdefault(name, value)
    samples = run(
        chosen.epochs,
        minutes=chosen.minutes,
        every=chosen.every,
        parallelism=chosen.parallelism,
        output=chosen.csv,
    )
    found = growing(samples)
    sys.stdout.write(f"{table(samples)}\n{'growing: ' + ', '.join(found) if found else 'flat'}\n")
    return 1 if found else 0
