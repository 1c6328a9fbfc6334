"""One table of a SQL text as the connector it stands for, without a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.base.errors import HeadraceError, SqlError, suggest
from headrace.base.problems import Problems
from headrace.base.spans import Source
from headrace.model.registry import Role, registry
from headrace.sql.bind.catalog import Table, connector_options, define_table, option_error, roles_of
from headrace.sql.find_columns import with_columns
from headrace.sql.parse.statements import parse_statements
from headrace.sql.parse.table_definition import CreateTable
from headrace.sql.problems import fail, sql_error


class Tried(NamedTuple):
    """A table in one of its roles."""

    role: Role
    connector: Any
    """None if the columns to read cannot be found out, of a table that can be written as well."""
    found: tuple[pa.Field, ...] = ()
    """The columns that were not written, and found out."""
    problem: SqlError | None = None


def connectors_of(texts: Sequence[Source], name: str) -> list[Tried]:
    """What a table is, in each role that it can have: all that its connector has unless `type` says which."""
    table = _find(texts, name)
    if table.kind == "memory":
        fail(f"`{table.name}` is a table in memory and has no connector", table.span())
    wanted = table.value("type")
    if table.kind == "lookup":
        wanted = "lookup"
    roles = [role for role in roles_of(table.connector) if wanted in (None, role)]
    if wanted is None and len(roles) > 1:
        roles = [role for role in roles if role != "lookup"]
    built: list[Tried] = []
    problem: SqlError | None = None
    for role in roles:
        try:
            built.append(_build(table, role))
        except SqlError as error:
            problem = problem or error
            if role == "source" and table.columns is None:
                built.append(Tried(role, None, problem=error))
    if all(one.connector is None for one in built):
        raise problem or sql_error(
            f"connector `{table.connector}` cannot be a {wanted}",
            table.span("type"),
            suggest(str(wanted), roles),
        )
    return built


def _find(texts: Sequence[Source], name: str) -> Table:
    problems = Problems()
    statements = [one for text in texts for one in parse_statements(text, problems)]
    tables = {one.name: (source, one) for source, one in statements if isinstance(one, CreateTable)}
    if name.lower() in tables:
        source, definition = tables[name.lower()]
        return define_table(definition, source)
    problems.raise_all()
    raise SqlError(
        f"there is no CREATE TABLE {name}",
        where=texts[0].name if texts else None,
        hint=suggest(name, tables) or (f"the tables are {', '.join(tables)}" if tables else None),
    )


def _build(table: Table, role: Role) -> Tried:
    columns = None
    if role == "source":
        table = with_columns(table)
    if table.columns is not None:
        columns = pa.schema([column.field for column in table.physical])
    try:
        options = connector_options(table, role, columns)
        if role == "lookup":
            return Tried(role, registry.build_lookup(table.connector, options))
        return Tried(role, registry.build(role, table.connector, options), table.found)
    except SqlError:
        raise
    except HeadraceError as error:
        raise option_error(error, table)[0] from error
