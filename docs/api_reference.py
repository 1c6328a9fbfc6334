"""The reference page of the Python API: every public name with its signature and its docstring."""
# ruff: noqa: INP001  docs is a folder of pages, not a package

from __future__ import annotations

import ast
import enum
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import headrace
from headrace.state.tables import StateTable

INTRODUCTION = """\
Import every name on this page from `headrace`. Examples are run by the tests. The test kit is in
`headrace.testing.in_process`; see [Testing](../tutorials/testing.md)."""
GROUPS = (
    "Pipelines",
    "Expressions",
    "Functions for SQL",
    "Operators and sources",
    "State",
    "Event time",
    "Connectors",
    "Other",
    "Errors",
)
FIRST = ("Pipeline", "Stream", "GroupedStream", "PipelineRun", "RunOptions", "col", "udf", "ArrowOperator")
"""Names that stand before the others of their group."""
INTERNAL = {
    f"{table}.{name}" for table in ("GlobalTable", "KeyedTable", "TimeTable") for name in ("changes", "files")
}
VALUES = {
    "Duration": "The type of an option that takes `10s`, `1h 30m`, a number of seconds or a timedelta.",
    "END_OF_TIME": "The `Watermark` after all data: no row follows.",
    "IDLE": "The `Watermark` of an input that is idle.",
    "Offset": "The position of a source: lane → position, as JSON.",
    "registry": "The `Registry` of this process.",
}
"""What the public names stand for that have no docstring of their own."""
SECTIONS = {"Args": "Arguments", "Attributes": "Attributes", "Returns": "Returns", "Raises": "Raises"}
_WIDTH = 100


def api_page(note: str) -> str:
    """Every public name with its signature, arguments, errors and an example."""
    lines = ["# Python API", "", note, "", INTRODUCTION]
    groups: dict[str, list[str]] = {}
    for name in headrace.__all__:
        if name != "__version__":
            groups.setdefault(_group(name, getattr(headrace, name)), []).append(name)
    for group in GROUPS:
        names = sorted(
            groups[group], key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name)
        )
        links = " · ".join(f"[{name}](#{name.lower()})" for name in names)
        lines += ["", f"## {group}", "", links]
        for name in names:
            lines += _entry(name, getattr(headrace, name), group)
    return "\n".join(lines) + "\n"


def _group(name: str, value: Any) -> str:
    if name in {"END_OF_TIME", "IDLE"}:
        return "Event time"
    if inspect.ismodule(value):
        return "Pipelines"
    if value is headrace.fn:
        return "Expressions"
    module = str(getattr(value, "__module__", ""))
    for prefix, group in (
        ("headrace.base.errors", "Errors"),
        ("headrace.connectors", "Connectors"),
        ("headrace.state", "State"),
        ("headrace.api.expressions", "Expressions"),
        ("headrace.api", "Pipelines"),
        ("headrace.functions.user", "Functions for SQL"),
        ("headrace.jobs", "Pipelines"),
        ("headrace.model.operator", "Operators and sources"),
        ("headrace.base.watermarks", "Event time"),
    ):
        if module.startswith(prefix):
            return group
    return "Other"


def _entry(name: str, value: Any, group: str) -> list[str]:
    lines = ["", f"### {name}"]
    if name in VALUES:
        return [*lines, "", VALUES[name]]
    if inspect.ismodule(value):
        functions = ", ".join(f"`{function}`" for function in value.__all__)
        return [*lines, *_documentation(value), "", f"Functions: {functions}."]
    if value is headrace.fn:
        return [*lines, *_documentation(type(value))]
    if inspect.isroutine(value) or _is_made_by_users(value):
        lines += ["", *_call(name, value)]
    lines += _documentation(value)
    if group == "Connectors":
        return [*lines, "", "Its options are in [Operators and connectors](operators-and-connectors.md)."]
    if inspect.isclass(value) and not issubclass(value, Exception):
        lines += list(_members(value))
    return lines


def _is_made_by_users(value: Any) -> bool:
    is_protocol = getattr(value, "_is_protocol", False)
    given = (
        Exception
        | enum.Enum
        | headrace.Stream
        | headrace.GroupedStream
        | headrace.Column
        | headrace.PipelineRun
        | headrace.RunStatus
        | headrace.ConfiguredSource
        | headrace.ConfiguredSink
        | StateTable
    )
    return inspect.isclass(value) and not (issubclass(value, given) or is_protocol)


