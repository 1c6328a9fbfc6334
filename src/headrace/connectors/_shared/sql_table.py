"""The base of connectors for database tables: addresses, columns, and the two phases of a sink."""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import HeadraceError, PlanError, suggest
from headrace.base.keys import hash_columns
from headrace.base.options import Names, Secret
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.table_limits import ColumnLimits, limit_refusals
from headrace.connectors.base import (
    Connector,
    Delivery,
    Refusal,
    accept_rows,
    shares_for_tasks,
    stage,
    staged_batches,
    to_ipc,
    unify_schemas,
)
from headrace.formats.base import plain_field
from headrace.formats.options import Columns
from headrace.model.operator import (
    ArrowOperator,
    CheckpointBarrier,
    Collector,
    CommitData,
    OperatorContext,
)
from headrace.state.rows import group_rows, single

KEPT_EPOCHS = 100
"""The number of epochs for which the database keeps marks."""
_RUN_CHARACTERS = 16
FENCE = -1
"""The number, in the table of epochs, of the row that holds the `fence` of the last commit and not a mark.

A row, not a column: tables of earlier versions stay as they are, and nobody needs the right to alter them.
"""

_NAME = re.compile(r'(?:"((?:[^"]|"")+)"|([^".]+))(\.|$)')


def show_address(url: str) -> str:
    """Return an address without user, password and settings.

    >>> show_address("postgresql://ada:secret@host:5432/sales?sslmode=require")
    'host:5432/sales'
    """
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] + parts.path


Address = Annotated[
    str,
    BeforeValidator(lambda value: value if value is None else str(value)),  # a refused value would be shown
    PlainSerializer(show_address, return_type=str, when_used="json"),
]
"""An option that takes the address of a database; user and password in it are never displayed."""


def table_parts(name: str) -> tuple[str, ...]:
    """Split the qualified name of a table; a quoted part may be any name.

    >>> table_parts('sales."May.2026"')
    ('sales', 'May.2026')
    """
    parts, position = [], 0
    while match := _NAME.match(name, position):
        parts.append(match.group(1).replace('""', '"') if match.group(1) else match.group(2).strip())
        position = match.end()
        if not match.group(3):
            break
    if not parts or position != len(name) or name.endswith(".") or len(parts) > 3:
        raise ValueError(f"`{name}` is not the name of a table; write `orders`, or `sales.orders`")
    return tuple(parts)


