"""What an epoch costs with many subtasks: `python -m bench scaling [--before CHECKOUT] [--spark]`.

The engine is measured in one process, without Spark, by the CPU time of its own code: 2,000 rows per epoch
are counted per key, and again in windows, which is two shuffles and two tables. Each size runs in a process
of its own. With `--before`, a checkout of another version, both run in turn, so that they see the same
machine. With `--spark` also on a local Spark, with and without Headrace's own limit for shuffles that write a
file per subtask.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.engine.driver import EpochDriver
from headrace.engine.loop import EpochLoop
from headrace.engine.offsets import EpochSize
from headrace.engine.reports import EpochReport
from headrace.engine.stages import cut_stages
from headrace.exchanges import local
from headrace.storage.open import open_storage
from tests import flows

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "concepts" / "scaling.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
SUBTASKS = (2, 8, 32, 128, 512)
SPARK_SUBTASKS = (8, 16, 32, 128)
ROWS = 2_000
THRESHOLD = "spark.shuffle.sort.bypassMergeThreshold"


def pipeline() -> hr.Pipeline:
    """Counts per key, and per key and window."""
    flow = hr.Pipeline("scaling")
    source = hr.ImpulseSource(message_count=10_000_000, event_time_interval="1ms", start_time=flows.T0)
    rows = flow.source(source).map(flows.keyed(1000)).watermark(lateness="1s")
    counted = rows.key_by("k").apply(flows.RunningCount(), id="count")
    windows = counted.key_by("k").apply(flows.TumblingCount(10 * flows.SECOND), id="windows")
    windows.sink("blackhole")
    return flow


def measure_engine(subtasks: int) -> dict[str, float]:
    """The cost of an epoch in this process, by subtask."""
    warm_up, epochs = 2, max(3, min(20, 256 // subtasks))
    spent = {"driver": 0.0, "all": 0.0}
    envelopes: list[int] = []
    deliver = local.route

    def counted(sent: Any, width: int, order: Any) -> Any:
        sent = list(sent)
        envelopes.append(len(sent))
        return deliver(sent, width, order)

    class TimedExchange(local.LocalExchange):
        def run(self, tasks: Any, context: Any) -> Any:
            began = time.process_time()
            control = super().run(tasks, context)
            spent["driver"] -= time.process_time() - began
            return control

    began = 0.0

    def on_epoch(report: EpochReport) -> bool:
        nonlocal began
        now = time.process_time()
        if report.epoch == warm_up:
            began, spent["driver"] = now, now
            spent["driver"] = 0.0
            envelopes.clear()
        spent["all"] = now - began
        return report.epoch == warm_up + epochs

    vars(local)["route"] = counted
    with tempfile.TemporaryDirectory() as state:
        driver = EpochDriver(cut_stages(pipeline().plan(), parallelism=subtasks), open_storage(state))
        driver.open()
        size = EpochSize(target=0.5, most=ROWS)
        EpochLoop(
            driver, TimedExchange(), size=size, on_epoch=on_epoch, stop=threading.Event(), restarts=0
        ).run()
        newest = max(Path(state, "checkpoints").iterdir())
        metadata = sum(path.stat().st_size for path in newest.rglob("metadata*.json"))
    return {
        "engine": spent["all"] / epochs / subtasks * 1000,
        "driver": (spent["all"] + spent["driver"]) / epochs / subtasks * 1000,
        "envelopes": sum(envelopes) / epochs,
        "metadata": metadata / subtasks,
    }


def measure_spark(subtasks: int, threshold: str | None) -> dict[str, float]:
    """The seconds of an epoch on a local Spark."""
    progress: list[float] = []
    conf = None if threshold is None else {THRESHOLD: threshold}
    pipeline().run(
        parallelism=subtasks,
        epoch_rows=ROWS,
        max_epochs=6 if subtasks > 32 else 10,
        on_progress=lambda epoch: progress.append(epoch.seconds),
        options=hr.RunOptions(spark_conf=conf),
    )
    return {"seconds": statistics.median(progress[3:])}


def apart(code: Path, *arguments: str) -> dict[str, float]:
    """A measurement in a process of its own, with the code of a checkout."""
    environ = {**os.environ, "PYTHONPATH": f"{code / 'src'}{os.pathsep}{ROOT}", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "bench.scaling", "--measure", *arguments]
    done = subprocess.run(command, check=True, env=environ, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def engine_table(before: Path | None) -> list[str]:
    """The cost of the engine, by the number of subtasks."""
    versions = [before, ROOT] if before else [ROOT]
    titles = ["before, now"] if before else ["now"]
    head = ["subtasks", f"CPU per subtask and epoch, ms ({titles[0]})", "of it the driver's"]
    head += ["envelopes per epoch", "bytes of metadata per subtask"]
    lines = [f"| {' | '.join(head)} |", "|---|---|---|---|---|"]
    for subtasks in SUBTASKS:
        runs = [apart(code, "engine", str(subtasks)) for code in versions]
        columns = [
            ", ".join(shown.format(run[name]) for run in runs)
            for name, shown in [
                ("engine", "{:.1f}"),
                ("driver", "{:.2f}"),
                ("envelopes", "{:,.0f}"),
                ("metadata", "{:,.0f}"),
            ]
        ]
        lines.append(f"| {subtasks} | {' | '.join(columns)} |")
        sys.stderr.write(f"{lines[-1]}\n")
    return lines


def spark_table() -> list[str]:
    """The time of an epoch on Spark, by the number of subtasks and the limit."""
    lines = ["| subtasks | Spark's limit of 200, s | Headrace's, s |", "|---|---|---|"]
    for subtasks in SPARK_SUBTASKS:
        runs = [apart(ROOT, "spark", str(subtasks), *limit) for limit in (["200"], [])]
        seconds = " | ".join(f"{run['seconds']:.2f}" for run in runs)
        lines.append(f"| {subtasks} | {seconds} |")
        sys.stderr.write(f"{lines[-1]}\n")
    return lines


def main() -> int:
    """Measure, and write the tables into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="a checkout of the version to compare with")
    parser.add_argument("--spark", action="store_true", help="measure on a local Spark too")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        kind, subtasks, *limit = options.measure
        measured = (
            measure_engine(int(subtasks))
            if kind == "engine"
            else measure_spark(int(subtasks), limit[0] if limit else None)
        )
        sys.stdout.write(json.dumps(measured) + "\n")
        return 0
    lines = [
        f"Measured {datetime.now(UTC):%d %B %Y} on {platform.machine()}, {os.cpu_count()} cores.",
        "",
        *engine_table(options.before),
        "",
    ]
    lines += [*spark_table(), ""] if options.spark else []
    page = PAGE.read_text()
    head, tail = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(f"{head}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{tail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
