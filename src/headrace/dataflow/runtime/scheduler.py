"""Runs the units of a dataflow in one thread: a queue per input, first in first out, fair between inputs.

A message goes from one unit to the next by reference. A sender that has filled the queue of a receiver lets
the receiver run first: nothing is dropped, memory stays bounded, and there is one thread. Only an input with
`queue_policy: drop_oldest` drops, and counts; its unit runs when all others have nothing to do, so that
it sees the newest messages, as it would beside them on a core of its own.
"""

from __future__ import annotations

import datetime as dt
import threading
import time as clock
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.base.errors import HeadraceError, suggest, user_traceback
from headrace.base.position import move_to, position_label
from headrace.dataflow.document.model import Input, Logs, Output, Timer, Unit
from headrace.dataflow.runtime.hosts import CONTINUE, STOP, STOP_ALL, Host, Log, Send
from headrace.dataflow.runtime.messages import (
    Closed,
    Message,
    Unreadable,
    check_metadata,
    to_array,
    to_datetime,
    to_nanoseconds,
)

Waiting = dict[str, Any] | Closed
"""What waits at an input: the event that a message will be, or the end of the input."""

Emit = Callable[[str, Message | Closed], None]
"""`emit(output, message)`: what leaves the runtime, for whoever reads the output outside."""

_NESTED = 50
"""How many units may wait for each other's queues; behind more of them the queue grows instead."""

_ENOUGH = 64
"""How many messages wait at most before their receiver runs: more would only leave the processor's caches."""

_RESOLUTION = 0.0001
"""How many seconds the messages of one sender may have the same timestamp: making one takes long."""

_EXACT = frozenset(
    kind
    for kind in vars(pa).values()
    if isinstance(kind, type)
    and issubclass(kind, pa.Array)
    and not issubclass(kind, pa.ExtensionArray | pa.UnionArray | pa.RunEndEncodedArray)
)
"""Arrays that are copied by one call; `to_array` knows the rest."""


@dataclass(frozen=True)
class UnitFailure:
    """What a unit raised where its restart policy does not help."""

    address: str
    error: BaseException
    trace: str


@dataclass
class _Work:
    """What an input has done while somebody looked."""

    events: int = 0
    most: int = 0
    """How many messages waited at most."""
    dropped: int = 0
    """How many it had dropped when somebody looked last."""
    seconds: float = 0.0
    """How old messages were when their unit got them, summed over those that were looked at."""
    oldest: float = 0.0
    looks: int = 0


class _Queue:
    """The messages that wait at one input."""

    __slots__ = (
        "dropped",
        "ended",
        "heard",
        "id",
        "input",
        "items",
        "keeps_newest",
        "left",
        "running",
        "size",
        "timed_out",
        "timeout",
        "whole",
        "work",
    )

    def __init__(self, running: _Running, declared: Input, senders: int) -> None:
        self.running = running
        self.input = declared
        self.id, self.timeout = declared.id, declared.timeout
        self.items: deque[Waiting] = deque()
        self.keeps_newest = declared.queue_policy == "drop_oldest"
        self.size = max(1, declared.queue_size)
        if not self.keeps_newest:
            self.size = min(self.size, max(_ENOUGH, running.host.at_once))
        self.dropped = 0
        self.left = self.whole = senders
        """How many senders have not closed it yet; the instances of a parallel unit are several."""
        self.ended = False
        """Whether the unit was told that it is closed."""
        self.heard: float | None = None
        self.timed_out = False
        self.work = _Work()


