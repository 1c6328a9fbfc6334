"""The base of non-replayable sources: received messages are logged until they are committed."""

from __future__ import annotations

import copy
import threading
import time as clock
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa

from headrace.base.errors import CorruptStateError, ExternalError, HeadraceError
from headrace.base.options import Options as DeclaredOptions
from headrace.base.retry import Backoff, with_retry
from headrace.base.waits import current_waits
from headrace.connectors._shared.messages import MessageOptions, MessageReader, Messages, declared_columns
from headrace.connectors.base import Connector, from_ipc, to_ipc
from headrace.connectors.sample import message_columns
from headrace.formats.options import check_readable
from headrace.model.operator import Collector, Finish, Limit, Offset, SourceContext, SourceOperator, Split
from headrace.state.received import LANE, WHAT, last_part, part_numbers, part_path
from headrace.state.references import RESTORE, seal, unseal

PATIENCE_SECONDS = 60.0
"""How long to retry without a connection before the run ends."""
BUFFERED_MESSAGES, BUFFERED_BYTES = 100_000, 64 * 1024 * 1024
"""The most data to buffer in memory before `put` blocks."""
CLOSE_SECONDS = 5.0
"""How long the end of a run waits for `listen` to return."""
_WAIT_SECONDS = 0.002
_BACKOFF = Backoff(first=0.1, longest=10.0)


class ReceivedLog:
    """A log of received messages in the state storage, in parts numbered from 1.

    A part begins with a line of JSON: whether it is the last one (`ended`), the connector's state after it
    (`resume`), and the size and checksum of the part. A part is written once: of two runs that do not know of
    each other one writes it, and the other one takes up the log behind it.
    """

    def __init__(self, storage: Any, node: str) -> None:
        self._storage = storage
        self._node = node
        self._written: dict[str, Any] | None = None
        """The position after the part that was written last."""
        self._first: int | None = None
        """The oldest part that is there, once it is known."""

    def last(self, *, read: int = 0) -> int:
        """Return the number of the newest part; 0 if there is none. `read` is one that must be there."""
        return last_part(self._storage, self._node, read=read)

    def append(
        self, part: int, batches: Sequence[pa.RecordBatch], *, ended: bool, resume: Any = None
    ) -> bool:
        """Write a part, if no other run has; `ended` marks it as the last one."""
        frames = [to_ipc([batch]) for batch in batches]
        framed = b"".join(len(frame).to_bytes(8, "little") + frame for frame in frames)
        content, checksum = seal({"ended": ended, "resume": resume}, framed)
        path = part_path(self._node, part)
        # A store may report a conflict with our own write, when it retried one whose answer was lost.
        if not self._storage.create(path, content) and self._storage.read(path) != content:
            return False
        self._written = {"parts": part, "ended": ended, "checksum": checksum}
        return True

    def _read(self, part: int) -> tuple[dict[str, Any], memoryview]:
        return unseal(self._storage, part_path(self._node, part), what=WHAT)

    def position(self, part: int) -> dict[str, Any]:
        """Return the position after a part."""
        if self._written is not None and self._written["parts"] == part:
            return self._written
        head, _ = self._read(part)
        position = {"parts": part, "ended": bool(head["ended"])}
        return {**position, "checksum": head["checksum"]} if "checksum" in head else position

    def ends(self, part: int) -> bool:
        """Whether a part is the last one."""
        return bool(self._read(part)[0]["ended"])

    def resume(self, part: int) -> Any:
        """Return the connector's state after a part; None if there is no such part."""
        return self._read(part)[0]["resume"] if part else None

    def read(self, part: int) -> Iterator[pa.RecordBatch]:
        """Read the batches of a part; a CorruptStateError names one that is missing or damaged."""
        _, data = self._read(part)
        while data:
            size = int.from_bytes(data[:8], "little")
            yield from from_ipc(bytes(data[8 : 8 + size]))
            data = data[8 + size :]

    def forget(self, end: int) -> None:
        """Remove the parts before `end`, which no epoch will read again."""
        if self._first is None:  # earlier runs may have left some
            self._first = min(part_numbers(self._storage, self._node), default=end)
        for part in range(self._first, end):
            self._storage.delete(part_path(self._node, part))
        self._first = max(self._first, end)


