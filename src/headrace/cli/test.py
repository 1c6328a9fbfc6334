"""`headrace test`: run SQL files and compare their rows with the expected ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.program import udf_option
from headrace.cli.terminal import verbose_option

if TYPE_CHECKING:
    from headrace.model.fragments import Function


@click.command
@click.argument("paths", nargs=-1, required=True, metavar="DIR|FILE.sql|FILE.slt…")
@udf_option
@click.option("--update", is_flag=True, help="Write the expected rows that are missing or have changed.")
@click.option("--spark", is_flag=True, help="Run on Spark; slower, and without kills.")
@verbose_option
def test(
    paths: tuple[str, ...],
    udfs: tuple[str, ...],
    update: bool,
    spark: bool,
    verbose: bool,  # noqa: ARG001  read by the error renderer
) -> None:
    """Run SQL files and compare their rows with the expected ones.

    Each NAME.sql is run whole, stopped and resumed, and killed and resumed, with changing parallelism,
    without Spark, and must always give the rows in NAME.expected.jsonl: JSON objects, one a line, in any
    order. For several sinks there are files NAME.TABLE.expected.jsonl; for SQL that must be refused there is
    NAME.error.txt. Paths in the SQL are relative to its file, and its sinks write nothing.

    Each NAME.slt is a suite in the format of sqllogictest: statements, which may insert into, update and
    delete from tables, and queries with the rows that are expected of them.

    A comment `-- approx: 1e-9` at the top lets numbers be that far apart. Exits with 1 if a test fails.
    """
    from headrace.functions.user import load_udfs
    from headrace.testing.sql_cases import find_cases, run_case
    from headrace.testing.sqllogictest import find_suites

    functions = [function for file in udfs for function in load_udfs(file)]
    suites = [suite for path in paths for suite in find_suites(path)]
    if suites and (spark or update):
        flag = "--spark" if spark else "--update"
        raise click.UsageError(f"{flag} is for .sql files, not for {suites[0]}", click.get_current_context())
    cases = [case for path in paths if not _has_suites_only(path) for case in find_cases(path)]
    began, failed = time.monotonic(), 0
    for case in cases:
        result = run_case(case, functions=functions, spark=spark, update=update)
        failed += not result.passed
        mark = click.style("✓", fg="green") if result.passed else click.style("✗", fg="red", bold=True)
        written = f" wrote {', '.join(file.name for file in result.written)}" if result.written else ""
        click.echo(f"{mark} {case.name} {click.style(f'{result.seconds:.1f}s', dim=True)}{written}")
        for failure in result.failures:
            click.echo(f"    {failure.title}")
            for line in failure.lines():
                color = {"−": "red", "+": "green"}.get(line[:1])
                click.echo("      " + click.style(line, fg=color))
    failed += sum(not _run_suite(suite, functions) for suite in suites)
    passed = len(cases) + len(suites) - failed
    counts = f"{passed} passed" + (f", {failed} failed" if failed else "")
    click.echo(f"{counts} in {time.monotonic() - began:.1f}s")
    if failed:
        raise click.exceptions.Exit(1)


def _has_suites_only(path: str) -> bool:
    root = Path(path)
    if root.is_file():
        return root.suffix == ".slt"
    return any(root.rglob("*.slt")) and not any(root.rglob("*.sql"))


def _run_suite(file: Path, functions: Sequence[Function]) -> bool:
    """Run a suite, show what differs, and return whether nothing does."""
    from headrace.testing.changelog import ChangelogEngine
    from headrace.testing.sqllogictest import run_suite

    with ChangelogEngine(functions=functions) as engine:
        result = run_suite(file, engine)
    mark = click.style("✓", fg="green") if result.passed else click.style("✗", fg="red", bold=True)
    seconds = click.style(f"{result.seconds:.1f}s", dim=True)
    click.echo(
        f"{mark} {file.name} {result.records - len(result.failures)}/{result.records} records {seconds}"
    )
    for failure in result.failures:
        click.echo(f"    {file}:{failure.record.line}: {failure.message}")
        for line in failure.lines():
            color = {"−": "red", "+": "green"}.get(line[:1])
            click.echo("      " + click.style(line, fg=color))
    return result.passed
