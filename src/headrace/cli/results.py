"""The rows of a bare SELECT on a terminal: a table that changes as the rows come, and stays at the end."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa

from headrace.api.standing_rows import Appended, Updated, printable
from headrace.cli.progress import Display, format_count, progress_line
from headrace.connectors.preview import shown_by

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from headrace.jobs.progress import Progress
    from headrace.sql.compile import Preview


class Results:
    """The results that the bare SELECTs of a program show, in their order."""

    def __init__(self) -> None:
        self.shown: dict[str, Appended | Updated] = {}
        self._columns: dict[str, pa.Schema] = {}

    def sink(self, preview: Preview) -> tuple[str, dict[str, Any]]:
        """The sink for the rows of one more SELECT."""
        name = f"query {len(self.shown) + 1}"
        columns = preview.columns
        self.shown[name] = Updated(columns, preview.key) if preview.updating else Appended(columns)
        self._columns[name] = columns
        return "preview", {"name": name}

    def add(self, name: str, rows: pa.Table) -> None:
        """Take the rows of an epoch."""
        self.shown[name].add(rows)

    def render(self, height: int) -> list[RenderableType]:
        """The tables, so that they fit together into this many lines."""
        several = len(self.shown) > 1
        each = max(1, height // len(self.shown) - (5 if several else 3))  # lines that are not rows
        return [part for name in self.shown for part in self._table(name, each)][several:]

    def _table(self, name: str, height: int) -> list[RenderableType]:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        result, columns = self.shown[name], self._columns[name]
        rows = result.last(height)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for index, field in enumerate(columns):
            kind = field.type
            number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
            # A number cut short would be another number: only texts are narrowed.
            whole = (
                max((len(row[index]) for row in rows), default=0)
                if number or pa.types.is_temporal(kind)
                else None
            )
            table.add_column(
                Text(printable(field.name), no_wrap=True, overflow="ellipsis"),
                justify="right" if number else "left",
                min_width=whole,
            )
        for row in rows:
            table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
        said = f"{format_count(result.total)} row{'' if result.total == 1 else 's'}"
        if result.total > len(rows):
            said = f"last {len(rows)} {'changed ' if isinstance(result, Updated) else ''}of {said}"
        title = [Text(""), Text(name, style="bold")] if len(self.shown) > 1 else []
        return [*title, table, Text(said, style="dim")]


class LiveResults(Display):
    """Tables of results at the bottom of a terminal, a line about the run below; others write above them."""

    def __init__(
        self,
        results: Results,
        console: Console,
        *,
        progress: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.live import Live

        self._results = results
        self._console = console
        self._progress = progress
        self._clock = clock
        self._lock = threading.RLock()
        self._text = ""
        self._since: float | None = None
        self._drawn: object = None
        self._news = 0
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def update(self, progress: Progress) -> None:
        """Show the epoch from the next tick on."""
        with self._lock:
            self._text, self._since = progress_line(progress), None

    def say(self, message: str) -> None:
        """Show a message, and how long it has been so."""
        with self._lock:
            self._text, self._since = message, self._clock()
            self._draw()

    def tick(self) -> None:
        """Draw what has changed."""
        with self._lock:
            if (self._news, self._line(), self._console.size) != self._drawn:
                self._draw()

    def add(self, name: str, rows: pa.Table) -> None:
        """Rows of a result have been committed: the next tick draws them."""
        with self._lock:
            self._results.add(name, rows)
            self._news += 1

    @contextmanager
    def shown(self) -> Iterator[LiveResults]:
        """Show the results while they come, and leave the last of them on the screen."""
        with shown_by(self.add), self._live:
            try:
                yield self
            finally:
                with self._lock:
                    self._progress = False
                    self._draw()

    def _line(self) -> str:
        if self._since is None:
            return self._text
        seconds = int(self._clock() - self._since)
        return f"{self._text} {seconds}s" if seconds else self._text

    def _draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        self._drawn = (self._news, self._line(), self._console.size)
        parts: list[RenderableType] = []
        if self._news or not self._progress:
            parts += self._results.render(self._console.height - 2)
        if self._progress:
            parts.append(Text(self._line(), style="dim", no_wrap=True, overflow="ellipsis"))
        self._live.update(Group(*parts), refresh=True)


@contextmanager
def live_results(results: Results, *, progress: bool) -> Iterator[Display]:
    """Show results on the terminal that stdout is."""
    from rich.console import Console

    with (
        _own_stdout() as stream,
        LiveResults(
            results, Console(file=stream, force_terminal=True, highlight=False), progress=progress
        ).shown() as live,
    ):
        yield live


@contextmanager
def _own_stdout() -> Iterator[TextIO]:
    """Stdout by another file descriptor: while Spark starts, the usual one leads to its log file."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with open(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding, errors="replace") as stream:  # noqa: PTH123
        yield stream
