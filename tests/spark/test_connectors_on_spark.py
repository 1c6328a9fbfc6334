"""Real servers through Spark: a driver that is killed twice, stopped and resumed, and every row counted.

One pipeline with several statements, so that few sessions serve all of it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headrace as hr
from tests.servers.http import table
from tests.servers.kafka import KafkaBroker
from tests.servers.mqtt import Mosquitto, subscribe
from tests.servers.postgres import Database
from tests.spark.connectors_victim import EPOCH_ROWS, NAME

REPOSITORY = Path(__file__).parents[2]
ORDERS, READINGS, KEYS = 3000, 600, 4
IN_TIME = 240.0
"""Nothing takes longer, unless it never happens."""


def write_sql(kafka: KafkaBroker, mosquitto: Mosquitto, postgres: Database, folder: Path) -> dict[str, str]:
    """Topics, directories and tables, and the pipeline between them."""
    names = {
        "orders": kafka.create(2),
        "copied": kafka.create(2),
        "readings": mosquitto.topic(),
        "files": str(folder / "files"),
        "lake": str(folder / "lake"),
    }
    postgres.run("CREATE TABLE totals (k BIGINT PRIMARY KEY, readings BIGINT, sum BIGINT)")
    # By size, not by the clock: some rows always wait when the driver dies, and a stop writes them.
    rolling = {"rolling_policy.interval": "1h", "rolling_policy.file_size": "3kB"}
    row = "n BIGINT, k BIGINT"
    statements = [
        table("kafka", row, "source", "orders", **kafka.options(names["orders"], source__offset="earliest")),
        table(
            "kafka",
            row,
            "sink",
            "copied",
            **kafka.options(names["copied"], sink__commit_mode="exactly_once"),
        ),
        table(
            "filesystem",
            row,
            "sink",
            "files",
            **{"format": "parquet", "path": names["files"], "partitioning.fields": "k", **rolling},
        ),
        table("delta", row, "sink", "lake", **{"format": "parquet", "path": names["lake"], **rolling}),
        table(
            "mqtt", row, "source", "readings", url=mosquitto.url, topic=names["readings"], qos="ExactlyOnce"
        ),
        table(
            "postgres",
            "k BIGINT PRIMARY KEY, readings BIGINT, sum BIGINT",
            "sink",
            "totals",
            format=None,
            url=postgres.url,
            table="totals",
        ),
        *(f"INSERT INTO {name} SELECT n, k FROM orders;" for name in ("copied", "files", "lake")),
        "INSERT INTO totals SELECT k, count(*), sum(n) FROM readings GROUP BY k;",
    ]
    (folder / "pipeline.sql").write_text("\n".join(statements))
    return names


def live_and_die(folder: Path, parallelism: int, step: str, epochs: int) -> None:
    """One life of the driver, in a process of its own, that ends at a step."""
    arguments = [folder / "pipeline.sql", folder / "state", parallelism, step, epochs]
    died = subprocess.run(
        [sys.executable, "-m", "tests.spark.connectors_victim", *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=IN_TIME,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, (step, died.stdout, died.stderr)


def rows_in_kafka(kafka: KafkaBroker, topic: str) -> Counter[int]:
    """What one sees who reads only what is committed."""
    return Counter(json.loads(message.value())["n"] for message in kafka.read(topic))


def rows_in_files(folder: str) -> Counter[int]:
    """What one sees who reads the directory, as all do: without what is hidden."""
    found: Counter[int] = Counter()
    for file in sorted(Path(folder).rglob("*.parquet")):
        parts = file.relative_to(folder).parts
        if not any(part.startswith((".", "_")) for part in parts):
            numbers = pq.ParquetFile(file).read().column("n").to_pylist()
            assert {f"k={n % KEYS}" for n in numbers} == {parts[0]}
            found.update(numbers)
    return found


def rows_in_lake(folder: str) -> Counter[int]:
    from deltalake import DeltaTable

    if not (Path(folder) / "_delta_log").exists():
        return Counter()
    return Counter(DeltaTable(folder).to_pyarrow_table().column("n").to_pylist())


def stopped_when(condition: Callable[[], bool]) -> threading.Event:
    """An event that is set when the condition holds, or after a long time."""
    stop, deadline = threading.Event(), time.monotonic() + IN_TIME

    def watch() -> None:
        while not stop.is_set() and time.monotonic() < deadline and not condition():
            time.sleep(0.2)
        stop.set()

    threading.Thread(target=watch, daemon=True).start()
    return stop


def rows(numbers: range) -> list[str]:
    return [json.dumps({"n": n, "k": n % KEYS}) for n in numbers]


@pytest.mark.timeout(1200)
def test_a_driver_killed_twice_stopped_and_resumed_leaves_every_row_once_in_each_system(
    kafka: KafkaBroker, mosquitto: Mosquitto, postgres: Database, tmp_path: Path
) -> None:
    pytest.importorskip("deltalake")
    names = write_sql(kafka, mosquitto, postgres, tmp_path)
    pipeline = hr.Pipeline.from_sql((tmp_path / "pipeline.sql").read_text(), name=NAME)
    subscribe(pipeline, tmp_path / "state")
    for partition in range(2):
        kafka.send(names["orders"], rows(range(partition, ORDERS, 2)), partition=partition)
    mosquitto.send(names["readings"], rows(range(READINGS // 2)), qos=2)

    def all_seen() -> tuple[Counter[int], Counter[int], Counter[int]]:
        return (
            rows_in_kafka(kafka, names["copied"]),
            rows_in_files(names["files"]),
            rows_in_lake(names["lake"]),
        )

    copied: Counter[int] = Counter()
    # Killed before the commit point, and between the commits of two sinks.
    for parallelism, step, epochs in ((2, "tasks_done", 2), (3, "sink_committed:sink_copied", 2)):
        live_and_die(tmp_path, parallelism, step, epochs)
        copied, files, lake = all_seen()
        assert set(copied.values()) <= {1}
        assert files <= copied
        assert lake <= copied
        mosquitto.send(names["readings"], rows(range(READINGS // 2, READINGS // 2 + 1)), qos=2)
    assert 0 < copied.total() < ORDERS

    # Stopped in order: nothing waits any more, and all systems have the same rows.
    stopped = pipeline.run(tmp_path / "state", parallelism=1, epoch_rows=EPOCH_ROWS, max_epochs=2)
    assert stopped.reason == "max_epochs"
    copied, files, lake = all_seen()
    assert set(copied.values()) == {1}
    assert files == lake == copied

    mosquitto.send(names["readings"], rows(range(READINGS // 2, READINGS)), qos=2)
    sent = [*range(READINGS // 2), READINGS // 2, READINGS // 2, *range(READINGS // 2, READINGS)]
    wanted = totals(sent)

    def counted() -> list[tuple[Any, ...]]:
        return postgres.rows("SELECT k, readings, sum FROM totals ORDER BY k")

    def complete() -> bool:
        return counted() == wanted and rows_in_kafka(kafka, names["copied"]).total() >= ORDERS

    pipeline.run(tmp_path / "state", parallelism=2, stop=stopped_when(complete))
    expected = Counter(range(ORDERS))
    assert all_seen() == (expected, expected, expected)
    assert counted() == wanted


def totals(numbers: list[int]) -> list[tuple[Any, ...]]:
    counts: Counter[int] = Counter(n % KEYS for n in numbers)
    sums: Counter[int] = Counter()
    for n in numbers:
        sums[n % KEYS] += n
    return [(k, counts[k], sums[k]) for k in sorted(counts)]