class Received(NamedTuple):
    """A received message."""

    value: bytes
    time: int
    """Nanoseconds since 1970."""
    metadata: Mapping[str, Any]
    token: Any
    """What the connector needs to acknowledge it."""
    resume: Any = None
    """What the connector has to know to go on after it."""


class Inbox:
    """A buffer for received messages, filled by the connector in its own thread."""

    def __init__(self, resume: Any = None, *, name: str = "") -> None:
        self._name, self._waits = name, current_waits()
        self._changed = threading.Condition()
        self._messages: deque[Received] = deque()
        self._bytes = 0
        self._logged: list[Any] = []
        self._generation = 0
        self._in_flight: list[tuple[int, Any]] = []
        self._interrupt: Callable[[], None] | None = None
        self.closed = threading.Event()
        """Set when the run ends: `listen` should return soon."""
        self.resume = resume
        """The connector's state after the last message, also of earlier runs."""
        self.last_contact = clock.monotonic()
        """The time of the last sign of life of the connection."""
        self.contacts = 0
        """The number of signs of life; 0 if there never was a connection."""

    def __len__(self) -> int:
        return len(self._messages)

    def connected(self) -> None:
        """Record contact with the server. `listen` calls it once it is connected; `put` implies it."""
        self.last_contact = clock.monotonic()
        self.contacts += 1
        if self._waits is not None and self._name in self._waits:
            self._waits.answered(self._name)

    def extend_patience(self, seconds: float) -> None:
        """Extend the deadline by the time that the server asked to wait."""
        self.last_contact += seconds

    def interrupt_with(self, function: Callable[[], None] | None) -> None:
        """Set a function that interrupts `listen` when the run ends; another thread calls it once."""
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
        """Add a message; blocks while the buffer is full.

        `time` is in nanoseconds, by default now. `take_logged_tokens` returns `token` when the message is
        logged. `resume`, a JSON value, is the connector's state after the message: it is logged with it.
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

    def take_logged_tokens(self) -> list[Any]:
        """Return the tokens of logged messages of this connection, each once, to acknowledge them."""
        with self._changed:
            tokens, self._logged = self._logged, []
            return tokens

    def take(self, most: int, seconds: float) -> list[Received]:
        """Return buffered messages, waiting up to `seconds` for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self.closed.is_set(), timeout=seconds)
            messages = [self._messages.popleft() for _ in range(min(most, len(self._messages)))]
            self._bytes -= sum(len(message.value) for message in messages)
            self._in_flight += [
                (self._generation, message.token) for message in messages if message.token is not None
            ]
            self._changed.notify_all()
            return messages

    def written(self) -> None:
        """Mark the taken messages as logged."""
        with self._changed:
            self._logged += [token for generation, token in self._in_flight if generation == self._generation]
            self._in_flight = []

    def reconnect(self) -> None:
        """Drop unlogged messages after a lost connection: they are redelivered."""
        with self._changed:
            again = [message for message in self._messages if message.token is not None]
            self._bytes -= sum(len(message.value) for message in again)
            self._messages = deque(message for message in self._messages if message.token is None)
            self._generation += 1
            self._logged = []
            self._changed.notify_all()

    def close(self) -> None:
        """Make `put` and `listen` return."""
        self.closed.set()
        with self._changed:
            interrupt, self._interrupt = self._interrupt, None
            self._changed.notify_all()
        if interrupt is not None:
            interrupt()


