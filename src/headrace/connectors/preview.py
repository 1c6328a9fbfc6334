"""The `preview` sink: pass the rows of a bare SELECT to a callback in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from pydantic import Field

from headrace.base.options import Options as DeclaredOptions
from headrace.connectors.base import RowsSink, unify_schemas, without_event_time
from headrace.model.operator import OperatorContext

Show = Callable[[str, pa.Table], None]
"""Called with the name of a preview and the rows of one epoch; `_retract` is a column if rows change."""

_show: Show | None = None
_with_times = False


@contextmanager
def shown_by(show: Show, *, with_times: bool = False) -> Iterator[None]:
    """Within the block, pass the rows of every preview to `show`, epoch by epoch, on the driver.

    `with_times` leaves the event times in them, as the column `_timestamp`.
    """
    global _show, _with_times
    before = _show, _with_times
    _show, _with_times = show, with_times
    try:
        yield
    finally:
        _show, _with_times = before


_SHOWN_APART: dict[str, Show] = {}
"""Previews whose rows are handed to someone of their own, by name."""


def show_apart(name: str, show: Show) -> None:
    """Hand the rows of the preview `name` to `show`, in this process, until `forget_preview`."""
    _SHOWN_APART[name] = show


def forget_preview(name: str) -> None:
    """No longer hand the rows of a preview to anyone of its own."""
    _SHOWN_APART.pop(name, None)


class PreviewSink(RowsSink):
    """Shows committed rows in the process of the driver, and stores nothing.

    Rows appear when their epoch is committed, in the order of subtasks, and once, however often the commit is
    retried in this process. A resumed pipeline shows new rows only; an epoch whose commit was interrupted may
    be shown again by the next process.
    """

    accepts_updates = True

    class Options(DeclaredOptions):
        """The options of the preview sink."""

        name: str = Field("preview", min_length=1, description="The display name of the rows.")

    options: Options

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext
    ) -> None:
        """Pass the rows of the epoch to the callback."""
        batches, attempts = self.staged_rows(data, ctx)
        key = (ctx.task_info.job_id, ctx.task_info.operator_id)
        if not batches or _SHOWN.get(key) == attempts:
            return
        ctx.check_generation()
        _SHOWN[key] = attempts
        show = _SHOWN_APART.get(self.options.name, _show)
        if show is not None:
            shown = batches if _with_times else [without_event_time(batch) for batch in batches]
            show(self.options.name, pa.Table.from_batches(unify_schemas(shown)))


_SHOWN: dict[tuple[str, str], frozenset[str]] = {}
"""By preview: the attempts that staged the rows shown last."""
