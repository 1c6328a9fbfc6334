"""The operator that runs units of a dataflow on the engine: all that need not be apart, in one."""

from __future__ import annotations

import gc
import heapq
import os
import pickle
import sys
import time as clock
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from headrace.base.errors import HeadraceError, OperatorError, user_traceback
from headrace.base.execution import ExecutionMode
from headrace.base.keys import hash_key, subtask_of
from headrace.dataflow.document.model import Logs, Output, Timer, Unit
from headrace.dataflow.runtime.ahead import RuntimeAhead
from headrace.dataflow.runtime.hosts import STOP_GRACE, Host, Log
from headrace.dataflow.runtime.keeper import KeeperHost, KeeperSpec, owner_of_workers
from headrace.dataflow.runtime.messages import Closed, Message, Unreadable
from headrace.dataflow.runtime.packing import PARTITION, message_of, pack, rows_of, unpack
from headrace.dataflow.runtime.partitions import divide
from headrace.dataflow.runtime.printed import LINES, Capture, Line, decode_lines, encode_lines, publish
from headrace.dataflow.runtime.python_host import PythonHost
from headrace.dataflow.runtime.saved import load_state
from headrace.dataflow.runtime.scheduler import Emit, Memory, Scheduler
from headrace.dataflow.runtime.topics import Topics
from headrace.dataflow.runtime.wakeups import Bell
from headrace.model.ahead import HandlesAhead
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext, TaskInfo
from headrace.state.config import TableConfig, keyed_table_config

LOOP_SECONDS = 0.5
"""How long messages may go round in a loop before the epoch ends and they wait for the next."""
_COLLECT_AFTER = 20_000
"""New objects after which Python looks for garbage while units run: messages that wait are many, and none."""
_FLUSH_BYTES = 4 * 1024 * 1024
_UNIT = "unit"
_MEMORY = "\0memory"


@dataclass(frozen=True)
class Feed:
    """One input of the runtime: packed messages, or rows that become messages of one output."""

    rows: Output | None = None
    ends: Output | None = None
    """The output that is closed when the input ends; packed messages say themselves what is closed."""


@dataclass(frozen=True)
class RuntimePort:
    """One output of the runtime: what it carries, in which form."""

    output: Output
    name: str
    form: Literal["messages", "rows"]
    partitions: int = 1
    partition_by: str | None = None


@dataclass(frozen=True)
class RuntimeSpec:
    """What a runtime runs, and what surrounds it."""

    units: tuple[Unit, ...]
    texts: Mapping[str, str]
    """Of Python units: the text of the file, by address."""
    directory: Path
    descriptor: Mapping[str, Any]
    feeds: tuple[Feed, ...] = ()
    ports: tuple[RuntimePort, ...] = ()
    sources: tuple[Output | Timer | Logs, ...] = ()
    """What its units read from outside."""
    senders: Mapping[Output, int] = field(default_factory=dict)
    """Outputs of parallel units, which several instances close."""
    exit_when_nodes_finish: bool = False
    loops: bool = False
    parallel: int | None = None
    partition_by: str | None = None
    python: str = sys.executable
    generation: int = 0
    """Counts how often operators were reloaded while the dataflow ran."""
    changed: Mapping[str, str] = field(default_factory=dict)
    """The units that the last reload changed, with the text they had before."""
    execution: ExecutionMode = "auto"
    """What the document says about how it runs."""
    stays_by_itself: bool = False
    """Whether it runs resident where the document says nothing: all units of the dataflow are in it."""
    shows: Mapping[str, Output] = field(default_factory=dict)
    """Outputs of sources whose messages it shows to whoever looks, by what they are called in messages."""


def output_key(source: Output | Timer | Logs) -> str:
    """What an output is called in packed messages."""
    if isinstance(source, Timer):
        return source.text
    if isinstance(source, Logs):
        return "dora/logs"
    return f"{source.unit}|{source.name}"


