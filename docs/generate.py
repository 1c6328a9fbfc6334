"""Writes what is generated from the code: reference pages, the dataflow schema, the typed options of Python.

python -m docs.generate writes them; with --check it only says which are stale, and exits with 1 if any is.
"""
# ruff: noqa: INP001  docs is a folder of pages, not a package

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from docs import api_reference, typed_options
from headrace.base.durations import format_duration
from headrace.cli.main import main
from headrace.cli.operators import ROLES, describe, type_name
from headrace.cli.run import run
from headrace.connectors.base import Delivery, Promise
from headrace.dataflow.document.blocks import BLOCKS
from headrace.dataflow.document.json_schema import json_schema, key_table
from headrace.formats.options import FileFormatOptions
from headrace.functions.postgres.catalog import PUBLIC
from headrace.functions.signatures import FUNCTION_NAMES
from headrace.jobs.prometheus import METRICS
from headrace.jobs.settings import PREFIX, SECTIONS, flag_of
from headrace.model.registry import BUILT_IN, Role, registry
from headrace.sql.bind.planning import JSON_BUILDERS, WINDOWS, Planner
from tests.dataflow.conformance.cases import find_cases

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by `python -m docs.generate`; edit the code it is drawn from. -->"
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
why. [Guarantees](../concepts/guarantees.md) explains the assumptions, and says
[which test shows it](../concepts/guarantees.md#which-test-shows-it)."""
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
`random()`, `uuid()` and similar functions are computed again when an epoch is retried: results may
differ from those of the failed attempt, which were never visible.

`now()`, `current_timestamp`, `current_date`, `current_time` and `proctime()` are the time of the epoch: the
same for all its rows and subtasks. In SELECT a row has the time of the epoch in which it came; over an
[updating](updating.md) input or result they are rejected there, and so are `random()` and `uuid()`: when a
row is taken back they would give another value than when it came. In WHERE and HAVING the clock
[moves](updating.md#filters-by-the-clock): rows enter and leave as time passes."""
DORA = """\
A test runs each case: its dataflow is in the folder that the link leads to, and what its units print is in
`expected.json` there. The same files can be run in dora itself (`python -m tests.dataflow.run_in_dora`),
which is how it is known what dora does.
[From dora](../how-to/from-dora.md) is the guide for its users."""
SETTINGS = """\
A flag overrides the environment, the environment overrides `headrace.toml`, and the file overrides the
default. [Configure a run](../how-to/configure.md) shows each way. In Python they are parameters of
`Pipeline.run` and `Pipeline.start`, or of the `hr.RunOptions` that these take."""
MEASURED = """\
What `/metrics` answers in Prometheus' text format, with `headrace run --metrics-port PORT` and from
`headrace serve` for all pipelines that run. The server also has `headrace_job_state`,
`headrace_job_starts_total` and `headrace_job_failures_in_a_row` of every job. Every metric also has the label
`pipeline`; pipelines of a server with the same name have their id behind it. `operator` and `source` are ids
of the plan, as `headrace explain` shows them; a `subtask` in the task of a source is a share of its splits.
Counters begin at 0 with each run. What is not known is left out: a lag that the source cannot tell, a
watermark before the first row and after the last, Spark's figures over Spark Connect, memory without `/proc`.
[Monitor a pipeline](../how-to/monitor.md) shows how to use them."""
CLI = """\
Rows go to standard output, everything else to standard error. Exit codes: 0 success, 1 failure while
running, 2 an error in the program or in a setting, 130 ended by Ctrl-C before or
after the run or by a second one, 143 likewise by SIGTERM. [Errors](errors.md) lists the error codes."""
SHOWN_ROLES: tuple[Role, ...] = (*ROLES, "lookup")


def _postgres() -> dict[str, tuple[str, str]]:
    others = {name.replace("json_", "jsonb_") for name in POSTGRES_OTHER_NAMES} | {"to_jsonb"}
    covered = set(POSTGRES) | others | {"log", "log10", "sqrt", "octet_length"}
    if missing := covered ^ (PUBLIC | JSON_BUILDERS):
        raise SystemExit(f"docs/generate.py says nothing, or too much, about {', '.join(sorted(missing))}")
    return POSTGRES


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
            flag = flag_of(section, name)
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


def metrics_page() -> str:
    """Every metric of Prometheus."""
    rows = [
        (f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.meaning)
        for metric in METRICS
    ]
    return "\n".join(
        ["# Metrics", "", NOTE, "", MEASURED, "", *_table(("metric", "kind", "labels", "meaning"), rows), ""]
    )


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


STREAMING = {
    "tumble": ("tumble(width)", "in GROUP BY: tumbling [windows](windows.md) of `width`"),
    "hop": ("hop(slide, width)", "in GROUP BY: hopping windows of `width` that start every `slide`"),
    "cumulate": (
        "cumulate(step, size)",
        "in GROUP BY: windows that begin every `size`, of which one ends after each `step`",
    ),
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
POSTGRES = {
    "age": (
        "age(end, start)",
        "the time between two instants in years, months and days; `age(ts)`: until today",
    ),
    "array_lower": ("array_lower(list, 1)", "1, or NULL if the list is empty"),
    "array_upper": ("array_upper(list, 1)", "the number of elements, or NULL if there are none"),
    "format": (
        "format(pattern, value, …)",
        "`%s` a value, `%I` a quoted name, `%L` a quoted literal, `%2$s` the second",
    ),
    "isfinite": ("isfinite(time)", "true"),
    "json_build_array": (
        "json_build_array(value, …)",
        "also `jsonb_build_array`: an array of values of any type",
    ),
    "json_build_object": ("json_build_object(key, value, …)", "also `jsonb_build_object`: an object"),
    "json_extract_path": (
        "json_extract_path(json, step, …)",
        "also `jsonb_…`, `json #> '{a,0}'`: an element",
    ),
    "json_extract_path_text": (
        "json_extract_path_text(json, step, …)",
        "also `jsonb_…`, `json #>> '{a,0}'`: an element as a text",
    ),
    "json_object": ("json_object(keys[, values])", "also `jsonb_object`: an object of texts"),
    "json_strip_nulls": ("json_strip_nulls(json)", "also `jsonb_strip_nulls`: without fields that are null"),
    "json_typeof": (
        "json_typeof(json)",
        "also `jsonb_typeof`: object, array, string, number, boolean or null",
    ),
    "jsonb_insert": ("jsonb_insert(json, path, new[, after])", "with a new element"),
    "jsonb_pretty": ("jsonb_pretty(json)", "with line breaks"),
    "jsonb_set": ("jsonb_set(json, path, new[, create])", "with another element"),
    "justify_days": ("justify_days(interval)", "30 days as a month"),
    "justify_hours": ("justify_hours(interval)", "24 hours as a day"),
    "justify_interval": ("justify_interval(interval)", "both, with one sign"),
    "length": ("length(bytes)", "the number of bytes; also `octet_length`"),
    "ln": (
        "ln(x)",
        "the natural logarithm; zero and negative numbers end the run, as with `log`, `log10` and `sqrt`",
    ),
    "make_interval": (
        "make_interval(years, months, weeks, days, hours, mins, secs)",
        "also by name: `hours => 3`",
    ),
    "make_timestamp": ("make_timestamp(year, month, day, hour, minute, second)", "an instant"),
    "make_timestamptz": ("make_timestamptz(year, …, second[, zone])", "an instant of a local time"),
    "pg_typeof": ("pg_typeof(value)", "the name of its type, as PostgreSQL calls it"),
    "quote_ident": ("quote_ident(text)", "in double quotes if needed"),
    "quote_literal": ("quote_literal(text)", "in single quotes"),
    "quote_nullable": ("quote_nullable(text)", "in single quotes, or the text NULL"),
    "regexp_extract": ("regexp_extract(text, pattern[, group])", "a match, or a group of it (Flink's)"),
    "regexp_replace": (
        "regexp_replace(text, pattern, new, start[, n[, flags]])",
        "replace the n-th match from a character on; 0: all",
    ),
    "regexp_split_to_array": (
        "regexp_split_to_array(text, pattern[, flags])",
        "what stands between the matches",
    ),
    "regexp_substr": ("regexp_substr(text, pattern[, start[, n[, flags[, group]]]])", "the n-th match"),
    "row_to_json": ("row_to_json(row)", "a STRUCT, or a whole row of a table, as a JSON object"),
    "timezone": ("timezone(zone, ts)", "`ts AT TIME ZONE zone`"),
    "to_json": ("to_json(value)", "also `to_jsonb`: a value of any type as JSON"),
    "to_number": ("to_number(text, pattern)", "the number in a text such as `1,234.5`, by `9,999.9`"),
    "trim_array": ("trim_array(list, n)", "without the last n elements"),
    "width_bucket": (
        "width_bucket(x, low, high, count)",
        "the number of a bucket; also `width_bucket(x, thresholds)`",
    ),
}
"""PostgreSQL's functions that Headrace adds to DataFusion's, or computes itself."""
POSTGRES_OTHER_NAMES = {
    *("json_build_array", "json_build_object", "json_extract_path", "json_extract_path_text", "json_object"),
    *("json_strip_nulls", "json_typeof"),
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
        "A step is a key (TEXT) or an index (BIGINT) from 0, or from the end if it is negative; up to five",
        "of them. A missing element is NULL.",
        "",
        "## Of PostgreSQL",
        "",
        *_table(("call", "meaning"), [(f"`{call}`", meaning) for call, meaning in _postgres().values()]),
        "",
        "Operators: `@>`, `<@` and `&&` of lists; `@>`, `<@`, `?`, `?|`, `?&`, `#>`, `#>>`, `#-`, `||` and",
        "`-` of JSON, the last two if the left side is written as JSON, such as `value::jsonb`;",
        "`x = ANY(list)`, `x > ALL(list)`, `text LIKE ANY (ARRAY[…])`, `text ^@ prefix`,",
        "`ts AT TIME ZONE zone` and `(start, end) OVERLAPS (start, end)`.",
        "",
        "`to_char` also writes numbers and intervals in PostgreSQL's patterns: `to_char(x, 'FM999,990.00')`.",
        "",
        "## Of other dialects",
        "",
        "These of Flink, Calcite, Spark and MySQL mean the same here: `timestampadd(DAY, 2, ts)`,",
        "`timestampdiff(HOUR, ts, ts2)`, `floor(ts TO DAY)`, `ceil(ts TO DAY)`, `year(ts)`, `quarter`,",
        "`month`, `week`, `day`, `dayofmonth`, `dayofyear`, `dayofweek` (1 is Sunday), `hour`, `minute`,",
        "`second`, `date_add(ts, interval)`, `date_sub(ts, interval)`, `iff(condition, a, b)`,",
        "`safe_cast(x AS INT)`, `truncate(x, digits)`, `split(text, ',')`, `array_size(list)`, `is_nan(x)`,",
        "`is_inf(x)`, `count_if(condition)`, `max_by(x, y)`, `min_by(x, y)`, `arg_max`,",
        "`arg_min`, `listagg(x, ',') WITHIN GROUP (ORDER BY y)` and `group_concat(x)`.",
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


def dora_page() -> str:
    """Every rule of dora's contract that a test runs, with what dora does where it is something else."""
    cases = find_cases()
    links = {
        case.name: f"[{case.name}](../../tests/dataflow/conformance/{case.name}/dataflow.yml)"
        for case in cases
    }
    other = [case for case in cases if not case.same_in_dora]
    rows = [
        f"| {_cell(case.shows)} | {_cell(case.dora.partition(': ')[2])} | {links[case.name]} |"
        for case in other
    ]
    same = [f"| {_cell(case.shows)} | {links[case.name]} |" for case in cases if case.same_in_dora]
    return "\n".join(
        [
            "# dora's contract, case by case",
            "",
            NOTE,
            "",
            DORA,
            "",
            "## What is not the same",
            "",
            "| here | in dora 1.1.0 | case |",
            "| --- | --- | --- |",
            *rows,
            "",
            "## What is the same",
            "",
            "| the rule | case |",
            "| --- | --- |",
            *same,
            "",
        ]
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    "operators-and-connectors.md": operators_page,
    "delivery.md": delivery_page,
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "cli.md": cli_page,
    "api.md": lambda: api_reference.api_page(NOTE),
    "sql/functions.md": functions_page,
    "dataflow-yaml.md": dataflow_page,
    "dora.md": dora_page,
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
