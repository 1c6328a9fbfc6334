"""The results of bare SELECTs on a terminal: tables that are updated live and stay at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa

from headrace.api.standing_rows import Appended, Updated, printable
from headrace.cli.progress import Display, StatusDisplay, format_count
from headrace.connectors.preview import shown_by

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from headrace.sql.compile import Preview


class Results:
    """The results of the bare SELECTs of a program, in their order."""

    def __init__(self) -> None:
        self.shown: dict[str, Appended | Updated] = {}
        self._columns: dict[str, pa.Schema] = {}

    def sink(self, preview: Preview) -> tuple[str, dict[str, Any]]:
        """The sink for the rows of another SELECT."""
        name = f"query {len(self.shown) + 1}"
        columns = preview.columns
        self.shown[name] = Updated(columns, preview.key) if preview.updating else Appended(columns)
        self._columns[name] = columns
        return "preview", {"name": name}

    def add(self, name: str, rows: pa.Table) -> None:
        """Add the rows of an epoch to a result."""
        self.shown[name].add(rows)

    def render(self, height: int) -> list[RenderableType]:
        """The tables, which together fit into this many lines."""
        titled = len(self.shown) > 1
        each = max(1, height // len(self.shown) - (5 if titled else 3))  # lines that are not rows
        return [part for name in self.shown for part in self._table(name, each)][titled:]

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
            # A truncated number would be another number: only strings are narrowed.
            min_width = (
                max((len(row[index]) for row in rows), default=0)
                if number or pa.types.is_temporal(kind)
                else None
            )
            table.add_column(
                Text(printable(field.name), no_wrap=True, overflow="ellipsis"),
                justify="right" if number else "left",
                min_width=min_width,
            )
        for row in rows:
            table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
        caption = f"{format_count(result.total)} row{'' if result.total == 1 else 's'}"
        if result.total > len(rows):
            caption = f"last {len(rows)} {'changed ' if isinstance(result, Updated) else ''}of {caption}"
        title = [Text(""), Text(name, style="bold")] if len(self.shown) > 1 else []
        return [*title, table, Text(caption, style="dim")]


class LiveResults(StatusDisplay):
    """Live tables of results at the bottom of a terminal, with the progress line below them."""

    def __init__(
        self,
        results: Results,
        console: Console,
        *,
        progress: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.live import Live

        super().__init__(clock)
        self._results = results
        self._console = console
        self._progress = progress
        self._drawn: object = None
        self._news = 0
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

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
    def active(self) -> Iterator[LiveResults]:
        """Within the context, show results live; the last state stays on the screen."""
        with shown_by(self.add), self._live:
            try:
                yield self
            finally:
                with self._lock:
                    self._progress = False
                    self._draw()

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
        ).active() as live,
    ):
        yield live


@contextmanager
def _own_stdout() -> Iterator[TextIO]:
    """A duplicate of stdout: while Spark starts, the original descriptor is redirected to its log file."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with open(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding, errors="replace") as stream:  # noqa: PTH123
        yield stream
