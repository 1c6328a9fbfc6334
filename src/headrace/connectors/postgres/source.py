"""The `postgres` source: read a table and its changes by logical replication."""

from __future__ import annotations

import contextlib
import copy
import logging
import time as clock
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import BadLineError, ConfigurationError, ExternalError, suggest
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.ranges import even_ranges
from headrace.connectors.base import TIMESTAMP_TYPE, Delivery, bounded_for_good, report_bad, wall_clock
from headrace.connectors.postgres.client import (
    CONNECT_SECONDS,
    PostgresConnector,
    PostgresTable,
    identifier,
    load_client,
    quoted,
)
from headrace.connectors.postgres.columns import table_columns
from headrace.connectors.postgres.options import PostgresSourceOptions
from headrace.connectors.postgres.pgoutput import MissingRowError, ReplicatedRows, ReplicationMessages
from headrace.connectors.postgres.rows import RowReader
from headrace.connectors.postgres.slot import Slot, attempts_to_start, short_name, show_lsn
from headrace.connectors.postgres.snapshot import Snapshot, copied_rows
from headrace.formats.base import plain_field
from headrace.model.operator import (
    DEAD_LETTER,
    Collector,
    Finish,
    Limit,
    Offset,
    SourceContext,
    SourceOperator,
    Split,
)

LANE = "changes"
QUIET_BYTES = 16 * 1024 * 1024
"""After this much of the log without a change of the table the slot is advanced anyway."""
_ADVANCE_SECONDS = 5.0
_LONGEST_BASE = 54
"""The longest name of a slot without the suffix of an attempt."""
_LONGEST_REST = 5.0
_SAMPLE_ROWS = 1000
_BATCH_ROWS = 20_000
_WORTH_SPLITTING = 50_000

_log = logging.getLogger("headrace.postgres")


