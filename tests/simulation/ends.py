"""The sources and sinks of simulated pipelines.

The source and the queue are simulated servers. The table has the real code of sinks for databases, the queue
that of message sinks, up to the call that reaches the server. `single_file`, `filesystem` and `database` are
the real connectors, over the simulated disk or object store, and SQLite.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import create_engine, inspect, text

import headrace as hr
from headrace.base.errors import ExternalError
from headrace.connectors._shared.message_sink import RECHECK_SECONDS, MessageSink
from headrace.connectors._shared.messages import MessageOptions
from headrace.connectors._shared.sql_table import Epoch, TableChanges, TableSink, TableSinkOptions
from headrace.connectors.database.sink import DatabaseSink
from headrace.connectors.filesystem.sink import FileSystemSink
from headrace.connectors.received import Inbox, Received, ReceivedSource
from headrace.connectors.single_file.sink import SingleFileSink
from headrace.formats.options import DropOptions, FormatOptions
from headrace.model.operator import (
    Collector,
    CommitData,
    Finish,
    Limit,
    Offset,
    OperatorContext,
    SourceContext,
    SourceOperator,
    Split,
)
from tests.flows import SECOND, T0
from tests.simulation.bucket import Bucket
from tests.simulation.disk import ROOT, Disk
from tests.simulation.scene import Lanes, Rows, Table, scene

BUCKET: Final = "s3://simulated"


class SimulatedSource(SourceOperator):
    """Reads the rows of a scene from a server that comes and goes; every row has its position."""

    def __init__(self, node: str) -> None:
        self._node = node

    @property
    def _lanes(self) -> Lanes:
        return scene().sources[self._node]

    def initial_offset(self, *, time: float) -> Offset:
        return dict.fromkeys(self._lanes, 0)

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        world = scene().world
        world.call("source", f"asks {self._node} for its end", lambda: None, ConnectionError)
        end, left = dict(start), limit.rows
        for lane, rows in self._lanes.items():
            share = min(left, len(rows) - start[lane])
            if world.faulty:
                share = world.random.randint(0, share)
            end[lane] += share
            left -= share
        return end if end != start else start

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        final, splits = self.is_finished(end), []
        for lane in self._lanes:
            first, last = start[lane], end[lane]
            middle = (first + last) // 2 if parallelism > 1 else first
            splits += [
                Split(lane, {"first": a, "last": b, "final": final})
                for a, b in ((first, middle), (middle, last))
                if a < b
            ]
        return splits

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        detail = ctx.split.detail
        what = f"reads {self._node}/{ctx.split.lane} from {detail['first']} to {detail['last']}"
        rows = self._lanes[ctx.split.lane][detail["first"] : detail["last"]]
        scene().world.call("source", what, lambda: None, ConnectionError)
        collector.collect(
            pa.record_batch(
                {
                    "k": pa.array([row.key for row in rows], pa.int64()),
                    "counter": pa.array([row.number for row in rows], pa.int64()),
                    "_timestamp": pa.array([T0 + row.second * SECOND for row in rows], pa.timestamp("ns")),
                }
            )
        )
        return Finish.FINAL if detail["final"] else Finish.GRACEFUL

    def is_finished(self, offset: Offset) -> bool:
        return all(offset[lane] >= len(rows) for lane, rows in self._lanes.items())

    def count(self, start: Offset, end: Offset) -> int:
        return sum(end[lane] - start[lane] for lane in self._lanes)


class SimulatedQueue(ReceivedSource):
    """Receives the rows of a scene from a broker, which forgets what is acknowledged.

    The log, the positions and the acknowledgements are those of every source that logs what it receives. Only
    its thread is left out: it listens whenever it is asked for messages.
    """

    label = "simulated"

    class Options(MessageOptions):
        """The options of the simulated queue."""

        node: str

    @property
    def address(self) -> str:
        return f"queue of {self.options.node}"

    def _start(self, inbox: Inbox) -> None:
        self._inbox, self._ended, self._sent = inbox, False, -1

    def receive(self, rows: int) -> bool:
        if self._inbox is None:
            self._start(Inbox(self._resume, name=self.waits_for))
        assert self._inbox is not None
        try:
            self.listen(self._inbox)
        except ConnectionError:
            self._inbox.reconnect()
            self._sent = -1
        return super().receive(rows)

    def listen(self, inbox: Inbox) -> None:
        """Acknowledge what is logged, and take some of what waits; then look once more, as threads do."""
        world, broker, node = scene().world, scene().broker(self.options.node), self.options.node
        self._acknowledge(inbox)
        waiting = world.call(
            "source", f"takes messages of {node}", lambda: broker.waiting(self._sent), ConnectionError
        )
        if world.faulty:
            waiting = waiting[: world.random.randint(0, len(waiting))]
        for number in waiting:
            row = broker.rows[number]
            value = json.dumps({"k": row.key, "counter": row.number}).encode()
            inbox.put(value, time=T0 + row.second * SECOND, token=number, resume=number)
            self._sent = number
        self._acknowledge(inbox)
        self._ended = broker.is_empty

    def _acknowledge(self, inbox: Inbox) -> None:
        acknowledged = scene().broker(self.options.node).acknowledged
        for number in inbox.take_logged_tokens():
            what = f"acknowledges message {number} of {self.options.node}"
            scene().world.call("source", what, partial(acknowledged.add, number), ConnectionError)

    def settle(self, resume: Any, messages: Sequence[Received]) -> tuple[Sequence[Received], Any]:
        """Leave out what was logged before its acknowledgement was lost."""
        last = -1 if resume is None else resume
        new = [message for message in messages if message.token > last]
        return new, new[-1].token if new else resume


def _refused(why: str) -> ExternalError:
    return ExternalError(f"the server of the sink does not answer: {why}")


class TransactionalSink(TableSink):
    """Writes to a table of the scene, rows and mark in one transaction."""

    class Options(TableSinkOptions):
        """The options of the simulated table."""

    def commit_shares(self, data: CommitData) -> Sequence[CommitData]:
        return [data]

    def write(self, epoch: Epoch, changes: TableChanges) -> None:
        table = scene().tables.setdefault(self.options.table, Table())

        def transaction() -> None:
            if table.generation > epoch.generation:
                epoch.check_generation()
            table.generation = epoch.generation
            key = (epoch.job, epoch.sink, epoch.number)
            if table.marks.get(key) != epoch.mark:
                table.marks[key] = epoch.mark
                table.change(changes.rows.to_pylist(), changes.deleted.to_pylist(), self.options.primary_key)

        what = f"commits {changes.rows.num_rows} rows of epoch {epoch.number} to table {self.options.table}"
        scene().world.call("sink", what, transaction, _refused)


class QueueSink(MessageSink):
    """Sends messages to a queue of the scene, one by one, at least once, each subtask in its own task."""

    parallel = True

    class Options(DropOptions, FormatOptions):
        """The options of the simulated queue."""

        queue: str

    def commit_shares(self, data: CommitData) -> Sequence[CommitData]:
        return self.parts(data)

    def deliver(self, messages: pa.Table, batch_id: str, ctx: OperatorContext) -> None:
        queue = scene().queues.setdefault(self.options.queue, Counter())
        for number, message in enumerate(messages.column("value").to_pylist()):
            ctx.check_generation(every=RECHECK_SECONDS)
            what = f"sends message {number} of epoch {ctx.task_info.epoch} to {self.options.queue}"
            scene().world.call("sink", what, partial(queue.update, [message]), _refused)


class RealDatabaseSink(DatabaseSink):
    """The sink for databases, whose server fails before or after a transaction."""

    def write(self, epoch: Epoch, changes: TableChanges) -> None:
        what = f"commits {changes.rows.num_rows} rows of epoch {epoch.number} to the database"
        scene().world.call(
            "sink", what, lambda: super(RealDatabaseSink, self).write(epoch, changes), _refused
        )


EXACT: Final = ("table", "single_file", "filesystem", "database")
KINDS: Final = (*EXACT, "queue")
REPEATED_BY_REWIND: Final = ("table", "filesystem", "database", "queue")
"""Sinks that keep what was written after the checkpoint that a run goes back to, and get it once more."""
KEYED: Final = ("keyed table", "keyed database")
"""Sinks of updating results: they hold the same in the end when a run goes back to an earlier checkpoint."""


def make_sink(kind: str, name: str, *, bucket: bool, database: Path, interval: str) -> hr.ArrowOperator:
    """A sink of some kind; `name` tells it from the others of the pipeline."""
    base = BUCKET if bucket else ROOT
    if kind in {"table", "keyed table"}:
        key = ["k"] if kind == "keyed table" else []
        return TransactionalSink(url="simulated://table", table=name, primary_key=key)
    if kind == "queue":
        return QueueSink(queue=name, format="json")
    if kind == "single_file":
        return SingleFileSink(path=f"{ROOT}/{name}.json", format="json")
    if kind == "filesystem":
        options: dict[str, Any] = {"rolling_policy.interval": interval}
        return FileSystemSink(path=f"{base}/files-{name}", format="json", **options)
    options = {"sink.create_table": True, "primary_key": ["k"] if kind == "keyed database" else []}
    return RealDatabaseSink(url=f"sqlite:///{database}", table=name, **options)


def written_rows(kind: str, name: str, *, disk: Disk, bucket: Bucket, database: Path) -> Rows:
    """What readers of a sink's system see."""
    if kind in {"table", "keyed table"}:
        table = scene().tables.get(name)
        return [] if table is None else list(table.rows)
    if kind == "queue":
        queue = scene().queues.get(name, Counter())
        return [json.loads(message) for message in queue.elements()]
    if kind == "single_file":
        inode = disk.names.get(f"{ROOT}/{name}.json")
        return [] if inode is None else _lines(bytes(inode.content))
    if kind == "filesystem":
        start = f"{ROOT}/files-{name}/"
        files = {
            path.removeprefix(start): bytes(i.content)
            for path, i in disk.names.items()
            if path.startswith(start)
        }
        start = f"files-{name}/"
        files |= {
            path.removeprefix(start): data for path, data in bucket.objects.items() if path.startswith(start)
        }
        return [
            row for path, data in sorted(files.items()) if not path.startswith(".") for row in _lines(data)
        ]
    engine = create_engine(f"sqlite:///{database}")
    try:
        if not inspect(engine).has_table(name):
            return []
        with engine.connect() as connection:
            return [dict(row) for row in connection.execute(text(f'SELECT * FROM "{name}"')).mappings()]
    finally:
        engine.dispose()


def _lines(data: bytes) -> Rows:
    return [json.loads(line) for line in data.splitlines()]
