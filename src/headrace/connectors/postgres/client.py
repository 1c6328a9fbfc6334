"""The PostgreSQL client of the source, the sink and the lookup: connections, table metadata, errors."""

from __future__ import annotations

import atexit
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import pyarrow as pa
from pydantic import model_validator

from headrace.base.errors import ConfigurationError, ExternalError, RefusedError, suggest
from headrace.base.extras import load_extra
from headrace.base.options import Options as DeclaredOptions
from headrace.base.retry import Backoff, with_retry
from headrace.connectors._shared.sql_table import TableOptions, show_address, table_parts
from headrace.connectors.base import Connector
from headrace.connectors.postgres.tls import NO_TLS_HINT, UNTRUSTED_HINT, default_tls

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""How long to wait for an answer before the epoch fails; the server may restart meanwhile."""
CONNECT_SECONDS = 10

_IDLE_CONNECTIONS = 8
_BACKOFF = Backoff(first=0.1, longest=5.0)
_SETTINGS = (
    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'iso_8601'; "
    "SET bytea_output = 'hex'; SET extra_float_digits = 3; SET client_encoding = 'UTF8'"
)
_TRANSIENT = {
    "57P01",  # shutting down
    "57P02",  # crashed
    "57P03",  # starting up
    "57P05",  # the session was idle for too long
    "53300",  # too many connections
    "53400",  # all slots in use
    "55006",  # the slot in use
    "55P03",  # a lock not had in time
    "25P03",  # the transaction was idle for too long
    "25006",  # read-only, as a standby is until it takes over
    "40001",  # transactions in conflict
    "40P01",  # a deadlock
}
_REFUSED = ("22", "23", "28", "42501")
"""SQLSTATEs of values that do not fit, violated constraints, a wrong login and a missing right."""
_REFUSALS = (
    (
        re.compile("wal ?sender", re.IGNORECASE),
        "does not let this user replicate",
        "run ALTER ROLE … REPLICATION",
    ),
    (
        re.compile('authentication|no password|no such user|pg_hba|permission denied|^role "'),
        "refuses the user",
        "check the user and the password",
    ),
    (re.compile("does not support SSL"), "offers no TLS", NO_TLS_HINT),
    (re.compile("client certificate"), "refuses", "name it with `sslcert=` and `sslkey=` in `url`"),
    (re.compile("certificate"), "is not trusted", UNTRUSTED_HINT),
    (
        re.compile('SSL required|parameter|no such database|^database "'),
        "refuses",
        "check the option `url`",
    ),
)
"""Messages of errors that retrying cannot fix: the client gives no SQLSTATE if it cannot connect.

Any other message, also one that is not in English, counts as transient.
"""


class PostgresOptions(TableOptions):
    """A table of a PostgreSQL database."""

    @model_validator(mode="after")
    def _is_postgres(self) -> Self:
        if self.url.partition("://")[0] not in {"postgresql", "postgres"}:
            raise ValueError("`url` is not an address such as postgresql://user:password@host:5432/database")
        if len(table_parts(self.table)) > 2:
            raise ValueError(f"`table`: `{self.table}` has too many parts; write `schema.table`")
        return self


class PostgresConnector(Connector):
    """What the source, the sink and the lookup share: the connection to the database."""

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        login = {"user": self.options.username, "password": self.options.password}
        self.database = Database(self.options.url, {name: value for name, value in login.items() if value})

    def load_package(self) -> None:
        """Import the client's package."""
        load_client()

    def validate(self) -> None:
        """Raise an error if the client's package is missing or the address is not valid."""
        self.database.check_address()

    def display(self) -> str:
        """Return the table and the database, without secrets."""
        return f"{type(self).__name__}({self.options.table} at {self.database.address})"

    def reach(self) -> str:
        """Connect, and return a line about the server and the table."""
        return self.database.run(
            lambda connection: f"{version(connection)}, {self.summarize_table(connection)}",
            patience=0,
        )

    def summarize_table(self, connection: Any) -> str:
        """Return a line about the table; raises an ExternalError if it lacks a declared column."""
        table = self.describe(connection)
        self.check_columns(table, self.options.columns)
        return f"table {table.name} with {len(table.columns)} columns"

    def describe(self, connection: Any) -> PostgresTable:
        """Return the metadata of the table; raises an ExternalError if it does not exist."""
        table = describe(connection, self.options.table)
        if table is None:
            raise self.database.error(
                f"has no table `{self.options.table}`", "create it, or correct the option `table`"
            )
        return table

    def check_columns(self, table: PostgresTable, columns: pa.Schema | None) -> None:
        """Raise an ExternalError for a declared column that the table does not have."""
        for name in () if columns is None else columns.names:
            if name not in table.columns:
                hint = suggest(name, table.columns, listing="its columns are")
                raise self.database.error(f"has no column `{name}` in table `{table.name}`", hint)


