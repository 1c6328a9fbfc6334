"""Writes what is generated from the code: reference pages, the dataflow schema, the typed options of Python.

python -m docs.generate writes them; with --check it only says which are stale, and exits with 1 if any is.
"""
# ruff: noqa: INP001  docs is a folder of pages, not a package

from __future__ import annotations

import enum
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

import headrace
from docs import typed_options
from headrace.base.durations import format_duration
from headrace.cli.main import main
from headrace.cli.operators import ROLES, describe, type_name
from headrace.cli.run import run
from headrace.connectors.base import Delivery, Promise
from headrace.dataflow.document.blocks import BLOCKS
from headrace.dataflow.document.json_schema import json_schema, key_table
from headrace.formats.options import FileFormatOptions
from headrace.functions.signatures import FUNCTION_NAMES
from headrace.jobs.settings import PREFIX, SECTIONS
from headrace.model.registry import BUILT_IN, Role, registry
from headrace.sql.bind.planning import WINDOWS, Planner
from headrace.state.tables import StateTable

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by `python -m docs.generate`; edit the code it is drawn from. -->"
INTERNAL = {
    f"{table}.{name}" for table in ("GlobalTable", "KeyedTable", "TimeTable") for name in ("changes", "files")
}
FLAGS = {flag for parameter in run.params for flag in parameter.opts}


OPERATORS = """\
The options of `WITH (connector = 'name', …)` in SQL, and of `pipeline.source(name, …)`,
`stream.apply(name, …)` and `stream.sink(name, …)` in Python. Options have the same names in both;
`hr.sources` and `hr.sinks` have them as typed parameters, with `_` for dots. In SQL the columns, the primary
key and `idle_micros` of a table become `schema`, `primary_key` and `idle_timeout`.
`headrace operators` prints the same, including the names that installed packages register."""
DELIVERY = """\
State is exactly once for every source and sink: a checkpoint holds the state tables together with the source
offsets. This page lists how often a record of a source counts, how often a row of a sink becomes visible, and
why. [Guarantees](../concepts/guarantees.md) explains the assumptions."""
TOGETHER = """\
`1`: exactly once: each record counts once and its results are visible once. `≥1`: at least once: after a
crash, some results are visible again. `≤1`: at most once: records may be lost, because the source does not
retain them. `≤1, ≥1`: both."""
FORMATS = """\
Sources, sinks and lookups with a `format` also have these options. `parquet.…` and `json.compression` apply
to `filesystem`."""
FUNCTIONS = """\
The functions are those of Apache DataFusion {version}, which computes every expression. Their descriptions
are quoted from DataFusion; its [documentation](https://datafusion.apache.org/user-guide/sql/index.html) has
the details. Headrace adds the functions of the first two tables. Names are not case-sensitive.
[User-defined functions](user-functions.md) are written in Python, Rust or C."""
NOTES = """\
`now()`, `random()`, `uuid()` and similar functions are computed again when an epoch is retried: results may
differ from those of the failed attempt, which were never visible.

`now()`, `current_date` and the like are evaluated when a row arrives. `WHERE ts > now() - INTERVAL '1 hour'`
drops rows that arrive too late; a row that has passed does not leave as time passes. Over an
[updating](updating.md) input or result they are rejected, and so are `random()` and `uuid()`: when a row is
taken back they would give another value than when it came."""
SETTINGS = """\
A flag overrides the environment, the environment overrides `headrace.toml`, and the file overrides the
default. [Configure a run](../how-to/configure.md) shows each way. In Python they are parameters of
`Pipeline.run` and `Pipeline.start`, or of the `hr.RunOptions` that these take."""
CLI = """\
Rows go to standard output, everything else to standard error. Exit codes: 0 success, 1 failure while
running, 2 an error in the program or in a setting, 130 ended by Ctrl-C before or
after the run or by a second one, 143 likewise by SIGTERM. [Errors](errors.md) lists the error codes."""
API = """\
Import every name on this page from `headrace`. The test kit is in `headrace.testing.in_process`; see
[Testing](../tutorials/testing.md)."""
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
SHOWN_ROLES: tuple[Role, ...] = (*ROLES, "lookup")


def operators_page() -> str:
    """Every name a pipeline can use, with its options."""
    lines = [
        "# Operators and connectors",
        "",
        NOTE,
        "",
        OPERATORS,
    ]
    shared = [option for option in describe(FileFormatOptions) if option["name"] != "format"]
    for role in SHOWN_ROLES:
        lines += ["", f"## {role.capitalize()}s"]
        for name in sorted(BUILT_IN[role]):
            constructor = registry.constructor(role, name)
            lines += ["", f"### {role} `{name}`", "", *_paragraphs(constructor), ""]
            options = describe(registry.options(role, name))
            own = [option for option in options if option not in shared]
            lines += _options_table(own)
            if len(own) < len(options):
                lines += ["", "And the [options of formats](#options-of-formats)."]
    lines += ["", "## Options of formats", "", FORMATS, "", *_options_table(shared)]
    return "\n".join(lines) + "\n"


