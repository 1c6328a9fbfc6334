"""The replication slot of a source: create it, read its transactions, advance it."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.connectors.postgres.client import Database, identifier, load_client, quoted

_log = logging.getLogger("headrace.postgres")

_LONGEST_NAME = 63
_MOST_MESSAGES = 10**9
_START_AGAIN = "to read the table again, start the pipeline with another state directory"

_SLOT = """
    SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn, confirmed_flush_lsn - '0/0'::pg_lsn, wal_status,
           to_regclass(%s)::oid::bigint
    FROM pg_replication_slots WHERE slot_name = %s
"""
_PUBLISHED = """
    SELECT 1 FROM pg_publication_tables p
    JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
    WHERE p.pubname = %s AND c.oid = to_regclass(%s)
"""
_TRANSACTIONS = """
    SELECT max(lsn) - '0/0'::pg_lsn,
           count(*) FILTER (WHERE get_byte(data, 0) = ascii('I') AND substring(data, 2, 4) = %(oid)s),
           count(*) FILTER (WHERE get_byte(data, 0) = ascii('U') AND substring(data, 2, 4) = %(oid)s),
           count(*) FILTER (WHERE get_byte(data, 0) = ascii('D') AND substring(data, 2, 4) = %(oid)s),
           count(*) FILTER (WHERE get_byte(data, 0) = ascii('T') AND position(%(oid)s::bytea IN data) > 0),
           count(*)
    FROM pg_logical_slot_peek_binary_changes(
           %(slot)s, NULL, %(most)s::int, 'proto_version', '1', 'publication_names', %(publication)s)
    GROUP BY xid ORDER BY 1
"""
_MESSAGES = (
    "COPY (SELECT data FROM pg_logical_slot_peek_binary_changes({}, {}, NULL, 'proto_version', '1', "
    "'publication_names', {})) TO STDOUT (FORMAT binary)"
)
_ADVANCE = """
    SELECT pg_replication_slot_advance(slot_name, %(lsn)s::pg_lsn)
    FROM pg_replication_slots WHERE slot_name = %(slot)s AND confirmed_flush_lsn < %(lsn)s::pg_lsn
