"""The `postgres` lookup table: fetch rows by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.base.errors import ConfigurationError, ExternalError
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors.postgres.client import PostgresConnector, PostgresOptions, identifier, load_client
from headrace.connectors.postgres.text import UnreadableError, read_texts, write_texts
from headrace.model.operator import Lookup, OperatorContext


class PostgresLookup(PostgresConnector, Lookup):
    """Looks rows up in a table or view of PostgreSQL, by one column.

    Each worker looks up all keys of a batch with one query; an index on the column makes it fast. A key that
    is not a valid value of the column, such as a string that is no UUID, has no row. Values that do not fit
    the declared types end the run.
    """

    class Options(PostgresOptions):
        """The options of the postgres lookup."""

    options: Options

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        if self.options.columns is None:
            raise ConfigurationError(
                "PostgresLookup needs columns", hint="give their types with the option `schema`"
            )
        if len(self.options.primary_key) != 1:
            raise ConfigurationError(
                "PostgresLookup needs a primary key of one column, got "
                f"{', '.join(self.options.primary_key) or 'none'}",
                hint="give the column that rows are found by with the option `primary_key`",
            )

    @property
    def key(self) -> str:
        return self.options.primary_key[0]

    @property
    def columns(self) -> pa.Schema:
        columns = self.options.columns
        assert columns is not None
        return columns

    def lookup(self, keys: pa.Array, ctx: OperatorContext) -> pa.Table:
        """Return the rows of these keys."""
        texts = write_texts(keys, self.columns.field(self.key)).cast(pa.string()).to_pylist()
        kind = ctx.resource("lookup.key", lambda: self.database.run(self._key_type))
        rows = self.database.run(lambda connection: self._find(connection, kind, texts))
        columns = [
            self._column(pa.array([row[index] for row in rows], pa.binary()).cast(pa.string()), field)
            for index, field in enumerate(self.columns)
        ]
        return pa.table(columns, self.columns.names)

    def _key_type(self, connection: Any) -> str:
        table = self.describe(connection)
        self.check_columns(table, self.columns)
        return table.columns[self.key].kind

    def _find(self, connection: Any, kind: str, keys: Sequence[Any]) -> list[list[bytes | None]]:
        """Return the rows of these keys, with values in the text form of PostgreSQL."""
        sql = load_client().sql
        select = sql.SQL("SELECT {} FROM {} WHERE {} = ANY(%s::text[]::{}[])").format(
            sql.SQL(", ").join(sql.Identifier(name) for name in self.columns.names),
            identifier(self.options.table),
            sql.Identifier(self.key),
            sql.SQL(kind),
        )
        return self._select(connection, select, keys)

    def _select(self, connection: Any, select: Any, keys: Sequence[Any]) -> list[list[bytes | None]]:
        client = load_client()
        with connection.cursor() as cursor:
            try:
                result = cursor.execute(select, [list(keys)]).pgresult
            except client.DataError:
                # One of them is no value of the column: it has no row, the others may have.
                if len(keys) == 1:
                    return []
                half = len(keys) // 2
                parts = (keys[:half], keys[half:])
                return [row for part in parts for row in self._select(connection, select, part)]
            columns = range(len(self.columns))
            return [[result.get_value(row, column) for column in columns] for row in range(result.ntuples)]

    def _column(self, texts: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return read_texts(texts, field)
        except UnreadableError as error:
            raise ExternalError(
                f"column `{field.name}` of table `{self.options.table}`: {error}",
                hint="declare the column with a type that holds what is there",
                where=f"postgres at {self.database.address}",
            ) from None
