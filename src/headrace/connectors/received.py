"""Sources that cannot be asked again: what they receive is kept in a log until it is committed."""

from __future__ import annotations

import copy
import json
import threading
import time as clock
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa

from headrace.base.errors import ExternalError, HeadraceError
from headrace.base.options import Options as DeclaredOptions
from headrace.base.retry import Backoff, with_retry
from headrace.connectors._shared.messages import MessageOptions, MessageReader, Messages, declared_columns
from headrace.connectors.base import Connector, from_ipc, to_ipc
from headrace.connectors.sample import message_columns
from headrace.formats.options import check_readable
from headrace.model.operator import Collector, Finish, Limit, Offset, SourceContext, SourceOperator, Split

LANE = "received"
KEPT = 64
"""How many parts of a log stay after they were committed, for a resume from an earlier epoch."""
PATIENCE_SECONDS = 60.0
"""After this long without a connection the run ends with what went wrong."""
BUFFERED_MESSAGES, BUFFERED_BYTES = 100_000, 64 * 1024 * 1024
"""What is held in memory before a connector has to wait with the next message."""
CLOSE_SECONDS = 5.0
"""How long the end of a run waits for a connection to end."""
_WAIT_SECONDS = 0.05
_BACKOFF = Backoff(first=0.1, longest=10.0)


class ReceivedLog:
    """Parts of what was received, numbered from 1, in the storage that the state of the job is on.

    A part begins with a line of JSON: whether nothing follows it (`ended`), and what the connector has to
    know to go on after it (`resume`).
    """

    def __init__(self, storage: Any, node: str) -> None:
        self._storage = storage
        self._folder = f"received/{node}"

    def _path(self, part: int) -> str:
        return f"{self._folder}/{part:010}.arrow"

    def last(self) -> int:
        """The number of the newest part; 0 if there is none."""
        names = [PurePosixPath(path) for path in self._storage.list(f"{self._folder}/")]
        # A part that a crash cut off is there under another name.
        whole = [name.stem for name in names if name.suffix == ".arrow" and name.stem.isdigit()]
        return max(map(int, whole), default=0)

    def write(self, part: int, batches: Sequence[pa.RecordBatch], *, ended: bool, resume: Any = None) -> None:
        """Keep a part; `ended` says that nothing follows it."""
        frames = [to_ipc([batch]) for batch in batches]
        framed = b"".join(len(frame).to_bytes(8, "little") + frame for frame in frames)
        head = json.dumps({"ended": ended, "resume": resume}).encode()
        self._storage.write(self._path(part), head + b"\n" + framed)

    def _head(self, part: int) -> dict[str, Any]:
        head: dict[str, Any] = json.loads(self._storage.read(self._path(part)).partition(b"\n")[0])
        return head

    def ends(self, part: int) -> bool:
        """Whether nothing follows a part."""
        return bool(self._head(part)["ended"])

    def resume(self, part: int) -> Any:
        """What the connector has to know to go on after a part; None if there is no such part."""
        return self._head(part)["resume"] if part else None

    def read(self, part: int) -> Iterator[pa.RecordBatch]:
        """The batches of a part."""
        whole = self._storage.read(self._path(part))
        data = memoryview(whole)[whole.index(b"\n") + 1 :]
        while data:
            size = int.from_bytes(data[:8], "little")
            yield from from_ipc(bytes(data[8 : 8 + size]))
            data = data[8 + size :]

    def forget(self, committed: int) -> None:
        """Remove what no epoch will read again."""
        for part in range(committed - KEPT, max(0, committed - KEPT - 8), -1):
            self._storage.delete(self._path(part))


class Received(NamedTuple):
    """A message as it came."""

    value: bytes
    time: int
    """Nanoseconds since 1970."""
    metadata: Mapping[str, Any]
    token: Any
    """What the connector acknowledges it by."""
    resume: Any = None
    """What the connector has to know to go on after it."""


