"""The `database` sink: write rows to a table of any database that SQLAlchemy supports."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from pydantic import Field

from headrace.base.errors import ConfigurationError, ExternalError, RefusedError, suggest
from headrace.base.extras import load_extra
from headrace.base.retry import Backoff, with_retry
from headrace.connectors._shared.sql_table import (
    FENCE,
    Address,
    Epoch,
    TableChanges,
    TableSink,
    TableSinkOptions,
    show_address,
    table_parts,
)
from headrace.connectors._shared.sql_values import (
    FIRST_DAY,
    LAST_DAY,
    day_refusals,
    not_finite_refusals,
    nul_refusals,
)
from headrace.connectors._shared.table_limits import ColumnLimits
from headrace.connectors.base import Refusal
from headrace.connectors.database.values import column_type, limits_of, python_values
from headrace.connectors.postgres.suspended import (
    FIRST_WAIT_SECONDS,
    LAST_WAIT_SECONDS,
    LOCKED,
    RESET_LOCK_TIMEOUT,
    end_replaced,
    limit_session,
)
from headrace.connectors.postgres.tls import NO_TLS_HINT, UNTRUSTED_HINT, default_tls
from headrace.model.operator import CommitData

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""How long to wait for an answer before the commit fails; the server may restart meanwhile."""
_BACKOFF = Backoff(first=0.1, longest=5.0)
_CHUNK_ROWS = 5_000
_NO_ACCESS = {
    "authentication": "check the user and the password",
    "Access denied": "check the user and the password",
    "does not support SSL": NO_TLS_HINT,
    "certificate": UNTRUSTED_HINT,
}
"""What the messages of errors have in them that no retry helps against, and what to do."""
_REFUSED = (*_NO_ACCESS, "does not exist", "Unknown database", "unable to open")

_LOCKED = ("database is locked", "Lock wait timeout", "lock timeout")
"""What SQLite, MySQL and PostgreSQL say of a lock that was not had in time."""
_LOCKED_HINT = "another session holds the lock; if it is one of a run that is suspended, end that run"


