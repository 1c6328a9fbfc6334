"""kill -9 and SIGSTOP for any pipeline, and what its connectors have promised, checked by counting.

A child process runs the pipeline with the in-process engine; it is killed at moments that a seeded generator
draws, many of them inside commits, and started again on the same state. Every life gets rows of its own
before it starts, so that none is done before it is killed, however slow or fast the machine is. The last
life goes on until all is there, and is stopped in good order. Then rows are counted.

A life can also be frozen at such a moment: the next one takes over and goes on, and the frozen one wakes up.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace import Pipeline
from headrace.connectors.base import Delivery, Promise
from headrace.engine.chain import load_operator
from tests.servers.http import table
from tests.servers.victim import EPOCH_ROWS, FAILED, NAME, STOPPED, live

KILLS, FREEZES = 5, 3
ROWS_OF_A_LIFE = 3 * EPOCH_ROWS
IN_TIME = 120.0
"""Nothing here takes longer, unless it never happens."""
TO_START, QUIET = 10.0, 2.0
"""A life that says nothing for so long is killed where it is."""
STARTED = "started"
MOMENTS = (
    *(STARTED, "begin", "tasks_done", "operators_written", "committed"),
    *("metadata_written", "metadata_written", "metadata_written", "sink_committed"),
)
"""After which step a life is killed; what follows `metadata_written` is the commit."""
PRELOADED = [
    *("headrace.sql.compile", "headrace.testing.in_process", "pytest"),
    *("headrace.connectors.filesystem.source", "headrace.connectors.single_file.source"),
    *("confluent_kafka.admin", "deltalake", "httpx", "nats", "paho.mqtt.client", "pika", "psycopg"),
    *("pyiceberg.catalog.sql", "redis", "websockets.sync.client"),
]

log = logging.getLogger(__name__)
_processes = multiprocessing.get_context("forkserver")
# What takes long to import is imported once, by a process that every life is a fork of; what is not
# installed is left out.
_processes.set_forkserver_preload(PRELOADED)


class Life:
    """A process that runs a pipeline."""

    def __init__(self, sql: str, state: Path) -> None:
        self._talk, other = _processes.Pipe()
        self._process = _processes.Process(target=live, args=(sql, state, other), daemon=True)
        self._process.start()
        other.close()

    def hear(self, seconds: float) -> str | None:
        """The next step that it comes past; None if there was none for a while."""
        if not self._talk.poll(seconds):
            return None
        try:
            step, more = self._talk.recv()
        except EOFError:
            self._process.join()
            raise AssertionError(f"it ended by itself with {self._process.exitcode}") from None
        assert step != FAILED, f"it failed:\n{more}"
        return str(step)

    def attend(self, seconds: float) -> None:
        """Let it go on for a while."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.hear(left)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.join()
        self._talk.close()
        assert self._process.exitcode == -signal.SIGKILL, "it ended by itself"

    def stop(self) -> None:
        """Let it end in good order."""
        self._talk.send(STOPPED)
        deadline = time.monotonic() + IN_TIME
        while self.hear(1.0) != STOPPED:
            assert time.monotonic() < deadline, "it does not stop"
        self._process.join(IN_TIME)
        self._talk.close()
        assert self._process.exitcode == 0

    def freeze(self) -> None:
        """Suspend it."""
        self._signal(signal.SIGSTOP)

    def wake_up(self) -> None:
        """Let it go on; it finds that it was replaced."""
        self._signal(signal.SIGCONT)
        deadline = time.monotonic() + IN_TIME
        step, more = "", ""
        while step != FAILED:
            assert self._talk.poll(max(0.0, deadline - time.monotonic())), "it does not end"
            step, more = self._talk.recv()
        assert "ReplacedError" in more, more
        self._process.join(IN_TIME)
        self._talk.close()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def end(self) -> None:
        """Make sure that it is gone."""
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class Killer:
    """Draws moments and hits them: some way between a step and the next, as far apart as they were before."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._gaps: dict[str, float] = defaultdict(lambda: 0.005, {STARTED: 0.2})

    def strike(self, life: Life, hit: Callable[[Life], None] = Life.kill) -> str:
        """Kill or freeze a life; says when."""
        step, times = self._random.choice(MOMENTS), self._random.randint(1, 2)
        part = self._random.random()
        left, last, since = times, STARTED, time.monotonic()
        while not (last == step and (step == STARTED or left == 0)):
            heard = life.hear(TO_START if last == STARTED else QUIET)
            if heard is None:
                break
            now = time.monotonic()
            self._gaps[last] = now - since
            last, since = heard, now
            left -= last == step
        time.sleep(part * min(self._gaps[last], 1.0))
        hit(life)
        return f"{last} + {part * self._gaps[last] * 1000:.1f} ms"


def kill_and_count(
    sql: str,
    state: Path,
    *,
    feed: Callable[[Sequence[int]], None],
    seen: Callable[[], Counter[int]],
    holds: Collection[str] = (),
) -> Counter[int]:
    """Copy numbers from a source to a sink in a run that is killed again and again; returns what came.

    `feed` gives the source more numbers, and `seen` counts what the sink has. What has to be true of the
    count is read from the `deliveries` of the connectors; `holds` names other conditions than options.
    """
    promise, fed = promised(sql, holds), 0
    killer, moments = Killer(state.parent.name), []
    for number in range(KILLS + 1):
        feed(range(fed, fed + ROWS_OF_A_LIFE))
        fed += ROWS_OF_A_LIFE
        life = Life(sql, state)
        try:
            if number < KILLS:
                moments.append(killer.strike(life))
                continue
            deadline, last = time.monotonic() + IN_TIME, fed
            while not _all_there(promise, seen(), range(last), fed):
                text = f"{promise}: {_miscounted(seen(), fed)} after {IN_TIME} s; killed at {moments}"
                assert time.monotonic() < deadline, text
                if promise == "at most once":  # any may be one of those that are lost
                    feed([fed])
                    fed += 1
                life.attend(0.05)
            life.stop()
        finally:
            life.end()
    found = seen()
    lost, doubled = _miscounted(found, fed)
    log.info("%s: %s rows, lost %s, doubled %s, killed at %s", promise, fed, lost, doubled, moments)
    told = f"promised {promise}: lost {lost}, doubled {doubled}, killed at {moments}"
    assert set(found) <= set(range(fed)), told
    assert not lost or promise == "at most once", told
    assert not doubled or promise == "at least once", told
    return found


def freeze_and_count(
    sql: str,
    state: Path,
    *,
    feed: Callable[[Sequence[int]], None],
    seen: Callable[[], Counter[int]],
    holds_messages: bool = False,
) -> None:
    """Copy numbers in runs of which each is frozen, replaced, and woken up when its successor has gone on.

    `holds_messages` says that a server keeps messages for a connection that is frozen.
    """
    promise, fed = promised(sql), 0
    killer, moments = Killer(state.parent.name), list[str]()

    def feed_more() -> None:
        nonlocal fed
        feed(range(fed, fed + ROWS_OF_A_LIFE))
        fed += ROWS_OF_A_LIFE

    def attend(life: Life) -> None:
        deadline = time.monotonic() + IN_TIME
        while not _all_there(promise, seen(), range(fed), fed):
            text = f"{promise}: {_miscounted(seen(), fed)} after {IN_TIME} s; frozen at {moments}"
            assert time.monotonic() < deadline, text
            life.attend(0.05)

    for _ in range(FREEZES):
        feed_more()
        frozen = Life(sql, state)
        try:
            while frozen.hear(IN_TIME) != "claimed":  # before that it would replace the other one
                pass
            moments.append(killer.strike(frozen, Life.freeze))
            successor = Life(sql, state)
            try:
                successor.attend(2.0) if holds_messages else attend(successor)
                feed_more()
                frozen.wake_up()
                attend(successor)
                successor.stop()
            finally:
                successor.end()
        finally:
            frozen.end()
    lost, doubled = _miscounted(seen(), fed)
    log.info("%s: %s rows, lost %s, doubled %s, frozen at %s", promise, fed, lost, doubled, moments)
    told = f"promised {promise}: lost {lost}, doubled {doubled}, frozen at {moments}"
    assert not lost, told
    assert not doubled or promise == "at least once", told


def _all_there(promise: Promise, found: Counter[int], rows: range, fed: int) -> bool:
    if promise == "at most once":
        return any(one in found for one in range(rows.stop, fed))
    return set(rows) <= set(found)


def _miscounted(found: Counter[int], fed: int) -> tuple[list[int], list[int]]:
    """What is missing, and what is there too often."""
    expected = Counter(range(fed))
    return sorted(expected - found), sorted(found - expected)


# ------------------------------------------------------------------------------------- files at one end


class Files:
    """A directory that is watched by a source: numbers come as files of lines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "numbers"
        self.folder.mkdir()
        self.sql = table("filesystem", "n BIGINT", path=self.folder, source__watch_interval="20ms")

    def feed(self, numbers: Sequence[int]) -> None:
        """Add a file, in one step."""
        part = self.folder.with_suffix(".part")
        part.write_text("".join(f"{line}\n" for line in lines(numbers)))
        part.replace(self.folder / f"{numbers[0]:06}.json")


