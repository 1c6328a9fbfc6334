"""The tables that SQL defines."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal

import pyarrow as pa
from sqlglot import exp

from headrace.base.errors import ConfigurationError, HeadraceError, SqlError, suggest
from headrace.base.options import Options, parse_options
from headrace.base.secrets import SECRET
from headrace.base.spans import Source, Span
from headrace.model.operator import DEAD_LETTER
from headrace.model.registry import Role, registry
from headrace.sql.connection_profiles import saved_profiles
from headrace.sql.parse.table_definition import ColumnDefinition, CreateTable, Option
from headrace.sql.problems import fail, sql_error

TableKind = Literal["connector", "memory", "lookup"]

TABLE_OPTIONS: Final = (
    "connector",
    "type",
    "event_time_field",
    "watermark_field",
    "idle_micros",
    "late_table",
    "dead_letter_table",
    "connection_profile",
    "lookup.cache.max_bytes",
    "lookup.cache.ttl",
)
"""Options that belong to every table and not to its connector."""

ARROYO_CONNECTORS: Final = frozenset({"fluvio", "kinesis"})
"""Connectors that only Arroyo has: a file that defines such a table and does not use it can still be run."""

IDLE: Final = timedelta(minutes=5)
"""After this long without rows a source no longer holds the watermark back; idle_micros says otherwise."""


@dataclass(frozen=True, eq=False)
class CatalogTable:
    """A table of the program: with a connector, in memory, or for lookups."""

    name: str
    kind: TableKind
    definition: CreateTable
    source: Source
    columns: pa.Schema | None
    """Every column; None where the connector or an INSERT says which there are."""
    inferred_columns: tuple[pa.Field, ...] = ()
    """The columns that the text does not declare, and that were read from the source."""

    @property
    def connector(self) -> str:
        """The name of its connector."""
        option = self.definition.options.get("connector")
        return "" if option is None else str(option.value)

    @property
    def physical(self) -> tuple[ColumnDefinition, ...]:
        """The columns that the connector reads or writes."""
        return tuple(column for column in self.definition.columns if column.generated is None)

    @property
    def has_changes(self) -> bool:
        """Whether its rows are changes, by their format or by the connector that they are read with."""
        if self.value("format") == "debezium_json":
            return True
        return self._source_says("is_updating")

    @property
    def has_upserts(self) -> bool:
        """Whether its rows are the latest of their keys, as its connector reads them."""
        return self._source_says("emits_upserts")

    def _source_says(self, question: str) -> bool:
        """What a class method of the connector answers about a table that may be read."""
        options = {name: option.value for name, option in self.definition.options.items()}
        is_read = self.kind == "connector" and options.get("type") != "sink"
        if not is_read or "source" not in roles_of(self.connector):
            return False
        ask = getattr(registry.constructor("source", self.connector), question, None)
        return ask is not None and bool(ask(options))

    def value(self, name: str) -> Any:
        """The value of an option of every table, or None."""
        option = self.definition.options.get(name)
        return None if option is None else option.value

    def span(self, option: str | None = None) -> Span:
        """Where the table, or one of its options, is written."""
        written = self.definition.options.get(option or "")
        return self.definition.span if written is None else written.span

    def watermark_span(self, option: str) -> Span:
        """Where the watermark is written: as WATERMARK FOR, or with an option."""
        mark = self.definition.watermark
        return self.span(option) if mark is None else mark.span


def define_table(definition: CreateTable, source: Source) -> CatalogTable:
    """A table from its definition; raises a SqlError for what cannot be."""
    if definition.query is not None:
        raise AssertionError
    definition = _with_profile(definition)
    options = definition.options
    columns = pa.schema([column.field for column in definition.columns]) if definition.has_columns else None
    if not options and not definition.temporary:
        _no_connector(definition)
        return CatalogTable(definition.name, "memory", definition, source, columns)
    if "connector" not in options:
        fail(
            f"table `{definition.name}` has options and no connector",
            definition.span,
            "write WITH (connector = '…', …); without WITH it is a table in memory",
        )
    kind: TableKind = "lookup" if definition.temporary or _text(options, "type") == "lookup" else "connector"
    table = CatalogTable(definition.name, kind, definition, source, columns)
    _check(table)
    if table.value("dead_letter_table") and (kind == "lookup" or table.value("type") == "sink"):
        span = table.span("dead_letter_table")
        fail("only a source has records that cannot be read", span, "leave out `dead_letter_table`")
    return table


def _with_profile(definition: CreateTable) -> CreateTable:
    """A table with the options of the connection profile that it names."""
    named = definition.options.get("connection_profile")
    if named is None:
        return definition
    profiles = saved_profiles()
    profile = profiles.get(str(named.value))
    if profile is None and not profiles:
        fail(
            "there are no saved connection profiles",
            named.span,
            "write the connection's options into the table; secrets as '{{ NAME }}'",
        )
    if profile is None:
        hint = suggest(str(named.value), profiles, listing="the profiles are")
        fail(f"there is no connection profile `{named.value}`", named.span, hint)
    connector = definition.options.get("connector")
    if connector is not None and connector.value != profile.connector:
        fail(
            f"the connection profile `{named.value}` is for `{profile.connector}`, and this is a "
            f"table of `{connector.value}`",
            named.span,
        )
    saved = {"connector": profile.connector, **profile.options}
    own = {name: option for name, option in definition.options.items() if option is not named}
    return replace(
        definition, options={name: Option(value, named.span) for name, value in saved.items()} | own
    )


def _no_connector(definition: CreateTable) -> None:
    if not definition.has_columns:
        hint = "write its columns: (name TYPE, …), or WITH (connector = '…', …)"
        fail(f"table `{definition.name}` has neither columns nor a connector", definition.span, hint)
    for column in definition.columns:
        if column.generated is not None or column.metadata is not None:
            fail(f"column `{column.name}` needs a table with a connector", column.span)
    if definition.watermark is not None:
        fail("a table in memory takes its event time from what is inserted", definition.watermark.span)


def _text(options: Mapping[str, Option], name: str) -> str | None:
    return str(options[name].value) if name in options else None


def _check(table: CatalogTable) -> None:
    definition = table.definition
    names = [column.name for column in definition.columns]
    if table.connector not in ARROYO_CONNECTORS:
        check_connector(table)
    kind = table.value("type")
    if kind is not None and kind not in ("source", "sink", "lookup"):
        fail(f"`{kind}` is not a type of table", table.span("type"), "it is 'source', 'sink' or 'lookup'")
    for option in ("event_time_field", "watermark_field"):
        if table.value(option) is None:
            continue
        if definition.has_columns:
            check_event_time(table, names)
        if definition.watermark is not None:
            fail(f"`{option}` and WATERMARK FOR say the same thing", table.span(option), "keep one of them")
    if table.has_changes:
        if kind == "source":
            check_source_key(table)
        for column in definition.columns:
            if column.generated is not None:
                fail(
                    "a table of changes cannot have generated columns", column.span, "compute them in a view"
                )
    if definition.watermark is not None and definition.has_columns:
        check_event_time(table, names)


def check_event_time(table: CatalogTable, names: Sequence[str]) -> None:
    """Refuse an event time or a watermark of a column that is not there."""
    mark = table.definition.watermark
    if mark is not None and mark.column not in names:
        hint = suggest(mark.column, names, listing="the columns are")
        fail(f"there is no column `{mark.column}`", mark.span, hint)
    for option in ("event_time_field", "watermark_field"):
        column = table.value(option)
        if column is not None and column not in names:
            hint = suggest(str(column), names, listing="the columns are")
            fail(f"there is no column `{column}`", table.span(option), hint)


def check_source_key(table: CatalogTable) -> None:
    """Changes that are read need a key: refuse a table of them that has none."""
    definition = table.definition
    if table.has_changes and not definition.primary_key:
        hint = "declare one, such as `id BIGINT PRIMARY KEY`"
        if not definition.has_columns:
            hint = f"name its columns: CREATE TABLE {table.name} (PRIMARY KEY (id)) WITH …"
        what = "debezium_json" if table.value("format") == "debezium_json" else table.connector
        fail(f"a {what} source needs a primary key", definition.span, hint)


def check_connector(table: CatalogTable) -> None:
    """Refuse a table whose connector is not there."""
    connectors = sorted({*registry.names("source"), *registry.names("sink"), *registry.names("lookup")})
    if table.connector not in connectors:
        hint = suggest(table.connector, connectors, listing="the connectors are")
        fail(f"there is no connector `{table.connector}`", table.span("connector"), hint)


def roles_of(connector: str) -> list[Role]:
    """What a connector can be."""
    roles: list[Role] = ["source", "sink", "lookup"]
    return [role for role in roles if connector in registry.names(role)]


def connector_options(
    table: CatalogTable, role: Role, columns: pa.Schema | None, *, key: Sequence[str] = ()
) -> dict[str, Any]:
    """The options for a table's connector, secrets filled in.

    `columns` are those that the connector reads or writes. What the connector declares beyond the options
    of the user, such as `schema`, is added. `key` identifies rows where the table has no primary key.
    """
    model = option_model(table, role)
    declared = {field.alias or name for name, field in model.model_fields.items()} | set(model.model_fields)
    values = {
        name: fill_secrets(option)
        for name, option in table.definition.options.items()
        if name not in TABLE_OPTIONS
    }
    if role == "source":
        _check_dead_letters(table, declared, values)
    if table.definition.partitioned_by and role == "sink":
        values.setdefault("partitioning.fields", _partition_fields(table, declared))
    metadata = {c.name: c.metadata for c in table.definition.columns if c.metadata is not None}
    derived: dict[str, Any] = {
        "schema": columns,
        "primary_key": list(table.definition.primary_key or key),
        "metadata": metadata,
        "idle_timeout": idle_timeout(table) if role == "source" else None,
    }
    for name, value in derived.items():
        if name in declared and name not in values and value not in (None, [], {}):
            values[name] = value
    if metadata and "metadata" not in declared:
        column = next(c for c in table.definition.columns if c.metadata is not None)
        fail(f"connector `{table.connector}` has no metadata", column.span)
    return values


def _check_dead_letters(table: CatalogTable, declared: set[str], values: dict[str, Any]) -> None:
    """`bad_data` = 'dead_letter' and `dead_letter_table` belong together; the latter alone implies both."""
    named = table.value("dead_letter_table") is not None
    if named and "bad_data" not in declared:
        fail(f"connector `{table.connector}` has no records to read", table.span("dead_letter_table"))
    if named and values.setdefault("bad_data", DEAD_LETTER) != DEAD_LETTER:
        fail(
            f"`dead_letter_table` does not go with `bad_data` = '{values['bad_data']}'",
            table.span("bad_data"),
            "leave out `bad_data`",
        )
    if not named and values.get("bad_data") == DEAD_LETTER:
        fail(
            "nothing would take the records that cannot be read",
            table.span("bad_data"),
            "name a table for them: `dead_letter_table` = '…'",
        )


def _partition_fields(table: CatalogTable, declared: set[str]) -> list[str]:
    if "partitioning.fields" not in declared:
        fail(f"connector `{table.connector}` cannot be PARTITIONED BY columns", table.span())
    columns = table.definition.partitioned_by
    return [column.name if isinstance(column, exp.Column) else column.sql() for column in columns]


def idle_timeout(table: CatalogTable) -> timedelta:
    """How long a quiet source holds the watermark back."""
    value = table.value("idle_micros")
    if value is None:
        return IDLE
    try:
        micros = int(value)
    except (TypeError, ValueError):
        micros = 0
    if micros <= 0:
        fail(
            "idle_micros is a number of microseconds", table.span("idle_micros"), "such as 30000000 for 30 s"
        )
    return timedelta(microseconds=micros)


def option_model(table: CatalogTable, role: Role) -> type[Options]:
    """The declared options of a table's connector in a role."""
    check_connector(table)
    roles = roles_of(table.connector)
    if role not in roles:
        hint = f"it can be a {' or a '.join(roles)}"
        fail(f"connector `{table.connector}` cannot be a {role}", table.span("connector"), hint)
    declared = table.value("type") or ("lookup" if table.kind == "lookup" else None)
    if declared is not None and declared != role:
        verb = {"source": "read", "sink": "written", "lookup": "looked up"}[role]
        both = (
            "leave `type` out"
            if role == "lookup"
            else "leave `type` out if it is to be both"
            if role in roles and declared in roles
            else None
        )
        fail(f"table `{table.name}` is a {declared} and cannot be {verb}", table.span("type"), both)
    return registry.options(role, table.connector)


