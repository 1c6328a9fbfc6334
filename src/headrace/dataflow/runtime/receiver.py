"""A user's process as a source: its messages are logged, because they cannot be read again."""

from __future__ import annotations

import contextlib
import sys
import time as clock
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.base.errors import OperatorError
from headrace.connectors.received import LoggedSource, ReceivedLog
from headrace.dataflow.document.model import Output, Unit
from headrace.dataflow.runtime.messages import Closed, Message
from headrace.dataflow.runtime.operator import output_key
from headrace.dataflow.runtime.packing import pack
from headrace.dataflow.runtime.printed import LINES, Line, encode_lines
from headrace.dataflow.runtime.process import ProcessNode
from headrace.model.operator import Collector, Finish, SourceContext

_EPOCH_BYTES = 64 * 1024 * 1024
_EPOCH_SECONDS = 0.05
_WAIT_SECONDS = 0.002
"""How long to wait for a first message."""


class ProcessSource(LoggedSource):
    """The messages of a node without inputs, in the order it sent them.

    The process runs beside the driver. What it sends is written to the state directory before an epoch may
    read it, so each message that was received is handled exactly once. A process that ends with 0 ends the
    source. After a crash of the run it is started again, and what it sends again is new.
    """

    def __init__(self, unit: Unit, *, directory: Path, descriptor: Mapping[str, Any]) -> None:
        self._unit = unit
        self._directory = directory
        self._descriptor = descriptor
        self._process: ProcessNode | None = None
        self._lines: deque[Line] = deque()
        """What the process has printed: its threads append at any time, so it is emptied, never replaced."""
        self._taken: list[Line] = []
        """Lines taken from it that are not in the log yet."""
        self._restarts: list[float] = []

    def __getstate__(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {
            "_process": None,
            "_log": None,
            "_lines": deque(),
            "_taken": [],
            "_restarts": [],
        }
        return {**self.__dict__, **fresh}

    @property
    def name(self) -> str:
        return "process"

    def display(self) -> str:
        """What runs."""
        return f"process({' '.join(self._unit.command)})"

    def close(self) -> None:
        """End the process; what it still sends is kept for the next run."""
        process, self._process = self._process, None
        if process is None:
            return
        last: list[tuple[str, Message | Closed]] = []

        def keep(output: str, value: Any, metadata: Mapping[str, Any] | None) -> None:
            last.append((self._key(output), Message(value, clock.time_ns(), metadata)))

        with contextlib.suppress(OperatorError):  # how it ended no longer matters
            process.finish(keep)
        process.close()
        self._take_lines()
        if last or self._taken:
            self._write(last, ended=False)

    def receive(self, rows: int) -> bool:
        """Write what the process has sent and printed to the log."""
        if self._process is None:
            self._start()
        messages, ended = self._receive(rows)
        if messages or self._taken or ended:
            self._write(messages, ended=ended)
        return ended

    def _start(self) -> None:
        self._process = ProcessNode(
            self._unit,
            directory=self._directory,
            python=sys.executable,
            descriptor=self._descriptor,
            log=self._note,
        )
        self._process.start(None)

    def _note(self, stream: str, text: str) -> None:
        line = Line(self._unit.address, stream, text, clock.time())
        if line.reaches(self._unit.min_log_level):
            self._lines.append(line)

    def _receive(self, rows: int) -> tuple[list[tuple[str, Message | Closed]], bool]:
        process = self._process
        assert process is not None
        messages: list[tuple[str, Message | Closed]] = []
        size, wait, deadline = 0, _WAIT_SECONDS, clock.monotonic() + _EPOCH_SECONDS
        while len(messages) < rows and size < _EPOCH_BYTES and clock.monotonic() < deadline:
            ended = process.ended
            received = process.receive(wait)
            wait = 0.0
            for output, value, time, metadata in received:
                messages.append((self._key(output), Message(value, time, metadata)))
                size += value.nbytes
            if ended is not None and not received:
                return self._last(messages, ended)
            if not received:
                break
        return messages + self._printed(), False

    def _last(
        self, messages: list[tuple[str, Message | Closed]], code: int
    ) -> tuple[list[tuple[str, Message | Closed]], bool]:
        """The process has ended: the source has too, unless it is to be started again or has failed."""
        messages = messages + self._printed()
        if self._process is not None and self._may_restart(code):
            self._process.restart()
            return messages, False
        if not messages and self._process is not None and (failure := self._process.failure) is not None:
            raise failure
        if code != 0:
            return messages, False  # what it sent before is handled first
        now = clock.time_ns()
        return [*messages, *((self._key(name), Closed(now)) for name in self._unit.outputs)], True

    def _may_restart(self, code: int) -> bool:
        restart = self._unit.restart
        allowed = restart.again(self._restarts, clock.time())
        if allowed is None or (restart.policy == "on-failure" and code == 0):
            return False
        self._restarts, delay = allowed
        clock.sleep(delay)
        how = f"it ended with exit code {code} and is started again"
        self._note("warning", "its process has gone: another may join" if self._unit.joins else how)
        self._take_lines()
        return True

    def _printed(self) -> list[tuple[str, Message | Closed]]:
        """Take what it printed: the lines, as messages too where the document asks for that."""
        lines, output = self._take_lines(), self._unit.send_stdout_as
        if output is None:
            return []
        return [
            (self._key(output), Message(pa.array([line.text + "\n"]), int(line.time * 1e9)))
            for line in lines
            if line.stream == "stdout"
        ]

    def _take_lines(self) -> list[Line]:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        self._taken += lines
        return lines

    def _key(self, output: str) -> str:
        return output_key(Output(self._unit.address, output))

    def _write(self, messages: list[tuple[str, Message | Closed]], *, ended: bool) -> None:
        lines, self._taken = self._taken, []
        if lines:
            printed = Message(pa.array([encode_lines(lines)]), int(lines[-1].time * 1e9))
            messages = [*messages, (LINES, printed)]
        log, batches = self._the_log, list(pack(messages))
        while not log.append(self._parts + 1, batches, ended=ended):
            self._parts = log.last()  # another run has logged what its process sent
        self._parts += 1

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Read the log."""
        detail, log = ctx.split.detail, ReceivedLog(ctx.storage, ctx.task_info.operator_id)
        for part in range(detail["from"] + 1, detail["parts"] + 1):
            for batch in log.read(part):
                collector.collect(batch)
        return Finish.FINAL if detail["ended"] else Finish.GRACEFUL
