"""The server's SQLite database: one file in the data directory, in WAL mode, with numbered migrations."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.base.errors import StateError
from headrace.server.migrations import MIGRATIONS

_BUSY_SECONDS = 30.0

Row = Mapping[str, Any]


class ServerDatabase:
    """A connection that all threads share; every change is made in a `transaction`."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        file.touch(mode=0o600)
        self._connection = sqlite3.connect(
            file, check_same_thread=False, isolation_level=None, timeout=_BUSY_SECONDS
        )
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._migrate(file)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes of the block, or none; a transaction inside another is part of it."""
        with self._lock:
            if self._depth == 0:
                self._connection.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
            except BaseException:
                self._depth -= 1
                if self._depth == 0:
                    self._connection.execute("ROLLBACK")
                raise
            self._depth -= 1
            if self._depth == 0:
                self._connection.execute("COMMIT")

    def all(self, sql: str, *values: Any) -> list[Row]:
        """Every row of a query."""
        with self._lock:
            return [dict(row) for row in self._connection.execute(sql, values)]

    def one(self, sql: str, *values: Any) -> Row | None:
        """The first row of a query, or None."""
        with self._lock:
            row = self._connection.execute(sql, values).fetchone()
            return None if row is None else dict(row)

    def change(self, sql: str, *values: Any) -> int:
        """Run a statement that changes rows; returns how many it changed."""
        with self.transaction():
            return self._connection.execute(sql, values).rowcount

    def insert(self, table: str, values: Row) -> None:
        """Insert a row."""
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        self.change(f"INSERT INTO {table} ({names}) VALUES ({marks})", *values.values())

    def update(self, table: str, row_id: str, values: Row) -> None:
        """Set columns of the row with an id."""
        if values:
            assignments = ", ".join(f"{name} = ?" for name in values)
            self.change(f"UPDATE {table} SET {assignments} WHERE id = ?", *values.values(), row_id)

    def _migrate(self, file: Path) -> None:
        """Bring the tables to the version of this code, in one transaction."""
        with self.transaction():
            version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
            if version > len(MIGRATIONS):
                raise StateError(
                    f"the database {file} has version {version}, and this Headrace knows {len(MIGRATIONS)}",
                    hint="use the version of Headrace that wrote it, or a newer one",
                )
            for number, script in enumerate(MIGRATIONS[version:], version + 1):
                for statement in filter(str.strip, script.split(";")):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version = {number}")
