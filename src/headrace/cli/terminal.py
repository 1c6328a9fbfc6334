"""Terminal output of the command line: errors, hints, tables and JSON."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.base.errors import HeadraceError, InternalError, PlacedError
from headrace.base.secrets import Secrets
from headrace.base.spans import hide_written

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Invocation:
    """What the error renderer has to know about the command that ran."""

    verbose: bool = False
    secrets: Secrets = field(default_factory=Secrets)
    """Values that must not be printed."""
    logs_json: bool = False
    """Whether an error is a line of JSON, as everything that the command logs."""
    pipeline: str | None = None
    """The name of the pipeline that runs, once it is known."""


def _set_verbose(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    if value:
        ctx.ensure_object(Invocation).verbose = True
    return value


def verbose_option(function: F) -> F:
    """Give a command the flag `--verbose`."""
    return click.option(
        "-v",
        "--verbose",
        is_flag=True,
        callback=_set_verbose,
        help="Show Spark's own log, and whole tracebacks.",
    )(function)


def stderr() -> Console:
    """A console on stderr, for messages; stdout is for data."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_text(
    label: str,
    message: str = "",
    *,
    where: str | None = None,
    excerpt: str | None = None,
    hint: str | None = None,
) -> None:
    """Print `label: message` on stderr, the label in red, and below it the location and the hint."""
    from rich.text import Text

    text = Text()
    text.append(label, style="bold red")
    if message:
        text.append(f": {message}")
    if where:
        text.append("\n  at ", style="dim").append(where)
    if excerpt:
        line, _, caret = excerpt.partition("\n")
        text.append(f"\n{line}\n").append(caret, style="red")
    if hint:
        text.append("\n  hint: ", style="cyan").append(hint)
    stderr().print(text)


def print_error(error: Exception, *, verbose: bool, secrets: Secrets | None = None) -> None:
    """Print an error: message, location and hint; a bug asks to be reported. `secrets` are masked."""
    hide = (secrets or Secrets()).hide

    def hide_program(text: str) -> str:
        """Also hide passwords in lines of the user's program."""
        return hide_written(hide(text))

    if isinstance(error, InternalError) or not isinstance(error, HeadraceError):
        message = error.message if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
        again = "" if verbose else "; --verbose shows where it happened"
        print_text(
            "error[internal]",
            hide(message),
            where=hide_program(getattr(error, "where", None) or ""),
            hint=hide(getattr(error, "hint", None) or "")
            or f"this is a bug in Headrace, please report it{again}",
        )
    else:
        more = error.more if isinstance(error, PlacedError) else ()
        for problem in (error, *more):
            print_text(
                f"error[{problem.code}]",
                hide(problem.message),
                where=hide_program(problem.where or ""),
                excerpt=getattr(problem, "excerpt", None),
                hint=hide(problem.hint or ""),
            )
        if more:
            stderr().print(f"{1 + len(more)} errors", style="bold red")
        if error.traceback_text:
            stderr().print(hide_program(error.traceback_text.rstrip()), markup=False)
    if log_file := getattr(error, "log_file", None):
        stderr().print(f"  log: {log_file}", markup=False)
    if verbose:
        trace = "".join(traceback.format_exception(error)).rstrip()
        stderr().print(hide_program(trace), markup=False, style="dim")


def print_json(value: Any) -> None:
    """Print one value as one line of JSON on stdout."""
    click.echo(json.dumps(value, default=str, ensure_ascii=False))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    title: str | None = None,
    right: Iterable[str] = (),
) -> None:
    """Print an aligned table on stdout; the columns named in `right` are right-aligned."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    numbers = set(right)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(
            *(cell if isinstance(cell, Text) else Text("" if cell is None else str(cell)) for cell in row)
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    with console.capture() as capture:
        if title:
            console.print(Text(title, style="bold"))
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print names and values below each other on stdout."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        click.echo(f"{name.ljust(width)}  {value}")