class _Instance:
    """The units of a runtime while it runs; of a parallel unit there are several."""

    def __init__(self, spec: RuntimeSpec, job_id: str, partition: int) -> None:
        self.spec = spec
        self.epoch = -1
        """The last epoch that it has been through; -1 in the middle of one."""
        self.lines: list[Line] = []
        self.saved: dict[str, bytes] = {}
        """What the units remembered at the end of that epoch."""
        self.ahead: frozenset[int] = frozenset()
        """The feeds whose messages of this epoch it has handled before the epoch was planned."""
        self.gathered: list[tuple[pa.RecordBatch, str]] = []
        """What it has sent to other operators meanwhile."""
        self.bell: Bell | None = None
        """What its processes ring, if it handles messages before the epoch is planned."""
        self.emit: Callable[[Output, Message | Closed], None] = _drop
        self.capture = Capture()
        self.topics = Topics(job_id)
        self._job_id, self._partition = job_id, partition
        self._unsent: list[Line] = []
        self._paused: Memory | None = None
        self._reloaded: list[str] = []
        self._logs = {unit.address: self._log(unit) for unit in spec.units}
        self._hosts = {unit.address: self._host(unit) for unit in spec.units}
        self.scheduler = self._schedule()

    def _schedule(self) -> Scheduler:
        return Scheduler(
            self.spec.units,
            self._hosts,
            self._logs,
            senders=self.spec.senders,
            emits={output: [self._emitter(output)] for output in {port.output for port in self.spec.ports}},
            exit_when_nodes_finish=self.spec.exit_when_nodes_finish,
            on_end=self._send_lines,
        )

    def _emitter(self, output: Output) -> Emit:
        return lambda _name, message: self.emit(output, message)

    def _log(self, unit: Unit) -> Log:
        sends = unit.send_stdout_as is not None or unit.send_logs_as is not None
        sends = sends or any(isinstance(source, Logs) for source in self.spec.sources)

        def log(stream: str, text: str) -> None:
            line = Line(unit.address, stream, text, clock.time())
            if line.reaches(unit.min_log_level):
                self.lines.append(line)
                if sends:
                    self._unsent.append(line)

        return log

    def _host(self, unit: Unit) -> Host:
        spec, log = self.spec, self._logs[unit.address]
        if unit.kind == "python":
            return PythonHost(
                unit,
                spec.texts[unit.address],
                before=spec.changed.get(unit.address),
                descriptor=spec.descriptor,
                log=log,
                capture=self.capture,
            )
        keeper = KeeperSpec(
            unit=unit,
            directory=spec.directory,
            python=spec.python,
            descriptor=spec.descriptor,
            job_id=self._job_id,
            partition=self._partition,
            owner=owner_of_workers(),
        )
        return KeeperHost(keeper, log=log)

    def begin(self, task: TaskInfo, saved: Callable[[], Mapping[str, bytes]]) -> None:
        """Be as after the epoch before this one: it may have been this instance that ran it, or another."""
        epoch = task.epoch
        for host in self._keeper_hosts():
            host.epoch = epoch
        if self.epoch != epoch - 1:
            self.saved, self.lines, self._unsent, self._paused = dict(saved()), [], [], None
            self.ahead, self.gathered = frozenset(), []
            memory, waiting, generation = (
                load_state(self.saved[_MEMORY])
                if _MEMORY in self.saved
                else (Memory(), [], self.spec.generation)
            )
            self.scheduler = self._schedule()
            self.scheduler.enter(task.subtask, epoch)
            self.scheduler.start(self.saved, memory)
            self.scheduler.resume(waiting)
            self._reloaded = list(self.spec.changed) if generation < self.spec.generation else []
        self.scheduler.enter(task.subtask, epoch)
        if not self.ahead:  # else it was looked at when the epoch began
            self._look()
        self.epoch = -1

    def _look(self) -> None:
        """Find out who looks at the messages of this epoch."""
        if self.topics.look():
            self.scheduler.show_to(self.topics.show if self.topics.has_readers else None)
            self.scheduler.measure(self.topics.wants_ports)

    def go_ahead(self, task: TaskInfo, feeds: Collection[int]) -> None:
        """Begin an epoch with the messages of some feeds, before it is planned.

        Whoever begins it without `hand_over` begins at the checkpoint: another run, for example.
        """
        for host in self._keeper_hosts():
            host.epoch = task.epoch
        self.scheduler.enter(task.subtask, task.epoch)
        self._look()
        self.epoch, self.ahead = -1, frozenset(feeds)

    @property
    def hears_processes(self) -> bool:
        """Whether one of its units can send at any time."""
        return any(host.lives_alone for host in self._hosts.values())

    def take_gathered(self) -> list[tuple[pa.RecordBatch, str]]:
        """What was sent to other operators before the epoch was planned."""
        gathered, self.gathered = self.gathered, []
        return gathered

    def tell_reloaded(self) -> None:
        """Tell units whose file has changed, once."""
        reloaded, self._reloaded = self._reloaded, []
        for address in reloaded:
            self.scheduler.tell("RELOAD", self._operator_id(address), [address])

    def _operator_id(self, address: str) -> str:
        return next(unit.operator or "op" for unit in self.spec.units if unit.address == address)

    def attend(self) -> None:
        """Take what processes have sent on their own, with all that follows from it, but not for ever."""
        until = clock.monotonic() + LOOP_SECONDS
        while self.scheduler.attend() and clock.monotonic() < until:
            self.scheduler.settle()

    def settle(self) -> None:
        """Handle all queued events, and forward what was printed to its readers."""
        self.scheduler.settle()
        while self._unsent and not self.scheduler.is_late():
            self._send_lines()
            self.scheduler.settle()

    def _send_lines(self, address: str | None = None) -> None:
        """Send on what was printed, by all or by one that ends: its outputs are closed after that."""
        unsent = self._unsent
        self._unsent = [line for line in unsent if address not in {None, line.unit}]
        for line in unsent:
            if address in {None, line.unit}:
                self._send_line(line)

    def _send_line(self, line: Line) -> None:
        unit = next(unit for unit in self.spec.units if unit.address == line.unit)
        if unit.send_stdout_as is not None and line.stream == "stdout":
            self.scheduler.publish(unit.address, unit.send_stdout_as, pa.array([line.text + "\n"]))
        if unit.send_logs_as is not None:
            self.scheduler.publish(unit.address, unit.send_logs_as, pa.array([line.to_json()]))
        for source in self.spec.sources:
            if isinstance(source, Logs) and _wants(source, line):
                message = Message(pa.array([line.to_json()]), clock.time_ns())
                self.scheduler.feed(source, message, but_not=line.unit)

    def pause(self) -> None:
        """Tell the units that the run stops; a later run continues with all that are alive now."""
        self._paused = self.scheduler.memory()
        self.scheduler.pause()
        self.settle()

    def save(self, epoch: int) -> dict[str, bytes]:
        """The state that has changed in this epoch; the instance is at this epoch afterwards."""
        states = {
            address: state
            for address in self.scheduler.alive
            if (state := self._snapshot(address, epoch)) is not None
        }
        if self.topics.wants_ports:
            self.topics.show_ports(self.scheduler.take_measured())
        memory = self._paused or self.scheduler.memory()
        states[_MEMORY] = pickle.dumps((memory, self.scheduler.waiting, self.spec.generation))
        changed = {name: state for name, state in states.items() if self.saved.get(name) != state}
        self.saved |= changed
        self.epoch, self.ahead = epoch, frozenset()
        if self._paused is not None:
            self.abandon()
        return changed

    def _snapshot(self, address: str, epoch: int) -> bytes | None:
        try:
            return self._hosts[address].snapshot()
        except HeadraceError:
            raise
        except Exception as error:
            raise OperatorError(
                f"`{address}` cannot be saved: {type(error).__name__}: {error}",
                operator_id=address,
                subtask=0,
                epoch=epoch,
                traceback_text=user_traceback(error) or "",
            ) from error

    def abandon(self) -> None:
        """End the keepers: the next attempt starts from the saved state."""
        self.epoch = -1
        for host in self._keeper_hosts():
            host.close()
        if self.bell is not None:
            self.bell.close()
            self.bell = None

    def _keeper_hosts(self) -> list[KeeperHost]:
        return [host for host in self._hosts.values() if isinstance(host, KeeperHost)]


