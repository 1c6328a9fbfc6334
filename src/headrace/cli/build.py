"""`headrace build`: run the build commands of a dataflow."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
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
    the document, in its directory and with the node's `env`. The first that fails ends it, with exit code 1.

    A process whose commands call `python`, `pip` or `uv` gets a virtual environment of its own,
    `.headrace/envs/NODE` beside the document, and runs in it; nodes with the same `venv: NAME` share
    `.headrace/envs/NAME`. Operators run in Headrace's Python: their commands can add packages to it, and
    cannot change those that Headrace needs.
    """
    from headrace.base.errors import ExternalError
    from headrace.dataflow.document.load import load_dataflow

    dataflow = load_dataflow(file, check_files=False)
    units = [unit for unit in dataflow.units if unit.build or unit.python_env is not None]
    for unit in units:
        if unit.python_env is not None:
            make_environment(unit.python_env)
        for command in commands_of(unit.build or ""):
            stderr().print(f"{unit.address}: {command}", markup=False)
            code = _run(command, unit, dataflow.directory)
            if code:
                raise ExternalError(
                    f"`{unit.address}`: the command `{command}` {_ended(code)}",
                    where=None if unit.span is None else unit.span.where,
                    hint=f"it was run in {dataflow.directory}; the nodes behind it were not built",
                )
        if unit.python_env is not None:
            fall_back_on_headrace(unit.python_env)
    if not units:
        click.echo("nothing to build: no node has `build` or `venv`")
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
    with tempfile.TemporaryDirectory() as scratch:
        own = unit.python_env
        if own is None:
            python = Path(sys.executable).parent
            pins = Path(scratch) / "headrace.txt"
            pins.write_text("".join(f"{pin}\n" for pin in required_packages()), encoding="utf-8")
            extra = {"PIP_CONSTRAINT": str(pins), "UV_CONSTRAINT": str(pins), "VIRTUAL_ENV": sys.prefix}
        else:
            python, extra = own / "bin", {"VIRTUAL_ENV": str(own)}
        # The first on PATH, so that what is installed is installed where the unit runs.
        path = os.pathsep.join([str(python), os.environ.get("PATH", os.defpath)])
        env = {**os.environ, **extra, "PATH": path, **unit.env}
        return subprocess.run(["sh", "-c", command], cwd=directory, env=env, check=False).returncode


def make_environment(directory: Path) -> None:
    """A virtual environment; one that is there has its own packages only until it is built."""
    if not (directory / "bin" / "python").exists():
        venv.create(directory, symlinks=True, with_pip=True, clear=True)
    _fallback(directory).unlink(missing_ok=True)


def fall_back_on_headrace(directory: Path) -> None:
    """What a virtual environment does not have, such as pyarrow, comes from Headrace's packages."""
    paths = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    _fallback(directory).write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")


def _fallback(directory: Path) -> Path:
    variables = {"base": str(directory), "platbase": str(directory)}
    return Path(sysconfig.get_path("purelib", "venv", variables)) / "headrace-packages.pth"


def required_packages() -> list[str]:
    """`name==version` of every installed package that Headrace needs, directly or not."""
    versions: dict[str, str] = {}
    waiting = ["headrace"]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in versions:
            continue
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
            needed = importlib.metadata.requires(name) or []
            waiting += [match[0] for text in needed if (match := re.match(r"[\w.-]+", text))]
    return [f"{name}=={version}" for name, version in sorted(versions.items()) if name != "headrace"]


def _ended(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}"