def _members(value: type) -> Iterator[str]:
    """The fields and properties of a class as lists, then its methods with headings of their own."""
    fields = [f"- `{name}`: {text}" for name, text in _fields(value)]
    if fields:
        yield from ("", "**Fields**", "", *fields)
    methods: list[str] = []
    properties: list[str] = []
    for name, member in vars(value).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        hidden = name.startswith("_") or f"{value.__name__}.{name}" in INTERNAL
        if hidden or not inspect.isfunction(function) or not inspect.getdoc(function):
            continue
        if isinstance(member, property):
            properties.append(f"- `{name}`: {_first_line(function)}")
        else:
            methods += ["", f"#### {value.__name__}.{name}", "", *_call(name, function, own=True)]
            methods += _documentation(function)
    if properties:
        yield from ("", "**Properties**", "", *properties)
    yield from methods


def _fields(value: type) -> Iterator[tuple[str, str]]:
    """The fields of a class that a string below them describes."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    assert isinstance(definition, ast.ClassDef)
    for field, text in itertools.pairwise(definition.body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            name = field.target.id
            if not name.startswith("_"):
                yield name, " ".join(str(text.value.value).split())


def _documentation(value: Any) -> list[str]:
    """A docstring as Markdown: its text, its sections as lists, its example as a block."""
    text, _, example = (inspect.getdoc(value) or "").partition("\n>>> ")
    lines: list[str] = []
    parts = re.split(rf"^({'|'.join(SECTIONS)}):$", text.strip(), flags=re.MULTILINE)
    if parts[0].strip():
        lines += ["", parts[0].strip()]
    for section, content in zip(parts[1::2], parts[2::2], strict=True):
        body = textwrap.dedent(content.strip("\n")).strip()
        title = f"**{SECTIONS[section]}**"
        if section == "Returns":
            lines += ["", f"{title}: {_joined(body)}"]
        else:
            lines += ["", title, "", *(f"- {item}" for item in _items(body))]
    if example:
        shown = re.sub(r" *# doctest:.*$", "", f">>> {example}".strip(), flags=re.MULTILINE)
        lines += ["", "```text", shown, "```"]
    return lines


def _items(body: str) -> Iterator[str]:
    """The entries of a section: `name: what it is`, and the indented lines below it."""
    for entry in re.split(r"\n(?=\S)", body):
        name, colon, about = entry.partition(": ")
        yield f"`{name}`: {_joined(about)}" if colon else _joined(entry)


def _joined(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines())


def _call(name: str, value: Callable[..., Any], *, own: bool = False) -> list[str]:
    """The signature as a block; a long one has a line for each parameter."""
    parameters, result = _signature(value, own=own)
    line = f"{name}({', '.join(parameters)}){result}"
    if len(line) > _WIDTH:
        inside = "".join(f"    {parameter},\n" for parameter in parameters)
        line = f"{name}(\n{inside}){result}"
    return ["```text", line, "```"]


def _signature(value: Callable[..., Any], *, own: bool) -> tuple[list[str], str]:
    """The parameters, and ` -> ` with the type of the result."""
    signature = inspect.signature(value)
    parameters = list(signature.parameters.values())
    if own and parameters and parameters[0].name in {"self", "cls"}:
        parameters = parameters[1:]
    shown = list(map(_parameter, parameters))
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    if inspect.Parameter.POSITIONAL_ONLY in kinds:
        shown.insert(kinds.count(inspect.Parameter.POSITIONAL_ONLY), "/")
    if signature.return_annotation is signature.empty or inspect.isclass(value):
        return shown, ""
    return shown, f" -> {_annotation(signature.return_annotation)}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = 0
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        stars = 1 if parameter.kind is parameter.VAR_POSITIONAL else 2
    text = f"{'*' * stars}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    default = re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", repr(parameter.default))
    default = default.replace("<factory>", "…").replace("datetime.timedelta(0)", "timedelta(0)")
    return f"{text} = {default}" if ": " in text else f"{text}={default}"


def _annotation(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    for module in ("headrace.", "pyarrow.lib.", "typing.", "collections.abc.", "threading."):
        text = text.replace(module, "")
    return text


def _first_line(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
