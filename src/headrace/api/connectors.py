"""Options of connectors as objects: what the functions of `hr.sources` and `hr.sinks` return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.api.schemas import parse_schema
from headrace.base.call_site import located
from headrace.base.errors import HeadraceError
from headrace.base.options import parse_options
from headrace.model.registry import Role, registry


@dataclass(frozen=True)
class ConfiguredSource:
    """A source and its options, for `pipeline.source(…)`; made by a function of `hr.sources`.

    Attributes:
        connector: the name of the connector.
        options: its options by their names; a password is not displayed.

    >>> import headrace as hr
    >>> hr.sources.impulse(event_rate=10)
    ConfiguredSource(connector='impulse', options={'event_rate': 10})
    """

    connector: str
    options: Mapping[str, Any]

    def __repr__(self) -> str:
        return _describe(self, "source")


@dataclass(frozen=True)
class ConfiguredSink:
    """A sink and its options, for `stream.sink(…)`; made by a function of `hr.sinks`.

    Attributes:
        connector: the name of the connector.
        options: its options by their names; a password is not displayed.

    >>> import headrace as hr
    >>> hr.sinks.memory(name="rows")
    ConfiguredSink(connector='memory', options={'name': 'rows'})
    """

    connector: str
    options: Mapping[str, Any]

    def __repr__(self) -> str:
        return _describe(self, "sink")


_SHOWN_CHARACTERS = 80
"""How much of one option is shown."""


def _describe(configured: ConfiguredSource | ConfiguredSink, role: Role) -> str:
    """The connector and its options, without the values of those that are never displayed."""
    try:
        fields = registry.options(role, configured.connector).model_fields
    except HeadraceError:  # there is no such connector: any of its options may be a secret
        names = ", ".join(map(repr, configured.options))
        return f"{type(configured).__name__}(connector={configured.connector!r}, options={{{names}}})"
    hidden = {text for name, field in fields.items() if not field.repr for text in (name, field.alias)}
    shown = []
    for name, value in configured.options.items():
        text = repr(value) if name not in hidden and name.partition(".")[0] not in hidden else "***"
        text = text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
        shown.append(f"{name!r}: {text}")
    kind = type(configured).__name__
    return f"{kind}(connector={configured.connector!r}, options={{{', '.join(shown)}}})"


class _Unset:
    """The default of an option that is left to its connector."""

    def __repr__(self) -> str:
        return "…"


UNSET: Any = _Unset()


@located
def checked_options(role: Role, connector: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, by the names they have everywhere; raises for a wrong one."""
    model = registry.options(role, connector)
    fields = model.model_fields
    options = {
        (fields[name].alias or name) if name in fields else name: value
        for name, value in values.items()
        if value is not UNSET
    }
    if isinstance(options.get("schema"), str | Mapping):
        options["schema"] = parse_schema(options["schema"])
    parse_options(model, options, what=connector)
    return options