class _Running:
    """A unit while the dataflow runs."""

    def __init__(self, unit: Unit, host: Host, log: Log, senders: Mapping[Output, int]) -> None:
        self.unit = unit
        self.address = unit.address
        self.host = host
        self.log = log
        self.queues = {
            unit_input.id: _Queue(self, unit_input, _senders(unit_input, senders))
            for unit_input in unit.inputs
        }
        self.turn: deque[_Queue] = deque()
        """The inputs with something to handle, the one that has waited longest first."""
        self.position = position_label(f"operator {unit.address}")
        """What the process is doing while the unit runs: for the error of a worker that dies in it."""
        self.alive = True
        self.busy = False
        self.queued = False
        self.restarts: list[float] = []
        self.routes: dict[str, tuple[list[_Queue], list[Emit]]] = {}
        self.emits: dict[str, list[Emit]] = {}
        """By output: what leaves the runtime anyway, whoever looks besides."""
        self.aside: deque[tuple[str, Message]] = deque()
        """What threads of the unit have sent while it handled an event."""
        self.last = any(queue.keeps_newest for queue in self.queues.values())
        # One at a time where what waits may still be dropped, or where what follows a failure must not be.
        one_by_one = self.last or unit.restart.policy != "never"
        self.at_once = 1 if one_by_one else host.at_once
        self.send: Send

    @property
    def data_queues(self) -> list[_Queue]:
        return [queue for queue in self.queues.values() if not isinstance(queue.input.source, Timer)]


def _senders(declared: Input, senders: Mapping[Output, int]) -> int:
    return senders.get(declared.source, 1) if isinstance(declared.source, Output) else 1


@dataclass
class Memory:
    """What the scheduler has to remember between two epochs besides the messages that wait."""

    ended: list[str] = field(default_factory=list)
    closed: dict[str, int] = field(default_factory=dict)
    """`unit:input` → how many of its senders have closed it."""
    dropped: dict[str, int] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    restarts: dict[str, list[float]] = field(default_factory=dict)


