"""The rows of a stream as a table, which is updated live in a notebook."""

from __future__ import annotations

import html
import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pyarrow as pa

from headrace.api.standing_rows import Appended, Cells, Updated, printable
from headrace.base.columns import RETRACT
from headrace.connectors.columns import without_hidden
from headrace.connectors.preview import forget_preview, show_apart
from headrace.jobs.handle import PipelineRun
from headrace.jobs.progress import RunResult

_POLL = 0.25
"""Seconds between two looks at a run whose rows are shown."""
_numbers = itertools.count(1)


class LiveTable:
    """The rows of a stream, as `stream.show()` and a bare SELECT in a notebook show them.

    It is redrawn after each epoch until the run ends. For an updating stream it shows the rows that are not
    retracted.

    >>> import pyarrow as pa
    >>> table = LiveTable("sales", pa.schema([("shop", pa.string()), ("amount", pa.int64())]))
    >>> table.add(pa.table({"shop": ["mill", "weir"], "amount": [3, 5]}))
    >>> table
    shop  amount
    ----  ------
    mill  3
    weir  5
    2 rows
    """

    def __init__(
        self,
        name: str,
        columns: pa.Schema | None = None,
        *,
        updating: bool = False,
        key: Sequence[str] = (),
        limit: int = 20,
    ) -> None:
        self.name = name
        self.limit = limit
        self._columns = pa.schema([]) if columns is None else columns
        self._rows = Updated(self._columns, key) if updating else Appended(self._columns)
        self._is_known = columns is not None
        self._changes = 0

    def add(self, rows: pa.Table) -> None:
        """Add the rows of an epoch.

        Args:
            rows: with the column `_retract` if the stream is updating.
        """
        if not self._is_known:
            self._columns = without_hidden(rows.schema)
            updating = RETRACT in rows.schema.names
            self._rows = Updated(self._columns) if updating else Appended(self._columns)
            self._is_known = True
        self._rows.add(rows)
        self._changes += 1

    @property
    def rows(self) -> list[Cells]:
        """The displayed rows as strings: at most `limit`, the newest last."""
        return self._rows.last(self.limit)

    @property
    def total(self) -> int:
        """The number of rows, shown or not."""
        return self._rows.total

    @property
    def _summary(self) -> str:
        count = f"{self.total:,} row{'' if self.total == 1 else 's'}"
        shown = len(self.rows)
        return count if shown >= self.total else f"the last {shown} of {count}"

    def __repr__(self) -> str:
        names = [printable(name) for name in self._columns.names]
        rows = self.rows
        if not names:
            return self._summary
        widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
        lines = [names, ["-" * width for width in widths], *rows]
        texts = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([*texts, self._summary])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self._columns.names)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<div>{table}<small>{html.escape(self._summary)}</small></div>"


class LiveTables:
    """The tables of one pipeline: the sinks for their rows, and how they are shown while it runs."""

    def __init__(self) -> None:
        self._tables: dict[str, LiveTable] = {}

    def __bool__(self) -> bool:
        return bool(self._tables)

    def add(self, table: LiveTable) -> tuple[str, dict[str, Any]]:
        """Show a table; returns the sink that takes its rows and its options."""
        name = f"{table.name} #{next(_numbers)}"
        self._tables[name] = table
        return "preview", {"name": name}

    @contextmanager
    def connected(self) -> Iterator[None]:
        """While it lasts, the rows of the previews reach their tables."""
        for name, table in self._tables.items():
            show_apart(name, lambda _, rows, table=table: table.add(rows))  # type: ignore[misc]
        try:
            yield
        finally:
            for name in self._tables:
                forget_preview(name)

    def follow(self, run: PipelineRun, *, timeout: float | None = None) -> RunResult | None:
        """Show the tables until the run ends or `timeout` seconds are over; an interrupt stops the run."""
        views = [_View(table) for table in self._tables.values()]
        waited = 0.0
        try:
            while (result := run.await_termination(_POLL)) is None:
                waited += _POLL
                for view in views:
                    view.refresh()
                if timeout is not None and waited >= timeout:
                    run.stop()
        except KeyboardInterrupt:
            run.stop()
            result = run.result
        for view in views:
            view.refresh()
        return result


class _View:
    """Displays a table in a notebook cell and updates it in place; does nothing elsewhere."""

    def __init__(self, table: LiveTable) -> None:
        self._table = table
        self._drawn = table._changes
        self._handle = (
            import_module("IPython.display").display(table, display_id=True) if in_notebook() else None
        )

    def refresh(self) -> None:
        """Redraw the table if it has changed."""
        if self._handle is not None and self._table._changes != self._drawn:
            self._drawn = self._table._changes
            self._handle.update(self._table)


def in_notebook() -> bool:
    """Whether the program runs in a kernel of IPython that shows what is displayed."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and hasattr(shell, "kernel")
