"""The functions that the server keeps for the SQL of all pipelines."""

from __future__ import annotations

from typing import Any

from headrace.server.connections import words_of
from headrace.server.database import Row, ServerDatabase
from headrace.server.errors import RequestError, not_found
from headrace.server.identifiers import new_id, now_micros
from headrace.server.program import StoredFunction


class SavedFunctions:
    """The functions of the database."""

    def __init__(self, database: ServerDatabase) -> None:
        self._database = database

    def all(self) -> list[Row]:
        """Every function, the oldest first."""
        return self._database.all("SELECT * FROM udfs ORDER BY number")

    def add(self, name: str, values: dict[str, Any]) -> Row:
        """Store a function."""
        now = now_micros()
        row = {"id": new_id("udf"), "name": name, "created_at": now, "updated_at": now, **values}
        with self._database.transaction():
            if self._database.one("SELECT id FROM udfs WHERE lower(name) = lower(?)", name):
                raise RequestError(409, f"there is a function `{name}` already")
            self._database.insert("udfs", row)
        return row

    def delete(self, udf_id: str) -> None:
        """Remove a function; pipelines that run go on with it until they are started again."""
        if not self._database.change("DELETE FROM udfs WHERE id = ?", udf_id):
            raise not_found("function", udf_id)

    def named_in(self, query: str, *, without: set[str]) -> list[StoredFunction]:
        """The functions whose names occur in a query."""
        words = words_of(query) - without
        return [
            StoredFunction(row["definition"], row["language"])
            for row in self.all()
            if row["name"].lower() in words
        ]
