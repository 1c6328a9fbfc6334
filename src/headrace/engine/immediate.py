"""Sinks that get rows at once, while the epoch of those rows goes on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import copy_context

import pyarrow as pa

from headrace.engine.chain import load_operator
from headrace.model.ahead import PublishesAtOnce
from headrace.model.operator import OperatorContext
from headrace.model.plan import PlanNode


class ImmediateSink:
    """Publishes rows in a thread of its own: whoever sends them does not wait for the outside system.

    After the first failure nothing more is published. `flush` raises it, so that the epoch fails: its rows
    are then published by its commit, as those of any other sink.
    """

    def __init__(self, node: PlanNode, ctx: OperatorContext) -> None:
        sink = load_operator(node)
        if not isinstance(sink, PublishesAtOnce):
            raise TypeError(f"`{node.id}` cannot publish at once")
        self._sink, self._ctx = sink, ctx
        self._changed = threading.Condition()
        self._waiting: list[pa.RecordBatch] = []
        self._at_work = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._is_over = False

    def publish(self, rows: pa.RecordBatch) -> None:
        """Publish rows soon; they are behind all that were given before."""
        with self._changed:
            if self._failure is not None:
                return
            self._waiting.append(rows)
            self._changed.notify_all()
            if self._thread is None:
                name = f"sink {self._ctx.task_info.operator_id}"
                self._thread = threading.Thread(
                    target=copy_context().run, args=(self._work,), name=name, daemon=True
                )
                self._thread.start()

    def flush(self) -> None:
        """Return when all rows are published; raises an error if they could not be."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or not (self._waiting or self._at_work))
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        """Publish no more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _work(self) -> None:
        while rows := self._take():
            try:
                self._sink.publish(rows, self._ctx)
            except BaseException as error:  # noqa: BLE001 - raised by `flush`
                with self._changed:
                    self._failure, self._at_work = error, False
                    self._waiting.clear()
                    self._changed.notify_all()
                return

    def _take(self) -> Sequence[pa.RecordBatch]:
        """All rows that wait; none when it is over."""
        with self._changed:
            self._at_work = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._is_over)
            rows, self._waiting = self._waiting, []
            self._at_work = bool(rows)
            return [] if self._is_over else rows


class ImmediateSinks:
    """The sinks that read one output."""

    def __init__(self, sinks: Sequence[ImmediateSink]) -> None:
        self._sinks = sinks

    def publish(self, rows: pa.RecordBatch) -> None:
        """Give rows to each."""
        for sink in self._sinks:
            sink.publish(rows)

    def flush(self) -> None:
        """Wait for all."""
        for sink in self._sinks:
            sink.flush()

    def close(self) -> None:
        """Publish no more."""
        for sink in self._sinks:
            sink.close()
