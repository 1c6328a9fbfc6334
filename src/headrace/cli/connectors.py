"""`headrace connectors`: list connectors with their guarantees and options, and test the one of a table."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from headrace.cli.operators import describe, print_options
from headrace.cli.program import read_program
from headrace.cli.terminal import print_json, print_table, verbose_option

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.connectors.base import Connector
    from headrace.model.registry import Role

ROLES: tuple[Role, ...] = ("source", "sink", "lookup")
SAMPLE_ROWS, SAMPLE_SECONDS = 5, 5.0


class _Connectors(click.Group):
    """`test` is a subcommand; anything else is the name of a connector."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or _named(cmd_name)


@click.group(cls=_Connectors, invoke_without_command=True, subcommand_metavar="[NAME | test TABLE FILE…]")
@click.option("--json", "as_json", is_flag=True, help="JSON lines instead of tables.")
@click.pass_context
def connectors(ctx: click.Context, as_json: bool) -> None:
    """List connectors, show one, or test one.

    Without a name: the delivery guarantees of each. With NAME: its options with types, defaults and help.
    With `test TABLE FILE.sql`: whether the connector of a table answers, and whether its columns fit.
    """
    ctx.meta["headrace.json"] = as_json
    if ctx.invoked_subcommand is not None:
        return
    rows = [
        (name, role, promise["promise"], promise["when"], promise["how"])
        for name in _names()
        for role in ROLES
        for promise in _promises(role, name)
    ]
    if as_json:
        for row in rows:
            print_json(dict(zip(("name", "role", "promise", "when", "how"), row, strict=True)))
        return
    print_table(("connector", "role", "promise", "with"), [row[:4] for row in rows])
    click.echo("`headrace connectors NAME` shows the options of one and how it keeps its promise.")


def _names() -> list[str]:
    from headrace.model.registry import registry

    return sorted({name for role in ROLES for name in registry.names(role)})


def _promises(role: Role, name: str) -> list[dict[str, str]]:
    from headrace.model.registry import registry

    if name not in registry.names(role):
        return []
    if role == "lookup":
        return [{"promise": "", "when": "", "how": "rows are as they are at the moment they are asked for"}]
    deliveries = getattr(registry.constructor(role, name), "deliveries", ())
    return [
        {"promise": delivery.promise, "when": delivery.when, "how": delivery.how} for delivery in deliveries
    ] or [{"promise": "", "when": "", "how": ""}]


def _named(name: str) -> click.Command:
    @click.command(name)
    @click.option("--json", "json_too", is_flag=True, help="JSON lines instead of tables.")
    @verbose_option
    @click.pass_context
    def show(ctx: click.Context, json_too: bool, verbose: bool) -> None:  # noqa: ARG001
        _show(name, as_json=json_too or ctx.meta["headrace.json"])

    return show


def _show(name: str, *, as_json: bool) -> None:
    from headrace.base.errors import ConfigurationError, suggest
    from headrace.model.registry import registry

    roles = [role for role in ROLES if name in registry.names(role)]
    if not roles:
        hint = suggest(name, _names(), listing="the connectors are")
        raise ConfigurationError(f"there is no connector `{name}`", hint=hint)
    for role in roles:
        options, promises = describe(registry.options(role, name)), _promises(role, name)
        if as_json:
            print_json({"role": role, "name": name, "options": options, "promises": promises})
            continue
        print_options(role, name, options)
        for promise in promises:
            when = f" with {promise['when']}" if promise["when"] else ""
            head = f"{promise['promise']}{when}: " if promise["promise"] else ""
            click.echo(f"  {head}{promise['how']}" if promise["how"] or head else "")


@connectors.command
@click.argument("table")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option(
    "--rows", default=SAMPLE_ROWS, show_default=True, help="The number of rows to read from a source."
)
@click.option("--seconds", default=SAMPLE_SECONDS, show_default=True, help="How long to wait for the rows.")
@verbose_option
def test(table: str, files: tuple[str, ...], rows: int, seconds: float, verbose: bool) -> None:  # noqa: ARG001
    """Test the connector of a table.

    Checks that it answers, and that the columns fit its data. For a table without columns, the inferred ones
    are printed as SQL. Nothing is written, acknowledged or removed.
    """
    from headrace.sql.table_connectors import build_connectors

    program = read_program(files, ())
    for tried in build_connectors(program.sql, table):
        connector = tried.connector
        if connector is None:
            assert tried.problem is not None
            click.echo(f"{table}: it cannot be read: {program.secrets.hide(tried.problem.message)}")
            continue
        connector.validate()
        answer = connector.reach()
        click.echo(f"{table}: {connector.display()}")
        if answer:
            click.echo(f"  it answers: {answer}")
        if tried.role == "source":
            _sample(connector, rows, seconds, tried.inferred_columns, tried.event_time)


