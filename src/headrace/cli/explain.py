"""`headrace explain`: show the plan of a pipeline without running it."""

from __future__ import annotations

from typing import Literal

import click

from headrace.cli.terminal import verbose_option


@click.command
@click.argument("pipeline", metavar="FILE.py[:NAME]")
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
    pipeline: str,
    format: Literal["text", "mermaid", "json"],  # noqa: A002  the flag's own name
    spark: bool,
    parallelism: int | None,
    verbose: bool,  # noqa: ARG001  read by the error renderer
) -> None:
    """Show the plan of a pipeline without running it.

    Operators, chains, stages and state tables.
    """
    from headrace.loading import load_pipeline

    loaded = load_pipeline(pipeline)
    click.echo(loaded.explain(format=format, spark=spark, parallelism=parallelism))
