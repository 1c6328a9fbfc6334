"""Runs an engine in a process of its own, watches its memory, and compares the rows of engines."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from bench.nexmark.data import Events
from bench.nexmark.spark_queries import SPARK_QUERIES

STORES = ("spark", "spark rocksdb")
"""Structured Streaming, with each of its state stores."""
LITERAL = "spark literal"
"""Structured Streaming with the query word for word, where it has a faster way."""
ENGINES = ("headrace", *STORES, LITERAL, "datafusion")
PEERS = ("pyflink", "bytewax", "pathway")
_ROOT = Path(__file__).parents[2]
_PEERS = _ROOT / "bench" / "peers"
LIMIT = 240.0
"""Seconds that a run may take."""
_ENOUGH = 2
"""Batches that a run needs once it is warm, if it was not done in time."""
_WARM_UP = 1 / 3
"""The share of the batches at the beginning that does not count: processes start, code is compiled."""


@dataclass(frozen=True)
class Run:
    """The result of one run of a query in an engine."""

    engine: str
    query: str
    events: int
    batches: tuple[tuple[int, float], ...]
    seconds: float
    memory: int
    """The peak memory of all its processes, in bytes."""
    cores: int = 2
    failure: str = ""
    """Why it did not finish; then `batches` are those so far."""

    @property
    def counts(self) -> bool:
        """Whether it has a rate: it finished, or had enough batches after the warm-up."""
        return len(self.steady) >= (_ENOUGH if self.failure else 1)

    @property
    def steady(self) -> tuple[tuple[int, float], ...]:
        """The batches that count: without the warm-up, and without empty ones."""
        full = [batch for batch in self.batches if batch[0]]
        return tuple(full[max(1, round(len(full) * _WARM_UP)) :] or full)

    @property
    def rate(self) -> float:
        """Events per second after the warm-up; the time of empty batches counts."""
        counted = self.batches[self.batches.index(self.steady[0]) :]
        return sum(rows for rows, _ in counted) / sum(seconds for _, seconds in counted)

    def __str__(self) -> str:
        rate = f"{self.rate:,.0f} events per second" if self.counts else "no rate"
        return f"{self.query}, {self.engine}: {rate}{self.failure and f' ({self.failure})'}"

    @property
    def batch_seconds(self) -> float:
        """The median time of a batch."""
        return statistics.median(seconds for _, seconds in self.steady)


def can_run(engine: str, query: str) -> bool:
    """Whether the engine can express the query, and whether running it makes sense."""
    if not engine.startswith("spark"):
        return True
    spark_query = SPARK_QUERIES.get(query)
    if spark_query is None:
        return False
    return spark_query.literal is not None if engine == LITERAL else engine in spark_query.stores


def peer_python(peer: str) -> Path:
    """The Python interpreter of a peer's environment."""
    return _ROOT / "build" / "peers" / peer / "bin" / "python"


def peer_queries(peer: str) -> list[str]:
    """The queries that a peer supports; none if it is not installed."""
    queries_file = _PEERS / "queries.json"
    if not (queries_file.exists() and peer_python(peer).exists()):
        return []
    queries: list[str] = json.loads(queries_file.read_text(encoding="utf-8")).get(peer, [])
    return queries


def run(engine: str, query: str, events: Events, *, rows: Path | None = None, cores: int = 2) -> Run:
    """Run a query once; what fails or takes too long is a run with the batches so far and the reason."""
    command = [sys.executable, "-m", "bench.nexmark.engines", engine, query]
    if engine in PEERS:
        command = [str(peer_python(engine)), str(_PEERS / f"run_{engine}.py"), query]
    command += ["--folder", str(events.folder.absolute()), "--count", str(events.count)]
    if engine not in PEERS:
        command += ["--per-batch", str(events.per_batch), "--cores", str(cores), "--limit", f"{LIMIT}"]
    command += ["--rows", str(rows)] if rows else []
    answer, failure, memory = _watch(command, cores)
    batches = tuple((rows, seconds) for rows, seconds in answer.get("batches", ()))
    if not answer.get("done", True):
        failure = f"not done in {LIMIT:.0f} s"
    return Run(engine, query, events.count, batches, answer.get("seconds", 0.0), memory, cores, failure)


def _watch(command: list[str], cores: int) -> tuple[dict[str, Any], str, int]:
    """The line of JSON that a process prints, or why it printed none, and the most memory it held.

    It and all that it starts have so many cores, whatever they make of what they are told.
    """
    with tempfile.TemporaryFile("w+") as written:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=written, text=True)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[:cores])
        watch = _Memory(process.pid)
        try:
            out, _ = process.communicate(timeout=LIMIT + 30)
        except subprocess.TimeoutExpired:
            _end(process)
            return {}, f"not done in {LIMIT:.0f} s", watch.most
        finally:
            watch.stop()
        if process.returncode:
            written.seek(0)
            end = written.read()[-2000:]
            print(end, file=sys.stderr)
            return {}, (end.strip().splitlines() or ["failed"])[-1][:200], watch.most
    return json.loads(out.splitlines()[-1]), "", watch.most


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and its children."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in children:
        if child.is_running():
            child.kill()
    process.wait()


class _Memory:
    """Samples the memory of a process and its children."""

    def __init__(self, pid: int) -> None:
        self.most = 0
        self._process = psutil.Process(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.25):
            try:
                processes = [self._process, *self._process.children(recursive=True)]
                self.most = max(self.most, sum(_held(process) for process in processes))
            except psutil.NoSuchProcess:
                return

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def _held(process: psutil.Process) -> int:
    """Its proportional memory: workers are forks and share pages."""
    try:
        held: int = process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0
    return held


def differences(query: str, events: Events, engines: Iterable[str]) -> list[str]:
    """The differences between the rows of the first engine and those of the others."""
    problems: list[str] = []
    first: tuple[str, Counter[Any]] | None = None
    with tempfile.TemporaryDirectory() as folder:
        for number, engine in enumerate(engines):
            path = Path(folder) / f"{number}.parquet"
            failure = run(engine, query, events, rows=path).failure
            if failure:
                problems.append(f"{query}, {engine}: {failure}")
                continue
            answer = _rows(pq.read_table(path))
            first = first or (engine, answer)
            if answer != first[1]:
                more, less = answer - first[1], first[1] - answer
                problems.append(
                    f"{query}: {engine} has {more.total()} rows that {first[0]} has not, such as "
                    f"{next(iter(more), None)}, and lacks {less.total()}, such as {next(iter(less), None)}"
                )
    return problems


def _rows(table: pa.Table) -> Counter[Any]:
    """The rows with their numbers, in types that all engines share."""
    columns = [_plain(table[name]).to_pylist() for name in sorted(table.column_names)]
    return Counter(zip(*columns, strict=True))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        return column.cast(pa.float64())
    return column.cast(pa.string())