def delivery_page() -> str:
    """What sources and sinks promise, alone and together."""
    sources, sinks = _promises("source"), _promises("sink")
    lines = ["# Delivery guarantees", "", NOTE, "", DELIVERY]
    for role, found in (("Sources", sources), ("Sinks", sinks)):
        rows = [(_labelled(name, one), one.promise, one.how) for name, one in found]
        lines += ["", f"## {role}", "", *_table((role.lower()[:-1], "guarantee", "reason"), rows)]
    header = ("source ↓ sink →", *(_labelled(name, one) for name, one in sinks))
    cells = [
        (_labelled(name, source), *(_together(source.promise, sink.promise) for _, sink in sinks))
        for name, source in sources
    ]
    lines += ["", "## Source × sink", "", TOGETHER, "", *_table(header, cells)]
    return "\n".join(lines) + "\n"


def _promises(role: Role) -> list[tuple[str, Delivery]]:
    names = sorted(BUILT_IN[role])
    return [(name, one) for name in names for one in registry.constructor(role, name).deliveries]


def _labelled(name: str, delivery: Delivery) -> str:
    return f"`{name}`, {delivery.when}" if delivery.when else f"`{name}`"


def _together(source: Promise, sink: Promise) -> str:
    both = {source, sink} - {"exactly once"}
    if not both:
        return "1"
    return {"at least once": "≥1", "at most once": "≤1"}[both.pop()] if len(both) == 1 else "≤1, ≥1"


def _paragraphs(thing: Any) -> list[str]:
    text = re.split(r"\n\n(?=Args:|Raises:|>>> )", inspect.getdoc(thing) or "", maxsplit=1)[0]
    paragraphs = text.split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).split("\n")


def _options_table(options: list[dict[str, Any]]) -> list[str]:
    if not options:
        return ["No options."]
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
    if value is headrace.END_OF_TIME or value is headrace.IDLE:
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


def _entry(name: str, value: Any) -> list[str]:
    if inspect.ismodule(value):
        about = _first_line(value)
        return ["", f"### {name}", "", f"{about} Its functions: {_functions_of(value)}."]
    if value is headrace.fn:
        return ["", f"### {name}", "", _first_line(type(value))]
    if value is headrace.Offset:
        return ["", f"### {name}", "", "The position of a source: lane → position, as JSON."]
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


def _functions_of(module: Any) -> str:
    own = [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    ]
    return ", ".join(f"`{name}`" for name in sorted(own))


def _is_made_by_users(value: type) -> bool:
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
    text = re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", str(shown))
    return text.replace("<factory>", "…").replace("datetime.timedelta(0)", "timedelta(0)")