class Scheduler:
    """The units of one runtime. `feed` messages from outside, `run` until nothing is left to do."""

    def __init__(
        self,
        units: Sequence[Unit],
        hosts: Mapping[str, Host],
        logs: Mapping[str, Log],
        *,
        senders: Mapping[Output, int] | None = None,
        emits: Mapping[Output, Sequence[Emit]] | None = None,
        exit_when_nodes_finish: bool = False,
        on_end: Callable[[str], None] = lambda _address: None,
    ) -> None:
        self._on_end = on_end
        self._units = {
            unit.address: _Running(unit, hosts[unit.address], logs[unit.address], senders or {})
            for unit in units
        }
        self._exit_when_finished = exit_when_nodes_finish
        self._ready: deque[_Running] = deque()
        self._waiting: deque[_Running] = deque()
        """Units that keep the newest messages: they run when no other has anything to do."""
        self._depth = 0
        self.until: float | None = None
        """Where units read each other: the monotonic time at which what still waits is left."""
        self.now = clock.time()
        """The time of the epoch, by which inputs are silent."""
        self.stop_all = False
        self.failure: UnitFailure | None = None
        self._handled = self._discarded = self._dropped = 0
        self._measures = False
        self._readers: dict[Output | Timer | Logs, list[_Queue]] = {}
        for running in self._units.values():
            for queue in running.queues.values():
                self._readers.setdefault(queue.input.source, []).append(queue)
        for running in self._units.values():
            for name in running.unit.outputs:
                output = Output(running.address, name)
                running.emits[name] = list((emits or {}).get(output, ()))
                running.routes[name] = (self._readers.get(output, []), running.emits[name])
            running.send = running.host.send = self._sender(running)

    # ------------------------------------------------------------------ from outside

    def enter(self, subtask: int, epoch: int) -> None:
        """Say where units run from now on, for the error of a worker that dies in one."""
        for address, running in self._units.items():
            running.position = position_label(f"operator {address}, subtask {subtask}, epoch {epoch}")

    def show_to(self, watcher: Callable[[Output, Message | Closed], None] | None) -> None:
        """Give all that units send to `watcher` too; None to stop that."""
        for running in self._units.values():
            for name, emits in running.emits.items():
                watching = [] if watcher is None else [_watching(watcher, Output(running.address, name))]
                running.routes[name] = (running.routes[name][0], [*emits, *watching])

    def measure(self, wanted: bool) -> None:
        """Measure what inputs do from now on, or no more."""
        if wanted and not self._measures:
            for running in self._units.values():
                for queue in running.queues.values():
                    queue.work = _Work(dropped=queue.dropped)
        self._measures = wanted

    def take_measured(self) -> dict[str, dict[str, float]]:
        """What inputs have done since the last call, by `unit/input`."""
        measured: dict[str, dict[str, float]] = {}
        for address, running in self._units.items():
            for name, queue in running.queues.items():
                work, queue.work = queue.work, _Work(dropped=queue.dropped)
                measured[f"{address}/{name}"] = {
                    "events": work.events,
                    "queue": work.most,
                    "dropped": queue.dropped - work.dropped,
                    "latency": work.seconds / work.looks if work.looks else 0.0,
                    "oldest": work.oldest,
                }
        return measured

    def start(self, states: Mapping[str, bytes], memory: Memory) -> None:
        """Bring every unit to where it was."""
        for address, running in self._units.items():
            if address in memory.ended:
                running.alive = False
                continue
            running.restarts = list(memory.restarts.get(address, ()))
            for name, queue in running.queues.items():
                input_id = f"{address}:{name}"
                queue.left -= memory.closed.get(input_id, 0)
                queue.ended = queue.left <= 0
                queue.dropped = memory.dropped.get(input_id, 0)
                queue.heard = memory.heard.get(input_id)
            self._guarded(running, lambda running=running: running.host.start(states.get(running.address)))  # type: ignore[misc]
        self.take_counts()

    def memory(self) -> Memory:
        """What `start` needs to go on from here."""
        queues = {
            f"{address}:{name}": queue
            for address, running in self._units.items()
            for name, queue in running.queues.items()
        }
        return Memory(
            ended=[address for address, running in self._units.items() if not running.alive],
            closed={input_id: q.whole - q.left for input_id, q in queues.items() if q.left != q.whole},
            dropped={input_id: q.dropped for input_id, q in queues.items() if q.dropped},
            heard={input_id: q.heard for input_id, q in queues.items() if q.heard is not None},
            restarts={
                address: running.restarts for address, running in self._units.items() if running.restarts
            },
        )

    def feed(
        self,
        source: Output | Timer | Logs,
        message: Message | Closed | Unreadable,
        *,
        but_not: str | None = None,
    ) -> None:
        """Give a message to every input that reads this source, except those of one unit."""
        for queue in self._readers.get(source, ()):
            if queue.running.address != but_not:
                self._put(queue, _event(queue, message))

    def close(self, source: Output | Timer | Logs) -> None:
        """Close a source for good, however many senders it has."""
        for queue in self._readers.get(source, ()):
            self._shut(queue)

    def publish(self, address: str, output: str, value: pa.Array) -> None:
        """Send for a unit, such as a line that it printed."""
        self._route(self._units[address], output, Message(value, clock.time_ns()))

    def run(self) -> None:
        """Handle messages until none is left, but those of units that wait for the newest."""
        ready = self._ready
        while ready and not self.is_late():
            self._take(ready.popleft())

    @property
    def is_busy(self) -> bool:
        """Whether a unit has something to handle."""
        return bool(self._ready or self._waiting)

    def is_late(self) -> bool:
        """Whether messages that go round in a loop should wait for the next epoch."""
        return self.until is not None and clock.monotonic() >= self.until

    def settle(self) -> None:
        """Handle all messages, those of units that wait for the newest too."""
        self.run()
        while self._waiting and not self.is_late():
            self._take(self._waiting.popleft())
            self.run()

    def attend(self) -> bool:
        """Take what asynchronous units have sent, and detect those that have ended.

        Returns whether that gave other units something to do.
        """
        for running in list(self._units.values()):
            if running.alive and running.host.lives_alone and not running.busy:
                self._handle(running, [])
        return self.is_busy

    def _take(self, running: _Running) -> None:
        running.queued = False
        self._step(running)
        if running.turn and running.alive:
            self._enqueue(running)

    def _enqueue(self, running: _Running) -> None:
        if not running.queued:
            running.queued = True
            (self._waiting if running.last else self._ready).append(running)

    def tell(self, kind: str, id: str, units: Iterable[str] | None = None) -> None:  # noqa: A002 - dora's key
        """Deliver a control event to running units; their return value is ignored.

        What a unit sends then reaches the next before that one is told.
        """
        wanted = None if units is None else set(units)
        for address, running in self._units.items():
            if running.alive and (wanted is None or address in wanted):
                self._handle(running, [{"kind": "dora", "type": kind, "id": id}], goes_on=True)
                self.settle()

    def pause(self) -> None:
        """Tell every unit to stop, and wait for processes to end; all count as alive for a later run."""
        self.tell("STOP", "MANUAL")
        for running in self._units.values():
            if running.alive and running.unit.kind == "process":
                self._await_end(running)
                self.settle()

    def end(self, reason: str) -> None:
        """Tell every unit to stop, and end it."""
        for running in list(self._units.values()):
            if running.alive:
                self._handle(running, [{"kind": "dora", "type": "STOP", "id": reason}])
                self._finish(running)
                self.settle()

    def close_loops(self) -> None:
        """Close the inputs of units that only wait for each other, when no external input is left."""
        while stuck := self._stuck():
            for queue in [queue for running in stuck for queue in running.data_queues if not queue.ended]:
                self._shut(queue)
            self.settle()

    def close_idle_cycles(self) -> None:
        """Close the inputs of units that only wait for each other after other units have ended."""
        if len(self.alive) == len(self._units) or self.waiting:
            return
        for running in self._unreachable():
            for queue in running.data_queues:
                self._shut(queue)
        self.settle()

    def _unreachable(self) -> list[_Running]:
        """Units that are alive and that no message from outside, timer or process can reach any more."""
        alive = [running for running in self._units.values() if running.alive]
        reached: set[str] = set()
        more = {running.address for running in alive if self._acts(running)}
        while more:
            reached |= more
            more = {
                running.address
                for running in alive
                if running.address not in reached
                and any(
                    isinstance(queue.input.source, Output) and queue.input.source.unit in reached
                    for queue in running.queues.values()
                    if queue.left > 0
                )
            }
        return [running for running in alive if running.address not in reached]

    def _acts(self, running: _Running) -> bool:
        """Whether something other than a unit of this runtime can give a unit an event."""
        return (
            not running.queues
            or running.host.lives_alone
            or any(
                queue.left > 0
                and (
                    queue.timeout is not None
                    or not isinstance(queue.input.source, Output)
                    or queue.input.source.unit not in self._units
                )
                for queue in running.queues.values()
            )
        )

    def _shut(self, queue: _Queue) -> None:
        if queue.left > 0:
            queue.left = 1
            self._put(queue, Closed(clock.time_ns()))

    def _stuck(self) -> list[_Running]:
        """Units that are alive although nothing from outside can reach them."""
        return [
            running
            for running in self._units.values()
            if running.alive and not running.unit.has_timer and running.data_queues
        ]

    def check_timeouts(self) -> None:
        """Tell units of inputs that were silent for longer than their `input_timeout`."""
        now = self.now
        for running in self._units.values():
            for queue in running.queues.values():
                limit = queue.timeout
                if limit is None or queue.ended or not running.alive:
                    continue
                if queue.heard is None:
                    queue.heard = now
                elif now - queue.heard > limit and not queue.timed_out:
                    queue.timed_out = True
                    self._handle(running, [_closed_event(queue)])
        self.settle()

    @property
    def alive(self) -> list[str]:
        """The units that have not ended."""
        return [address for address, running in self._units.items() if running.alive]

    @property
    def over(self) -> bool:
        """Whether every unit has ended, or only those are left that do not count."""
        left = [running for running in self._units.values() if running.alive]
        if not left:
            return True
        if not self._exit_when_finished or len(left) == len(self._units):
            return False
        return all(running.unit.has_timer and not running.data_queues for running in left)

    @property
    def waiting(self) -> list[tuple[str, str, Waiting]]:
        """What a loop has left for the next epoch: (unit, input, message)."""
        return [
            (address, name, message)
            for address, running in self._units.items()
            for name, queue in running.queues.items()
            for message in queue.items
        ]

    def resume(self, waiting: Iterable[tuple[str, str, Waiting]]) -> None:
        """Put back what was left for this epoch."""
        for address, name, message in waiting:
            running = self._units.get(address)
            if running is not None and name in running.queues:
                running.queues[name].items.append(message)
                if len(running.queues[name].items) == 1:
                    self._has_turn(running.queues[name])

    def take_counts(self) -> dict[str, int]:
        """How many events were handled, messages dropped and discarded since the last call."""
        dropped = sum(q.dropped for running in self._units.values() for q in running.queues.values())
        counts = {
            "events": self._handled,
            "dropped": dropped - self._dropped,
            "discarded": self._discarded,
        }
        self._handled = self._discarded = 0
        self._dropped = dropped
        return counts

    # ------------------------------------------------------------------ one unit

    def _sender(self, running: _Running) -> Send:
        # Names of this function's own are found fastest, and this is called for every message.
        routes, thread, concat = running.routes, threading.get_ident, pa.concat_arrays
        own, put, monotonic = thread(), self._put, clock.monotonic
        stamp, stamped = dt.datetime.now(dt.UTC), 0.0

        def send_output(output: str, data: Any, metadata: Mapping[str, Any] | None = None) -> None:
            nonlocal stamp, stamped
            if not running.busy:
                raise RuntimeError("send_output can only be called while on_event runs: it has returned")
            route = routes.get(output)
            if route is None:
                raise ValueError(_undeclared(running.unit, output))
            value = concat([data]) if type(data) in _EXACT else to_array(data)
            if monotonic() - stamped > _RESOLUTION:
                stamp, stamped = dt.datetime.now(dt.UTC), monotonic()
            metadata = {"timestamp": stamp} if not metadata else _checked(metadata, stamp, running.log)
            if thread() != own:
                running.aside.append((output, _message(value, metadata)))
                return
            queues, emits = route
            for queue in queues:
                event = {
                    "kind": "dora",
                    "type": "INPUT",
                    "id": queue.id,
                    "value": value,
                    "metadata": metadata if len(queues) == 1 else dict(metadata),
                }
                items = queue.items
                if 0 < len(items) < queue.size:
                    items.append(event)
                else:
                    put(queue, event)
            for emit in emits:
                emit(output, _message(value, metadata))

        return send_output

    def _route(self, running: _Running, output: str, message: Message | Closed) -> None:
        queues, emits = running.routes[output]
        for queue in queues:
            self._put(queue, _event(queue, message))
        for emit in emits:
            emit(output, message)

    def _put(self, queue: _Queue, message: Waiting) -> None:
        running = queue.running
        if not running.alive:
            self._discarded += 1
            return
        if type(message) is Closed:
            queue.left -= 1
            if queue.left == 0:
                queue.items.append(message)  # the end of an input takes nobody's room
                if len(queue.items) == 1:
                    self._has_turn(queue)
            return
        items = queue.items
        items.append(message)
        waiting = len(items)
        if waiting == 1:
            self._has_turn(queue)
        elif waiting > queue.size:
            if queue.keeps_newest:
                items.popleft()
                queue.dropped += 1
            elif not running.busy and self._depth < _NESTED:
                self._make_room(queue)

    def _make_room(self, queue: _Queue) -> None:
        """The sender waits: the receiver runs, and has all its room again."""
        self._depth += 1
        while queue.items and queue.running.alive and not self.is_late():
            self._step(queue.running)
        self._depth -= 1

    def _has_turn(self, queue: _Queue) -> None:
        """The first message waits at an input: its unit has something to do."""
        queue.running.turn.append(queue)
        if not queue.running.queued:
            self._enqueue(queue.running)

    def _step(self, running: _Running) -> None:
        """Handle what is next for a unit, several messages at once if its host likes that."""
        if not running.turn or not running.alive or running.busy:
            return
        turn = running.turn
        events: list[dict[str, Any]] = []
        closed: _Queue | None = None
        if len(turn) == 1 and turn[0].timeout is None:
            # One input has all that waits: nobody has to be fair.
            items = turn[0].items
            ready = len(items) - isinstance(items[-1], Closed)
            if self._measures and ready:
                _measure(turn[0], min(ready, running.at_once))
            events = [items.popleft() for _ in range(min(ready, running.at_once))]  # type: ignore[misc]
            if not items:
                turn.clear()
        while turn and len(events) < running.at_once:
            queue = turn.popleft()
            if self._measures and not isinstance(queue.items[0], Closed):
                _measure(queue, 1)
            message = queue.items.popleft()
            if queue.items:
                turn.append(queue)
            if isinstance(message, Closed):
                closed = queue
                if not queue.timed_out:
                    events.append(_closed_event(queue))
                break
            if queue.timeout is not None:
                queue.heard, queue.timed_out = self.now, False
            events.append(message)
        if events:
            self._handle(running, events)
        if closed is not None:
            closed.ended = True
            self._after_close(running)

    def _handle(self, running: _Running, events: list[dict[str, Any]], *, goes_on: bool = False) -> None:
        self._handled += len(events)
        running.busy = True
        before = move_to(running.position)
        try:
            status = running.host.handle(events, running.send)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a unit raises is its own
            running.busy = False
            self._take_aside(running)
            self._failed(running, error, skips="; the message that failed is skipped" if events else "")
            return
        finally:
            move_to(before)
        running.busy = False
        if running.aside:
            self._take_aside(running)
        if status != CONTINUE and not goes_on:
            if status == STOP and self._starts_again(running):
                self._guarded(running, running.host.restart)
                return
            self.stop_all = self.stop_all or status == STOP_ALL
            self._finish(running)

    def _starts_again(self, running: _Running) -> bool:
        """Whether a process that has ended as it should is to be started again."""
        unit = running.unit
        return unit.kind == "process" and unit.restart.policy == "always" and self._may_restart(running)

    def _take_aside(self, running: _Running) -> None:
        while running.aside:
            self._route(running, *running.aside.popleft())

    def _after_close(self, running: _Running) -> None:
        """End a unit when the last of its inputs has closed; a timer keeps it alive."""
        if not running.alive or any(not queue.ended for queue in running.data_queues):
            return
        if not running.unit.has_timer:
            self._finish(running)
        elif self._exit_when_finished:
            self._handle(running, [{"kind": "dora", "type": "STOP", "id": "ALL_INPUTS_CLOSED"}])
            self._finish(running)

    def _finish(self, running: _Running) -> None:
        """A unit is over: its outputs are closed, what still waits for it is discarded."""
        if not running.alive or running.busy:
            return
        self._await_end(running)
        running.alive = False
        for queue in running.queues.values():
            self._discarded += sum(not isinstance(message, Closed) for message in queue.items)
            queue.items.clear()
        running.turn.clear()
        self._guarded(running, running.host.close)
        self._on_end(running.address)
        now = clock.time_ns()
        for output in running.routes:
            self._route(running, output, Closed(now))

    def _await_end(self, running: _Running) -> None:
        running.busy = True
        self._guarded(running, lambda: running.host.finish(running.send))
        running.busy = False

    def _guarded(self, running: _Running, call: Callable[[], None]) -> None:
        before = move_to(running.position)
        try:
            call()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a unit raises is its own
            self._failed(running, error, can_restart=False)
        finally:
            move_to(before)

    def _failed(
        self, running: _Running, error: BaseException, *, can_restart: bool = True, skips: str = ""
    ) -> None:
        trace = _user_trace(error)
        running.log("error", trace.rstrip() or str(error))
        if can_restart and self._may_restart(running):
            running.log("warning", f"restarted, attempt {len(running.restarts)}{skips}")
            self._guarded(running, running.host.restart)
            return
        if self.failure is None:
            self.failure = UnitFailure(running.address, error, trace)
        self._finish(running)

    def _may_restart(self, running: _Running) -> bool:
        allowed = running.unit.restart.again(running.restarts, clock.time())
        if allowed is None:
            return False
        running.restarts, delay = allowed
        clock.sleep(delay)
        return True


