"""`headrace build`: run the build commands of a dataflow."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.terminal import stderr, verbose_option

if TYPE_CHECKING:
    from headrace.dataflow.document.model import Unit


@click.command
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.yml")
@verbose_option
def build(file: Path, verbose: bool) -> None:  # noqa: ARG001  read by the error renderer
    """Run the build commands of a dataflow.

    Each line of a node's `build` is a command of the shell. They are run one after the other in the order of
    the document, in its directory and with the node's `env`; `python` and `pip` are those of the Python that
    runs Headrace. The first that fails ends it, with exit code 1.
    """
    from headrace.base.errors import ExternalError
    from headrace.dataflow.document.load import load_dataflow

    dataflow = load_dataflow(file, check_files=False)
    units = [unit for unit in dataflow.units if unit.build]
    for unit in units:
        for command in commands_of(unit.build or ""):
            stderr().print(f"{unit.address}: {command}", markup=False)
            code = _run(command, unit, dataflow.directory)
            if code:
                raise ExternalError(
                    f"`{unit.address}`: the command `{command}` {_ended(code)}",
                    where=None if unit.span is None else unit.span.where,
                    hint=f"it was run in {dataflow.directory}; the nodes behind it were not built",
                )
    if not units:
        click.echo("nothing to build: no node has `build`")
        return
    for warning in load_dataflow(file).warnings:
        stderr().print(f"warning: {warning}", markup=False)
    click.echo(f"built {', '.join(unit.address for unit in units)}")


def commands_of(text: str) -> Iterator[str]:
    r"""The commands of a `build`: one a line, or several lines that end in a backslash.

    >>> list(commands_of("make\n# and then\ncc a.c \\\n  -o a"))
    ['make', 'cc a.c -o a']
    """
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.strip() and not line.strip().startswith("#"):
            yield line.strip()


def _run(command: str, unit: Unit, directory: Path) -> int:
    """Run a command where its output is seen at once; its exit code."""
    # The first on PATH, so that what is installed is installed where operators run.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    env = {**os.environ, "PATH": path, **unit.env}
    return subprocess.run(["sh", "-c", command], cwd=directory, env=env, check=False).returncode


def _ended(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}"
