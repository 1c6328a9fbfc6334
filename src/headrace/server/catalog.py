"""The connectors as the REST API lists them: their options as JSON schemas."""

from __future__ import annotations

import functools
import inspect
import json
import re
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import CoreSchema

from headrace.model.registry import Role, registry
from headrace.server.connections import models_of
from headrace.server.models import ConnectorView

_ROLES: tuple[Role, ...] = ("source", "sink", "lookup")
_PEOPLE = {
    "kafka": "Kafka",
    "confluent": "Confluent Cloud",
    "filesystem": "Filesystem",
    "delta": "Delta Lake",
    "iceberg": "Iceberg",
    "postgres": "PostgreSQL",
    "mqtt": "MQTT",
    "nats": "NATS",
    "rabbitmq": "RabbitMQ",
    "sse": "Server-Sent Events",
    "websocket": "WebSocket",
    "polling_http": "Polling HTTP",
    "single_file": "Single File",
}
_CONNECTION = re.compile(
    r"bootstrap_servers|servers|url|address|cluster\.addresses|host|port|user|username|password|virtual_host|"
    r"database|auth\..*|tls.*|schema_registry\..*|catalog\..*|storage\..*|client_configs|key|secret|sslmode"
)
"""Options that several tables of one system share, so that a profile can hold them."""
_WITHOUT_PROFILE = {
    "filesystem",
    "single_file",
    "memory",
    "spark",
    "nexmark",
    "impulse",
    "blackhole",
    "stdout",
    "delta",
}
_DERIVED = {"schema", "primary_key", "metadata", "idle_timeout", "columns", "rows"}
"""What a table's columns say."""


class _OptionSchemas(GenerateJsonSchema):
    """JSON schemas of options; one that only Python can set is a string in SQL."""

    def handle_invalid_for_json_schema(self, schema: CoreSchema, error_info: str) -> JsonSchemaValue:
        return {"type": "string"}

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Ignore the warning: a default that JSON cannot express is left out."""


@functools.cache
def connectors() -> list[ConnectorView]:
    """Every connector, by name."""
    names = sorted({name for role in _ROLES for name in registry.names(role)} - {"memory"})
    return [_connector(name) for name in names]


def _connector(name: str) -> ConnectorView:
    schemas = {
        role: model.model_json_schema(by_alias=True, schema_generator=_OptionSchemas)
        for role, model in models_of(name).items()
    }
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for role, schema in schemas.items():
        definitions |= schema.get("$defs", {})
        for option, declared in schema.get("properties", {}).items():
            if option in _DERIVED:
                continue
            merged = properties.setdefault(option, {**declared, "x-roles": []})
            merged["x-roles"].append(role)
            if not _is_shown(name, role, option):
                merged["writeOnly"] = True
    required = [
        option
        for option in properties
        if all(option in schema.get("required", ()) for schema in schemas.values())
    ]
    properties["type"] = {
        "type": "string",
        "enum": list(schemas),
        "title": "Type",
        "description": "What the table is; a source and a sink both, where the connector can be, unless set.",
    }
    profile = {
        option: declared
        for option, declared in properties.items()
        if _CONNECTION.fullmatch(option) and name not in _WITHOUT_PROFILE
    }
    constructor = registry.constructor(next(iter(schemas)), name)
    return ConnectorView(
        id=name,
        name=_PEOPLE.get(name, name.replace("_", " ").title()),
        icon="",
        description=(inspect.getdoc(constructor) or "").split("\n\n")[0].replace("\n", " "),
        table_config=_schema(name, properties, required, definitions),
        enabled=True,
        source="source" in schemas or "lookup" in schemas,
        sink="sink" in schemas,
        custom_schemas=any("schema" in schema.get("properties", {}) for schema in schemas.values()),
        testing=True,
        hidden=False,
        connection_config=_schema(name, profile, [], definitions) if profile else None,
    )


def _is_shown(name: str, role: Role, option: str) -> bool:
    fields = registry.options(role, name).model_fields
    return all(field.repr for key, field in fields.items() if option in (key, field.alias))


def _schema(name: str, properties: dict[str, Any], required: list[str], definitions: dict[str, Any]) -> str:
    return json.dumps(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": name,
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
            **({"$defs": definitions} if definitions else {}),
        }
    )
