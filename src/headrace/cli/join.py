"""`headrace join`: start a script as a node of a dataflow that runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("program", metavar="PROGRAM")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def join(program: str, args: tuple[str, ...]) -> None:
    """Start a program as a node of a running dataflow.

    The dataflow runs on this machine. The node has `path: dynamic` in it, and the program names it:
    `Node("camera")`. A `.py` file is run with the Python that runs Headrace, anything else is executed, such
    as a Python of your own; either finds Headrace's module `dora`.
    """
    from headrace.base.errors import UserError
    from headrace.dataflow.runtime.process import PROVIDED

    command = [program, *args]
    if program.endswith(".py"):
        if not Path(program).is_file():
            raise UserError(f"there is no file `{program}`", hint="give the script that makes the `Node`")
        command = [sys.executable, "-u", *command]
    paths = [str(PROVIDED), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        os.execvpe(command[0], command, os.environ | {"PYTHONPATH": os.pathsep.join(paths)})  # noqa: S606
    except OSError as error:
        raise UserError(f"`{program}` cannot be run: {error.strerror}") from error