class PostgresSource(PostgresConnector, SourceOperator):
    """Reads the rows of a PostgreSQL table, then every change of it, each once.

    A new pipeline creates a replication slot, copies a snapshot of the existing rows into the state directory
    and reads it from there. Then it reads the changes; an epoch never splits a transaction. An update
    retracts the old row and adds the new one, so the table needs REPLICA IDENTITY FULL. `_timestamp` is the
    commit time of the transaction, and for the snapshot the time of the copy. The position in the log (LSN)
    is part of the checkpoint, and the slot follows it: a pipeline resumes with the next transaction. One task
    reads the changes, several tasks read the snapshot.
    """

    Options = PostgresSourceOptions
    options: PostgresSourceOptions
    lag_unit = "bytes"
    deliveries = (
        Delivery(
            "exactly once",
            "the position in the log is in the checkpoint, and a replication slot keeps what follows it",
        ),
    )

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self.idle_timeout = self.options.idle_timeout
        self._storage: Any = None
        self._node = "source"
        self._base = ""
        """What the names of the slots of all attempts to start begin with."""
        self._is_sampling = False
        self._rest_until = 0.0
        self._log_end: int | None = None
        self._advanced = 0
        self._copies = True
        self._available: int | None = None
        """The LSN at which a run with `available_now` ends."""

    @classmethod
    def is_updating(cls, options: Mapping[str, Any]) -> bool:
        """Whether rows are retracted: not if only inserts or only the snapshot are read."""
        bounded = str(options.get("source.bounded", "")).lower() in {"true", "yes", "1"}
        return bool(options.get("source.changes", "all") == "all") and not bounded

    def for_sampling(self) -> Self:
        """Return a copy that reads some rows of the table and creates no slot."""
        sampler = copy.copy(self)
        sampler._is_sampling = True  # noqa: SLF001 - it is of the same class
        return sampler

    def find_columns(self) -> pa.Schema:
        """Return the columns of the table, without generated ones if changes are read."""
        super().validate()
        table = self.database.run(self.describe, patience=CONNECT_SECONDS)
        return table_columns(table, generated=self._ends)

    @property
    def _all(self) -> bool:
        return self.options.source_changes == "all" and not self.options.source_bounded

    @property
    def _ends(self) -> bool:
        return self.options.source_bounded or self._is_sampling

    @property
    def _columns(self) -> pa.Schema:
        assert self.options.columns is not None
        return self.options.columns

    def _slot(self, name: str) -> Slot:
        default = f"headrace_{self.options.table}"
        publication = self.options.source_publication or (
            default if len(default) < 64 else short_name(default)
        )
        return Slot(self.database, self.options.table, name, publication)

    def validate(self) -> None:
        """Raise an error if no columns are declared."""
        super().validate()
        if self.options.columns is None:
            raise ConfigurationError(
                "the postgres source needs to know its columns",
                hint="declare them with the option `schema`",
            )

    def summarize_table(self, connection: Any) -> str:
        """Return a line about the table; raises an ExternalError if its changes cannot be read."""
        self._check(connection, self.describe(connection))
        return super().summarize_table(connection)

    def open(self, storage: Any, *, job_id: str, node: str) -> None:
        """Take the state storage, and derive the name of the slot from the job and the node."""
        self._storage, self._node = storage, node
        self._base = short_name(f"headrace_{job_id}_{node}", longest=_LONGEST_BASE)

    # --------------------------------------------------------------------------------------- the start

    def initial_offset(self, *, time: float) -> Offset:
        """Create the slot and copy the snapshot; return their position."""
        self.validate()
        # Every attempt has a slot of its own: a run that was replaced meanwhile cannot touch its successor's.
        name = self.options.source_slot or f"{self._base or 'headrace'}_{uuid.uuid4().hex[:8]}"
        slot = self._slot(name)
        tried: list[str] = []

        def start(connection: Any) -> Offset:
            table = self.describe(connection)
            self._check(connection, table)
            position: dict[str, Any] = {"oid": table.oid, "slot": None, "lsn": 0, "rows": 0, "snapshot": None}
            if self._ends:
                with _snapshot_transaction(connection):
                    return {LANE: {**position, "snapshot": self._copy(connection, time)}}
            slot.publish(connection)
            if self.options.source_slot is not None and not tried:
                slot.refuse_existing(connection)
            earlier = {*tried, *(attempts_to_start(connection, self._base) if self._base else ())}
            self.check_generation()
            slot.drop(connection, sorted(earlier))
            tried.append(name)
            with slot.created() as (lsn, moment):
                position |= {"slot": name, "lsn": lsn}
                if self.options.source_snapshot:
                    with _snapshot_transaction(connection, moment):
                        position["snapshot"] = self._copy(connection, time)
            return {LANE: position}

        return self.database.run(start)

    def _check(self, connection: Any, table: PostgresTable) -> None:
        """Raise an ExternalError for a table whose changes cannot be read with the declared columns."""
        self.check_columns(table, self.options.columns)
        if self._ends:
            return
        self._slot("").check_log(connection)
        for name in self._columns.names:
            if table.columns[name].generated:
                raise self.database.error(
                    f"does not tell changes of `{name}`, a generated column of table `{table.name}`",
                    "leave the column out, and compute it in a view",
                )
        if self._all and table.identity != "f":
            raise self.database.error(
                f"does not tell the old rows of table `{table.name}` when they are changed or deleted",
                f"run ALTER TABLE {quoted(self.options.table)} REPLICA IDENTITY FULL; "
                "or read only what is inserted: 'source.changes' = 'inserts'",
            )

    def _copy(self, connection: Any, time: float) -> dict[str, Any]:
        """Copy the rows of the table into the state directory."""
        assert self._storage is not None, "open comes first"
        snapshot, folder = Snapshot.create(self._storage, self._node, check=self.check_generation)
        sql, names = load_client().sql, self._columns.names
        select = sql.SQL("COPY (SELECT {} FROM {} {}) TO STDOUT (FORMAT csv)").format(
            sql.SQL(", ").join(sql.Identifier(name) for name in names),
            identifier(self.options.table),
            sql.SQL(f"LIMIT {_SAMPLE_ROWS}" if self._is_sampling else ""),
        )
        with connection.cursor() as cursor, cursor.copy(select) as blocks:
            rows, index = snapshot.write(copied_rows(iter(blocks), len(names), self._read_copied))
        _log.info("copied %d rows of table `%s`", rows, self.options.table)
        return {"folder": folder, "index": index, "rows": rows, "read": 0, "time": wall_clock(time)}

    @property
    def _reader(self) -> RowReader:
        return RowReader(self._columns, table=self.options.table, where=self.database.address)

    def _read_copied(self, texts: Sequence[pa.Array]) -> pa.Table:
        rows, bad = self._reader.read(texts)
        if self.options.bad_data != "fail":
            return self._reader.with_errors(rows, bad)  # they are told when the rows are read
        if bad:
            raise bad[min(bad)]
        return rows

    # ------------------------------------------------------------------------------------------ epochs

    def limit_to_available(self, start: Offset, *, time: float) -> Offset:
        """Read the snapshot, and the transactions that the server has committed by now."""
        if self.options.source_bounded:
            raise bounded_for_good()
        position = start[LANE]
        slot = self._slot(position["slot"])
        self._available = self.database.run(
            lambda connection: slot.check(connection, lsn=position["lsn"], oid=position["oid"])
        )
        return start

    def latest_offset(self, start: Offset, limit: Limit, *, parallelism: int) -> Offset:
        """Return the end of the next epoch: `limit.rows` of the snapshot, or at least one transaction."""
        position = start[LANE]
        snapshot = position["snapshot"]
        if limit.rows <= 0:
            return start
        if snapshot is not None and snapshot["read"] < snapshot["rows"]:
            read = min(snapshot["rows"], snapshot["read"] + limit.rows)
            rest = {**snapshot, "read": read}
            if read == snapshot["rows"]:
                rest.pop("index", None)  # from here on no file of the snapshot is needed
            return {LANE: {**position, "snapshot": rest}}
        if position["slot"] is None:
            return start
        if self._available is None and clock.monotonic() < self._rest_until:
            return start
        if snapshot is not None and self._copies and self._storage is not None:
            Snapshot(self._storage, snapshot["folder"]).delete()
            self._copies = False
        began = clock.monotonic()
        moved = self.database.run(lambda connection: self._plan(connection, position, limit.rows))
        if moved == position:
            # To look is work for the server, however little there is to see.
            now = clock.monotonic()
            self._rest_until = now + min(2 * (now - began), _LONGEST_REST)
            return start
        return {LANE: moved}

    def _plan(self, connection: Any, position: Mapping[str, Any], limit: int) -> dict[str, Any]:
        """Return the end of the next epoch: the end of a transaction."""
        slot, start, oid = self._slot(position["slot"]), position["lsn"], position["oid"]
        log = slot.check(connection, lsn=start, oid=oid)
        if self._available is not None:
            log = min(log, self._available)
        if log <= start:
            return dict(position)
        # A change of one row comes with the begin and the end of its transaction.
        transactions, complete = slot.transactions(connection, after=start, oid=oid, most=3 * limit + 16)
        if self._available is not None:
            seen = len(transactions)
            transactions = [each for each in transactions if each.lsn <= log]
            complete = complete or len(transactions) < seen
        end, rows = start, 0
        self._log_end = log
        for transaction in transactions:
            more = transaction.inserts + (2 * transaction.updates + transaction.deletes if self._all else 0)
            if rows and rows + more > limit:
                complete = False
                break
            if more or transaction.truncates:
                end, rows = transaction.lsn, rows + more
        if end == start and not complete:
            end = transactions[-1].lsn
        elif end == start and log - start > QUIET_BYTES:
            end = log
        if complete:
            self._log_end = end  # what follows is of other tables
        return {**position, "lsn": end, "rows": position["rows"] + rows}

    def lag(self, offset: Offset, *, time: float) -> Mapping[str, int]:
        """Return how many bytes of the server's log are behind the offset."""
        end = self._log_end
        return {} if end is None else {LANE: max(0, end - offset[LANE]["lsn"])}

    def splits(self, start: Offset, end: Offset, *, parallelism: int) -> Sequence[Split]:
        """Return several splits for the snapshot, and one for the changes."""
        before, after = start[LANE], end[LANE]
        splits = []
        if after["snapshot"] is not None:
            first, last = before["snapshot"]["read"], after["snapshot"]["read"]
            shares = max(1, min(parallelism, (last - first) // _WORTH_SPLITTING))
            detail = {"snapshot": before["snapshot"], "final": self.is_finished(end)}
            splits = [
                Split(LANE, {**detail, "first": low, "end": high})
                for low, high in even_ranges(first, last, shares)
                if low < high
            ]
        if after["lsn"] > before["lsn"]:
            splits.append(Split(LANE, {**after, "snapshot": None, "start": before["lsn"]}))
        return splits

    def run(self, ctx: SourceContext, collector: Collector) -> Finish:
        """Read rows of the snapshot, or the changes of some transactions."""
        detail = ctx.split.detail
        if detail["snapshot"] is None:
            self._run_changes(detail, ctx, collector)
            return Finish.GRACEFUL
        snapshot = Snapshot(
            self._storage if ctx.storage is None else ctx.storage,
            detail["snapshot"]["folder"],
            detail["snapshot"].get("index"),
        )
        for copied in snapshot.read(detail["first"], detail["end"]):
            rows, bad = self._reader.split_errors(copied)
            retracts = np.zeros(rows.num_rows, np.bool_)
            times = np.full(rows.num_rows, detail["snapshot"]["time"], np.int64)
            self._report(bad, retracts, ctx, collector)
            self._collect(rows, bad, retracts, times, collector)
        return Finish.FINAL if detail["final"] else Finish.GRACEFUL

    def _run_changes(self, detail: Mapping[str, Any], ctx: SourceContext, collector: Collector) -> None:
        slot, start, end, oid = self._slot(detail["slot"]), detail["start"], detail["lsn"], detail["oid"]

        def read(connection: Any) -> list[bytes]:
            slot.check(connection, lsn=start, oid=oid)
            return slot.messages(connection, end=end)

        changes = ReplicationMessages(self.database.run(read), oid=oid, start=start, end=end)
        truncated = changes.truncates() if self._all else []
        if truncated:
            ctx.metrics.add("truncates", len(truncated))
            if self.options.source_truncate == "fail":
                raise self.database.error(
                    f"has truncated table `{self.options.table}`, in the transaction at "
                    f"{show_lsn(truncated[0])}; which rows that took away is not told",
                    "use DELETE; to go on as if the rows were still there, set 'source.truncate' = 'ignore'",
                )
        try:
            for rows in changes.rows(inserts_only=not self._all):
                texts = [self._texts(rows, field.name) for field in self._columns]
                table, bad = self._reader.read(texts, rows.positions.tolist())
                self._report(bad, rows.retracts, ctx, collector)
                self._collect(table, bad, rows.retracts, rows.times, collector)
        except MissingRowError as error:
            raise self.database.error(
                f"did not tell the old row of a change of table `{self.options.table}`, in the transaction "
                f"at {show_lsn(error.position)}",
                f"run ALTER TABLE {quoted(self.options.table)} REPLICA IDENTITY FULL, and start the pipeline "
                "with another state directory",
            ) from None

    def _texts(self, rows: ReplicatedRows, name: str) -> pa.Array:
        names = rows.relation.columns
        if name not in names:
            raise ExternalError(
                f"table `{rows.relation.name}` has no column `{name}` in the transaction at "
                f"{show_lsn(int(rows.positions[0]))}",
                hint=suggest(name, names, listing="its columns are"),
                where=f"postgres at {self.database.address}",
            )
        return rows.columns[names.index(name)]

    def _report(
        self, bad: Mapping[int, BadLineError], retracts: Any, ctx: SourceContext, collector: Collector
    ) -> None:
        """End the run, or report bad rows that were added; retracted ones were reported before."""
        if bad and self.options.bad_data == "fail":
            raise bad[min(bad)]
        added = [error for index, error in bad.items() if not retracts[index]]
        report_bad(ctx, collector, added, keep=self.options.bad_data == DEAD_LETTER)

    def _collect(
        self, rows: pa.Table, bad: Mapping[int, object], retracts: Any, times: Any, collector: Collector
    ) -> None:
        if bad:
            good = np.delete(np.arange(rows.num_rows), list(bad))
            rows, retracts, times = rows.take(pa.array(good)), retracts[good], times[good]
        fields, arrays = [plain_field(field) for field in self._columns], list(rows.columns)
        if self._all:
            fields.append(pa.field(RETRACT, pa.bool_()))
            arrays.append(pa.array(retracts))
        fields.append(pa.field(TIMESTAMP, TIMESTAMP_TYPE))
        arrays.append(pa.array(times, pa.int64()).view(TIMESTAMP_TYPE))
        table = pa.table(arrays, schema=pa.schema(fields)).combine_chunks()
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            collector.collect(batch)

    def is_finished(self, offset: Offset) -> bool:
        """Whether a bounded source has read the snapshot."""
        position = offset[LANE]
        snapshot = position["snapshot"]
        return position["slot"] is None and bool(snapshot["read"] >= snapshot["rows"])

    def count(self, start: Offset, end: Offset) -> int:
        """Return the number of rows in a range."""
        before, after = start[LANE], end[LANE]
        copies = [
            0 if position["snapshot"] is None else position["snapshot"]["read"]
            for position in (before, after)
        ]
        return int(copies[1] - copies[0] + after["rows"] - before["rows"])

    def committed(self, offset: Offset) -> None:
        """Advance the slot, so that the server can remove the log before this position."""
        name, lsn = offset[LANE]["slot"], offset[LANE]["lsn"]
        if name is None or lsn <= self._advanced:
            return
        try:
            slot = self._slot(name)
            self.database.run(lambda connection: slot.advance(connection, lsn), patience=_ADVANCE_SECONDS)
            self._advanced = lsn
        except ExternalError as error:
            # The position that counts is in the checkpoint.
            _log.warning("replication slot `%s` was not moved: %s", name, error.message)


@contextlib.contextmanager
def _snapshot_transaction(connection: Any, snapshot: str | None = None) -> Iterator[None]:
    """Run the block in a transaction that sees the current rows, or those of an exported snapshot."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if snapshot is not None:
            sql = load_client().sql
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        yield
