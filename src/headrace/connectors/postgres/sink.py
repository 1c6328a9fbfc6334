"""The `postgres` sink: write rows to a table, each epoch in one transaction."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from headrace.base.errors import HeadraceError, PlanError
from headrace.connectors._shared.sql_table import (
    FENCE,
    Epoch,
    TableChanges,
    TableSink,
    TableSinkOptions,
)
from headrace.connectors._shared.sql_values import FIRST_DAY, day_refusals, nul_refusals
from headrace.connectors._shared.table_limits import ColumnLimits, refuse
from headrace.connectors.base import Refusal
from headrace.connectors.postgres.client import (
    PostgresConnector,
    PostgresOptions,
    PostgresTable,
    describe,
    exists,
    identifier,
    load_client,
)
from headrace.connectors.postgres.fitting import is_readable, limits_of, unreadable
from headrace.connectors.postgres.suspended import (
    FIRST_WAIT_SECONDS,
    LAST_WAIT_SECONDS,
    RESET_LOCK_TIMEOUT,
    end_replaced,
    limit_session,
)
from headrace.connectors.postgres.text import write_texts
from headrace.formats.base import is_binary, is_json, is_list, plain_field
from headrace.model.operator import OperatorContext

COPY_ROWS = 50_000
_CSV = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
_LAST_DAY = 106_751_990
"""The last day of a timestamp of PostgreSQL, in the year 294247, counted from 1970."""
_NEW, _DELETED = "headrace_new", "headrace_gone"


class PostgresSink(PostgresConnector, TableSink):
    """Inserts rows into a table of PostgreSQL, or upserts and deletes them by the primary key.

    Subtasks stage the rows of an epoch in the state directory. After the commit point one task copies them
    into the database (few rows the driver itself), in one transaction, together with a record of the epoch in
    the table `headrace_epochs`. A retried commit
    finds that record and does nothing: readers see each epoch completely and once, after a crash at any
    moment. With a primary key only the last state of each key is written, and an updating result is written
    as upserts and deletes. A row that the database refuses ends the run; the error names the row if the
    database does.
    """

    class Options(TableSinkOptions, PostgresOptions):
        """The options of the postgres sink."""

    options: Options

    def summarize_table(self, connection: Any) -> str:
        """Return a line about the table."""
        if self.options.sink_create_table and not exists(connection, self.options.table):
            return f"table {self.options.table} is not there and will be created"
        summary, table = super().summarize_table(connection), self.describe(connection)
        self._check_key(table)
        self._check_complete(table)
        return summary

    def refusals(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Return which rows hold a NUL character, or a time that PostgreSQL does not have."""
        columns = self.options.columns or rows.schema
        return [*nul_refusals(rows, columns), *day_refusals(rows, FIRST_DAY, _LAST_DAY)]

    def column_limits(self) -> Mapping[str, ColumnLimits]:
        """Ask the database what the columns of the table can hold; nothing if there is no table yet."""
        table = self.database.run(lambda connection: describe(connection, self.options.table), patience=0)
        return {} if table is None else {name: limits_of(column) for name, column in table.columns.items()}

    def misfits(self, rows: pa.Table, ctx: OperatorContext) -> Sequence[Refusal]:
        """Return the rows that the table would refuse; the server is asked for what only it can read."""
        refused = list(super().misfits(rows, ctx))
        limits = self.known_limits(ctx)
        with suppress(HeadraceError):  # as there
            for field in self._with_declared(rows):
                limit = limits.get(field.name)
                if limit is not None and not is_readable(field, limit.declared):
                    refused += self.database.run(partial(_unreadable, rows, field, limit), patience=0)
        return refused

    def write(self, epoch: Epoch, changes: TableChanges) -> None:
        """Write the changes and the mark in one transaction, unless the mark exists already."""
        self.database.run(lambda connection: self._write(connection, epoch, changes))

    def _write(self, connection: Any, epoch: Epoch, changes: TableChanges) -> None:
        self._prepare(connection, changes.rows)
        try:
            self._transact(connection, epoch, changes, wait_seconds=FIRST_WAIT_SECONDS)
        except load_client().errors.LockNotAvailable:
            # By a run that commits for long, or is suspended: if it was replaced, nobody waits for it.
            epoch.check_generation()
            with connection.transaction():
                for statement in end_replaced(epoch):
                    connection.execute(statement)
            self._transact(connection, epoch, changes, wait_seconds=LAST_WAIT_SECONDS)

    def _transact(self, connection: Any, epoch: Epoch, changes: TableChanges, *, wait_seconds: float) -> None:
        with connection.transaction():
            connection.execute(limit_session(epoch, wait_seconds))
            is_late = not self._fence(connection, epoch)
            connection.execute(RESET_LOCK_TIMEOUT)
            if is_late or not self._mark(connection, epoch):
                return
            table = self.describe(connection)
            self.check_columns(table, changes.rows.schema)
            if not self.options.primary_key:
                self._copy(connection, table, self.options.table, changes.rows)
                return
            self._check_key(table)
            if changes.deleted.num_rows:
                self._load(connection, table, _DELETED, changes.deleted)
                self._delete(connection)
            if changes.rows.num_rows:
                self._load(connection, table, _NEW, changes.rows)
                self._upsert(connection, changes.rows.schema.names)

    def _prepare(self, connection: Any, rows: pa.Table) -> None:
        """Create the tables that are missing."""
        if not exists(connection, self.options.sink_epochs_table):
            columns = (
                "job text, sink text, epoch bigint, mark text NOT NULL, "
                "written_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job, sink, epoch)"
            )
            self._create(connection, self.options.sink_epochs_table, load_client().sql.SQL(columns))
        if self.options.sink_create_table and not exists(connection, self.options.table):
            sql, key = load_client().sql, self.options.primary_key
            parts = [
                sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(column_type(field)))
                for field in self.fields(rows)
            ]
            if key:
                parts.append(sql.SQL("PRIMARY KEY ({})").format(_listed(key)))
            self._create(connection, self.options.table, sql.SQL(", ").join(parts))

    def _create(self, connection: Any, name: str, columns: Any) -> None:
        client = load_client()
        rival = (client.errors.UniqueViolation, client.errors.DuplicateTable, client.errors.DuplicateObject)
        create = client.sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(identifier(name), columns)
        try:
            connection.execute(create)
        except rival:
            pass  # by somebody else, in the same moment
        except client.errors.InsufficientPrivilege as error:
            raise self.database.error(
                f"does not let this user create the table `{name}`: {error.diag.message_primary}",
                f"let another one run: {create.as_string(connection)}",
            ) from None

    def _fence(self, connection: Any, epoch: Epoch) -> bool:
        """Record the generation, and lock that record: a concurrent commit waits here.

        False if another attempt of this run has gone on to a later epoch.
        """
        sql, epochs = load_client().sql, identifier(self.options.sink_epochs_table)
        record = sql.SQL(
            "INSERT INTO {} AS e (job, sink, epoch, mark) VALUES (%s, %s, %s, %s) "
            "ON CONFLICT (job, sink, epoch) DO UPDATE SET mark = EXCLUDED.mark, written_at = now() "
            "WHERE %s OR e.mark <= EXCLUDED.mark"
        )
        record = record.format(epochs)
        values = [epoch.job, epoch.sink, FENCE, epoch.fence]
        if not connection.execute(record, [*values, False]).rowcount:
            stored = sql.SQL("SELECT mark FROM {} WHERE job = %s AND sink = %s AND epoch = %s").format(epochs)
            if epoch.is_late(connection.execute(stored, values[:3]).fetchone()[0]):
                return False
            epoch.check_generation()
            connection.execute(record, [*values, True])
        return True

    def _mark(self, connection: Any, epoch: Epoch) -> bool:
        """Write the mark of an epoch; False if it exists. Another commit of the same epoch waits here."""
        sql, epochs = load_client().sql, identifier(self.options.sink_epochs_table)
        insert = sql.SQL(
            "INSERT INTO {0} AS e (job, sink, epoch, mark) VALUES (%s, %s, %s, %s) "
            "ON CONFLICT (job, sink, epoch) DO UPDATE SET mark = EXCLUDED.mark, written_at = now() "
            "WHERE e.mark <> EXCLUDED.mark"
        ).format(epochs)
        if not connection.execute(insert, [epoch.job, epoch.sink, epoch.number, epoch.mark]).rowcount:
            return False
        forget = "DELETE FROM {} WHERE job = %s AND sink = %s AND epoch >= 0 AND epoch < %s"
        connection.execute(sql.SQL(forget).format(epochs), [epoch.job, epoch.sink, epoch.oldest])
        return True

    def _check_key(self, table: PostgresTable) -> None:
        key = self.options.primary_key
        if key and frozenset(key) not in table.unique:
            raise self.database.error(
                f"has no primary key or unique index on {', '.join(key)} in table `{table.name}`",
                f"add one: ALTER TABLE {table.name} ADD PRIMARY KEY ({', '.join(key)})",
            )

    def _check_complete(self, table: PostgresTable) -> None:
        """Raise an ExternalError if a column that needs a value is not written."""
        if self.options.columns is None:
            return
        for name, column in table.columns.items():
            if column.refuses_null and not column.has_default and name not in self.options.columns.names:
                raise self.database.error(
                    f"has a column `{name}` in table `{table.name}` that is NOT NULL and has no default, "
                    "and the sink does not write it",
                    f"add it to the columns of the sink, or give it a default in `{table.name}`",
                )

    def _load(self, connection: Any, table: PostgresTable, name: str, rows: pa.Table) -> None:
        """Copy rows into a temporary table with the types of the target columns."""
        create = "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA"
        sql, columns = load_client().sql, _listed(rows.schema.names)
        connection.execute(
            sql.SQL(create).format(sql.Identifier(name), columns, identifier(self.options.table))
        )
        self._copy(connection, table, f"pg_temp.{name}", rows)

    def _copy(self, connection: Any, table: PostgresTable, target: str, rows: pa.Table) -> None:
        fields = self._with_declared(rows)
        copy = load_client().sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)")
        statement = copy.format(identifier(target), _listed(rows.schema.names))
        slices = (rows.slice(start, COPY_ROWS) for start in range(0, rows.num_rows, COPY_ROWS))
        encoded = (_as_csv(part, fields, table) for part in slices)
        # Encoded before the COPY begins: no limit of the server ends one whose client is suspended.
        first = next(encoded, b"")
        with connection.cursor() as cursor, cursor.copy(statement) as stream:
            for part in chain([first], encoded):
                stream.write(part)

    def _with_declared(self, rows: pa.Table) -> list[pa.Field]:
        """Return the columns of the rows, those that are declared as declared."""
        declared = {field.name: field for field in self.fields(rows)}
        return [declared.get(field.name, field) for field in rows.schema]

    def _delete(self, connection: Any) -> None:
        sql = load_client().sql
        same = sql.SQL(" AND ").join(
            sql.SQL("t.{0} = g.{0}").format(sql.Identifier(name)) for name in self.options.primary_key
        )
        delete = sql.SQL("DELETE FROM {} AS t USING {} AS g WHERE {}")
        connection.execute(delete.format(identifier(self.options.table), sql.Identifier(_DELETED), same))

    def _upsert(self, connection: Any, names: Sequence[str]) -> None:
        sql, key = load_client().sql, self.options.primary_key
        updated = [name for name in names if name not in key]
        pairs = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in updated]
        action = sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(pairs)) if updated else sql.SQL("NOTHING")
        upsert = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT ({}) DO {}")
        columns, new = _listed(names), sql.Identifier(_NEW)
        connection.execute(
            upsert.format(identifier(self.options.table), columns, columns, new, _listed(key), action)
        )


