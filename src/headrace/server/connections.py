"""Connection profiles and tables: stored, written as SQL, and their secrets handed to processes.

A secret is in the database and nowhere else: SQL and options refer to it as `{{ NAME }}`, and the process
that needs it finds it in its environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.base.errors import ConfigurationError, UserError, suggest
from headrace.base.options import Options, parse_options
from headrace.base.secrets import SECRET
from headrace.model.registry import Role, registry
from headrace.server.database import Row, ServerDatabase
from headrace.server.errors import RequestError, not_found
from headrace.server.identifiers import new_id, now_micros
from headrace.sql.types import column_name

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_WORD = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)
_DEFINED = re.compile(
    r"\bcreate\s+(?:temporary\s+)?(?:table|view)\s+(?:if\s+not\s+exists\s+)?[\"`]?([a-z_][a-z0-9_]*)",
    re.IGNORECASE,
)
"""A name that the query defines itself hides the connection table of that name."""
_NO_NAMES = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", re.DOTALL)
"""Comments and strings, in which no table is named."""
_RESERVED = """
    all and as between by case cast create cross distinct else end exists false from full group having in
    inner insert interval into is join left like limit not null on or order outer right select table then
    true union using values view when where window with
"""
"""Words that SQL takes for its own where a table is named."""
_ROLES: tuple[Role, ...] = ("source", "sink", "lookup")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ARROYO_NAMES = {"authentication": "auth", "schema_registry_enum": "schema_registry"}
HIDDEN = "***"


class Parts(NamedTuple):
    """Options, with the secret ones apart."""

    config: dict[str, Any]
    secrets: dict[str, str]


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options as SQL names them, from nested ones such as `{"type": {"source": {"offset": "latest"}}}`."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = _CAMEL.sub("_", key).lower()
        name = _ARROYO_NAMES.get(name, name)
        role = next(iter(value)) if isinstance(value, Mapping) and len(value) == 1 else None
        if isinstance(value, Mapping) and name == "type" and role in _ROLES and not prefix:
            flat["type"] = role
            inner = value[role]
            flat |= flatten(inner, f"{role}.") if isinstance(inner, Mapping) else {}
        elif isinstance(value, Mapping) and name not in ("client_configs", "headers"):
            flat |= flatten(value, f"{prefix}{name}.")
        elif value is not None and value != {}:
            flat[f"{prefix}{name}"] = value
    if prefix == "auth." and "auth.username" in flat:
        flat.setdefault("auth.type", "sasl")
    return flat


def with_role(connector: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with the role that `{"type": {"offset": "latest"}}` only implies: what has such an option."""
    prefix = "type."
    typed = {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}
    for role, model in models_of(connector).items() if typed else ():
        options_of_role = _names_of(model)
        names = {name: f"{role}.{name}" if f"{role}.{name}" in options_of_role else name for name in typed}
        if options_of_role.issuperset(names.values()):
            others = {name: value for name, value in options.items() if not name.startswith(prefix)}
            return {**others, "type": role, **{names[name]: value for name, value in typed.items()}}
    return dict(options)


def models_of(connector: str) -> dict[Role, type[Options]]:
    """The options of a connector in each of its roles."""
    roles = [role for role in _ROLES if connector in registry.names(role)]
    if not roles:
        names = sorted({name for role in _ROLES for name in registry.names(role)})
        hint = suggest(connector, names, listing="the connectors are")
        raise UserError(f"there is no connector `{connector}`", hint=hint)
    return {role: registry.options(role, connector) for role in roles}


def split_secrets(connector: str, options: Mapping[str, Any]) -> Parts:
    """Put the options apart that are secret by their declaration; references `{{ NAME }}` are none."""
    secret = {
        name
        for model in models_of(connector).values()
        for field_name, field in model.model_fields.items()
        if not field.repr
        for name in (field_name, field.alias)
    }
    parts = Parts({}, {})
    for name, value in options.items():
        if name in secret and not (isinstance(value, str) and SECRET.search(value)):
            parts.secrets[name] = value if isinstance(value, str) else json.dumps(value)
        else:
            parts.config[name] = value
    return parts


def _names_of(model: type[Options]) -> set[str]:
    return {name for key, field in model.model_fields.items() for name in (key, field.alias) if name}


def check_options(connector: str, options: Mapping[str, Any]) -> None:
    """Refuse an option that no role of the connector has."""
    properties = set().union(*map(_names_of, models_of(connector).values()))
    for name in options:
        if name not in properties and name != "type":
            listed = sorted(properties)
            raise UserError(
                f"the connector `{connector}` has no option `{name}`",
                hint=suggest(name, listed, listing="its options are"),
            )


