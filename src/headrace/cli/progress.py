"""The progress display of a run: one line about the last epoch, and a summary at the end.

On a terminal the line stays at the bottom of the screen and rows scroll above it. Elsewhere a line is written
every few seconds. Both go to stderr; stdout is for the rows.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TextIO

from headrace.base.durations import format_duration
from headrace.base.watermarks import Watermark

if TYPE_CHECKING:
    from headrace.jobs.progress import Progress, RunResult

EVERY = 5.0
"""Seconds between two lines when there is no terminal."""

REASONS = {
    "finished": "finished: every source has come to its end",
    "available_now": "ended: what was there at the start is read",
    "max_epochs": "stopped after the epochs that were asked for",
    "stopped": "stopped: everything up to the last epoch is committed",
    "immediate": "stopped at once by a source: the epoch it was in is not committed",
}

SIZES = ("B", "kB", "MB", "GB", "TB")


def format_count(number: float) -> str:
    """A count as `5,400`, and from a hundred thousand on as `350k`, `1.2M`, `3.4G`.

    >>> format_count(5400), format_count(1_234_567)
    ('5,400', '1.2M')
    """
    if abs(number) < 100_000:
        return f"{number:,.0f}"
    for unit in ("k", "M", "G"):
        number /= 1000
        if abs(number) < 999.5 or unit == "G":
            break
    return f"{number:.0f}{unit}" if abs(number) >= 99.95 else f"{number:.1f}{unit}"


def format_bytes(size: float) -> str:
    """A size as `812 B`, `3.4 MB`.

    >>> format_bytes(3_400_000)
    '3.4 MB'
    """
    unit = SIZES[0]
    for unit in SIZES:
        if size < 999.5 or unit == SIZES[-1]:
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"


def format_watermark(watermark: int | None) -> str:
    """Event time to the second, `none yet`, or `end of data`."""
    return "none yet" if watermark is None else str(Watermark(watermark)).partition(".")[0]


def progress_line(progress: Progress) -> str:
    """One line about the last epoch of a run."""
    parts = [
        f"epoch {progress.epoch}",
        f"in {format_count(progress.total_in)} ({format_count(progress.rows_per_second)}/s)",
        f"out {format_count(progress.total_out)}",
        f"watermark {format_watermark(progress.watermark)}",
        f"state {format_bytes(progress.state_bytes)}",
    ]
    if progress.late_rows:
        parts.append(f"late {format_count(progress.late_rows)}{_where_late(progress.late_by)}")
    if progress.bad_by:
        parts.append(_bad_records(progress.bad_by, progress.unreadable))
    return " · ".join(parts)


def _bad_records(bad_by: Mapping[str, int], unreadable: Sequence[str]) -> str:
    """How many records could not be read, by the kind of error; and whether that were all of a source."""
    kinds = ", ".join(f"{fault} {format_count(count)}" for fault, count in bad_by.items())
    count = sum(bad_by.values())
    text = f"{format_count(count)} bad record{'s' * (count != 1)} ({kinds})"
    return f"{text}: all of {' and '.join(unreadable)}" if unreadable else text


def _where_late(late_by: Mapping[str, int]) -> str:
    """The operators at which rows were late."""
    if len(late_by) == 1:
        return f" at {next(iter(late_by))}"
    counts = ", ".join(f"{node} {format_count(count)}" for node, count in late_by.items())
    return f" ({counts})" if counts else ""


def summary(result: RunResult, *, program: Sequence[str] | None, state_dir: str | None) -> str:
    """What a run did, and how to resume it if its state was kept; `program` is None for a submitted one."""
    rate = result.rows_per_second
    epochs = "no epochs"
    if result.epochs == 1:
        epochs = f"1 epoch ({result.last_epoch})"
    elif result.epochs:
        epochs = f"{result.epochs} epochs ({result.first_epoch}–{result.last_epoch})"
    if result.reason == "finished" and not result.epochs:
        size = format_bytes(result.state_bytes)
        return f"finished before: there is nothing left to read\n  state kept in {state_dir} · {size}"
    took = format_duration(timedelta(seconds=result.seconds))
    lines = [REASONS.get(result.reason, result.reason), f"  {epochs} in {took}"]
    state = f"state {format_bytes(result.state_bytes)}"
    if any("events" in counters for counters in result.metrics.values()):
        if result.reason == "finished":
            lines[0] = "finished: every operator has ended"
        lines.append(f"  {_counted_events(result)} · {state}")
    else:
        lines += [
            f"  {result.rows_in:,} rows in · {result.rows_out:,} rows out · {format_count(rate)} rows/s",
            f"  watermark {format_watermark(result.watermark)} · {state}",
        ]
    if result.late_rows:
        rows = "1 row" if result.late_rows == 1 else f"{result.late_rows:,} rows"
        lines.append(f"  {rows} came too late{_where_late(result.late_by)}")
    if result.bad_by:
        lines.append(f"  {_bad_records(result.bad_by, result.unreadable)}")
    lines += [f"  ! {warning}" for warning in result.warnings]
    if result.errors:
        lines += _reported(result)
    if state_dir is not None:
        lines.append(f"  state kept in {state_dir}")
        if result.reason != "finished":
            flags = ["--available-now"] if result.reason == "available_now" else []
            run = ["headrace", "run", *(program or ()), "--state-dir", state_dir, *flags]
            again = "the same `headrace submit`" if program is None else shlex.join(run)
            lines.append(f"  go on with: {again}")
    return "\n".join(lines)


def _counted_events(result: RunResult) -> str:
    """The events that the operators of a dataflow received, and those that were dropped."""
    names = {
        "events": "events",
        "dropped": "dropped by drop_oldest",
        "discarded": "for operators that had ended",
    }
    counts = {name: int(sum(counters.get(name, 0) for counters in result.metrics.values())) for name in names}
    return " · ".join(
        f"{counts[name]:,} {text}" for name, text in names.items() if counts[name] or name == "events"
    )


def _reported(result: RunResult) -> list[str]:
    """The problems operators reported without stopping the run, the most frequent first."""
    counts = Counter(result.errors).most_common()
    lines = [f"  {len(result.errors)} reported on the way without stopping the run:"]
    lines += [f"  ! {message}" + (f" ({count} times)" if count > 1 else "") for message, count in counts[:5]]
    if len(counts) > 5:
        lines.append(
            f"  ! and {len(counts) - 5} other kinds" + (f", in {result.log_file}" if result.log_file else "")
        )
    return lines


class Display:
    """Receives the progress of a run; this one shows nothing (`--quiet`, `--no-progress`).

    `update` and `say` may be called from any thread, `tick` a few times a second by the main one.
    """

    def update(self, progress: Progress) -> None:
        """An epoch has been committed."""

    def say(self, message: str) -> None:
        """Show a message between epochs."""

    def tick(self) -> None:
        """Time has passed: draw what has changed."""


class Lines(Display):
    """A line on stderr every few seconds, for logs and pipes; warnings at once."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._due = 0.0
        self._latest: Progress | None = None

    def update(self, progress: Progress) -> None:
        """Keep the latest progress; the next tick that is due writes it."""
        self._latest = progress
        for warning in progress.warnings:
            self._write(f"warning: {warning}")

    def say(self, message: str) -> None:
        """Write the message at once."""
        self._write(message)

    def tick(self) -> None:
        """Write the latest line if the last one is long enough ago."""
        progress, now = self._latest, self._clock()
        if progress is not None and now >= self._due:
            self._due, self._latest = now + EVERY, None
            self._write(progress_line(progress))

    def _write(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


class StatusDisplay(Display):
    """The base of displays on a terminal that have one line for the progress or a message."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._text = ""
        self._since: float | None = None

    def update(self, progress: Progress) -> None:
        """Show the epoch from the next tick on."""
        with self._lock:
            self._text, self._since = progress_line(progress), None

    def say(self, message: str) -> None:
        """Show a message, and for how many seconds it has been shown."""
        with self._lock:
            self._text, self._since = message, self._clock()
            self._draw()

    def _line(self) -> str:
        """The line, with the seconds since a message was first shown."""
        if self._since is None:
            return self._text
        seconds = int(self._clock() - self._since)
        return f"{self._text} {seconds}s" if seconds else self._text

    @abstractmethod
    def _draw(self) -> None: ...


class StatusLine(StatusDisplay):
    """A line at the bottom of a terminal; what others write appears above it."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console

        super().__init__(clock)
        self._stream = stream
        self._console = Console(file=stream, force_terminal=True, highlight=False)
        self._drawn = ""
        self._at_start = True

    def update(self, progress: Progress) -> None:
        """Show the epoch from the next tick on, and warnings above the line."""
        for warning in progress.warnings:
            self.write_above(self._stream, f"warning: {warning}\n")
        super().update(progress)

    def tick(self) -> None:
        """Redraw the line if it has changed."""
        with self._lock:
            if self._at_start and self._line() != self._drawn:
                self._draw()

    def write_above(self, stream: TextIO, text: str) -> int:
        """Write to a stream of the same terminal: the line is erased and redrawn below."""
        with self._lock:
            self._erase()
            written = stream.write(text)
            stream.flush()
            if text:
                self._at_start = text.endswith("\n")
            if self._at_start:
                self._draw()
            return written

    @contextmanager
    def active(self) -> Iterator[StatusLine]:
        """Within the context, keep the line below everything that is written to stdout and stderr."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            stack.enter_context(contextlib.redirect_stderr(_Above(sys.stderr, self)))
            if sys.stdout.isatty():
                stack.enter_context(contextlib.redirect_stdout(_Above(sys.stdout, self)))
            yield self

    def _end(self) -> None:
        with self._lock:
            self._erase()
            self._text = ""

    def _draw(self) -> None:
        from rich.text import Text

        self._erase()
        text = Text(self._line(), style="dim", no_wrap=True, overflow="ellipsis")
        text.truncate(max(self._console.width - 1, 1), overflow="ellipsis")
        self._console.print(text, end="")
        self._stream.flush()
        self._drawn = self._line()

    def _erase(self) -> None:
        if self._drawn:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
            self._drawn = ""


class _Above(io.TextIOBase):
    """Replaces stdout or stderr while a status line is at the bottom of the same terminal."""

    def __init__(self, stream: TextIO, line: StatusLine) -> None:
        self._target = stream
        self._line = line

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._target.encoding

    def write(self, text: str) -> int:
        return self._line.write_above(self._target, text)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        self._target.flush()

    def isatty(self) -> bool:
        return self._target.isatty()

    def fileno(self) -> int:
        return self._target.fileno()


@contextmanager
def display(*, progress: bool, verbose: bool) -> Iterator[Display]:
    """The display for stderr: a status line on a terminal; lines elsewhere, and beside Spark's log."""
    if not progress:
        yield Display()
        return
    with own_stderr() as stream:
        if stream.isatty() and not verbose:
            with StatusLine(stream).active() as line:
                yield line
        else:
            yield Lines(stream)


@contextmanager
def own_stderr() -> Iterator[TextIO]:
    """A duplicate of stderr: while Spark starts, the original descriptor is redirected to its log file."""
    try:
        descriptor = os.dup(sys.stderr.fileno())
    except (OSError, ValueError):
        yield sys.stderr  # not a file: a test's or a notebook's
        return
    with open(descriptor, "w", encoding=sys.stderr.encoding, errors="replace") as stream:  # noqa: PTH123
        yield stream
