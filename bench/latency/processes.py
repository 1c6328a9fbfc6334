"""The processes that are measured: the command `headrace run`, and the script beside this on Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

HEADRACE, SPARK = "headrace", "spark"
ENGINES = (HEADRACE, SPARK)
BY_HAND = Path(__file__).parent / "by_hand.py"
QUIET = ("run", "--master", "local[2]", "--no-progress")
"""The arguments of `headrace`: as many cores as Spark gets, and nothing else that is not the default."""

_TABLE = """\
CREATE TABLE events (
  id BIGINT NOT NULL, key BIGINT NOT NULL, created BIGINT NOT NULL,
  at TIMESTAMP GENERATED ALWAYS AS (to_timestamp_micros(created)) STORED, WATERMARK FOR at
) WITH (connector = 'filesystem', path = '{input}', format = 'json'{watch});
"""
_WATCH = ", 'source.watch_interval' = '10ms'"
_SINK = """\
CREATE TABLE results ({columns}) WITH (
  connector = 'filesystem', path = '{output}', format = 'json', 'rolling_policy.interval' = '0s'
);
INSERT INTO results
"""
_FILTERED = "SELECT id, key, created FROM events WHERE key < 50;\n"
_COUNTED = """\
SELECT key, n, CAST(extract(epoch FROM span.end) AS BIGINT) * 1000000 AS created FROM (
  SELECT tumble(INTERVAL '1 second') AS span, key, count(*) AS n FROM events GROUP BY span, key
);
"""
_QUERIES = {
    "stateless": _SINK.replace("{columns}", "id BIGINT, key BIGINT, created BIGINT") + _FILTERED,
    "windowed": _SINK.replace("{columns}", "key BIGINT, n BIGINT, created BIGINT") + _COUNTED,
}


class RunFailedError(Exception):
    """A run of an engine failed."""


def command(engine: str, query: str, folder: Path) -> list[str]:
    """Read `folder`/in, and write what the query gives to `folder`/out; `first` prints rows instead."""
    source, target = folder / "in", folder / "out"
    if engine == SPARK:
        return [sys.executable, str(BY_HAND), query, str(source), str(target)]
    text = _TABLE.format(input=source, watch="" if query == "first" else _WATCH)
    text += _FILTERED if query == "first" else _QUERIES[query].format(output=target)
    file = folder / f"{query}.sql"
    file.write_text(text, encoding="utf-8")
    return [str(Path(sys.executable).parent / "headrace"), *QUIET, str(file)]


@contextmanager
def running(arguments: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The process, with its rows on `stdout`; on exit, it and its children are ended."""
    with (folder / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            arguments, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    started: list[psutil.Process] = []
    try:
        own = psutil.Process(process.pid)
        started = [own, *own.children(recursive=True)]
    except psutil.NoSuchProcess:
        pass  # it has ended by itself
    process.terminate()
    for child in psutil.wait_procs(started, timeout=20)[1]:
        child.kill()
    if process.stdout is not None:
        process.stdout.close()
    process.wait()


def output_of(folder: Path) -> str:
    """The end of what the process in `folder` has written to its standard error."""
    return (folder / "log").read_text(encoding="utf-8", errors="replace")[-3000:]
