"""`python -m bench.latency.feed FOLDER BEGIN RATE SECONDS`: events as they happen, in whole files.

Event n is created at BEGIN + n / RATE. Every 50 milliseconds those that have been created since are written
into a file, which is renamed into FOLDER/in.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

KEYS = 100
EVERY = 0.05
"""Seconds between files."""


def write_events(folder: Path, name: str, begin: float, rate: int, first: int, last: int) -> None:
    """Let a file with the events from `first` to before `last` appear."""
    origin = round(begin * 1e6)
    lines = (
        f'{{"id":{n},"key":{n % KEYS},"created":{origin + n * 1_000_000 // rate}}}\n'
        for n in range(first, last)
    )
    aside = folder / name
    aside.write_text("".join(lines), encoding="utf-8")
    aside.rename(folder / "in" / f"{name}.json")


def feed(folder: Path, begin: float, rate: int, seconds: float) -> None:
    """Write events until `seconds` after `begin`."""
    done, number = 0, 0
    while done < rate * seconds:
        number += 1
        time.sleep(max(0.0, begin + number * EVERY - time.time()))
        due = min(int((time.time() - begin) * rate), int(rate * seconds))
        write_events(folder, f"{number:06}", begin, rate, done, due)
        done = due


if __name__ == "__main__":
    feed(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
