"""`headrace explain`: show the plan of a pipeline, and the graph of a dataflow, without running it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from headrace.cli.program import (
    functions_of_sources,
    program_arguments,
    read_program,
    run_functions_option,
)
from headrace.cli.terminal import verbose_option

if TYPE_CHECKING:
    from headrace.api.pipeline import Pipeline
    from headrace.base.secrets import Secrets
    from headrace.dataflow.document.model import Dataflow, Input, Unit
    from headrace.dataflow.plan.diagram import Diagram
    from headrace.model.plan import Edge, Plan

Format = Literal["text", "mermaid", "json"]


@click.command
@program_arguments
@click.option(
    "--format",
    type=click.Choice(["text", "mermaid", "json"]),
    help="The output format.  [default: text]",
)
@click.option("--mermaid", is_flag=True, help="The same as --format mermaid.")
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE.html", help="Write an HTML page with a diagram."
)
@click.option(
    "--plan",
    "as_plan",
    is_flag=True,
    help="For a dataflow: show the plan of the engine instead of the graph.",
)
@click.option("--spark", is_flag=True, help="Also show Spark's own plan; starts Spark.")
@click.option("-p", "--parallelism", type=click.IntRange(min=1), help="Plan for this many subtasks.")
@run_functions_option
@verbose_option
def explain(
    files: tuple[str, ...],
    texts: tuple[str, ...],
    *,
    udfs: tuple[str, ...],
    format: Format | None,  # noqa: A002  the flag's own name
    mermaid: bool,
    html: Path | None,
    as_plan: bool,
    spark: bool,
    parallelism: int | None,
    run_functions: bool,
    verbose: bool,  # noqa: ARG001  read by the error renderer
) -> None:
    """Show the plan of a pipeline or a dataflow without running it.

    It has the operators with the SQL that each computes, chains, stages and state tables. FILE is SQL
    (several files form one program, - is the standard input), or FILE.py[:NAME].

    For a dataflow, FILE.yml, the text shows its operators and then the plan. --mermaid and --html draw the
    dataflow's own graph, and with --plan the plan.
    """
    wanted = _format(format, mermaid=mermaid, html=html)
    program = read_program(files, texts)
    with functions_of_sources(run=run_functions):
        pipeline = program.load(udfs=udfs)
    dataflow = None if as_plan else pipeline.dataflow
    if html is not None:
        plan = pipeline.explain("text", spark=spark, parallelism=parallelism)
        _write_page(html, pipeline, dataflow, plan, program.secrets)
        return
    if dataflow is not None and wanted == "mermaid":
        from headrace.dataflow.plan.diagram import draw_dataflow, mermaid_text

        shown = mermaid_text(draw_dataflow(dataflow))
    else:
        shown = pipeline.explain(wanted, spark=spark, parallelism=parallelism)
        if dataflow is not None and wanted == "text":
            shown = f"{describe_text(dataflow)}\n\n{shown}"
        elif dataflow is not None:
            from headrace.dataflow.plan.diagram import describe

            shown = json.dumps({"dataflow": describe(dataflow), **json.loads(shown)}, indent=2)
    click.echo(program.secrets.hide(shown))


def _format(chosen: Format | None, *, mermaid: bool, html: Path | None) -> Format:
    """The one format that the flags ask for."""
    context = click.get_current_context()
    if mermaid and chosen not in {None, "mermaid"}:
        raise click.UsageError(f"--mermaid and --format {chosen} ask for different things", context)
    if html is not None and (mermaid or chosen is not None):
        raise click.UsageError("--html writes a page and prints nothing: leave out the format", context)
    if html is not None and html.suffix.lower() not in {".html", ".htm"}:
        raise click.UsageError(f"--html writes to a file that is called .html, not to {html}", context)
    return "mermaid" if mermaid else chosen or "text"


# --------------------------------------------------------------------------------- the dataflow


def describe_text(dataflow: Dataflow) -> str:
    """The units of a dataflow, each with what it runs, reads and sends."""
    from headrace.dataflow.document.units import source_text
    from headrace.dataflow.plan.diagram import what_runs

    count = "1 unit" if len(dataflow.units) == 1 else f"{len(dataflow.units)} units"
    lines = [f"dataflow {dataflow.name} · {count}"]
    for unit in dataflow.units:
        lines.append(f"  {unit.address} {what_runs(unit)}{_unit_options(unit)}")
        lines += [
            f"    {unit_input.id} ← {source_text(unit_input.source)}{_input_options(unit_input)}"
            for unit_input in unit.inputs
        ]
        lines += [f"    → {', '.join(unit.outputs)}"] if unit.outputs else []
    return "\n".join(lines)


def _unit_options(unit: Unit) -> str:
    options = []
    if (unit.parallelism or 1) > 1:
        options.append(f"×{unit.parallelism} by {unit.partition_by}")
    if unit.restart.policy != "never":
        options.append(f"restarts {unit.restart.policy}")
    return f" ({', '.join(options)})" if options else ""


def _input_options(unit_input: Input) -> str:
    options = []
    if unit_input.queue_policy != "backpressure":
        options.append(f"{unit_input.queue_policy}, queue of {unit_input.queue_size}")
    if unit_input.timeout is not None:
        options.append(f"timeout {unit_input.timeout:g}s")
    return f" ({', '.join(options)})" if options else ""


# --------------------------------------------------------------------------------- the page


def _write_page(
    file: Path, pipeline: Pipeline, dataflow: Dataflow | None, plan: str, secrets: Secrets
) -> None:
    from headrace.base.errors import UserError
    from headrace.cli.page import diagram_page
    from headrace.dataflow.plan.diagram import draw_dataflow, mermaid_text

    diagram = _draw_plan(pipeline.plan()) if dataflow is None else draw_dataflow(dataflow)
    mermaid = pipeline.explain("mermaid") if dataflow is None else mermaid_text(diagram)
    page = diagram_page(pipeline.name, diagram, {"Plan": secrets.hide(plan), "Mermaid": mermaid})
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None
    click.echo(f"wrote {file}")


def _draw_plan(plan: Plan) -> Diagram:
    """The nodes of a plan; a label on an arrow is the key of a shuffle."""
    from headrace.dataflow.plan.diagram import Arrow, Box, Diagram

    boxes = [
        Box(node.id, node.id, node.role, ", ".join(f"state {table.name}" for table in node.tables))
        for node in plan.nodes
    ]
    arrows = [Arrow(edge.source, edge.target, _way(edge)) for edge in plan.edges]
    return Diagram(tuple(boxes), {}, tuple(arrows))


def _way(edge: Edge) -> str:
    if edge.kind == "shuffle":
        return ", ".join(edge.keys) or "all to one"
    return "to all" if edge.kind == "broadcast" else ""