def _first_line(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")


STREAMING = {
    "tumble": ("tumble(width)", "in GROUP BY: tumbling [windows](windows.md) of `width`"),
    "hop": ("hop(slide, width)", "in GROUP BY: hopping windows of `width` that start every `slide`"),
    "session": ("session(gap)", "in GROUP BY: session windows, closed after `gap` without rows"),
    "row_time": ("row_time()", "the event time of the row, TIMESTAMP"),
}
OWN = {
    "json_get": (
        "json_get(json, step, …)",
        "the element as JSON text; also `json -> step`. In a CAST to a number, TEXT or BOOLEAN: the value",
    ),
    "json_as_text": (
        "json_as_text(json, step, …)",
        "the element as a string, without quotes; also `json ->> step`",
    ),
    "json_contains": ("json_contains(json, step, …)", "whether the element exists; also `json ? step`"),
    "json_get_str": ("json_get_str(json, step, …)", "the element if it is a string"),
    "json_get_int": ("json_get_int(json, step, …)", "the element if it is an integer, BIGINT"),
    "json_get_float": ("json_get_float(json, step, …)", "the element if it is a number, DOUBLE"),
    "json_get_bool": ("json_get_bool(json, step, …)", "the element if it is true or false"),
    "json_get_json": ("json_get_json(json, step, …)", "the element as JSON text"),
    "json_get_array": ("json_get_array(json, step, …)", "the elements of an array as JSON text, TEXT[]"),
    "json_length": ("json_length(json, step, …)", "the number of elements of an array or an object"),
    "json_object_keys": ("json_object_keys(json, step, …)", "the keys of an object, TEXT[]"),
    "extract_json": ("extract_json(json, path)", "all matches of a JSONPath as JSON text, TEXT[]"),
    "extract_json_string": ("extract_json_string(json, path)", "the first match if it is a string"),
    "get_first_json_object": ("get_first_json_object(json, path)", "the first match as JSON text"),
    "multi_hash": (
        "multi_hash(value, …)",
        "a stable hash of up to 32 values, as 32 hexadecimal digits; NULL counts as a value",
    ),
}
CORRECTED = {
    "bool_or": ("bool_or(expression)", "Returns true if any non-null input value is true, otherwise false"),
    "covar_pop": (
        "covar_pop(expression1, expression2)",
        "Returns the population covariance of a set of number pairs",
    ),
}
"""What DataFusion says wrongly of itself."""


def functions_page() -> str:
    """Every function that SQL can call."""
    planner = Planner()
    missing = FUNCTION_NAMES.symmetric_difference(OWN) | (WINDOWS.keys() - STREAMING.keys())
    if missing:
        raise SystemExit(f"docs/generate.py says nothing, or too much, about {', '.join(sorted(missing))}")
    lines = ["# Functions", "", NOTE, "", FUNCTIONS.format(version=_major_version())]
    for title, own in (("Windows and event time", STREAMING), ("JSON and hashes", OWN)):
        rows = [(f"`{call}`", meaning) for call, meaning in own.values()]
        lines += ["", f"## {title}", "", *_table(("call", "meaning"), rows)]
    lines += [
        "",
        "A step is a key (TEXT) or an index from 0 (BIGINT), up to five of them. A missing element is NULL.",
    ]
    columns = "routine_name, function_type, syntax_example, description"
    found = planner.ctx.sql(f"SELECT DISTINCT {columns} FROM information_schema.routines").to_pylist()  # noqa: S608
    for title, kind in (
        ("Aggregates", "AGGREGATE"),
        ("Window functions", "WINDOW"),
        ("Scalar functions", "SCALAR"),
    ):
        lines += ["", f"## {title}", ""]
        if kind == "SCALAR":
            lines += [NOTES, ""]
        lines += _table(
            ("call", "also called", "meaning"),
            _routines(one for one in found if one["function_type"] == kind),
        )
    return "\n".join(lines) + "\n"


def _major_version() -> str:
    import datafusion

    return datafusion.__version__.partition(".")[0]


def _routines(found: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each function, its other names beside it."""
    routines: dict[str, tuple[str, str]] = {}
    for one in found:
        name = one["routine_name"]
        if name in CORRECTED:
            routines[name] = CORRECTED[name]
        elif one["description"]:
            routines[name] = (one["syntax_example"], _sentence(one["description"]))
    aliases: dict[str, list[str]] = {}
    for name, (syntax, _) in sorted(routines.items()):
        first = re.match(r"\w+", syntax)
        known = first[0] if first and first[0] in routines else name
        aliases.setdefault(known, []).append(name)
    return [
        (
            f"`{' '.join(routines[name][0].split())}`",
            ", ".join(f"`{other}`" for other in others if other != name),
            routines[name][1],
        )
        for name, others in sorted(aliases.items())
    ]


def _sentence(text: str) -> str:
    """The first sentence, without links and emphasis."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split()))
    text = re.sub(r"(?<!\w)_(\w+)_(?!\w)", r"\1", text)
    return re.split(r"(?<!e\.g)(?<!i\.e)\. ", text)[0].rstrip(".:")


def dataflow_page() -> str:
    """The page of dataflow documents with the tables of keys; the text around them is written by hand."""
    tables = {block.__name__: key_table(block) for block in BLOCKS}
    return re.sub(
        r"<!-- keys: (\w+) -->\n.*?<!-- end -->",
        lambda match: f"<!-- keys: {match[1]} -->\n{tables[match[1]]}<!-- end -->",
        (REFERENCE / "dataflow-yaml.md").read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )


def dataflow_schema() -> str:
    """The JSON schema of dataflow documents."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "operators-and-connectors.md": operators_page,
    "delivery.md": delivery_page,
    "settings.md": settings_page,
    "cli.md": cli_page,
    "api.md": api_page,
    "sql/functions.md": functions_page,
    "dataflow-yaml.md": dataflow_page,
    "../schema/dataflow.schema.json": dataflow_schema,
}


def stale() -> list[str]:
    """The pages and modules that are not what the code says."""
    pages = [
        name
        for name, make in PAGES.items()
        if not (REFERENCE / name).is_file() or (REFERENCE / name).read_text(encoding="utf-8") != make()
    ]
    return pages + typed_options.stale()


if __name__ == "__main__":
    if "--check" in sys.argv:
        if found := stale():
            sys.exit(f"stale: {', '.join(found)}; run python -m docs.generate")
    else:
        typed_options.write()
        for page, make_page in PAGES.items():
            (REFERENCE / page).parent.mkdir(exist_ok=True)
            (REFERENCE / page).write_text(make_page(), encoding="utf-8")
