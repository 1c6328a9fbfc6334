"""`headrace explain`: show the plan of a pipeline without running it."""

from __future__ import annotations

from typing import Literal

import click

from headrace.cli.program import program_arguments, read_program
from headrace.cli.terminal import verbose_option


@click.command
@program_arguments
@click.option(
    "--format",
    type=click.Choice(["text", "mermaid", "json"]),
    default="text",
    show_default=True,
    help="For people, for a diagram, or for programs.",
)
@click.option("--spark", is_flag=True, help="Also show Spark's own plan; starts Spark.")
@click.option("-p", "--parallelism", type=click.IntRange(min=1), help="Plan for this many subtasks.")
@verbose_option
def explain(
    files: tuple[str, ...],
    texts: tuple[str, ...],
    udfs: tuple[str, ...],
    format: Literal["text", "mermaid", "json"],  # noqa: A002  the flag's own name
    spark: bool,
    parallelism: int | None,
    verbose: bool,  # noqa: ARG001  read by the error renderer
) -> None:
    """Show the plan of a pipeline without running it.

    Operators with the SQL that each computes, chains, stages and state tables. FILE is SQL (several files
    are taken as one program, - is the standard input), or FILE.py[:NAME].
    """
    program = read_program(files, texts)
    shown = program.load(udfs=udfs).explain(format=format, spark=spark, parallelism=parallelism)
    click.echo(program.secrets.hide(shown))