def likely_role(table: CatalogTable) -> Role | None:
    """What a table can be that nothing reads or writes; None if only another engine has its connector."""
    roles = roles_of(table.connector)
    if table.kind == "lookup":
        return "lookup"
    declared: Any = table.value("type")
    return declared if declared in roles else next(iter(roles), None)


def option_errors(table: CatalogTable, role: Role) -> list[SqlError]:
    """What is wrong with the options of a table in a role, each error where the option is written."""
    columns = None if table.columns is None else pa.schema([column.field for column in table.physical])
    try:
        options = connector_options(table, role, columns)
        parse_options(option_model(table, role), options, what=table.connector)
    except SqlError as error:
        return [error]
    except HeadraceError as error:
        return option_error(error, table)
    return []


def option_error(error: HeadraceError, table: CatalogTable) -> list[SqlError]:
    """The errors of a connector's options, each pointing at its option."""
    problems = getattr(error, "problems", None) if isinstance(error, ConfigurationError) else None
    if not problems:
        return [sql_error(error.message, table.span("connector"), error.hint)]
    return [sql_error(f"{table.connector}: {text}", table.span(option)) for option, text in problems]


def fill_secrets(option: Option) -> Any:
    """A value with `{{ NAME }}` replaced by the environment's NAME."""
    if not isinstance(option.value, str):
        return option.value

    def look_up(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            fail(
                f"the environment has no `{name}`",
                option.span,
                f"set it before the run: export {name}=…",
            )
        return os.environ[name]

    return SECRET.sub(look_up, option.value)


def watermark_of(table: CatalogTable) -> tuple[str | None, exp.Expr | None]:
    """(the event-time column, the expression of the watermark) that a table declares."""
    mark = table.definition.watermark
    if mark is not None:
        return mark.column, mark.expression or exp.column(mark.column, quoted=True)
    event_time, field = table.value("event_time_field"), table.value("watermark_field")
    return event_time, None if field is None else exp.column(str(field), quoted=True)