class LoggedSource(SourceOperator):
    """A source whose offsets count parts of a log: messages are logged before they are processed."""

    _log: ReceivedLog | None = None
    _node = ""
    _parts = -1
    """The newest part of the log; -1 until it was looked for."""

    @property
    def _the_log(self) -> ReceivedLog:
        assert self._log is not None, "open comes first"
        return self._log

    @abstractmethod
    def receive(self, rows: int) -> bool:
        """Write about so many received rows as the next part, if any; return whether it is the last one."""

    def open(self, storage: Any, *, job_id: str, node: str) -> None:
        """Take the state storage; what is logged is looked for from where the checkpoint has read."""
        self._log, self._node, self._parts = ReceivedLog(storage, node), node, -1

    def _take_up_log(self, *, read: int = 0) -> None:
        """Go on behind what is logged; `read` is the part up to which it was read."""
        self._parts = self._the_log.last(read=read)

    def initial_offset(self, *, time: float) -> Offset:
        """Return the offset 0: nothing is logged."""
        return {LANE: {"parts": 0, "ended": False}}

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """Log the received messages, and return the end of the log."""
        before, log = start[LANE], self._the_log
        if before["ended"]:
            return start
        if self._parts < before["parts"]:
            self._take_up_log(read=before["parts"])
        parts = self._parts
        if parts > before["parts"]:
            return {LANE: log.position(parts)}
        if parts < before["parts"]:
            # Numbered on from here, new messages would count as read.
            raise CorruptStateError(
                f"{WHAT} `{part_path(self._node, before['parts'])}` is missing", hint=RESTORE
            )
        self.receive(limit.rows)
        return start if self._parts == parts else {LANE: log.position(self._parts)}

    def expired(self, offset: Offset) -> None:
        """Remove the parts before the one that was read last: that one says where to go on."""
        self._the_log.forget(offset[LANE]["parts"])

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """Return one split, to keep the order."""
        return [Split(LANE, {"from": start[LANE]["parts"], **end[LANE]})]

    def is_finished(self, offset: Offset) -> bool:
        """Whether the last part of the log is processed."""
        return bool(offset[LANE]["ended"])