# ------------------------------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class PostgresColumn:
    """A column of a table."""

    kind: str
    """Its PostgreSQL type, without a length."""
    generated: bool
    is_json: bool
    declared: str = ""
    """Its PostgreSQL type with length, precision and scale."""
    refuses_null: bool = False
    """Whether null is refused; no trigger can replace it before."""
    has_default: bool = False


@dataclass(frozen=True)
class PostgresTable:
    """The metadata of a table."""

    name: str
    oid: int
    columns: Mapping[str, PostgresColumn]
    unique: Sequence[frozenset[str]]
    """The columns of each primary key and unique index."""
    identity: str
    """The replica identity: `f` (FULL) logs all columns of changed and deleted rows."""


_TABLE = """
    SELECT c.oid, c.relreplident, n.nspname, c.relname FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, NULL), a.attgenerated <> '', t.typname IN ('json', 'jsonb'),
        format_type(a.atttypid, a.atttypmod),
        a.attnotnull AND NOT EXISTS (
            SELECT FROM pg_trigger g  -- for each row, before it is inserted
            WHERE g.tgrelid = a.attrelid AND g.tgtype & 7 = 7 AND g.tgenabled <> 'D'
        ),
        a.atthasdef OR a.attidentity <> ''
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE = """
    SELECT array_agg(a.attname::text) FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0 : i.indnkeyatts - 1])
    WHERE i.indrelid = %s AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid
"""


def describe(connection: Any, name: str) -> PostgresTable | None:
    """Return the metadata of a table, or None if it does not exist."""
    row = connection.execute(_TABLE, [quoted(name)]).fetchone()
    if row is None:
        return None
    oid, identity, schema, own = row
    columns = {
        column: PostgresColumn(kind, generated, is_json, declared, refuses_null, has_default)
        for column, kind, generated, is_json, declared, refuses_null, has_default in connection.execute(
            _COLUMNS, [oid]
        )
    }
    unique = [frozenset(names) for (names,) in connection.execute(_UNIQUE, [oid])]
    display_name = own if schema == "public" else f"{schema}.{own}"
    return PostgresTable(display_name, oid, columns, unique, identity)


def exists(connection: Any, name: str) -> bool:
    """Whether a table of this name exists."""
    return bool(connection.execute("SELECT to_regclass(%s) IS NOT NULL", [quoted(name)]).fetchone()[0])


def quoted(name: str) -> str:
    """Return the quoted name of a table, for SQL."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in table_parts(name))


def identifier(name: str) -> Any:
    """Return the name of a table as a psycopg identifier."""
    return load_client().sql.Identifier(*table_parts(name))


def version(connection: Any) -> str:
    """Return the name and the version of the server."""
    number: str = connection.execute("SHOW server_version").fetchone()[0]
    return f"PostgreSQL {number.split(maxsplit=1)[0]}"


# -------------------------------------------------------------------------------------------- connections