class Inbox:
    """Where a connector puts what it receives, in a thread of its own."""

    def __init__(self, resume: Any = None) -> None:
        self._changed = threading.Condition()
        self._messages: deque[Received] = deque()
        self._bytes = 0
        self._kept: list[Any] = []
        self._generation = 0
        self._taken: list[tuple[int, Any]] = []
        self._interrupt: Callable[[], None] | None = None
        self.closed = threading.Event()
        """Set when the run ends: `listen` should return soon."""
        self.resume = resume
        """What the connector said it has to know to go on after the last message, of earlier runs too."""
        self.heard = clock.monotonic()
        """When the connection was last known to be there."""
        self.contacts = 0
        """How often that was said; 0 if there never was a connection."""

    def connected(self) -> None:
        """The other side has answered. Called by `listen` once it is connected; `put` implies it."""
        self.heard = clock.monotonic()
        self.contacts += 1

    def excuse(self, seconds: float) -> None:
        """The other side has asked to be left alone for so long: that does not count as its absence."""
        self.heard += seconds

    def interrupt_with(self, function: Callable[[], None] | None) -> None:
        """What ends a wait of `listen` that does not look at `closed`; called once, by another thread."""
        with self._changed:
            self._interrupt = function
        if function is not None and self.closed.is_set():
            function()

    def put(
        self,
        value: bytes,
        *,
        time: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        token: Any = None,
        resume: Any = None,
    ) -> None:
        """Take a message; waits while too many are waiting, so that the sender has to as well.

        `time` is in nanoseconds, now if not given. `token` comes back from `kept` when the message is safe.
        `resume`, a JSON value, is what to go on after the message by: it is kept with it.
        """
        message = Received(value, clock.time_ns() if time is None else time, metadata or {}, token, resume)
        with self._changed:
            while len(self._messages) >= BUFFERED_MESSAGES or self._bytes >= BUFFERED_BYTES:
                if self.closed.is_set():
                    break
                self._changed.wait()
            if self.closed.is_set():
                return
            self._messages.append(message)
            self._bytes += len(value)
            if resume is not None:
                self.resume = resume
            if len(self._messages) == 1:
                self._changed.notify_all()
        self.connected()

    def kept(self) -> list[Any]:
        """The tokens of messages of this connection that are in the log by now, each once."""
        with self._changed:
            tokens, self._kept = self._kept, []
            return tokens

    def take(self, most: int, seconds: float) -> list[Received]:
        """What has come, waiting up to `seconds` for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self.closed.is_set(), timeout=seconds)
            taken = [self._messages.popleft() for _ in range(min(most, len(self._messages)))]
            self._bytes -= sum(len(message.value) for message in taken)
            self._taken += [(self._generation, one.token) for one in taken if one.token is not None]
            self._changed.notify_all()
            return taken

    def written(self) -> None:
        """What was taken is in the log."""
        with self._changed:
            self._kept += [token for generation, token in self._taken if generation == self._generation]
            self._taken = []

    def reconnect(self) -> None:
        """The connection is gone: what is not acknowledged on it comes again."""
        with self._changed:
            again = [message for message in self._messages if message.token is not None]
            self._bytes -= sum(len(message.value) for message in again)
            self._messages = deque(message for message in self._messages if message.token is None)
            self._generation += 1
            self._kept = []
            self._changed.notify_all()

    def close(self) -> None:
        """Let `put` and `listen` return."""
        self.closed.set()
        with self._changed:
            interrupt, self._interrupt = self._interrupt, None
            self._changed.notify_all()
        if interrupt is not None:
            interrupt()


class LoggedSource(SourceOperator):
    """A source whose offsets count parts of a log: what it receives is written there before it is read."""

    _log: ReceivedLog | None = None
    _parts = 0

    @abstractmethod
    def receive(self, rows: int) -> bool:
        """Write what came, of about so many rows, as the next part, if any; whether nothing follows it."""

    def open(self, storage: Any, *, job_id: str, node: str) -> None:
        """See what was received and not handled before."""
        self._log = ReceivedLog(storage, node)
        self._parts = self._log.last()

    def initial_offset(self, *, time: float) -> Offset:
        """Nothing was received."""
        return {LANE: {"parts": 0, "ended": False}}

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """All that was received by now, written to the log first."""
        before, log, parts = start[LANE], self._log, self._parts
        assert log is not None, "open comes first"
        if before["ended"]:
            return start
        if parts > before["parts"]:
            return {LANE: {"parts": parts, "ended": log.ends(parts)}}
        log.forget(before["parts"])
        ended = self.receive(limit.rows)
        return start if self._parts == parts else {LANE: {"parts": self._parts, "ended": ended}}

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """One task: the order matters."""
        return [Split(LANE, {"from": start[LANE]["parts"], **end[LANE]})]

    def is_finished(self, offset: Offset) -> bool:
        """Whether nothing will ever follow."""
        return bool(offset[LANE]["ended"])


class ReceivedSource(Connector, LoggedSource):
    """A source of messages that come once, from a connection that is held beside the driver.

    A connector writes `listen`, and its options say in `METADATA` what messages have besides content. What
    `listen` puts into the inbox is written to the state directory before an epoch may read it, and only then
    are its tokens given back to be acknowledged: each message that was acknowledged counts exactly once.
    """

    options: Any
    label: ClassVar[str]
    """The connector's name."""

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        assert isinstance(self.options, MessageOptions)
        self.idle_timeout = self.options.idle_timeout
        self._unkept: Sequence[Received] = []
        self._inbox: Inbox | None = None
        self._thread: threading.Thread | None = None
        self._resume: Any = None
        self._problem: Exception | None = None
        self._failed = 0.0
        self._ended = False
        self._acknowledges = True

    def for_sampling(self) -> Self:
        """One that acknowledges nothing: what it receives comes again."""
        made = copy.copy(self)
        made._acknowledges = False  # noqa: SLF001 - it is of the same class
        return made

    def find_columns(self) -> pa.Schema:
        """Those of the schema that messages have, or else of the first that come."""
        return message_columns(self, where=self.address)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None, "_inbox": None, "_thread": None, "_problem": None}

    @property
    @abstractmethod
    def address(self) -> str:
        """Where the messages come from, for messages to people: no secrets."""

    @abstractmethod
    def listen(self, inbox: Inbox) -> None:
        """Connect, and put what comes into the inbox until `inbox.closed` is set.

        It runs in a thread of its own. Returning before that means that nothing will ever follow. A raise
        means that the connection is lost: it is called again, after a pause that grows; an error whose
        `retry` is false ends the run at once, and so does a minute without a connection.
        """

    def settle(self, resume: Any, messages: Sequence[Received]) -> tuple[Sequence[Received], Any]:
        """Which of some messages are new, and what has to be known to go on after them, a JSON value.

        Called for messages that are about to be kept, in their order, with what it said the last time, of
        earlier runs too. Messages that are not new are acknowledged and not kept again.
        """
        known = [message.resume for message in messages if message.resume is not None]
        return messages, known[-1] if known else resume

    def validate(self) -> None:
        """Refuse columns that cannot be read."""
        check_readable(self.options)
        declared_columns(self.options, self.label)

    def display(self) -> str:
        """Where the messages come from."""
        return f"{type(self).__name__}({self.address})"

    def open(self, storage: Any, *, job_id: str, node: str) -> None:
        """See what was received and not handled before."""
        super().open(storage, job_id=job_id, node=node)
        assert self._log is not None
        self._resume = self._log.resume(self._parts)

    def close(self) -> None:
        """Stop listening; what was received and not acknowledged comes again, the rest is kept."""
        inbox, thread = self._inbox, self._thread
        self._inbox = self._thread = None
        if inbox is None or thread is None:
            return
        inbox.close()
        thread.join(CLOSE_SECONDS)
        left = [*self._unkept, *inbox.take(2 * BUFFERED_MESSAGES, 0)]
        left = [message for message in left if message.token is None]
        if left and self._log is not None:
            self._write(left, ended=False)

    def receive(self, rows: int) -> bool:
        """Write what is in the inbox to the log."""
        if self._inbox is None:
            self._start(Inbox(self._resume))
        assert self._inbox is not None
        ended = self._ended
        messages = self._inbox.take(max(1, rows), _WAIT_SECONDS)
        if not messages and not ended:
            self._check(self._inbox)
            return False
        ends = ended and not messages
        self._unkept = messages
        self._write(messages, ended=ends)
        self._unkept = []
        if self._acknowledges:
            self._inbox.written()
        return ends

    def _start(self, inbox: Inbox) -> None:
        self._inbox, self._problem, self._ended = inbox, None, False
        self._thread = threading.Thread(target=self._listen, args=(inbox,), name=self.label, daemon=True)
        self._thread.start()

    def _listen(self, inbox: Inbox) -> None:
        if inbox.closed.is_set():
            return

        def attempt() -> None:
            contacts = inbox.contacts
            try:
                self.listen(inbox)
            except Exception as error:
                if inbox.contacts > contacts:
                    inbox.heard = clock.monotonic()
                self._failed, self._problem = clock.monotonic(), error
                raise

        with suppress(Exception):  # what is raised in the end is kept as the problem, for `_check`
            with_retry(
                attempt,
                is_transient=_is_transient,
                backoff=_BACKOFF,
                stop=inbox.closed,
                on_retry=lambda _error, _attempt: inbox.reconnect(),
                progress=lambda: inbox.contacts,
            )
            self._ended = not inbox.closed.is_set()

    def _check(self, inbox: Inbox) -> None:
        problem = self._problem
        if problem is None:
            return
        if not _is_transient(problem):
            raise problem
        if inbox.heard > min(self._failed, clock.monotonic() - PATIENCE_SECONDS):
            return  # it is there again, or was there a moment ago
        if isinstance(problem, HeadraceError):
            raise problem
        text = str(problem) or type(problem).__name__
        raise ExternalError(f"{self.label} does not answer: {text}", where=self.address) from problem

    def _write(self, messages: Sequence[Received], *, ended: bool) -> None:
        assert self._log is not None
        messages, resume = self.settle(self._resume, messages)
        if not messages and not ended:
            self._resume = resume
            return
        columns: dict[str, pa.Array] = {
            "value": pa.array([message.value for message in messages], pa.binary()),
            "time": pa.array([message.time for message in messages], pa.int64()),
        }
        for name, kind in self.options.METADATA.items():
            columns[f"metadata.{name}"] = pa.array([one.metadata.get(name) for one in messages], kind)
        self._log.write(self._parts + 1, [pa.record_batch(columns)], ended=ended, resume=resume)
        self._parts, self._resume = self._parts + 1, resume

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Read the log."""
        detail = ctx.split.detail
        log = ReceivedLog(ctx.storage, ctx.task_info.operator_id)
        reader = MessageReader(self.options, connector=self.label, where=self.address)
        for part in range(detail["from"] + 1, detail["parts"] + 1):
            for batch in log.read(part):
                for rows in reader.read(_messages(batch, part), ctx, collector).to_batches():
                    if rows.num_rows:
                        collector.collect(rows)
        return Finish.FINAL if detail["ended"] else Finish.GRACEFUL


def _is_transient(error: Exception) -> bool:
    """Whether to connect again: errors of a client's library are those of a server that may come back."""
    return not isinstance(error, HeadraceError) or error.retry


def _messages(batch: pa.RecordBatch, part: int) -> Messages:
    def metadata(name: str) -> Sequence[Any]:
        return batch.column(f"metadata.{name}").to_pylist()  # type: ignore[no-any-return]

    times: np.ndarray[Any, np.dtype[np.int64]] = batch.column("time").to_numpy()
    return Messages(
        batch.column("value").to_pylist(),
        times,
        metadata,
        lambda place: f"place {place + 1} of part {part} of what was received",
    )