class DatabaseSink(TableSink):
    """Inserts rows into a table, or upserts and deletes them by key, in any database of SQLAlchemy.

    After the commit point one task writes each epoch in one transaction, together with a record of the epoch
    in the table `headrace_epochs`; a database in a file is written by the driver, and so are few rows. A
    database without transactions gets rows at least once. Upserts use the native statement of PostgreSQL,
    SQLite, MySQL and MariaDB; elsewhere rows are deleted and inserted. With a primary key only the last state
    of each key is written.
    """

    class Options(TableSinkOptions):
        """The options of the database sink."""

        url: Address = Field(
            repr=False,
            description="The database as a SQLAlchemy URL, such as sqlite:////tmp/sales.db.",
        )

    options: Options

    def load_package(self) -> None:
        """Import the client's package."""
        load_client()

    def validate(self) -> None:
        """Raise an error if SQLAlchemy or the database's driver is missing, or the address is not valid."""
        self._engine()

    def reach(self) -> str:
        """Connect, and return a line about the database and the table."""
        return self._run(self._summarize_table, patience=0)

    def _summarize_table(self, pooled: _PooledEngine) -> str:
        with pooled.engine.connect() as connection:
            dialect = connection.dialect
            numbers = [str(part) for part in dialect.server_version_info or ()]
            name = " ".join([dialect.name, ".".join(numbers)]).strip()
            if self.options.sink_create_table and not self._has_table(connection, self.options.table):
                return f"{name}, table {self.options.table} is not there and will be created"
            table = self._reflect(connection)
            self._check(connection, table, self.options.columns)
            return f"{name}, table {self.options.table} with {len(table.columns)} columns"

    # ---------------------------------------------------------------------------------------- writing

    def refusals(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Return which rows hold a time that Python does not have, or a value that the database does not.

        PostgreSQL has no NUL character, SQLite no NaN (it would be NULL), MySQL and MariaDB also no infinity.
        """
        refused = list(day_refusals(rows, FIRST_DAY, LAST_DAY))
        if self.options.url.startswith(("sqlite", "mysql", "mariadb")):
            refused += not_finite_refusals(rows, infinity=self.options.url.startswith("sqlite"))
        if self.options.url.startswith("postgres"):
            refused += nul_refusals(rows, self.options.columns or rows.schema)
        return refused

    def column_limits(self) -> Mapping[str, ColumnLimits]:
        """Ask the database what the columns of the table can hold; nothing if there is no table yet.

        A database in a file may be elsewhere than this task: then nothing is known, and no file is made.
        """
        path = urlsplit(self.options.url)
        if not path.netloc and not (path.scheme.startswith("sqlite") and Path(path.path[1:]).is_file()):
            return {}
        return self._run(self._ask_limits, patience=0)

    def _ask_limits(self, pooled: _PooledEngine) -> Mapping[str, ColumnLimits]:
        with pooled.engine.connect() as connection:
            if not self._has_table(connection, self.options.table):
                return {}
            dialect, table = connection.dialect.name, self._reflect(connection)
            fills_in = dialect != "sqlite" and _has_trigger(connection, table)
            return {column.name: limits_of(column, dialect, fills_in=fills_in) for column in table.columns}

    def commit_shares(self, data: CommitData) -> Sequence[CommitData]:
        """Return one share; none for a database in a file, which only the driver may have."""
        return super().commit_shares(data) if urlsplit(self.options.url).netloc else ()

    def write(self, epoch: Epoch, changes: TableChanges) -> None:
        """Write the changes and the mark in one transaction, unless the mark exists already."""
        self._run(lambda pooled: self._write(pooled, epoch, changes))

    def _write(self, pooled: _PooledEngine, epoch: Epoch, changes: TableChanges) -> None:
        if not pooled.prepared:
            self._create(pooled, self.options.sink_epochs_table, self._epochs())
            if self.options.sink_create_table:
                self._create(pooled, self.options.table, self._new_table(changes.rows))
            pooled.prepared = True
        try:
            self._transact(pooled, epoch, changes, wait_seconds=FIRST_WAIT_SECONDS)
        except load_client().exc.OperationalError as error:
            if pooled.engine.dialect.name != "postgresql" or _sqlstate(error) != LOCKED:
                raise
            # By a run that commits for long, or is suspended: if it was replaced, nobody waits for it.
            epoch.check_generation()
            with pooled.engine.begin() as connection:
                for statement in end_replaced(epoch):
                    connection.exec_driver_sql(statement)
            self._transact(pooled, epoch, changes, wait_seconds=LAST_WAIT_SECONDS)

    def _transact(
        self, pooled: _PooledEngine, epoch: Epoch, changes: TableChanges, *, wait_seconds: float
    ) -> None:
        epochs = self._epochs()
        with pooled.engine.begin() as connection:
            is_postgres = connection.dialect.name == "postgresql"
            if is_postgres:
                connection.exec_driver_sql(limit_session(epoch, wait_seconds))
            is_late = not self._fence(connection, epochs, epoch)
            if is_postgres:
                connection.exec_driver_sql(RESET_LOCK_TIMEOUT)
            if is_late or not self._mark(connection, epochs, epoch):
                return
            if pooled.table is None or not set(changes.rows.schema.names) <= set(pooled.table.columns.keys()):
                pooled.table = self._reflect(connection)
                self._check(connection, pooled.table, changes.rows.schema)
            self._change(connection, pooled.table, changes)

    def _create(self, pooled: _PooledEngine, name: str, table: Any) -> None:
        """Create a table if it is missing."""
        try:
            table.metadata.create_all(pooled.engine)
        except load_client().exc.SQLAlchemyError:
            with pooled.engine.connect() as connection:
                if not self._has_table(connection, name):  # else by somebody else, in the same moment
                    raise

    def _epochs(self) -> Any:
        sql = load_client()
        *schema, name = table_parts(self.options.sink_epochs_table)
        return sql.Table(
            name,
            sql.MetaData(),
            sql.Column("job", sql.String(190), primary_key=True),
            sql.Column("sink", sql.String(190), primary_key=True),
            sql.Column("epoch", sql.BigInteger, primary_key=True, autoincrement=False),
            sql.Column("mark", sql.String(64), nullable=False),
            schema=".".join(schema) or None,
        )

    def _new_table(self, rows: pa.Table) -> Any:
        sql = load_client()
        *schema, name = table_parts(self.options.table)
        key = self.options.primary_key
        columns = [
            sql.Column(field.name, column_type(field, key=field.name in key), primary_key=field.name in key)
            for field in self.fields(rows)
        ]
        for column in columns:
            column.autoincrement = False
        return sql.Table(name, sql.MetaData(), *columns, schema=".".join(schema) or None)

    @staticmethod
    def _fence(connection: Any, epochs: Any, epoch: Epoch) -> bool:
        """Record the generation, and lock that record: a concurrent commit waits here, or is retried.

        False if another attempt of this run has gone on to a later epoch.
        """
        sql = load_client()
        here = sql.and_(epochs.c.job == epoch.job, epochs.c.sink == epoch.sink, epochs.c.epoch == FENCE)
        # It is the first statement, so that also databases without locks of rows lock before they read.
        record = sql.update(epochs).where(here).values(mark=epoch.fence)
        if connection.execute(record.where(epochs.c.mark <= epoch.fence)).rowcount:
            return True
        stored = connection.execute(sql.select(epochs.c.mark).where(here)).scalar()
        if stored is not None:
            if epoch.is_late(stored):
                return False
            epoch.check_generation()
            connection.execute(record)
            return True
        values = {"job": epoch.job, "sink": epoch.sink, "epoch": FENCE, "mark": epoch.fence}
        try:
            connection.execute(sql.insert(epochs).values(values))
        except sql.exc.IntegrityError:
            raise _RivalError from None
        return True

    @staticmethod
    def _mark(connection: Any, epochs: Any, epoch: Epoch) -> bool:
        """Write the mark of an epoch; False if it exists. Of two concurrent commits one is retried."""
        sql = load_client()
        mine = sql.and_(epochs.c.job == epoch.job, epochs.c.sink == epoch.sink)
        here = sql.and_(mine, epochs.c.epoch == epoch.number)
        existing = connection.execute(sql.select(epochs.c.mark).where(here)).scalar()
        if existing == epoch.mark:
            return False
        if existing is None:
            values = {"job": epoch.job, "sink": epoch.sink, "epoch": epoch.number, "mark": epoch.mark}
            try:
                connection.execute(sql.insert(epochs).values(values))
            except sql.exc.IntegrityError:
                raise _RivalError from None
        else:
            change = sql.update(epochs).where(here, epochs.c.mark == existing).values(mark=epoch.mark)
            if connection.execute(change).rowcount == 0:
                raise _RivalError
        old = epochs.c.epoch.between(0, epoch.oldest - 1)
        connection.execute(sql.delete(epochs).where(mine, old))
        return True

    def _has_table(self, connection: Any, name: str) -> bool:
        *schema, own = table_parts(name)
        return bool(load_client().inspect(connection).has_table(own, schema=".".join(schema) or None))

    def _reflect(self, connection: Any) -> Any:
        """Return the metadata of a table; raises an ExternalError if it does not exist."""
        sql = load_client()
        *schema, name = table_parts(self.options.table)
        arguments = {"schema": ".".join(schema) or None, "autoload_with": connection, "resolve_fks": False}
        try:
            table = sql.Table(name, sql.MetaData(), **arguments)
        except sql.exc.NoSuchTableError:
            raise self._error(
                f"has no table `{self.options.table}`",
                "create it, or let the sink: 'sink.create_table' = true",
            ) from None
        for column in table.columns:
            if isinstance(column.type, sql.JSON):
                column.type.none_as_null = True
        return table

    def _check(self, connection: Any, table: Any, columns: pa.Schema | None) -> None:
        names = table.columns.keys()
        for name in () if columns is None else columns.names:
            if name not in names:
                hint = suggest(name, names, listing="its columns are")
                raise self._error(f"has no column `{name}` in table `{self.options.table}`", hint)
        key = set(self.options.primary_key)
        if not key or key == {column.name for column in table.primary_key}:
            return
        about = load_client().inspect(connection)
        unique = [
            index["column_names"] for index in about.get_unique_constraints(table.name, schema=table.schema)
        ]
        indexes = about.get_indexes(table.name, schema=table.schema)
        unique += [index["column_names"] for index in indexes if index["unique"]]
        if key not in [set(index) for index in unique]:
            raise self._error(
                f"has no primary key or unique index on {', '.join(self.options.primary_key)} in table "
                f"`{self.options.table}`",
                "declare the key that the table has",
            )

    def _change(self, connection: Any, table: Any, changes: TableChanges) -> None:
        names, key = changes.rows.schema.names, self.options.primary_key
        replaces = make_upsert(connection.dialect.name, table, names, key) if key else None
        self._execute(connection, _make_delete(table, key), table, changes.deleted)
        if key and replaces is None:
            self._execute(connection, _make_delete(table, key), table, changes.rows.select(key))
        insert = load_client().insert(table) if replaces is None else replaces
        self._execute(connection, insert, table, changes.rows)

    def _execute(self, connection: Any, statement: Any, table: Any, rows: pa.Table) -> None:
        declared = {field.name: field for field in self.fields(rows)}
        fields = [declared.get(field.name, field) for field in rows.schema]
        for start in range(0, rows.num_rows, _CHUNK_ROWS):
            part = rows.slice(start, _CHUNK_ROWS)
            columns = [
                python_values(
                    part.column(field.name).combine_chunks(), field, table.c[field.name], connection.dialect
                )
                for field in fields
            ]
            names = rows.schema.names
            values = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            connection.execute(statement, values)

    # ------------------------------------------------------------------------------------ connections

    def _engine(self) -> Any:
        sql = load_client()
        try:
            url = sql.engine.make_url(self.options.url)
            if url.drivername in {"postgresql", "postgres"}:
                url = url.set(drivername="postgresql+psycopg")
            login = {"username": self.options.username, "password": self.options.password}
            url = url.set(**{name: value for name, value in login.items() if value is not None})
            pool = {"poolclass": sql.pool.NullPool} if url.get_backend_name() == "sqlite" else {}
            return sql.create_engine(url, hide_parameters=True, connect_args=_tls(url), **pool)
        except (sql.exc.ArgumentError, ValueError):
            # What SQLAlchemy says may show the password.
            raise ConfigurationError(
                "the option `url` cannot be read as an address of SQLAlchemy",
                hint="write it as dialect+driver://user:password@host:port/database",
            ) from None
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"the driver `{error.name}` of this database is not installed",
                hint=f"pip install {error.name}",
            ) from None

    def _run(self, work: Callable[[_PooledEngine], T], *, patience: float | None = None) -> T:
        """Run a function on the database, with retries after transient errors: it must be repeatable."""
        key = (os.getpid(), self.options.model_dump_json(), self.options.url, self.options.password)

        def attempt() -> T:
            pooled = _POOL.pop(key, None) or _PooledEngine(self._engine())
            try:
                result = work(pooled)
            except BaseException:
                pooled.engine.dispose()
                raise
            if key in _POOL:  # of another thread
                pooled.engine.dispose()
            else:
                _POOL[key] = pooled
            return result

        deadline = PATIENCE_SECONDS if patience is None else patience
        try:
            return with_retry(
                attempt,
                is_transient=is_transient,
                backoff=_BACKOFF,
                deadline=deadline,
                waits_for=f"the database at {show_address(self.options.url)}",
            )
        except (load_client().exc.SQLAlchemyError, _RivalError) as error:
            raise self._failure(error) from None

    def _error(self, what: str, hint: str | None = None) -> ExternalError:
        address = show_address(self.options.url)
        return ExternalError(f"the database at {address} {what}", hint=hint, where="database")

    def _failure(self, error: Exception) -> ExternalError:
        text = "; ".join(
            line.strip() for line in str(getattr(error, "orig", None) or error).splitlines() if line
        )
        if any(locked in text for locked in _LOCKED):
            return self._error(f"is locked: {text}", _LOCKED_HINT)
        if isinstance(error, load_client().exc.OperationalError) and is_transient(error):
            return self._error(f"does not answer: {text}", "check the option `url`, and that the server runs")
        failure = self._error(f"refuses: {text}")
        if isinstance(error, (load_client().exc.DataError, load_client().exc.IntegrityError)):
            return RefusedError(failure.message, where=failure.where)
        for refusal, hint in _NO_ACCESS.items():
            if refusal in text:
                return RefusedError(failure.message, hint=hint, where=failure.where)
        return failure


def _has_trigger(connection: Any, table: Any) -> bool:
    """Whether a trigger may change a row before it is inserted."""
    sql = load_client()
    triggers = (
        "SELECT count(*) FROM information_schema.triggers WHERE event_object_table = :name "
        "AND action_timing = 'BEFORE' AND event_manipulation = 'INSERT'"
    )
    try:
        return bool(connection.execute(sql.text(triggers), {"name": table.name}).scalar())
    except sql.exc.DBAPIError:
        return True  # it is not told there


def _tls(url: Any) -> dict[str, str]:
    """Return TLS settings for the drivers of PostgreSQL that use its own client, as the postgres sink has."""
    if url.get_backend_name() != "postgresql" or url.get_driver_name() not in {"psycopg", "psycopg2"}:
        return {}
    return default_tls({"host": url.host, **url.query})


@dataclass
class _PooledEngine:
    """The engine and the table metadata that a process reuses between commits."""

    engine: Any
    prepared: bool = False
    table: Any = None


class _RivalError(Exception):
    """A concurrent commit wrote the mark of the same epoch."""


_POOL: dict[tuple[Any, ...], _PooledEngine] = {}


@atexit.register
def _close() -> None:
    while _POOL:
        _POOL.popitem()[1].engine.dispose()


def is_transient(error: Exception) -> bool:
    """Whether retrying can help: the connection is lost, or another commit was faster."""
    exc, text = load_client().exc, str(getattr(error, "orig", error))
    if isinstance(error, _RivalError) or getattr(error, "connection_invalidated", False):
        return True
    if not isinstance(error, (exc.OperationalError, exc.InterfaceError)):
        return False
    return not any(refusal in text for refusal in _REFUSED) and "no such" not in text and "syntax" not in text


def _sqlstate(error: Any) -> str | None:
    """Return the SQLSTATE of an error of a PostgreSQL driver, None of one that has none."""
    names = ("sqlstate", "pgcode")
    return next((state for name in names if (state := getattr(error.orig, name, None))), None)


def make_upsert(dialect: str, table: Any, names: Sequence[str], key: Sequence[str]) -> Any:
    """Return the native upsert statement of the database; None if it has none."""
    load_client()
    from sqlalchemy.dialects import mysql, postgresql, sqlite

    updated = [name for name in names if name not in key]
    if dialect in {"postgresql", "sqlite"}:
        insert: Any = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
        if not updated:
            return insert.on_conflict_do_nothing(index_elements=list(key))
        new = {name: insert.excluded[name] for name in updated}
        return insert.on_conflict_do_update(index_elements=list(key), set_=new)
    if dialect in {"mysql", "mariadb"}:
        replace = mysql.insert(table)
        if not updated:
            return replace.prefix_with("IGNORE")
        return replace.on_duplicate_key_update({name: replace.inserted[name] for name in updated})
    return None


def _make_delete(table: Any, key: Sequence[str]) -> Any:
    sql = load_client()
    return sql.delete(table).where(*(table.c[name] == sql.bindparam(name) for name in key))


def load_client() -> Any:
    """Import SQLAlchemy; raises a MissingExtraError if it is not installed."""
    return load_extra("sqlalchemy", feature="the connector `database`", extra="sql", package="SQLAlchemy")