class Output:
    """A file that numbers are copied to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "copied.json"
        self.sql = table("single_file", "n BIGINT", "sink", "copied", path=self.path)

    def seen(self) -> Counter[int]:
        """The numbers of whole lines."""
        text = self.path.read_text() if self.path.exists() else ""
        return Counter(json.loads(line)["n"] for line in text.splitlines(keepends=True) if line[-1] == "\n")


def lines(numbers: Sequence[int]) -> list[str]:
    """Numbers as rows."""
    return [json.dumps({"n": n}) for n in numbers]


def copying(source: str, sink: str) -> str:
    """The SQL that copies one table to another."""
    return f"{source} {sink} INSERT INTO copied SELECT n FROM numbers;"


# ------------------------------------------------------------------------------------------ promises


def promised(sql: str, holds: Collection[str] = ()) -> Promise:
    """What the source and the sink of a pipeline promise together, with their options."""
    nodes = Pipeline.from_sql(sql, name=NAME).plan().nodes
    ends = [load_operator(node) for node in nodes if node.role in {"source", "sink"}]
    found = {
        delivery_of(end.deliveries, end.options.model_dump(by_alias=True), holds).promise for end in ends
    }
    weaker: set[Promise] = found - {"exactly once"}
    assert len(weaker) < 2, "together they promise nothing"
    return next(iter(weaker), "exactly once")


def delivery_of(
    deliveries: Sequence[Delivery], options: Mapping[str, Any], holds: Collection[str] = ()
) -> Delivery:
    """The one delivery whose condition is met."""
    (found,) = [one for one in deliveries if one.when in {"", *holds} or _is_met(one.when, options)]
    return found


def _is_met(when: str, options: Mapping[str, Any]) -> bool:
    """Whether a condition such as "`a` = 'x' or 'y' and no `b`" is true of options."""
    for part in when.split(" and "):
        read = re.fullmatch(r"(no )?`?([\w.]+)`?( = '.+')?", part)
        if read is None:
            return False
        absent, name, values = read.groups()
        given = options.get(name)
        met = given is not None if values is None else f"{given}" in re.findall(r"'([^']*)'", values)
        if met == bool(absent):
            return False
    return True