def _sample(
    connector: Connector, rows: int, seconds: float, columns: Sequence[pa.Field], event_time: str | None
) -> None:
    """Read some rows of a source as a task would, and print them."""
    import pyarrow as pa

    from headrace.connectors.sample import read_sample

    batches, bad = read_sample(connector.for_sampling(), rows, seconds)
    if not batches and not bad:
        click.echo(f"  no rows came within {seconds:g} s")
    sample = pa.Table.from_batches(batches).slice(0, rows) if batches else None
    if sample is not None:
        cells = [[str(value) for value in row.values()] for row in sample.to_pylist()]
        print_table(tuple(sample.column_names), [tuple(row) for row in cells])
        click.echo(f"  {sample.num_rows} rows fit the columns")
        if event_time is not None and event_time in sample.column_names:
            _check_event_times(sample, event_time)
    for text in bad:
        click.echo(f"  {text}")
    if columns:
        _print_columns(columns, sample)
    elif sample is not None:
        _print_empty(connector, sample)


def _check_event_times(sample: pa.Table, name: str) -> None:
    """Print a warning if the first or the last event time cannot be right."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from headrace.engine.event_times import describe_implausible, is_plausible

    times = sample.column(name)
    if not pa.types.is_timestamp(times.type):
        return
    bounds = pc.min_max(times.cast(pa.timestamp("ns")).cast(pa.int64())).as_py()
    now = time.time()
    odd = [at for at in bounds.values() if at is not None and not is_plausible(at, now=now)]
    if odd:
        what = f"the rows in column `{name}`"
        click.echo(f"  warning: {describe_implausible(what, odd[0], times.type.unit, now=now)}")


def _print_columns(columns: Sequence[pa.Field], sample: pa.Table | None) -> None:
    """Print inferred columns as they can be written into the CREATE TABLE."""
    from headrace.sql.types import column_lines

    click.echo("  the table was written without columns; these were found:")
    lines = column_lines(columns)
    for number, (column, line) in enumerate(zip(columns, lines, strict=True), 1):
        comma = "," if number < len(lines) else ""
        times = sample is not None and _holds_times(sample, column.name)
        click.echo(f"    {line}{comma}{'  -- these are times: TIMESTAMP reads them' if times else ''}")


def _holds_times(rows: pa.Table, name: str) -> bool:
    """Whether a string column has nothing but times."""
    import pyarrow as pa

    from headrace.base.errors import ConfigurationError
    from headrace.connectors.base import read_event_time

    texts = rows.column(name).drop_null()
    if texts.type != pa.string() or not len(texts):
        return False
    try:
        read_event_time(texts, name)
    except ConfigurationError:
        return False
    return True


def _print_empty(connector: Connector, sample: pa.Table) -> None:
    """Print the columns that are NULL in every row: their names may be wrong."""
    from headrace.base.errors import HeadraceError

    empty = [name for name in sample.column_names if sample.column(name).null_count == sample.num_rows]
    if not empty or "columns" not in type(connector.options).model_fields:
        return
    fields: list[str] = []
    with contextlib.suppress(HeadraceError):
        undeclared = connector.options.model_copy(update={"columns": None, "metadata": {}})
        fields = type(connector)(undeclared).find_columns().names
    for name in empty:
        suggestion = _suggest_column(name, fields, sample.column_names)
        click.echo(f"  column `{name}` is NULL in every row{suggestion}")


def _suggest_column(name: str, fields: Sequence[str], columns: Sequence[str]) -> str:
    """A suggestion for the name of a column, by the fields of the rows."""
    from headrace.base.errors import suggest
    from headrace.sql.types import column_name

    if not fields or name in fields:
        return ""
    same = [field for field in fields if field.lower() == name.lower()]
    if same:
        return f": the rows have `{same[0]}`, write {column_name(same[0])}"
    rest = [field for field in fields if field not in columns]
    hint = suggest(name, rest) or (f"the rows have {', '.join(rest)} as well" if rest else "")
    return f": the rows have no such field; {hint}" if hint else ": the rows have no such field"
