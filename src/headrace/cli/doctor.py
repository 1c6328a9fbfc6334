"""`headrace doctor`: checks whether Headrace can run here, and shows how to install what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from headrace.base.errors import ConfigurationError, HeadraceError
from headrace.base.private import make_private, scratch_root
from headrace.cli.terminal import print_json
from headrace.exchanges.spark.home import check_home
from headrace.exchanges.spark.masters import is_connect, shown_master

Status = Literal["ok", "warning", "missing", "optional"]

GIB = 1024**3
IMPORTED = ("numpy", "pyarrow", "pandas", "datafusion", "pyspark")
_IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        print(name, f"{type(error).__name__}: {' '.join(str(error).split())}", sep="\\t")
"""
JAVA = 17
NEWEST_JAVA = 21

JAVA_INSTALLERS = {
    "brew": 'brew install openjdk@17 && export JAVA_HOME="$(brew --prefix openjdk@17)"',
    "apt-get": "sudo apt-get install -y openjdk-17-jre-headless",
    "dnf": "sudo dnf install -y java-17-openjdk-headless",
    "zypper": "sudo zypper install -y java-17-openjdk-headless",
    "pacman": "sudo pacman -S --noconfirm jre17-openjdk-headless",
    "apk": "sudo apk add openjdk17-jre-headless",
    "winget": "winget install EclipseAdoptium.Temurin.17.JRE",
}
"""The command that installs Java, by package manager."""


@dataclass(frozen=True)
class Check:
    """One requirement of Headrace: what was found and, if that is not enough, what to do."""

    name: str
    status: Status
    actual: str
    fix: str | None = None


def examine(environ: Mapping[str, str]) -> list[Check]:
    """Check everything that Headrace needs to run, without importing PySpark."""
    connect = connect_only(environ)
    return [
        check_python(),
        check_java(environ) if connect is None else Check("Java", "optional", f"not needed for {connect}"),
        *check_packages(),
        *check_imports(),
        *check_spark_home(environ),
        check_memory(),
        check_cores(),
        check_temporary_directory(environ),
        check_extra("cloud", package="obstore", use="state and files on s3:, gs: and abfs: URLs"),
        check_extra("connect", package="grpcio", use="masters sc://…: servers of Spark Connect"),
    ]


def connect_only(environ: Mapping[str, str]) -> str | None:
    """What makes Java unnecessary: a Spark Connect server as the master, or a PySpark that is its client."""
    from headrace.jobs.settings import load_settings

    try:
        master = load_settings(environ=environ).spark.master
    except HeadraceError:
        return None
    if is_connect(master):
        return shown_master(master)
    return "a PySpark that is only the client of Spark Connect" if pyspark_package() != "pyspark" else None


def pyspark_package() -> str:
    """The distribution that PySpark comes from: `pyspark-client` has neither Spark nor Java in it."""
    for package in ("pyspark", "pyspark-client"):
        with suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(package)
            return package
    return "pyspark"


def check_python(version: tuple[int, int, int] = sys.version_info[:3]) -> Check:
    """Python 3.11 to 3.13; a newer one may work."""
    version_text = f"{'.'.join(map(str, version))} ({sys.executable})"
    if version >= (3, 14):
        return Check("Python", "warning", f"{version_text}, tested with 3.11 to 3.13")
    if version >= (3, 11):
        return Check("Python", "ok", version_text)
    return Check("Python", "missing", f"{version_text}, needs 3.11 or newer", "install Python 3.11 or newer")


def check_java(environ: Mapping[str, str]) -> Check:
    """Java 17 or 21, where Spark looks for it: JAVA_HOME if it is set, else PATH."""
    name = "Java"
    path = environ.get("PATH", "")
    home = environ.get("JAVA_HOME")
    if home:
        java = shutil.which("java", path=str(Path(home) / "bin"))
        if java is None:
            fix = "unset JAVA_HOME" if shutil.which("java", path=path) else install_java(environ)
            return Check(name, "missing", f"JAVA_HOME is {home}, where there is no bin/java", fix)
    else:
        java = shutil.which("java", path=path)
        if java is None:
            return Check(
                name, "missing", "JAVA_HOME is not set and there is no java on PATH", install_java(environ)
            )
    version, text = java_version(java)
    if version is None:
        return Check(name, "missing", f"{java} does not run: {text}", install_java(environ))
    if version < JAVA:
        return Check(name, "missing", f"{text} ({java}), needs {JAVA} or newer", install_java(environ))
    if version > NEWEST_JAVA:
        return Check(name, "warning", f"{text} ({java}), tested with {JAVA}; Spark names {JAVA} and 21")
    return Check(name, "ok", f"{text} ({java})")


