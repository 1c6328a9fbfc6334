"""A pipeline with exactly-once sinks under faults of every kind; at the end each row must be there once.

    python -m tests.soak faults --minutes 60 --seed 1

Every few seconds a fault: the driver, Java, Python's daemon or a worker is killed, or one of them is frozen
for some seconds; the disk of the state directory is full for a while (a small file system in memory, which
only root can make); the run is stopped and goes on. A driver that has ended is started again, at another
parallelism. Only processes that this program has started, and their children, are ever sent a signal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tests import flows
from tests.soak.processes import ROLES, family
from tests.soak.victim import KEYS, STEP, write_target

REPOSITORY = Path(__file__).parents[2]
RATE = 200
"""Numbers a second that the source gets."""
DISK_MB = 64
HUNG_SECONDS = 600.0
"""A run that commits nothing for so long, without a fault at work, is taken for hung."""
WINDOW = 10 * flows.SECOND


class Soak:
    """One directory, the run in it, and what was done to it."""

    def __init__(self, directory: Path, *, seed: int, has_disk: bool) -> None:
        self.directory = directory
        self.counts: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.problems: list[str] = []
        self._random = random.Random(seed)
        self._has_disk = has_disk
        self._begun = time.monotonic()
        self._run: subprocess.Popen[bytes] | None = None
        self._parallelism = 0
        self._moved = (b"", time.monotonic())
        self._seen = b""

    def say(self, text: str) -> None:
        """Print a line with the time since the beginning."""
        sys.stdout.write(f"{time.monotonic() - self._begun:7.1f} s  {text}\n")
        sys.stdout.flush()

    # ------------------------------------------------------------------------------------ the run

    def start(self) -> subprocess.Popen[bytes]:
        """Start the next life, at another parallelism than the last."""
        self._parallelism = self._random.choice([n for n in (1, 2, 3) if n != self._parallelism])
        self.counts["lives"] += 1
        with (self.directory / "victim.log").open("ab") as log:
            log.write(f"--- life {self.counts['lives']}, parallelism {self._parallelism}\n".encode())
            log.flush()
            self._run = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.victim", self.directory, str(self._parallelism)],
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._moved = (self._moved[0], time.monotonic())
        self._seen = self._progress()
        return self._run

    def alive(self) -> subprocess.Popen[bytes]:
        """The run that is there, or a new one; counts how the last one ended."""
        run = self._run
        if run is None:
            return self.start()
        if run.poll() is None:
            return run
        self.ends[_end(run.returncode)] += 1
        return self.start()

    def check_moves(self) -> None:
        """Note a problem if nothing was committed for a very long time."""
        now = self._progress()
        if now != self._moved[0]:
            self._moved = (now, time.monotonic())
        elif time.monotonic() - self._moved[1] > HUNG_SECONDS:
            self.problems.append(f"nothing was committed for {HUNG_SECONDS:.0f} s after {now!r}")

    def _progress(self) -> bytes:
        file = self.directory / "progress"
        return file.read_bytes() if file.exists() else b""

    def members(self, role: str) -> list[psutil.Process]:
        """The processes of the run with this role."""
        if self._run is None or self._run.poll() is not None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return [process for name, process in family(self._run.pid) if name == role]
        return []

    # ------------------------------------------------------------------------------------ faults

    def faults(self) -> dict[str, Callable[[], bool]]:
        """Each kind of fault; it returns whether there was something to do it to."""
        kinds: dict[str, Callable[[], bool]] = {"stop": self._stop}
        for role in ROLES:
            kinds[f"kill {role}"] = lambda role=role: self._kill(role)  # type: ignore[misc]
            kinds[f"freeze {role}"] = lambda role=role: self._freeze(role)  # type: ignore[misc]
        if self._has_disk:
            kinds["full disk"] = self._fill
        return kinds

    def _kill(self, role: str) -> bool:
        members = self.members(role)
        if members:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._random.choice(members).kill()
        return bool(members)

    def _freeze(self, role: str) -> bool:
        members = self.members(role)
        if not members:
            return False
        frozen = self._random.choice(members)
        with contextlib.suppress(psutil.NoSuchProcess):
            frozen.suspend()
            try:
                time.sleep(self._random.uniform(2, 8))
            finally:
                frozen.resume()
        return True

    def _fill(self) -> bool:
        filler = self.directory / "disk" / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(65536))
        time.sleep(self._random.uniform(3, 10))
        filler.unlink()
        return True

    def _stop(self) -> bool:
        if self._run is None or self._run.poll() is not None:
            return False
        self._run.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._run.wait(120)
        return True

    # ------------------------------------------------------------------------------------ the whole

    def run(self, minutes: float, *, pause: float) -> int:
        """Do faults for so long, then let the run finish; returns how many numbers it was given."""
        target = self.directory / "target"
        write_target(target, RATE, is_final=False)
        kinds = self.faults()
        due: list[str] = []
        ends = time.monotonic() + minutes * 60
        numbers = RATE
        while time.monotonic() < ends and not self.problems:
            self.alive()
            now = time.monotonic()
            wait = now + self._random.uniform(0.2, 2 * pause)
            # Most faults meet a run that is at work, some one that starts.
            patience = now + (90 if self._random.random() < 0.8 else 0)
            while (now := time.monotonic()) < ends and (
                now < wait or (now < patience and self._progress() == self._seen)
            ):
                time.sleep(0.2)
                numbers = RATE + int((time.monotonic() - self._begun) * RATE)
                write_target(target, numbers, is_final=False)
                self.check_moves()
            due = due or self._random.sample(sorted(kinds), len(kinds))
            name = due.pop()
            if kinds[name]():
                self.counts[name] += 1
                self.say(name)
        write_target(target, numbers, is_final=True)
        self._finish()
        return numbers

    def _finish(self) -> None:
        """Let the run end by itself, with no further fault."""
        for _ in range(10):
            if self.problems:
                return
            run = self.alive()
            while run.poll() is None and not self.problems:
                time.sleep(0.5)
                self.check_moves()
            if run.poll() == 0:
                self.ends[_end(0)] += 1
                return
        self.problems.append("the run did not finish, though nothing was done to it any more")

    def close(self) -> None:
        """End what is still there."""
        run = self._run
        if run is not None and run.poll() is None:
            for role in reversed(ROLES):
                for process in self.members(role):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            run.wait(60)

    # ------------------------------------------------------------------------------------ the result

    def check(self, numbers: int) -> None:
        """Note every way in which the rows of the sinks are not those of the numbers, each once."""
        out = self.directory / "out"
        wanted: Counter[tuple[int, ...]] = Counter((n, n % KEYS, n // KEYS + 1) for n in range(numbers))
        files = [file for file in (out / "counts").rglob("*.json*") if not file.name.startswith(".")]
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        self._compare("files", Counter((row["counter"], row["k"], row["n"]) for row in lines), wanted)
        with contextlib.closing(sqlite3.connect(out / "counts.db")) as database:
            rows = Counter(database.execute("SELECT counter, k, n FROM counts").fetchall())
        self._compare("SQLite", rows, wanted)
        windows: Counter[tuple[int, int]] = Counter()
        for n in range(numbers):
            windows[n % KEYS, (flows.T0 + n * STEP) // WINDOW * WINDOW] += 1
        written = [json.loads(line) for line in (out / "windows.jsonl").read_text().splitlines()]
        self._compare(
            "windows",
            Counter((row["k"], row["window_start"], row["n"]) for row in written),
            Counter((k, start, n) for (k, start), n in windows.items()),
        )

    def _compare(self, sink: str, rows: Counter[tuple[int, ...]], wanted: Counter[tuple[int, ...]]) -> None:
        missing, extra = wanted - rows, rows - wanted
        self.say(f"{sink}: {rows.total():,} rows, {missing.total()} missing, {extra.total()} too many")
        if missing or extra:
            self.problems.append(
                f"{sink}: missing {missing.total()} such as {list(missing)[:3]}, "
                f"too many {extra.total()} such as {list(extra)[:3]}"
            )


def _end(code: int) -> str:
    return {0: "finished or stopped", -signal.SIGKILL: "killed"}.get(code, f"ended with code {code}")


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[bool]:
    """A small file system in memory at `directory`, if this user may make one."""
    directory.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs"]
    mounted = subprocess.run(["mount", *options, str(directory)], capture_output=True, check=False)
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", str(directory)], check=False)


def main(arguments: list[str]) -> int:
    """Run as the command line says; 1 if a row is missing or too many, or a run hangs."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=8.0, help="seconds between two faults, on average")
    parser.add_argument("--dir", type=Path, help="keep everything here; else in a temporary directory")
    chosen = parser.parse_args(arguments)
    with contextlib.ExitStack() as opened:
        directory = chosen.dir or Path(opened.enter_context(tempfile.TemporaryDirectory()))
        for folder in (directory, directory / "out"):
            folder.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(directory / "out" / "counts.db")) as database:
            database.execute("CREATE TABLE counts (counter BIGINT, k BIGINT, n BIGINT)")
        soak = Soak(
            directory, seed=chosen.seed, has_disk=opened.enter_context(small_disk(directory / "disk"))
        )
        opened.callback(soak.close)
        numbers = soak.run(chosen.minutes, pause=chosen.pause)
        if not soak.problems:
            soak.check(numbers)
        for title, counts in (("done", soak.counts), ("lives that", soak.ends)):
            for name, count in sorted(counts.items()):
                sys.stdout.write(f"{title:12} {name:24} {count:5}\n")
        for problem in soak.problems:
            sys.stdout.write(f"PROBLEM {problem}\n")
        sys.stdout.write("exact\n" if not soak.problems else "failed\n")
        return 1 if soak.problems else 0
