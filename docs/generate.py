"""Writes the pages of docs/reference that list what the code declares.

python -m docs.generate writes them; with --check it only says which are stale, and exits with 1 if any is.
"""
# ruff: noqa: INP001  docs is a folder of pages, not a package

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

import headrace
from headrace.cli.main import main
from headrace.cli.operators import ROLES, describe, type_name
from headrace.cli.run import run
from headrace.durations import format_duration
from headrace.registry import BUILT_IN, registry
from headrace.settings import PREFIX, SECTIONS
from headrace.state.tables import Table

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by `python -m docs.generate`; edit the code it is drawn from. -->"
INTERNAL = {"Pipeline.add", "Pipeline.check_own"} | {
    f"{table}.{name}" for table in ("GlobalTable", "KeyedTable", "TimeTable") for name in ("changes", "files")
}
FLAGS = {flag for parameter in run.params for flag in parameter.opts}


OPERATORS = """\
What `pipeline.source(name, …)`, `stream.apply(name, …)` and `stream.sink(name, …)` take by name.
`headrace operators` prints the same, with the names that installed packages add."""
SETTINGS = """\
A flag wins over the environment, the environment over `headrace.toml`, the file over the default.
[Configure](../how-to/configure.md) shows each way. Settings without a flag can be given to `Pipeline.run` by
the same name."""
CLI = """\
Rows go to standard output, everything else to standard error. Exit codes: 0 done, 1 failed while running,
2 something the user wrote or set has to change, 130 ended by a second Ctrl-C. [Errors](errors.md) lists the
error codes."""
API = """\
Every name here is imported from `headrace`. The test kit is in `headrace.testing.in_process`;
[Testing](../tutorials/testing.md) shows it."""
GROUPS = ("Pipelines", "Operators and sources", "State", "Event time", "Connectors", "Other", "Errors")


def operators_page() -> str:
    """Every name a pipeline can use, with its options."""
    lines = [
        "# Operators and connectors",
        "",
        NOTE,
        "",
        OPERATORS,
    ]
    for role in ROLES:
        lines += ["", f"## {role.capitalize()}s"]
        for name in sorted(BUILT_IN[role]):
            constructor = registry.constructor(role, name)
            lines += ["", f"### {role} `{name}`", "", *_paragraphs(constructor), ""]
            lines += _options_table(describe(registry.options(role, name)))
    return "\n".join(lines) + "\n"


def _paragraphs(thing: Any) -> list[str]:
    paragraphs = (inspect.getdoc(thing) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).split("\n")


def _options_table(options: list[dict[str, Any]]) -> list[str]:
    if not options:
        return ["It takes no options."]
    rows = [
        (f"`{o['name']}`", o["type"], "required" if o["required"] else _default(o["default"]), o["help"])
        for o in options
    ]
    return _table(("option", "type", "default", "meaning"), rows)


