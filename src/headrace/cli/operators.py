"""`headrace operators`: the registered names, and the options of each."""

from __future__ import annotations

import types
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import click

from headrace.cli.terminal import print_json, print_table, verbose_option
from headrace.engine.autoscale import AutoParallelism

if TYPE_CHECKING:
    from headrace.base.options import Options
    from headrace.model.registry import Registry, Role

ROLES: tuple[Role, ...] = ("source", "operator", "sink", "lookup")
NAMES: dict[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    timedelta: "duration",
    Any: "any",
    AutoParallelism: "bounds",
}


@click.command
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="JSON lines instead of tables.")
@verbose_option
def operators(name: str | None, as_json: bool, verbose: bool) -> None:  # noqa: ARG001
    """List sources, operators, sinks and lookups, and their options.

    With NAME: the options of the one of that name.
    """
    from headrace.model.registry import registry

    if name is None:
        _list(registry, as_json=as_json)
        return
    roles = [role for role in ROLES if name in registry.names(role)]
    if not roles:
        raise _unknown(registry, name)
    for role in roles:
        model = registry.options(role, name)
        options = describe(model)
        if as_json:
            print_json({"role": role, "name": name, "options": options})
        else:
            print_options(role, name, options)


def print_options(role: str, name: str, options: list[dict[str, Any]]) -> None:
    """Print the options that `describe` returns as a table."""
    if not options:
        click.echo(f"{role} {name} takes no options")
        return
    rows = [
        (o["name"], o["type"], o["default"] if not o["required"] else "required", o["help"]) for o in options
    ]
    print_table(("option", "type", "default", "help"), rows, title=f"{role} {name}")


def _list(registry: Registry, *, as_json: bool) -> None:
    if as_json:
        for role in ROLES:
            for name in registry.names(role):
                print_json({"role": role, "name": name})
    else:
        print_table(("role", "names"), [(role, "  ".join(registry.names(role))) for role in ROLES])
        click.echo("`headrace operators NAME` shows the options of one.")


def _unknown(registry: Registry, name: str) -> Exception:
    from headrace.base.errors import ConfigurationError, suggest

    names = sorted({names for role in ROLES for names in registry.names(role)})
    return ConfigurationError(
        f"nothing is called `{name}`", hint=suggest(name, names, listing="the names are")
    )


def describe(model: type[Options]) -> list[dict[str, Any]]:
    """The options of a schema for display: name, type, default, help."""
    return [
        {
            "name": field.alias or name,
            "type": type_name(field.annotation),
            "required": field.is_required(),
            "default": None
            if field.is_required()
            else _default(field.get_default(call_default_factory=True)),
            "help": field.description or "",
        }
        for name, field in model.model_fields.items()
    ]


def _default(value: Any) -> Any:
    from headrace.base.durations import format_duration

    return format_duration(value) if isinstance(value, timedelta) else value


def type_name(annotation: Any) -> str:
    """A type for display: `duration`, `integer`, `a or b`.

    >>> type_name(int | None)
    'integer'
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in NAMES:
        return NAMES[annotation]
    if origin is Literal:
        return " or ".join(str(value) for value in arguments)
    if origin in {Union, types.UnionType}:
        return " or ".join(type_name(part) for part in arguments if part is not type(None))
    if origin in {list, tuple, set, frozenset} and arguments:
        return f"list of {type_name(arguments[0])}"
    if origin is not None and hasattr(annotation, "__metadata__"):
        return type_name(arguments[0])
    return str(getattr(annotation, "__name__", annotation))