class ReceivedSource(Connector, LoggedSource):
    """A source of non-replayable messages, received over a connection on the driver.

    A connector implements `listen`, and its options declare in `METADATA` the metadata of messages. Messages
    in the inbox are written to the state directory before an epoch may read them, and only then acknowledged:
    each acknowledged message counts exactly once.
    """

    options: Any
    label: ClassVar[str]
    """The connector's name."""
    asked_in_tasks = False

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

    def lag(self, offset: Offset, *, time: float) -> Mapping[str, int]:
        """Return how many messages were received that no epoch reads yet."""
        return {} if self._inbox is None else {LANE: len(self._inbox)}

    def for_sampling(self) -> Self:
        """Return a copy that acknowledges nothing: its messages are redelivered."""
        sampler = copy.copy(self)
        sampler._acknowledges = False  # noqa: SLF001 - it is of the same class
        return sampler

    def find_columns(self) -> pa.Schema:
        """Return the columns of the messages' schema, or those inferred from the first messages."""
        return message_columns(self, where=self.address)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None, "_inbox": None, "_thread": None, "_problem": None}

    @property
    @abstractmethod
    def address(self) -> str:
        """Return the address of the server for error messages, without secrets."""

    @property
    def waits_for(self) -> str:
        """Return the server and its address, for messages while it cannot be reached."""
        return f"{self.label} {self.address}"

    @abstractmethod
    def listen(self, inbox: Inbox) -> None:
        """Connect, and put messages into the inbox until `inbox.closed` is set.

        It runs in its own thread. Returning earlier ends the source. An exception means that the connection
        is lost: it is called again after a growing pause. An error whose `retry` is false ends the run at
        once, and so does a minute without a connection.
        """

    def settle(self, resume: Any, messages: Sequence[Received]) -> tuple[Sequence[Received], Any]:
        """Return which messages are new, and the connector's state after them, a JSON value.

        Called for messages before they are logged, in order, with the state that it returned last, also in
        earlier runs. Messages that are not new are acknowledged and not logged again.
        """
        positions = [message.resume for message in messages if message.resume is not None]
        return messages, positions[-1] if positions else resume

    def validate(self) -> None:
        """Raise an error for columns that cannot be read."""
        check_readable(self.options)
        declared_columns(self.options, self.label)

    def display(self) -> str:
        """Return the address of the server."""
        return f"{type(self).__name__}({self.address})"

    def close(self) -> None:
        """Stop `listen`; unacknowledged messages are redelivered, the others are logged.

        Unless another run has taken over the log.
        """
        inbox = self._stop_listening()
        if inbox is None:
            return
        left = [*self._unkept, *inbox.take(2 * BUFFERED_MESSAGES, 0)]
        left = [message for message in left if message.token is None]
        if left and self._log is not None:
            self._write(left, ended=False)

    def _stop_listening(self) -> Inbox | None:
        inbox, thread = self._inbox, self._thread
        self._inbox = self._thread = None
        if inbox is None or thread is None:
            return None
        inbox.close()
        thread.join(CLOSE_SECONDS)
        return inbox

    def _take_up_log(self, *, read: int = 0) -> None:
        """Go on behind what another run has logged, as a new run does.

        What was received meanwhile may be there: what is not comes again, if the sender can repeat it.
        """
        self._stop_listening()
        parts = self._the_log.last(read=read)
        # Both or none: without what the log says of them, messages that it holds would count as new.
        self._resume, self._parts = self._the_log.resume(parts), parts

    def receive(self, rows: int) -> bool:
        """Write the messages of the inbox to the log."""
        if self._inbox is None:
            self._start(Inbox(self._resume, name=self.waits_for))
        assert self._inbox is not None
        ended = self._ended
        # What could not be written is written again, alone: it may be there, and only the answer was lost.
        messages = self._unkept or self._inbox.take(max(1, rows), _WAIT_SECONDS)
        if not messages and not ended:
            self._check(self._inbox)
            return False
        ends = ended and not messages
        self._unkept = messages
        is_logged = self._write(messages, ended=ends)
        self._unkept = []
        if not is_logged:
            self._take_up_log(read=self._parts)
            return False
        if self._acknowledges:
            self._inbox.written()
        return ends

    def _start(self, inbox: Inbox) -> None:
        self._inbox, self._problem, self._ended = inbox, None, False
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._listen, inbox), name=self.label, daemon=True
        )
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
                    inbox.last_contact = clock.monotonic()
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
                waits_for=self.waits_for,
            )
            self._ended = not inbox.closed.is_set()

    def _check(self, inbox: Inbox) -> None:
        problem = self._problem
        if problem is None:
            return
        if not _is_transient(problem):
            raise problem
        if inbox.last_contact > min(self._failed, clock.monotonic() - PATIENCE_SECONDS):
            return  # it is there again, or was there a moment ago
        if isinstance(problem, HeadraceError):
            raise problem
        text = str(problem) or type(problem).__name__
        raise ExternalError(f"{self.label} does not answer: {text}", where=self.address) from problem

    def _write(self, messages: Sequence[Received], *, ended: bool) -> bool:
        """Log messages; False if another run has written the next part of the log."""
        messages, resume = self.settle(self._resume, messages)
        if not messages and not ended:
            self._resume = resume
            return True
        columns: dict[str, pa.Array] = {
            "value": pa.array([message.value for message in messages], pa.binary()),
            "time": pa.array([message.time for message in messages], pa.int64()),
        }
        for name, kind in self.options.METADATA.items():
            columns[f"metadata.{name}"] = pa.array([message.metadata.get(name) for message in messages], kind)
        rows, part = [pa.record_batch(columns)], self._parts + 1
        if not self._the_log.append(part, rows, ended=ended, resume=resume):
            return False
        self._parts, self._resume = part, resume
        return True

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Read a part of the log."""
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
    """Whether to reconnect: errors of client libraries count as transient."""
    return not isinstance(error, HeadraceError) or error.retry


def _messages(batch: pa.RecordBatch, part: int) -> Messages:
    def metadata(name: str) -> Sequence[Any]:
        return batch.column(f"metadata.{name}").to_pylist()  # type: ignore[no-any-return]

    times: np.ndarray[Any, np.dtype[np.int64]] = batch.column("time").to_numpy()
    return Messages(
        batch.column("value").to_pylist(),
        times,
        metadata,
        lambda index: f"place {index + 1} of part {part} of what was received",
    )
