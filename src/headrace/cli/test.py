"""`headrace test`: run SQL files and compare their rows with the expected ones."""

from __future__ import annotations

import time

import click

from headrace.cli.program import udf_option
from headrace.cli.terminal import verbose_option


@click.command
@click.argument("paths", nargs=-1, required=True, metavar="DIR|FILE.sql…")
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

    A comment `-- approx: 1e-9` at the top lets numbers be that far apart. Exits with 1 if a test fails.
    """
    from headrace.functions.user import load_udfs
    from headrace.testing.sql_cases import find_cases, run_case

    functions = [function for file in udfs for function in load_udfs(file)]
    cases = [case for path in paths for case in find_cases(path)]
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
    passed = len(cases) - failed
    counts = f"{passed} passed" + (f", {failed} failed" if failed else "")
    click.echo(f"{counts} in {time.monotonic() - began:.1f}s")
    if failed:
        raise click.exceptions.Exit(1)