def _drop(output: Output, message: Message | Closed) -> None:
    """The sender before a unit is started: nothing is sent."""


def _wants(source: Logs, line: Line) -> bool:
    return line.reaches(source.level) and source.node in {None, line.unit, line.unit.partition("/")[0]}


class DataflowRuntime(ArrowOperator, HandlesAhead):
    """Runs units by direct calls. In each epoch: messages in the order of their times, then the checkpoint.

    Python operators live in the worker, libraries and processes in keepers of their own. What operators
    remember is in the table: a worker that has just run the epoch before goes on with the objects it has,
    any other brings them back.
    """

    ends_run = True

    @property
    def stop_grace(self) -> float | None:  # type: ignore[override]
        """The longest time that one of its processes has to end: none may hold a stop for ever."""
        graces = [
            STOP_GRACE if unit.finish_grace is None else unit.finish_grace
            for unit in self.spec.units
            if unit.kind == "process"
        ]
        return max(graces, default=None)

    def __init__(self, spec: RuntimeSpec) -> None:
        self.spec = spec
        self.execution = spec.execution
        self.stays_by_itself = spec.stays_by_itself
        self.max_parallelism = spec.parallel or 1
        self._received: list[tuple[int, pa.RecordBatch]] = []
        self._outbox: dict[str, list[tuple[str, Message | Closed, int]]] = {}
        self._outbox_bytes = 0
        self._instances: dict[int, _Instance] = {}
        self._sources = {output_key(source): source for source in spec.sources}

    @property
    def name(self) -> str:
        return "runtime"

    def display(self) -> str:
        """The units."""
        return f"runtime({', '.join(unit.address for unit in self.spec.units)})"

    def details(self) -> Mapping[str, str]:
        """What each unit runs."""
        return {unit.address: unit.file.name if unit.file else unit.kind for unit in self.spec.units}

    def state_signature(self) -> str:
        """How messages are partitioned among instances, whose state cannot be repartitioned."""
        if self.spec.parallel is None:
            return ""
        return f"{self.spec.parallel} instances by {self.spec.partition_by}"

    @property
    def _key(self) -> str:
        return _UNIT if self.spec.parallel is None else PARTITION

    def tables(self) -> Sequence[TableConfig]:
        """The memory of the units."""
        kind = pa.string() if self.spec.parallel is None else pa.int64()
        schema = pa.schema([(self._key, kind), ("state", pa.large_binary())])
        return [keyed_table_config("units", "what each unit remembers", schema, key=[self._key])]

    def on_start(self, ctx: OperatorContext) -> None:
        """Bring the units to where they were."""
        live: dict[int, _Instance] = ctx.resource("instances", dict)
        saved: dict[Any, bytes] | None = None

        def load(partition: int) -> Mapping[str, bytes]:
            nonlocal saved
            if saved is None:
                rows = pa.Table.from_batches(
                    ctx.keyed_table("units").scan(), schema=self.tables()[0].schema
                ).to_pydict()
                saved = dict(zip(rows[self._key], rows["state"], strict=True))
            if self.spec.parallel is None:
                return saved
            whole = saved.get(partition)
            return {} if whole is None else load_state(whole)

        if not live:
            gc.freeze()  # what is imported by now stays: it need not be looked through again and again
        for partition in self._owned(ctx):
            if partition not in live:
                live[partition] = _Instance(self.spec, ctx.task_info.job_id, partition)
            self._instances[partition] = live[partition]
        with self._at_work():
            for partition, instance in self._instances.items():
                instance.begin(ctx.task_info, lambda partition=partition: load(partition))  # type: ignore[misc]
        self._check(ctx)

    def _owned(self, ctx: OperatorContext) -> list[int]:
        """The instances of this subtask: the same ones whose messages are routed to it."""
        if self.spec.parallel is None:
            return [0]
        numbers = pa.RecordBatch.from_pydict({PARTITION: pa.array(range(self.spec.parallel), pa.int64())})
        owners = subtask_of(hash_key(numbers, [PARTITION]), ctx.task_info.parallelism)
        return [number for number, owner in enumerate(owners) if owner == ctx.task_info.subtask]

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """The first input."""
        self._received.append((0, batch))

    def process_batch_index(
        self, index: int, total: int, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector
    ) -> None:
        """Keep the batch: messages are handled in the order of their times, over all inputs."""
        self._received.append((index, batch))

    def handle_stop(self, final: bool, ctx: OperatorContext, collector: Collector) -> None:
        """Tell the units; what they remember stays for the next run, unless it is the end of all."""
        self._handle_received(ctx, collector)
        self._limit_loops()
        with self._at_work(collector):
            for instance in self._instances.values():
                if final:
                    instance.scheduler.end("MANUAL")
                else:
                    instance.pause()
        self._check(ctx)

    def on_close(self, final: bool, ctx: OperatorContext, collector: Collector) -> None:
        """All sources have ended: units end after their last events."""
        if not final:
            return
        self._handle_received(ctx, collector)
        self._limit_loops(whole=True)
        with self._at_work(collector):
            for instance in self._instances.values():
                for source in self.spec.sources:
                    instance.scheduler.close(source)
                instance.settle()
                instance.scheduler.close_loops()
                instance.settle()
        self._check(ctx)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        """Handle what the epoch brought, and save what the units remember."""
        self._handle_received(ctx, collector)
        rows: list[dict[str, Any]] = []
        with self._at_work(collector):
            for partition, instance in self._instances.items():
                changed = instance.save(ctx.task_info.epoch)
                if self.spec.parallel is None:
                    rows += [{_UNIT: name, "state": state} for name, state in changed.items()]
                elif changed:
                    rows.append({PARTITION: partition, "state": pickle.dumps(instance.saved)})
        if rows:
            schema = self.tables()[0].schema
            ctx.keyed_table("units").put(pa.RecordBatch.from_pylist(rows, schema=schema))
        self._report(ctx)

    def _report(self, ctx: OperatorContext) -> None:
        schedulers = [instance.scheduler for instance in self._instances.values()]
        ctx.over = bool(self.spec.units) and all(scheduler.over for scheduler in schedulers)
        ctx.stop_requested = any(scheduler.stop_all for scheduler in schedulers)
        for scheduler in schedulers:
            for name, count in scheduler.take_counts().items():
                ctx.metrics.add(name, count)
        if lines := self._take_lines():
            ctx.insert_committing_data("lines", encode_lines(lines))

    def _take_lines(self) -> list[Line]:
        lines = [line for instance in self._instances.values() for line in instance.lines]
        for instance in self._instances.values():
            instance.lines = []
        return sorted(lines, key=lambda line: line.time)

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext
    ) -> None:
        """Show what was printed."""
        ctx.check_generation()
        for _, lines in sorted(data.get("lines", {}).items()):
            publish(decode_lines(lines))

    # ------------------------------------------------------------------ an epoch

    def ahead(self, ctx: OperatorContext, inputs: Collection[int]) -> RuntimeAhead | None:
        """Handle messages as they come, until their epoch does."""
        instance = ctx.resource("instances", dict[int, _Instance]).get(0)
        if self.spec.parallel is not None or instance is None or instance.epoch != ctx.task_info.epoch - 1:
            return None
        self._instances = {0: instance}
        instance.go_ahead(ctx.task_info, inputs)
        return RuntimeAhead(self, instance, ctx.task_info)

    def _handle_received(self, ctx: OperatorContext, collector: Collector) -> None:
        """Handle the messages of this epoch that were not handled before it was planned."""
        received, self._received = self._received, []
        handled = frozenset(feed for instance in self._instances.values() for feed in instance.ahead)
        for instance in self._instances.values():
            for batch, name in instance.take_gathered():
                collector.collect(batch, name)
        self._limit_loops()
        self.handle(
            [(feed, batch) for feed, batch in received if feed not in handled],
            collector,
            now=ctx.time,
            ended=ctx.ended_inputs,
        )
        self._check(ctx)

    def handle(
        self,
        received: Sequence[tuple[int, pa.RecordBatch]],
        collector: Collector,
        *,
        now: float,
        ended: Collection[int] = (),
    ) -> None:
        """Handle messages, each as soon as it is due, all that follows from it first."""
        for instance in self._instances.values():
            instance.scheduler.now = now
        with self._at_work(collector):
            for instance in self._instances.values():
                instance.tell_reloaded()
                instance.attend()
            feeds = [
                [message for index, batch in received if index == feed for message in self._read(feed, batch)]
                for feed in range(len(self.spec.feeds))
            ]
            for key, partition, message in heapq.merge(*feeds, key=lambda row: row[2].time):
                if key == LINES:
                    self._take_line(message)
                    continue
                instance = self._instances[partition]
                if instance.topics.has_readers and key in self.spec.shows:
                    instance.topics.show(self.spec.shows[key], message)
                if key in self._sources:  # what nobody reads comes too
                    instance.scheduler.feed(self._sources[key], message)
                instance.scheduler.run()
            for instance in self._instances.values():
                for index in ended:
                    if (output := self.spec.feeds[index].ends) is not None:
                        instance.scheduler.close(output)
                instance.settle()
                instance.attend()
                instance.settle()
                instance.scheduler.check_timeouts()
                instance.scheduler.close_idle_cycles()
                if instance.scheduler.stop_all or instance.scheduler.over:
                    instance.scheduler.end("MANUAL" if instance.scheduler.stop_all else "ALL_INPUTS_CLOSED")
                instance.settle()

    def _limit_loops(self, *, whole: bool = False) -> None:
        """Limit how long messages circulate in a cycle within an epoch, unless the `whole` has to finish."""
        limited = self.spec.loops and not whole
        for instance in self._instances.values():
            instance.scheduler.until = clock.monotonic() + LOOP_SECONDS if limited else None

    def _read(
        self, feed: int, batch: pa.RecordBatch
    ) -> Iterator[tuple[str, int, Message | Closed | Unreadable]]:
        output = self.spec.feeds[feed].rows
        if output is not None:
            yield output_key(output), 0, message_of(batch)
            return
        partitions = batch.column(PARTITION).to_pylist() if PARTITION in batch.schema.names else None
        for row, (key, message) in enumerate(unpack(batch)):
            yield key, 0 if partitions is None else partitions[row], message

    def _take_line(self, message: Message | Closed | Unreadable) -> None:
        """What a source's process has printed comes with its messages."""
        if isinstance(message, Message) and self._instances:
            for data in message.value.to_pylist():
                self._instances[min(self._instances)].lines += decode_lines(data)

    @contextmanager
    def _at_work(self, collector: Collector | None = None) -> Iterator[None]:
        """While units run: where they are, where what they print and send goes."""
        if not self._instances:
            yield
            return
        capture = next(iter(self._instances.values())).capture
        for instance in self._instances.values():
            instance.capture.share(capture)
            instance.emit = _drop if collector is None else self._emitter(collector)
        before = os.getcwd()  # noqa: PTH109 - a place to come back to
        collecting = gc.get_threshold()
        gc.set_threshold(_COLLECT_AFTER, *collecting[1:])
        if self.spec.directory.is_dir():
            os.chdir(self.spec.directory)
        try:
            with capture.capturing():
                yield
        finally:
            os.chdir(before)
            gc.set_threshold(*collecting)
            if collector is not None:
                self._flush(collector)

    def _emitter(self, collector: Collector) -> Callable[[Output, Message | Closed], None]:
        ports: dict[Output, list[RuntimePort]] = {}
        for port in self.spec.ports:
            ports.setdefault(port.output, []).append(port)

        def emit(output: Output, message: Message | Closed) -> None:
            for port in ports[output]:
                if port.form == "rows":
                    if isinstance(message, Message):
                        collector.collect(rows_of(message), port.name)
                    continue
                key = output_key(output)
                sent = ((key, part, number) for part, number in _divided(port, message))
                self._outbox.setdefault(port.name, []).extend(sent)
                self._outbox_bytes += message.value.nbytes if isinstance(message, Message) else 0
            if self._outbox_bytes > _FLUSH_BYTES:
                self._flush(collector)

        return emit

    def _flush(self, collector: Collector) -> None:
        outbox, self._outbox, self._outbox_bytes = self._outbox, {}, 0
        divided = {port.name for port in self.spec.ports if port.partitions > 1}
        for name, rows in outbox.items():
            messages = [(key, message) for key, message, _ in rows]
            partitions = [partition for _, _, partition in rows] if name in divided else []
            for batch in pack(messages, partitions=partitions):
                collector.collect(batch, name)

    def _check(self, ctx: OperatorContext) -> None:
        """Raise what a unit has raised, with what was printed: nothing of this epoch is committed."""
        for instance in self._instances.values():
            failure = instance.scheduler.failure
            if failure is None:
                continue
            instance.scheduler.failure = None
            for other in self._instances.values():
                other.abandon()
            lines = self._take_lines()
            error, info = failure.error, ctx.task_info
            if isinstance(error, HeadraceError):
                error.where = error.where or f"`{failure.address}`"
                error.printed = tuple(line for line in lines if line.stream != "error")
                raise error
            raised = OperatorError(
                f"`{failure.address}` raised {type(error).__name__}: {error}",
                operator_id=failure.address,
                subtask=info.subtask,
                epoch=info.epoch,
                traceback_text=failure.trace,
            )
            raised.printed = tuple(line for line in lines if line.stream != "error")
            raise raised from error


def _divided(port: RuntimePort, message: Message | Closed) -> list[tuple[Message | Closed, int]]:
    """A message with the instance that it is for; what is for all of a parallel unit's, once for each."""
    if port.partitions == 1:
        return [(message, 0)]
    return list(divide(message, by=port.partition_by or "", partitions=port.partitions))
