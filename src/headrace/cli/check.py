"""`headrace check`: find every mistake of a program without running it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from headrace.cli.program import (
    expiries,
    functions_of_sources,
    program_arguments,
    read_program,
    run_functions_option,
)
from headrace.cli.terminal import stderr, verbose_option

if TYPE_CHECKING:
    from headrace.dataflow.document.model import Dataflow
    from headrace.model.plan import Plan

_KINDS = {
    "python": "operator",
    "native": "native operator",
    "process": "process",
    "connector": "connector",
    "sql": "SQL step",
}


@click.command
@program_arguments
@run_functions_option
@verbose_option
def check(
    files: tuple[str, ...],
    texts: tuple[str, ...],
    udfs: tuple[str, ...],
    run_functions: bool,
    verbose: bool,  # noqa: ARG001  read by the error renderer
) -> None:
    """Report every error of a program without running it.

    The SQL is parsed and planned, and the options of its tables are checked; no file or server is accessed,
    except to infer the columns of tables that declare none. Several files form one program. Functions in
    Python are parsed, not run; a pipeline in a Python file and the files of --udf are imported. The files
    that a dataflow names must exist, and its Python operators are parsed. Exits with 2 if there is an error.
    """
    program = read_program(files, texts)
    with functions_of_sources(run=run_functions):
        pipeline = program.load(udfs=udfs)
        plan = pipeline.plan()
    _load_packages(plan)
    if pipeline.dataflow is not None:
        for warning in pipeline.dataflow.warnings:
            stderr().print(f"warning: {program.secrets.hide(warning)}", markup=False)
        click.echo(f"ok: {_listed(_dataflow_counts(pipeline.dataflow))}")
        return
    for text in expiries(plan):
        stderr().print(f"note: {text}", markup=False, soft_wrap=True)
    counts = {role: sum(node.role == role for node in plan.nodes) for role in ("source", "operator", "sink")}
    tables = sum(len(node.tables) for node in plan.nodes)
    click.echo(f"ok: {_listed({**counts, 'state table': tables})}")
    for node in plan.nodes:
        if (columns := dict(node.config).get("columns found")) is not None:
            click.echo(f"{node.id.removeprefix('source_')} was written without columns; found: {columns}")


def _load_packages(plan: Plan) -> None:
    """Import the optional packages of the connectors; raises a MissingExtraError with the command for all."""
    from headrace.base.errors import MissingExtraError
    from headrace.connectors.base import Connector
    from headrace.engine.chain import load_operator

    missing: dict[str, MissingExtraError] = {}
    for node in plan.nodes:
        operator = load_operator(node)
        for part in (operator, getattr(operator, "lookup", None)):
            try:
                if isinstance(part, Connector):
                    part.load_package()
            except MissingExtraError as error:
                missing.setdefault(error.message, error)
    if missing:
        first, *others = missing.values()
        for other in others:
            stderr().print(f"error: {other.message}\n  hint: {other.hint}", markup=False)
        raise first


def _dataflow_counts(dataflow: Dataflow) -> dict[str, int]:
    """The number of units of each kind, and of their inputs and timers; zeros are left out."""
    from headrace.dataflow.document.model import Timer

    inputs = [unit_input for unit in dataflow.units for unit_input in unit.inputs]
    timers = {unit_input.source for unit_input in inputs if isinstance(unit_input.source, Timer)}
    counts = {name: sum(unit.kind == kind for unit in dataflow.units) for kind, name in _KINDS.items()}
    counts |= {"input": len(inputs), "timer": len(timers)}
    return {name: number for name, number in counts.items() if number}


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(_counted(number, what) for what, number in counts.items())


def _counted(number: int, what: str) -> str:
    plural = "es" if what.endswith("s") else "s"
    return f"{number} {what}" if number == 1 else f"{number} {what}{plural}"