class Database:
    """A database, with one connection that is reused in this process. It pickles."""

    def __init__(self, url: str, login: Mapping[str, str]) -> None:
        self.address = show_address(url)
        self._url = url
        self._login = dict(login)

    def check_address(self) -> None:
        """Raise a ConfigurationError for an address that the client cannot read."""
        client = load_client()
        try:
            client.conninfo.conninfo_to_dict(self._url)
        except client.ProgrammingError:
            # What the client says may show the password.
            raise ConfigurationError(
                "the option `url` cannot be read as the address of a PostgreSQL database",
                hint=(
                    "write postgresql://user:password@host:5432/database?sslmode=require; special characters "
                    "of names and passwords as %40, or give them as `username` and `password`"
                ),
            ) from None

    def run(self, work: Callable[[Any], T], *, patience: float | None = None) -> T:
        """Run `work` with a connection, with retries after transient errors: it must be repeatable.

        Raises an ExternalError for other errors, and for those that last longer than `patience`.
        """

        def attempt() -> T:
            with self._borrow() as connection:
                return work(connection)

        deadline = PATIENCE_SECONDS if patience is None else patience
        try:
            return with_retry(
                attempt,
                is_transient=is_transient,
                backoff=_BACKOFF,
                deadline=deadline,
                waits_for=f"PostgreSQL at {self.address}",
            )
        except load_client().Error as error:
            raise self.failure(error) from None

    @contextmanager
    def connect(self, **settings: Any) -> Iterator[Any]:
        """Yield a new connection in autocommit mode, and close it after the block."""
        connection = self._connect(**settings)
        try:
            yield connection
        finally:
            connection.close()

    def _connect(self, **settings: Any) -> Any:
        client = load_client()
        conninfo = {
            **default_tls(client.conninfo.conninfo_to_dict(self._url)),
            "connect_timeout": CONNECT_SECONDS,
            "application_name": "headrace",
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": 60_000,
            **self._login,
            **settings,
        }
        connection = client.connect(client.conninfo.make_conninfo(self._url, **conninfo), autocommit=True)
        connection.execute(_SETTINGS)
        return connection

    @contextmanager
    def _borrow(self) -> Iterator[Any]:
        key = (os.getpid(), self._url, *self._login.items())
        connection = _IDLE.pop(key, None)
        if connection is None or connection.closed:
            connection = self._connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if key in _IDLE or connection.info.transaction_status != load_client().pq.TransactionStatus.IDLE:
            connection.close()
        else:
            _IDLE[key] = connection
        while len(_IDLE) > _IDLE_CONNECTIONS:
            _IDLE.popitem(last=False)[1].close()

    def error(self, what: str, hint: str | None = None) -> ExternalError:
        """Return an ExternalError whose message starts with "PostgreSQL at" this address."""
        return ExternalError(f"PostgreSQL at {self.address} {what}", hint=hint, where="postgres")

    def _refused(self, what: str, hint: str | None = None) -> RefusedError:
        """Return the error for something that no retry helps against."""
        return RefusedError(f"PostgreSQL at {self.address} {what}", hint=hint, where="postgres")

    def failure(self, error: Any) -> ExternalError:
        """Return an error of the client as an ExternalError with a hint."""
        diagnosis = error.diag
        text = diagnosis.message_primary or _first_line(error)
        if error.sqlstate is None:
            refusal = _refusal(text)
            if refusal is not None:
                return self._refused(f"{refusal[0]}: {text}", refusal[1])
            return self.error(
                f"does not answer: {text}", "check host and port in `url`, and that the server runs"
            )
        hint = _HINTS.get(error.sqlstate) or diagnosis.message_hint
        for more in (diagnosis.message_detail, (diagnosis.context or "").partition("\n")[0]):
            text += f"; {more}" if more else ""
        failure = self._refused if error.sqlstate.startswith(_REFUSED) else self.error
        return failure(f"refuses: {text}", hint)


_HINTS: Mapping[str, str] = {
    "42501": "give the user the right to do it",
    "42P10": "the primary key has to be one of the table, or the columns of a unique index",
    "23505": "to replace rows with the same key, declare the primary key",
    "55P03": "another session holds the lock; if it is one of a run that is suspended, end that run",
    "21000": "the database takes keys for equal that differ in the stream, such as strings that ignore case",
}

_IDLE: OrderedDict[tuple[Any, ...], Any] = OrderedDict()


@atexit.register
def _close_idle() -> None:
    while _IDLE:
        _IDLE.popitem()[1].close()


def is_transient(error: Exception) -> bool:
    """Whether retrying can help: the connection is lost, or the server restarts or is busy."""
    client = load_client()
    if not isinstance(error, client.Error):
        return False
    state: str | None = error.sqlstate
    if state is not None:
        return state in _TRANSIENT or state.startswith("08")
    lost = isinstance(error, (client.OperationalError, client.InterfaceError))
    return lost and _refusal(_first_line(error)) is None


def _refusal(text: str) -> tuple[str, str] | None:
    """Return the message and the hint for an error that retrying cannot fix, else None."""
    return next(((what, hint) for pattern, what, hint in _REFUSALS if pattern.search(text)), None)


def _first_line(error: Any) -> str:
    """Return the first line of an error; further lines are about other addresses that were tried."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = (lines[0] if lines else type(error).__name__).rpartition(" failed: ")[2]
    return text.removeprefix("FATAL:").strip()


def load_client() -> Any:
    """Import the client's package; raises a MissingExtraError if it is not installed."""
    return load_extra(
        "psycopg",
        feature="the connector `postgres`",
        extra="postgres",
        package="psycopg",
        submodules=["conninfo", "sql"],
    )