def _measure(queue: _Queue, count: int) -> None:
    """Note that the first `count` messages at an input are handled now; the first says how old they are."""
    work = queue.work
    work.events += count
    work.most = max(work.most, len(queue.items))
    first = queue.items[0]
    sent = None if isinstance(first, Closed) else first.get("metadata", {}).get("timestamp")
    if isinstance(sent, dt.datetime):
        age = max(0.0, clock.time() - sent.timestamp())
        work.seconds, work.oldest, work.looks = work.seconds + age, max(work.oldest, age), work.looks + 1


def _watching(watcher: Callable[[Output, Message | Closed], None], output: Output) -> Emit:
    return lambda _name, message: watcher(output, message)


def _checked(metadata: Mapping[str, Any], stamp: dt.datetime, log: Log) -> dict[str, Any]:
    """What a receiver gets of the metadata that was sent: a time in it counts more than that of sending."""
    checked, sent = check_metadata(metadata, lambda text: log("warning", text))
    return {"timestamp": stamp if sent is None else to_datetime(sent), **checked}


def _message(value: pa.Array, metadata: Mapping[str, Any]) -> Message:
    """A sent output as a message, with its time and its metadata."""
    rest = {name: item for name, item in metadata.items() if name != "timestamp"}
    return Message(value, to_nanoseconds(metadata["timestamp"]), rest or None)