def _default(value: Any) -> str:
    if value is None or value in ({}, ""):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [" | ".join(header), " | ".join("---" for _ in header)]
    lines += [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return [f"| {line} |" for line in lines]


def settings_page() -> str:
    """Every setting: its place in the file, in the environment and on the command line."""
    lines = [
        "# Settings",
        "",
        NOTE,
        "",
        SETTINGS,
    ]
    for section, model in SECTIONS.items():
        about = (inspect.getdoc(model) or "").partition(": ")[2]
        lines += ["", f"## [{section}]", "", about[:1].upper() + about[1:], ""]
        rows = []
        for name, field in model.model_fields.items():
            value = field.get_default(call_default_factory=True)
            shown = format_duration(value) if hasattr(value, "total_seconds") else value
            flag = f"--{section}-dir" if name == "dir" else f"--{name.replace('_', '-')}"
            flag = f"`{flag}`" if flag in FLAGS else ""
            variable = f"`{PREFIX}{section.upper()}__{name.upper()}`"
            rows.append(
                (
                    f"`{name}`",
                    type_name(field.annotation),
                    _default(shown),
                    flag,
                    variable,
                    field.description or "",
                )
            )
        lines += _table(("key", "type", "default", "flag", "variable", "meaning"), rows)
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    """The help of every command."""
    lines = ["# Command line", "", NOTE, "", CLI]
    for path, command in _commands(main, ("headrace",)):
        # The settings of the group, which a command inherits when it is called through it.
        settings = {**main.context_settings, "terminal_width": 100}
        context = click.Context(command, info_name=" ".join(path), **settings)
        for parameter in command.get_params(context):
            if isinstance(parameter, click.Option) and parameter.name == "help":
                parameter.help = "Show this message and exit."
        lines += ["", f"## {' '.join(path)}", "", "```text", command.get_help(context), "```"]
    return "\n".join(lines) + "\n"


def _commands(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _commands(child, (*path, name))


def api_page() -> str:
    """Every public name with its signature and what it is for."""
    lines = [
        "# Python API",
        "",
        NOTE,
        "",
        API,
    ]
    groups: dict[str, list[str]] = {}
    for name in headrace.__all__:
        if name != "__version__":
            groups.setdefault(_group(getattr(headrace, name)), []).append(name)
    for group in GROUPS:
        lines += ["", f"## {group}"]
        for name in sorted(groups.get(group, ())):
            lines += _entry(name, getattr(headrace, name))
    return "\n".join(lines) + "\n"


def _group(value: Any) -> str:
    if value in (headrace.END_OF_TIME, headrace.IDLE):
        return "Event time"
    module = str(getattr(value, "__module__", ""))
    for prefix, group in (
        ("headrace.errors", "Errors"),
        ("headrace.connectors", "Connectors"),
        ("headrace.state", "State"),
        ("headrace.api", "Pipelines"),
        ("headrace.jobs", "Pipelines"),
        ("headrace.operator", "Operators and sources"),
        ("headrace.watermarks", "Event time"),
    ):
        if module.startswith(prefix):
            return group
    return "Other"


def _entry(name: str, value: Any) -> list[str]:
    if value is headrace.Offset:
        return ["", f"### {name}", "", "Where a source has come to: lane → position, as JSON."]
    if not inspect.isclass(value) and not inspect.isfunction(value):
        about = (
            f"A `{type(value).__name__}`: {value}."
            if type(value).__module__.startswith("headrace")
            else "A type."
        )
        if name == "Duration":
            about = "The type of an option that takes `10s`, `1h 30m`, a number of seconds or a timedelta."
        elif name == "registry":
            about = "The `Registry` of this process."
        return ["", f"### {name}", "", about]
    lines = ["", f"### {name}", ""]
    if inspect.isfunction(value) or _is_made_by_users(value):
        lines += ["```text", f"{name}{_signature(value)}", "```", ""]
    lines.append(_first_line(value))
    if _group(value) == "Connectors":
        return [*lines, "Its options are in [Operators and connectors](operators-and-connectors.md)."]
    if inspect.isclass(value) and not issubclass(value, Exception):
        members = list(_methods(value))
        if members:
            lines += ["", *members]
    return lines


def _is_made_by_users(value: type) -> bool:
    is_protocol = getattr(value, "_is_protocol", False)
    given = Exception | enum.Enum | headrace.Stream | Table
    return not (issubclass(value, given) or is_protocol)


def _methods(value: type) -> Iterator[str]:
    for name, member in vars(value).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        hidden = name.startswith("_") or f"{value.__name__}.{name}" in INTERNAL
        if hidden or not inspect.isfunction(function) or not inspect.getdoc(function):
            continue
        call = f"`{name}`" if isinstance(member, property) else f"`{name}{_signature(function, own=True)}`"
        yield f"- {call}: {_first_line(function)}"


class _Plain:
    """An annotation that prints without quotes."""

    def __init__(self, annotation: Any) -> None:
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        for module in ("headrace.", "pyarrow.lib.", "typing.", "collections.abc.", "threading."):
            text = text.replace(module, "")
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _signature(value: Callable[..., Any], *, own: bool = False) -> str:
    signature = inspect.signature(value)
    parameters = [
        parameter.replace(annotation=_Plain(parameter.annotation))
        if parameter.annotation is not parameter.empty
        else parameter
        for parameter in signature.parameters.values()
    ]
    if own and parameters and parameters[0].name in {"self", "cls"}:
        parameters = parameters[1:]
    result = signature.return_annotation
    if result is signature.empty or inspect.isclass(value):
        shown = signature.replace(parameters=parameters, return_annotation=signature.empty)
    else:
        shown = signature.replace(parameters=parameters, return_annotation=_Plain(result))
    return str(shown).replace("<factory>", "…").replace("datetime.timedelta(0)", "timedelta(0)")


def _first_line(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")


PAGES: dict[str, Callable[[], str]] = {
    "operators-and-connectors.md": operators_page,
    "settings.md": settings_page,
    "cli.md": cli_page,
    "api.md": api_page,
}


def stale() -> list[str]:
    """The pages that are not what the code says."""
    return [
        name
        for name, make in PAGES.items()
        if not (REFERENCE / name).is_file() or (REFERENCE / name).read_text(encoding="utf-8") != make()
    ]


if __name__ == "__main__":
    if "--check" in sys.argv:
        if found := stale():
            sys.exit(f"stale: {', '.join(found)}; run python -m docs.generate")
    else:
        for page, make_page in PAGES.items():
            (REFERENCE / page).write_text(make_page(), encoding="utf-8")