def _unreadable(rows: pa.Table, field: pa.Field, limit: ColumnLimits, connection: Any) -> list[Refusal]:
    """Return the refusal of rows whose value the server cannot read as one of the column's type."""
    column, as_json = rows.column(field.name).combine_chunks(), limit.declared in {"json", "jsonb"}
    texts = write_texts(column, field, as_json=as_json).cast(pa.string()).to_pylist()
    refused = [
        index
        for start in range(0, len(texts), COPY_ROWS)
        for index in unreadable(connection, texts[start : start + COPY_ROWS], limit.declared, start)
    ]
    if not refused:
        return []
    mask = pc.is_in(pa.array(range(len(texts))), pa.array(refused))
    return [refuse(field.name, column, mask, limit.declared)]


def _listed(names: Sequence[str]) -> Any:
    sql = load_client().sql
    return sql.SQL(", ").join(sql.Identifier(name) for name in names)


def _as_csv(rows: pa.Table, fields: Sequence[pa.Field], table: PostgresTable) -> bytes:
    columns = []
    for field in fields:
        column = rows.column(field.name).combine_chunks()
        try:
            columns.append(write_texts(column, field, as_json=table.columns[field.name].is_json))
        except ValueError as error:
            raise PlanError(f"rows cannot be written into table `{table.name}`: {error}") from None
    out = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(columns, [field.name for field in fields]), out, _CSV)
    return out.getvalue()


_TYPES = (
    (pa.types.is_boolean, "boolean"),
    (lambda kind: pa.types.is_int8(kind) or pa.types.is_int16(kind) or pa.types.is_uint8(kind), "smallint"),
    (lambda kind: pa.types.is_int32(kind) or pa.types.is_uint16(kind), "integer"),
    (lambda kind: pa.types.is_int64(kind) or pa.types.is_uint32(kind), "bigint"),
    (pa.types.is_uint64, "numeric(20)"),
    (lambda kind: pa.types.is_float16(kind) or pa.types.is_float32(kind), "real"),
    (pa.types.is_float64, "double precision"),
    (is_binary, "bytea"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
    (lambda kind: pa.types.is_interval(kind) or pa.types.is_duration(kind), "interval"),
)


def column_type(field: pa.Field) -> str:
    """Return the PostgreSQL type for a column of this Arrow field."""
    kind = plain_field(field).type
    if is_json(field) or pa.types.is_struct(kind) or pa.types.is_map(kind):
        return "jsonb"
    if is_list(kind):
        return f"{column_type(kind.value_field)}[]"
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    return next((name for fits, name in _TYPES if fits(kind)), "text")