def java_version(java: str) -> tuple[int | None, str]:
    """The major version of a Java and its version string; None and the reason if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=20, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    output = (done.stderr + done.stdout).strip()
    match = re.search(r'version "(?:1\.)?(\d+)([^"]*)"', output)
    if done.returncode != 0 or match is None:
        return None, output.splitlines()[0] if output else f"exit code {done.returncode}"
    return int(match.group(1)), match.group(0).removeprefix("version ").strip('"')


def install_java(environ: Mapping[str, str]) -> str:
    """The command that installs Java here."""
    for manager, line in JAVA_INSTALLERS.items():
        if shutil.which(manager, path=environ.get("PATH", "")):
            as_root = hasattr(os, "geteuid") and os.geteuid() == 0
            return line.removeprefix("sudo ") if as_root else line
    return f"install a Java runtime, {JAVA} or newer, and set JAVA_HOME to its folder"


def check_packages() -> list[Check]:
    """The required libraries, in supported versions."""
    return [
        check_package(
            "PySpark",
            package=pyspark_package(),
            requirement="pyspark>=3.5,<4.4",
            at_least=(3, 5),
            below=(4, 4),
        ),
        check_package("PyArrow", package="pyarrow", requirement="pyarrow>=21", at_least=(21,)),
        check_package("pandas", package="pandas", requirement="pandas>=2.2,<3", at_least=(2, 2), below=(3,)),
        check_package(
            "DataFusion", package="datafusion", requirement="datafusion>=55,<56", at_least=(55,), below=(56,)
        ),
    ]


def check_package(
    name: str,
    *,
    package: str,
    requirement: str,
    at_least: tuple[int, ...],
    below: tuple[int, ...] | None = None,
) -> Check:
    """One installed library, by its metadata, without importing it."""
    fix = f"{sys.executable} -m pip install '{requirement}'"
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "missing", "not installed", fix)
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if numbers < at_least or (below is not None and numbers >= below):
        return Check(name, "missing", f"{version}, needs {requirement.removeprefix(package)}", fix)
    return Check(name, "ok", version)


def check_imports(modules: Sequence[str] = IMPORTED) -> list[Check]:
    """Whether what is installed can be imported, in another process: one replaced package breaks others."""
    fix = f"{sys.executable} -m pip install --force-reinstall headrace"
    command = [sys.executable, "-c", _IMPORT, *modules]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    failed = [line.partition("\t") for line in result.stdout.splitlines() if "\t" in line]
    if result.returncode != 0:
        failed.append(("", "", f"importing {', '.join(modules)} ended with exit code {result.returncode}"))
    checks = [Check(f"import {module}".strip(), "missing", why, fix) for module, _, why in failed]
    return checks or [Check("Imports", "ok", ", ".join(modules))]


def check_spark_home(environ: Mapping[str, str]) -> list[Check]:
    """A SPARK_HOME in the environment replaces the Spark that is installed with PySpark."""
    home = environ.get("SPARK_HOME")
    if not home:
        return []
    try:
        with suppress(importlib.metadata.PackageNotFoundError):
            check_home(environ, importlib.metadata.version(pyspark_package()))
    except ConfigurationError as error:
        return [Check("SPARK_HOME", "missing", error.message, "unset SPARK_HOME")]
    return [
        Check("SPARK_HOME", "warning", f"{home} is used in place of PySpark's own Spark", "unset SPARK_HOME")
    ]


def check_memory() -> Check:
    """Memory for Spark's driver and the Python workers; a container's limit counts."""
    total = memory()
    if total is None:
        return Check("Memory", "ok", "unknown")
    size = f"{total / GIB:.1f} GiB"
    if total < 3 * GIB:
        fix = "set a smaller driver: HEADRACE__SPARK__MEMORY=1g"
        return Check("Memory", "warning", f"{size}, 3 GiB or more are comfortable", fix)
    return Check("Memory", "ok", size)


def memory() -> int | None:
    """The memory this process may use in bytes; None if it cannot be determined."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(limit).read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return total


def check_cores() -> Check:
    """Cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Check("Cores", "ok", str(cores))


def check_temporary_directory(environ: Mapping[str, str]) -> Check:
    """A folder Spark can shuffle in."""
    name = "Temporary files"
    chosen = environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or environ.get("TMPDIR")
    folder = chosen or str(scratch_root(environ))
    try:
        make_private(scratch_root(environ))
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"headrace")
    except OSError as error:
        fix = "export TMPDIR=/a/folder/you/can/write"
        return Check(name, "missing", f"{folder} cannot be written: {error.strerror}", fix)
    except ConfigurationError as error:
        return Check(name, "missing", error.message, error.hint)
    free = shutil.disk_usage(folder).free
    free_space = f"{folder}, {free / GIB:.1f} GiB free"
    if free < GIB:
        return Check(name, "warning", free_space, "free some space, or export TMPDIR=/another/folder")
    return Check(name, "ok", free_space)


def check_extra(extra: str, *, package: str, use: str) -> Check:
    """An optional library, and what it is used for."""
    name = f"Extra `{extra}`"
    try:
        return Check(name, "ok", f"{package} {importlib.metadata.version(package)}")
    except importlib.metadata.PackageNotFoundError:
        fix = f"{sys.executable} -m pip install 'headrace[{extra}]'"
        return Check(name, "optional", f"not installed; for {use}", fix)


@click.command
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> int:
    """Check whether Headrace can run here, and show what is missing.

    For everything that is missing the command that installs it is shown. Exits with 1 if Headrace cannot run.
    """
    checks = examine(os.environ)
    able = all(check.status != "missing" for check in checks)
    if as_json:
        print_json({"ok": able, "checks": [asdict(check) for check in checks]})
    else:
        _print_checks(checks, able=able)
    return 0 if able else 1


def _print_checks(checks: list[Check], *, able: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    marks: dict[Status, tuple[str, str]] = {
        "ok": ("✓", "green"),
        "warning": ("!", "yellow"),
        "missing": ("✗", "bold red"),
        "optional": ("·", "dim"),
    }
    console = Console(highlight=False, soft_wrap=True)
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark, style = marks[check.status]
        console.print(Text.assemble((mark, style), f" {check.name.ljust(width)}  {check.actual}"))
        if check.fix:
            console.print(Text.assemble(" " * (width + 4), (check.fix, "cyan")))
    console.print()
    if able:
        console.print("Headrace can run here.", style="green")
    else:
        missing = ", ".join(check.name for check in checks if check.status == "missing")
        console.print(
            Text(f"Headrace cannot run here yet: {missing}. The lines above fix it.", style="bold red")
        )
