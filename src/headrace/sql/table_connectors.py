"""Builds the connectors of a table that a SQL text defines, without a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.base.errors import HeadraceError, SqlError, suggest
from headrace.base.problems import Problems
from headrace.base.spans import Source
from headrace.model.registry import Role, registry
from headrace.sql.bind.catalog import (
    CatalogTable,
    connector_options,
    define_table,
    option_error,
    roles_of,
    watermark_of,
)
from headrace.sql.bind.find_columns import with_columns
from headrace.sql.parse.statements import parse_statements
from headrace.sql.parse.table_definition import CreateTable
from headrace.sql.problems import fail, sql_error


class TableConnector(NamedTuple):
    """The connector of a table in one of its roles."""

    role: Role
    connector: Any
    """None if the columns to read cannot be found, of a table that can be written as well."""
    inferred_columns: tuple[pa.Field, ...] = ()
    """The columns that the table does not declare, and that its source tells."""
    problem: SqlError | None = None
    event_time: str | None = None
    """The column of a source that is the event time of its rows."""


def build_connectors(texts: Sequence[Source], name: str) -> list[TableConnector]:
    """A table in each role that it can have: all that its connector has unless `type` says which."""
    table = _find(texts, name)
    if table.kind == "memory":
        fail(f"`{table.name}` is a table in memory and has no connector", table.span())
    declared = "lookup" if table.kind == "lookup" else table.value("type")
    roles = [role for role in roles_of(table.connector) if declared in (None, role)]
    if declared is None and len(roles) > 1:
        roles = [role for role in roles if role != "lookup"]
    built: list[TableConnector] = []
    problem: SqlError | None = None
    for role in roles:
        try:
            built.append(_build(table, role))
        except SqlError as error:
            problem = problem or error
            if role == "source" and table.columns is None:
                built.append(TableConnector(role, None, problem=error))
    if all(table_connector.connector is None for table_connector in built):
        raise problem or sql_error(
            f"connector `{table.connector}` cannot be a {declared}",
            table.span("type"),
            suggest(str(declared), roles),
        )
    return built


def _find(texts: Sequence[Source], name: str) -> CatalogTable:
    problems = Problems()
    statements = [statement for text in texts for statement in parse_statements(text, problems)]
    tables = {
        statement.name: (source, statement)
        for source, statement in statements
        if isinstance(statement, CreateTable)
    }
    if name.lower() in tables:
        source, definition = tables[name.lower()]
        return define_table(definition, source)
    problems.raise_all()
    raise SqlError(
        f"there is no CREATE TABLE {name}",
        where=texts[0].name if texts else None,
        hint=suggest(name, tables, listing="the tables are"),
    )


def _build(table: CatalogTable, role: Role) -> TableConnector:
    columns = None
    if role == "source":
        table = with_columns(table)
    if table.columns is not None:
        columns = pa.schema([column.field for column in table.physical])
    try:
        options = connector_options(table, role, columns)
        if role == "lookup":
            return TableConnector(role, registry.build_lookup(table.connector, options))
        event_time = watermark_of(table)[0] if role == "source" else None
        built = registry.build(role, table.connector, options)
        return TableConnector(role, built, table.inferred_columns, event_time=event_time)
    except SqlError:
        raise
    except HeadraceError as error:
        raise option_error(error, table)[0] from error
