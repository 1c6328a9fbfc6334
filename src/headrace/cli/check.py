"""`headrace check`: find every mistake of a program without running it."""

from __future__ import annotations

import click

from headrace.cli.program import program_arguments, read_program
from headrace.cli.terminal import verbose_option


@click.command
@program_arguments
@verbose_option
def check(files: tuple[str, ...], texts: tuple[str, ...], udfs: tuple[str, ...], verbose: bool) -> None:  # noqa: ARG001
    """Find every mistake of a program without running it.

    The SQL is parsed and planned, and the options of its tables are checked; no file or server is
    touched. Several files are taken as one program. Exits with 2 if there is a mistake.
    """
    plan = read_program(files, texts).load(udfs=udfs).plan()
    counts = {role: sum(node.role == role for node in plan.nodes) for role in ("source", "operator", "sink")}
    tables = sum(len(node.tables) for node in plan.nodes)
    shown = [_counted(number, role) for role, number in counts.items()]
    click.echo(f"ok: {', '.join(shown)}, {_counted(tables, 'state table')}")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