def _check_values(connector: str, options: Mapping[str, Any]) -> None:
    """Refuse values that an option has in no role; a table adds the options that a profile lacks."""
    written = {name: value for name, value in options.items() if not SECRET.search(str(value))}
    refused = []
    for model in models_of(connector).values():
        values = {name: value for name, value in written.items() if name in _names_of(model)}
        try:
            parse_options(model, values, what=connector)
        except ConfigurationError as error:
            refused.append([text for option, text in error.problems if option in values])
        else:
            refused.append([])
    if all(refused):
        raise UserError(f"{connector}: {refused[0][0]}")


class Connections:
    """The profiles and tables of the database."""

    def __init__(self, database: ServerDatabase) -> None:
        self._database = database

    # ------------------------------------------------------------------------------------ profiles

    def profiles(self) -> list[Row]:
        """Every profile, the newest last; `config` has `***` in the place of secrets."""
        rows = self._database.all("SELECT * FROM connection_profiles ORDER BY number")
        return [_shown(row) for row in rows]

    def profile(self, profile_id: str) -> Row:
        """One profile; raises a RequestError if there is none."""
        return _shown(self._profile(profile_id))

    def _profile(self, profile_id: str) -> Row:
        row = self._database.one("SELECT * FROM connection_profiles WHERE id = ?", profile_id)
        if row is None:
            raise not_found("connection profile", profile_id)
        return row

    def plain_options(self, profile_id: str) -> dict[str, Any]:
        """The options of a profile with its secrets, for a call to its system."""
        row = self._profile(profile_id)
        return {**json.loads(row["config"]), **json.loads(row["secrets"])}

    def add_profile(
        self, name: str, connector: str, config: Mapping[str, Any], description: str | None = None
    ) -> Row:
        """Store a profile."""
        check_name(name, "connection profile")
        options = flatten(config)
        check_options(connector, options)
        _check_values(connector, options)
        parts = split_secrets(connector, options)
        row = {
            "id": new_id("cp"),
            "name": name,
            "connector": connector,
            "config": json.dumps(parts.config),
            "secrets": json.dumps(parts.secrets),
            "created_at": now_micros(),
            "description": description,
        }
        with self._database.transaction():
            if self._database.one("SELECT id FROM connection_profiles WHERE name = ?", name):
                raise RequestError(409, f"there is a connection profile `{name}` already")
            self._database.insert("connection_profiles", row)
        return _shown(row)

    def delete_profile(self, profile_id: str) -> None:
        """Remove a profile that no table uses."""
        with self._database.transaction():
            self._profile(profile_id)
            users = self._database.all("SELECT name FROM connection_tables WHERE profile_id = ?", profile_id)
            if users:
                names = ", ".join(f"`{row['name']}`" for row in users)
                raise RequestError(400, f"the connection tables {names} use this profile; delete them first")
            self._database.change("DELETE FROM connection_profiles WHERE id = ?", profile_id)

    # -------------------------------------------------------------------------------------- tables

    def tables(self) -> list[Row]:
        """Every table, the newest first; `config` has `***` in the place of secrets."""
        rows = self._database.all("SELECT * FROM connection_tables ORDER BY number DESC")
        return [self._with_profile(row) for row in rows]

    def table(self, table_id: str) -> Row:
        """One table; raises a RequestError if there is none."""
        row = self._database.one("SELECT * FROM connection_tables WHERE id = ?", table_id)
        if row is None:
            raise not_found("connection table", table_id)
        return self._with_profile(row)

    def _with_profile(self, row: Row) -> Row:
        profile = None if row["profile_id"] is None else self.profile(row["profile_id"])
        return {**_shown(row), "profile": profile}

    def new_table(
        self,
        name: str,
        connector: str,
        *,
        profile_id: str | None,
        config: Mapping[str, Any],
        schema: Mapping[str, Any],
        columns: Sequence[str],
        format_options: Mapping[str, Any],
    ) -> Row:
        """A row for a table that is not stored; what can be refused without planning it is refused."""
        check_name(name, "connection table")
        if profile_id is not None:
            profile = self._profile(profile_id)
            if profile["connector"] != connector:
                raise UserError(
                    f"the profile `{profile['name']}` is for `{profile['connector']}`, and this is "
                    f"a table of `{connector}`"
                )
        options = {**format_options, **with_role(connector, flatten(config))}
        check_options(connector, options)
        declared = options.get("type")
        roles = list(models_of(connector))
        if declared is not None and declared not in roles:
            raise UserError(
                f"the connector `{connector}` cannot be a {declared}",
                hint=f"it can be a {' or a '.join(roles)}",
            )
        parts = split_secrets(connector, options)
        return {
            "id": new_id("ct"),
            "name": name,
            "connector": connector,
            "profile_id": profile_id,
            "table_type": declared or roles[0],
            "config": json.dumps(parts.config),
            "secrets": json.dumps(parts.secrets),
            "schema": json.dumps(schema),
            "columns": json.dumps(list(columns)),
            "created_at": now_micros(),
        }

    def add_table(self, row: Row) -> None:
        """Store a table."""
        with self._database.transaction():
            if self._database.one(
                "SELECT id FROM connection_tables WHERE lower(name) = lower(?)", row["name"]
            ):
                raise RequestError(409, f"there is a connection table `{row['name']}` already")
            self._database.insert("connection_tables", row)

    def delete_table(self, table_id: str, consumers: int) -> None:
        """Remove a table that no pipeline uses."""
        with self._database.transaction():
            row = self.table(table_id)
            if consumers:
                raise RequestError(
                    400, f"{consumers} pipelines use the table `{row['name']}`; delete them first"
                )
            self._database.change("DELETE FROM connection_tables WHERE id = ?", table_id)

    # ---------------------------------------------------------------------------------- to programs

    def tables_sql(self, query: str) -> str:
        """CREATE TABLE for the tables whose names occur in a query."""
        names = tables_in(query)
        rows = self._database.all("SELECT * FROM connection_tables ORDER BY number")
        return "\n".join(self.table_sql(row) for row in rows if row["name"].lower() in names)

    def table_sql(self, row: Row) -> str:
        """A table as SQL defines it; secrets are references to the environment."""
        options = {"connector": row["connector"], **json.loads(row["config"])}
        if row["profile_id"] is not None:
            options["connection_profile"] = self._profile(row["profile_id"])["name"]
        options |= {name: _reference(row["id"], name) for name in json.loads(row["secrets"])}
        columns = json.loads(row["columns"])
        lines = ",\n  ".join(columns)
        body = f" (\n  {lines}\n)" if columns else ""
        settings = ",\n  ".join(f"{quoted(name)} = {_literal(value)}" for name, value in options.items())
        return f"CREATE TABLE {column_name(row['name'])}{body} WITH (\n  {settings}\n);"

    def saved_profiles(self) -> dict[str, dict[str, Any]]:
        """The profiles as programs know them."""
        rows = self._database.all("SELECT * FROM connection_profiles")
        return {
            row["name"]: {
                "connector": row["connector"],
                "options": json.loads(row["config"])
                | {name: _reference(row["id"], name) for name in json.loads(row["secrets"])},
            }
            for row in rows
        }

    def environ(self) -> dict[str, str]:
        """The environment variables that hold the secrets of profiles and tables."""
        rows = [
            *self._database.all("SELECT id, secrets FROM connection_profiles"),
            *self._database.all("SELECT id, secrets FROM connection_tables"),
        ]
        return environ_of(rows)


