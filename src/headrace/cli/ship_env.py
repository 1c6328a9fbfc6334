"""`headrace ship-env`: pack the packages of this environment for the workers of a cluster."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import shlex
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

import click

from headrace.base.errors import ConfigurationError

_LEFT_OUT = {"pyspark", "pyspark-client", "py4j", "pip", "setuptools", "wheel", "uv"}
"""Workers have Spark's own Python files from their Spark, and install nothing."""
_PACKAGES = "packages"
_START = """\
#!/bin/sh
# Starts {python} with the packages of this archive, wherever it was unpacked.
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
PYTHONPATH="$here/{packages}${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
exec {python} "$@"
"""


@click.command("ship-env")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=Path("env.tar.gz"))
@click.option(
    "--python",
    metavar="PROGRAM",
    help="The Python of the workers: a path, or a name on their PATH; python3.N of this version unless set.",
)
def ship_env(file: Path, python: str | None) -> None:
    """Pack this environment for the workers of a cluster.

    Spark unpacks FILE (env.tar.gz) on every worker. It holds all installed packages but PySpark, which
    workers have from their Spark, and no Python: the workers need one of the same version and the same kind
    of machine.
    """
    if not file.name.endswith((".tar.gz", ".tgz")):
        raise ConfigurationError(f"`{file}` should end in .tar.gz: Spark unpacks it by its name")
    program = python or f"python{sys.version_info.major}.{sys.version_info.minor}"
    part = file.with_name(f"{file.name}.part")
    try:
        with tarfile.open(part, "w:gz", compresslevel=1) as archive:
            _add_start(archive, program)
            left_out = list(_add_packages(archive))
        os.replace(part, file)  # noqa: PTH105 - one call, as a commit
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
    for name in left_out:
        click.echo(f"not packed, as it is an editable install: {name}; ship it with --py-files", err=True)
    click.echo(f"packed {file}, {file.stat().st_size / 1e6:.0f} MB")
    click.echo("run with:")
    name = shlex.quote(str(file))
    click.echo(f"  --conf spark.archives={name}#env --conf spark.pyspark.python=./env/bin/python")


def _add_start(archive: tarfile.TarFile, python: str) -> None:
    content = _START.format(python=shlex.quote(python), packages=_PACKAGES).encode()
    for name in ("bin/python", "bin/python3"):
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(content), 0o755
        archive.addfile(entry, io.BytesIO(content))


def _add_packages(archive: tarfile.TarFile) -> Iterator[str]:
    """Add every installed package; yield those that are not where packages are installed."""
    roots = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    added: set[str] = set()
    for distribution in importlib.metadata.distributions(path=[str(root) for root in roots]):
        name = distribution.metadata["Name"]
        if name.lower() in _LEFT_OUT:
            continue
        if _is_editable(distribution):
            if name == "headrace":
                _add(archive, Path(__file__).parents[1], "headrace", added)
            else:
                yield name
                continue
        for path in distribution.files or ():
            if ".." not in path.parts and not path.name.endswith(".pth"):
                _add(archive, Path(str(distribution.locate_file(path))), str(path), added)


def _is_editable(distribution: importlib.metadata.Distribution) -> bool:
    text = distribution.read_text("direct_url.json")
    return text is not None and bool(json.loads(text).get("dir_info", {}).get("editable"))


def _add(archive: tarfile.TarFile, source: Path, name: str, added: set[str]) -> None:
    def fitting(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if "__pycache__" in Path(entry.name).parts else entry

    if name not in added and "__pycache__" not in Path(name).parts and source.exists():
        added.add(name)
        archive.add(source, f"{_PACKAGES}/{name}", filter=fitting)
