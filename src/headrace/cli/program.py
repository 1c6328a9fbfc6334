"""The arguments that name the program of a command, the same for every command."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.terminal import Invocation

if TYPE_CHECKING:
    from headrace.api.loading import Program
    from headrace.model.plan import Plan

F = TypeVar("F", bound=Callable[..., Any])

udf_option = click.option(
    "--udf",
    "udfs",
    multiple=True,
    metavar="FILE|MODULE",
    help="Functions that the SQL may call: FILE.py, FILE.rs or package.module; repeatable.",
)


run_functions_option = click.option(
    "--run-functions",
    is_flag=True,
    help="Run the sources of CREATE FUNCTION … LANGUAGE python to find types that are not annotated.",
)


def functions_of_sources(*, run: bool) -> contextlib.AbstractContextManager[None]:
    """Say whether the Python sources in SQL are run, or only parsed, while a program is loaded."""
    from headrace.functions.python_source import parsed_only

    return contextlib.nullcontext() if run else parsed_only()


def program_arguments(function: F) -> F:
    """Give a command the arguments `FILE… -e SQL --udf FILE`, as `files`, `texts` and `udfs`."""
    files = click.argument("files", nargs=-1, metavar="FILE…")
    texts = click.option("-e", "texts", multiple=True, metavar="SQL", help="SQL of the program; repeatable.")
    return files(texts(udf_option(function)))


def read_program(files: tuple[str, ...], texts: tuple[str, ...]) -> Program:
    """The program that the arguments name; from then on its secrets are hidden in output."""
    from headrace.api.loading import find_program

    if not files and not texts:
        raise click.UsageError(
            "missing argument: FILE.sql, FILE.yml, FILE.py, - for the standard input, or -e SQL",
            click.get_current_context(),
        )
    program = find_program(files, texts=texts)
    click.get_current_context().ensure_object(Invocation).secrets = program.secrets
    return program


def expiries(plan: Plan) -> list[str]:
    """Which operators lose state after a time, and what changes that: a sentence for each."""
    from headrace.operators.changes import EXPIRES

    change = "SET updating_ttl = INTERVAL '…' changes that, SET updating_ttl = 'none' keeps them"
    return [
        f"rows in `{node.id}` are {expires}; {change}"
        for node in plan.nodes
        if (expires := dict(node.config).get(EXPIRES)) is not None
    ]