class TableOptions(DeclaredOptions):
    """A table of a database and its columns."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    url: Address = Field(
        repr=False, description="The database, such as postgresql://user:password@host:5432/database."
    )
    username: str | None = Field(None, description="The user, if not in `url`.")
    password: Secret | None = Field(None, repr=False, description="The password, if not in `url`.")
    table: str = Field(description="The table, such as `orders` or `sales.orders`.")
    columns: Columns | None = Field(
        None, alias="schema", description="Column → type, such as int64, double, string, timestamp."
    )
    primary_key: Names = Field(default=[], description="The columns of the primary key.")

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        table_parts(self.table)
        for name in self.primary_key:
            if self.columns is not None and name not in self.columns.names:
                names = self.columns.names
                hint = suggest(name, names, listing="the columns are")
                raise ValueError(f"`primary_key` names `{name}`, which is not a column; {hint}")
        return self


class TableSinkOptions(TableOptions):
    """The options of a sink that writes to a database table."""

    primary_key: Names = Field(
        default=[],
        description=(
            "The columns of a primary key or unique index of the table: a row replaces the one with "
            "the same key. Without them rows are inserted."
        ),
    )
    sink_create_table: bool = Field(
        default=False, alias="sink.create_table", description="Whether to create the table if it is missing."
    )
    sink_epochs_table: str = Field(
        "headrace_epochs",
        alias="sink.epochs_table",
        description="The table in the same database that records the committed epochs; created if missing.",
    )

    @model_validator(mode="after")
    def _check_epochs_table(self) -> Self:
        table_parts(self.sink_epochs_table)
        return self


@dataclass(frozen=True)
class Epoch:
    """An epoch of a sink, its mark in the database, and the run that commits it."""

    job: str
    sink: str
    number: int
    mark: str
    generation: int
    run: str
    check_generation: Callable[[], None]
    """Raises a ReplacedError if another run has taken over the state directory."""

    @property
    def fence(self) -> str:
        """Generation, epoch and run as a string for the database; strings sort as the numbers do.

        Earlier versions recorded the generation alone.
        """
        return f"{self.generation:020}.{self.number:012}.{self.run[:_RUN_CHARACTERS]}"

    def is_late(self, fence: str) -> bool:
        """Whether the record is of this run at a later epoch: another attempt has written this one."""
        same, _, run = self.fence.split(".")
        generation, epoch, other = (*fence.split("."), "", "")[:3]
        return (generation, other) == (same, run) and int(epoch) > self.number

    @property
    def oldest(self) -> int:
        """The oldest epoch whose mark is kept."""
        return max(0, self.number - KEPT_EPOCHS)


@dataclass(frozen=True)
class TableChanges:
    """The changes of an epoch to a table."""

    rows: pa.Table
    """Rows to insert; with a key at most one for each key, which replaces the existing row."""
    deleted: pa.Table
    """The keys of rows to delete."""


class TableSink(Connector, ArrowOperator):
    """A sink that writes the rows of an epoch together with the epoch's mark, in one transaction.

    A connector implements `write`. Tasks stage the rows of an epoch in the state directory; a task of the
    commit writes them, or the driver if there are few. A retried commit finds its mark and does nothing. The
    transaction also records the generation of the run and the epoch, and locks that record: a run that was
    replaced finds a greater generation, an attempt that comes late a later epoch. They write nothing, however
    long ago the marks of their epochs were forgotten.
    """

    options: Any
    asked_in_commits = True
    updates_with: ClassVar[str] = "declare the PRIMARY KEY of the table"
    deliveries: ClassVar[Sequence[Delivery]] = (
        Delivery(
            "exactly once",
            "the rows and a record of the epoch are written in one database transaction",
        ),
    )

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self._batches: list[pa.RecordBatch] = []
        columns = self.options.columns
        self._plain = None if columns is None else pa.schema([plain_field(field) for field in columns])

    @property
    def accepts_updates(self) -> bool:  # type: ignore[override]
        """Whether there is a key by which rows can be updated and deleted."""
        return bool(self.options.primary_key)

    @abstractmethod
    def write(self, epoch: Epoch, changes: TableChanges) -> None:
        """Write the changes, the mark and the generation in one transaction.

        Nothing is changed if the mark exists already. A greater generation raises a ReplacedError, unless
        `epoch.check_generation` says that this run is the newest: then its state directory was restored from
        a copy, and its generation replaces the greater one. Nothing is changed if `epoch.is_late`.
        """

    def display(self) -> str:
        """Return the table and the database, without secrets."""
        return f"{type(self).__name__}({self.options.table} at {show_address(self.options.url)})"

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Keep the rows until the epoch ends."""
        ctx.metrics.add("rows", batch.num_rows)
        if batch.num_rows:
            rows = self._fitted(batch)
            self._batches.append(accept_rows(rows, self.refusals(rows), ctx, where=self.display()))

    def refusals(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Return the rows that the database would refuse because of a value, as far as a task can check."""
        return ()

    def column_limits(self) -> Mapping[str, ColumnLimits]:
        """Ask the database what the columns of the table can hold; nothing if there is no table yet."""
        return {}

    def misfits(self, rows: pa.Table, ctx: OperatorContext) -> Sequence[Refusal]:
        """Return the rows of an epoch that the table would refuse, as it is now."""
        limits = self.known_limits(ctx)
        misfits = list(limit_refusals(rows, limits))
        if misfits or not limits:  # it may have been changed, or made, since it was looked at
            misfits = list(limit_refusals(rows, self.known_limits(ctx, anew=True)))
        return misfits

    def known_limits(self, ctx: OperatorContext, *, anew: bool = False) -> Mapping[str, ColumnLimits]:
        """Return the limits of the columns, which are asked for once per process.

        A database that cannot be asked from here is not waited for: the commit does that, and says what is
        wrong.
        """
        limits: dict[str, ColumnLimits] = ctx.resource(f"limits of {self.display()}", dict)
        if anew:
            with suppress(HeadraceError):
                current = self.column_limits()
                limits.clear()
                limits.update(current)
        return limits

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the columns and types of the table, and `_retract`."""
        key, names = self.options.primary_key, batch.schema.names
        if RETRACT in names and not key:
            raise PlanError(
                f"rows that change earlier rows reach table `{self.options.table}`, which has no key",
                hint="declare the primary key of the table, or use an aggregate over a window",
            )
        written = [name for name in names if name not in {TIMESTAMP, RETRACT}]
        written = written if self._plain is None else self._plain.names
        for name in [*written, *key]:
            if name not in names:
                raise PlanError(
                    f"the rows have no column `{name}`",
                    hint=suggest(name, names, listing="the columns are"),
                )
        for name in key:
            if batch.column(name).null_count:
                raise PlanError(
                    f"a row for table `{self.options.table}` has no `{name}`, part of the primary key",
                    hint=f"leave such rows out: WHERE {name} IS NOT NULL",
                )
        rows = batch.select(written)
        if self._plain is not None and rows.schema.types != self._plain.types:
            try:
                rows = rows.cast(self._plain)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise PlanError(
                    f"the rows do not fit the columns of `{self.options.table}`: {error}"
                ) from error
        return rows.append_column(RETRACT, batch.column(RETRACT)) if RETRACT in names else rows

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        """Stage the net changes of the epoch."""
        batches, self._batches = self._batches, []
        if not batches:
            return
        rows = pa.Table.from_batches(unify_schemas(batches))
        if RETRACT in rows.schema.names:
            rows = without_pairs(rows)
        elif self.options.primary_key:
            rows = last_of_each_key(rows, self.options.primary_key)
        if rows.num_rows:
            written = rows
            if RETRACT in rows.schema.names:
                written = rows.filter(pa.array(~_retracts(rows))).drop([RETRACT])
            accept_rows(written, self.misfits(written, ctx), ctx, where=self.display())
            payload = to_ipc(rows.combine_chunks().to_batches())
            ctx.insert_committing_data("rows", stage(ctx, f"rows-{ctx.task_info.subtask}.arrow", payload))

    def commit_shares(self, data: CommitData) -> Sequence[CommitData]:
        """Return one share: readers see an epoch as a whole."""
        return shares_for_tasks([data], "rows")

    def handle_commit(self, epoch: int, data: CommitData, ctx: OperatorContext) -> None:
        """Write the staged changes of all subtasks."""
        batches, attempts = staged_batches(data, "rows", ctx)
        if not batches:
            return
        mark = hashlib.sha256(",".join(attempts).encode()).hexdigest()[:32]
        rows = pa.Table.from_batches(unify_schemas(batches))
        info = ctx.task_info
        self.write(
            Epoch(
                info.job_id,
                info.operator_id,
                epoch,
                mark,
                generation=ctx.generation,
                run=ctx.run_id,
                check_generation=ctx.check_generation,
            ),
            net_changes(rows, self.options.primary_key),
        )

    def fields(self, rows: pa.Table) -> list[pa.Field]:
        """Return the columns to write, as declared."""
        return list(rows.schema if self.options.columns is None else self.options.columns)


# --------------------------------------------------------------------------------- what changes amount to


def net_changes(rows: pa.Table, key: Sequence[str]) -> TableChanges:
    """Return the net changes of added and retracted rows, independent of the order of subtasks.

    A row and its retraction cancel each other. Of the remaining rows of a key the last added one is written;
    a key with only retractions is deleted. Without a key there are no retractions, and every row is inserted.
    """
    names = [name for name in rows.schema.names if name != RETRACT]
    if not key:
        return TableChanges(rows.select(names), rows.select([]).slice(0, 0))
    if RETRACT not in rows.schema.names:
        return TableChanges(last_of_each_key(rows, key), rows.select(key).slice(0, 0))
    left = without_pairs(rows)
    is_retraction = pa.array(_retracts(left))
    added = last_of_each_key(left.filter(pa.array(~_retracts(left))).select(names), key)
    removed = last_of_each_key(left.filter(is_retraction).select(key), key)
    return TableChanges(added, removed.filter(pa.array(~_is_among(removed, added.select(key)))))


def without_pairs(rows: pa.Table) -> pa.Table:
    """Return the rows without pairs of an added row and its retraction."""
    names = [name for name in rows.schema.names if name != RETRACT]
    order, groups = _grouped(rows, names)
    signs = np.where(_retracts(rows), -1, 1)[order]
    net = np.bincount(groups, weights=signs, minlength=1).astype(np.int64)
    same = np.flatnonzero(np.sign(net)[groups] == signs)[::-1]
    # Of equal rows the last ones stay: number them from the end of their group.
    members = groups[same]
    starts = np.flatnonzero(np.diff(members, prepend=-1))
    rank = np.arange(len(same)) - np.repeat(starts, np.diff(np.append(starts, len(same))))
    remaining = np.sort(order[same[rank < np.abs(net)[members]]])
    return rows if len(remaining) == rows.num_rows else rows.take(pa.array(remaining))


def last_of_each_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last row of each key, in order."""
    order, groups = _grouped(rows, key)
    last = np.append(groups[1:] != groups[:-1], True) if len(groups) else np.zeros(0, np.bool_)
    remaining = np.sort(order[last])
    return rows if len(remaining) == rows.num_rows else rows.take(pa.array(remaining))


def _grouped(rows: pa.Table, names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    columns = [single(rows.column(name)) for name in names]
    return group_rows(hash_columns(columns), columns)


def _retracts(rows: pa.Table) -> NDArray[np.bool_]:
    flags: NDArray[np.bool_] = rows.column(RETRACT).fill_null(False).to_numpy().astype(np.bool_)
    return flags


def _is_among(keys: pa.Table, candidates: pa.Table) -> NDArray[np.bool_]:
    both = pa.concat_tables([keys, candidates])
    order, groups = _grouped(both, both.schema.names)
    counts = np.bincount(groups, minlength=1)[groups]
    among = np.empty(both.num_rows, np.bool_)
    among[order] = counts > 1
    return among[: keys.num_rows]