def _event(queue: _Queue, message: Message | Closed | Unreadable) -> Waiting:
    """A message as the event of one input."""
    if isinstance(message, Closed):
        return message
    if isinstance(message, Unreadable):
        return {"kind": "dora", "type": "ERROR", "id": queue.id, "error": message.error}
    metadata = {"timestamp": to_datetime(message.time), **(message.metadata or {})}
    return {"kind": "dora", "type": "INPUT", "id": queue.id, "value": message.value, "metadata": metadata}


def _closed_event(queue: _Queue) -> dict[str, Any]:
    return {"kind": "dora", "type": "INPUT_CLOSED", "id": queue.id}


def _undeclared(unit: Unit, output: str) -> str:
    if not unit.outputs:
        where = "operator" if unit.kind in {"python", "native"} else "node"
        return (
            f"`{output}` is not an output of `{unit.address}`, which has none: "
            f"add `outputs: [{output}]` beside `inputs` of the {where} in the document"
        )
    outputs = ", ".join(f"`{name}`" for name in unit.outputs)
    hint = suggest(str(output), unit.outputs) or "name it under `outputs`"
    return f"`{output}` is not an output of `{unit.address}`; its outputs are {outputs}: {hint}"


def _user_trace(error: BaseException) -> str:
    """The traceback from the first line that is not ours."""
    if isinstance(error, HeadraceError):
        return error.traceback_text or str(error)
    return user_traceback(error) or "".join(traceback.format_exception_only(error))