"""


class Transaction(NamedTuple):
    """The number of changes of a transaction to the table, and the LSN at which it ends."""

    lsn: int
    inserts: int
    updates: int
    deletes: int
    truncates: int
    messages: int


@dataclass(frozen=True)
class Slot:
    """A replication slot and a publication for a table, which may not exist yet."""

    database: Database
    table: str
    name: str
    publication: str

    # ------------------------------------------------------------------------------------------ making

    def check_log(self, connection: Any) -> None:
        """Raise an ExternalError unless the server logs changes of rows."""
        level = connection.execute("SHOW wal_level").fetchone()[0]
        if level != "logical":
            raise self.database.error(
                f"has wal_level = {level}, which tells no changes of rows",
                "set wal_level = logical in its configuration, and restart it",
            )

    def publish(self, connection: Any) -> None:
        """Create the publication if it is missing."""
        client = load_client()
        query = "SELECT 1 FROM pg_publication WHERE pubname = %s"
        if connection.execute(query, [self.publication]).fetchone() is None:
            publish = client.sql.SQL(
                "CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)"
            ).format(client.sql.Identifier(self.publication), identifier(self.table))
            try:
                connection.execute(publish)
            except client.errors.DuplicateObject:
                pass  # by somebody else, in the same moment
            except client.errors.InsufficientPrivilege as error:
                raise self.database.error(
                    f"does not let this user publish the table: {error.diag.message_primary}",
                    f"let another one run: {publish.as_string(connection)}",
                ) from None
        if connection.execute(_PUBLISHED, [self.publication, quoted(self.table)]).fetchone() is None:
            raise self.database.error(
                f"has a publication `{self.publication}` that does not hold the table `{self.table}`",
                f"add it: ALTER PUBLICATION {self.publication} ADD TABLE {quoted(self.table)}",
            )

    def refuse_existing(self, connection: Any) -> None:
        """Raise an error if a slot of this name exists: it may belong to another program."""
        query = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s"
        if connection.execute(query, [self.name]).fetchone() is not None:
            raise self.database.error(
                f"has a replication slot `{self.name}` already, and this pipeline is new",
                f"if nothing else reads from it, run SELECT pg_drop_replication_slot('{self.name}')",
            )

    @staticmethod
    def drop(connection: Any, names: Sequence[str]) -> None:
        """Drop slots, if they exist."""
        for name in names:
            with contextlib.suppress(load_client().errors.UndefinedObject):
                connection.execute("SELECT pg_drop_replication_slot(%s)", [name])

    @contextlib.contextmanager
    def created(self) -> Iterator[tuple[int, str]]:
        """Create the slot; yield its LSN and the name of the snapshot at that LSN.

        The snapshot is valid within the block. If the block raises, the slot is dropped.
        """
        create = f'CREATE_REPLICATION_SLOT "{self.name}" LOGICAL pgoutput EXPORT_SNAPSHOT'
        with self.database.connect(replication="database") as replication:
            _log.info("creating replication slot `%s`, which waits for open transactions to end", self.name)
            _, lsn, rows, _ = replication.execute(create).fetchone()
            try:
                yield parse_lsn(lsn), rows
            except BaseException:
                # A slot that nobody moves would make the server keep its log for ever.
                with contextlib.suppress(load_client().Error):
                    replication.execute(f'DROP_REPLICATION_SLOT "{self.name}"')
                raise

    # ----------------------------------------------------------------------------------------- reading

    def check(self, connection: Any, *, lsn: int, oid: int) -> int:
        """Raise an ExternalError unless the slot holds all changes after `lsn`; return the end of the log."""
        row = connection.execute(_SLOT, [quoted(self.table), self.name]).fetchone()
        if row is None:
            raise self.database.error(f"no longer has the replication slot `{self.name}`", _START_AGAIN)
        flushed, confirmed, status, current_oid = row
        if status == "lost":
            raise self.database.error(
                f"has removed changes that replication slot `{self.name}` had not read",
                f"{_START_AGAIN}, and see its setting max_slot_wal_keep_size",
            )
        if confirmed is not None and confirmed > lsn:
            raise self.database.error(
                f"has let go of changes: replication slot `{self.name}` is at {show_lsn(int(confirmed))}, "
                f"and the pipeline at {show_lsn(lsn)}",
                f"a pipeline with this source cannot go back to an earlier epoch; {_START_AGAIN}",
            )
        if current_oid != oid:
            has = "no longer has" if current_oid is None else "has another"
            raise self.database.error(f"{has} table `{self.table}`, not the one that was read", _START_AGAIN)
        return int(flushed)

    def transactions(
        self, connection: Any, *, after: int, oid: int, most: int
    ) -> tuple[list[Transaction], bool]:
        """Return transactions that end after an LSN, about `most` messages, and whether these are all."""
        most = min(most, _MOST_MESSAGES)
        while True:
            values = {"oid": oid.to_bytes(4, "big"), "slot": self.name, "publication": self._named}
            rows = connection.execute(_TRANSACTIONS, {**values, "most": most}).fetchall()
            transactions = [Transaction(*map(int, row)) for row in rows]
            complete = sum(transaction.messages for transaction in transactions) < most
            newer = [transaction for transaction in transactions if transaction.lsn > after]
            if newer or complete:
                return newer, complete
            most = min(4 * most, _MOST_MESSAGES)  # what has been read before is still in the way

    def messages(self, connection: Any, *, end: int) -> list[bytes]:
        """Return the blocks of COPY with the messages of all transactions up to an LSN."""
        literal = load_client().sql.Literal
        peek = load_client().sql.SQL(_MESSAGES)
        peek = peek.format(literal(self.name), literal(show_lsn(end)), literal(self._named))
        with connection.cursor() as cursor, cursor.copy(peek) as blocks:
            return [bytes(block) for block in blocks]

    def advance(self, connection: Any, lsn: int) -> None:
        """Advance the slot, so that the server can remove the log before an LSN."""
        connection.execute(_ADVANCE, {"slot": self.name, "lsn": show_lsn(lsn)})

    @property
    def _named(self) -> str:
        return '"' + self.publication.replace('"', '""') + '"'


def attempts_to_start(connection: Any, base: str) -> list[str]:
    """Return the slots that attempts to start have created: their names are `base` and a suffix each.

    Those of an earlier version are called `base`.
    """
    query = "SELECT slot_name FROM pg_replication_slots WHERE slot_name = %s OR slot_name ~ %s"
    return [name for (name,) in connection.execute(query, [base, f"^{base}_[0-9a-f]{{8}}$"]).fetchall()]


def parse_lsn(text: str) -> int:
    """Parse an LSN, a position in the write-ahead log.

    >>> parse_lsn("16/B374D848")
    97500059720
    """
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def show_lsn(position: int) -> str:
    """Format an LSN as PostgreSQL does.

    >>> show_lsn(97500059720)
    '16/B374D848'
    """
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def short_name(name: str, *, longest: int = _LONGEST_NAME) -> str:
    """Return a valid name for a replication slot.

    >>> short_name("headrace_Orders-1a2b")
    'headrace_orders_1a2b'
    """
    cleaned = re.sub(r"[^a-z0-9_]+", "_", name.lower())
    if len(cleaned) <= longest:
        return cleaned
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{cleaned[: longest - 13]}_{digest}"