def words_of(query: str) -> set[str]:
    """The words of a query, lower-cased, but those of comments and strings."""
    return {word.lower() for word in _WORD.findall(_NO_NAMES.sub(" ", query))}


def tables_in(query: str) -> set[str]:
    """The words of a query that may name a connection table: not those that it defines itself."""
    return words_of(query) - {name.lower() for name in _DEFINED.findall(_NO_NAMES.sub(" ", query))}


def environ_of(rows: Sequence[Row]) -> dict[str, str]:
    """The environment variables that hold the secrets of these rows."""
    return {
        _variable(row["id"], name): value
        for row in rows
        for name, value in json.loads(row["secrets"]).items()
    }


def check_name(name: str, what: str) -> None:
    """Refuse a name that SQL cannot write without quotes."""
    if name.lower() in _RESERVED.split():
        raise UserError(f"`{name}` is a word of SQL and cannot be the name of a {what}")
    if _NAME.fullmatch(name) is None:
        raise UserError(
            f"`{name}` cannot be the name of a {what}",
            hint="it has letters, digits and underscores, 100 at most, and begins with no digit",
        )


def _shown(row: Row) -> Row:
    """A row with its options, the secret ones as `***`, and without anything that holds them."""
    config = json.loads(row["config"]) | dict.fromkeys(json.loads(row["secrets"]), HIDDEN)
    return {name: value for name, value in row.items() if name != "secrets"} | {"config": config}


def _variable(row_id: str, option: str) -> str:
    return f"HEADRACE_SECRET_{row_id}_{re.sub(r'[^A-Za-z0-9]', '_', option)}"


def _reference(row_id: str, option: str) -> str:
    return f"{{{{ {_variable(row_id, option)} }}}}"


def quoted(name: str) -> str:
    """A string as SQL writes it."""
    return "'" + name.replace("'", "''") + "'"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list):
        return quoted(",".join(str(item) for item in value))
    if isinstance(value, Mapping):
        return quoted(",".join(f"{name}={item}" for name, item in value.items()))
    return quoted(str(value))
