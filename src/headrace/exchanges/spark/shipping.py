"""Ships the code that workers need and may not have: the user's modules, and Headrace itself."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import pickle
import secrets
import sys
import sysconfig
import threading
import zipfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from cloudpickle.cloudpickle import subimport

from headrace.base.errors import ConfigurationError
from headrace.base.private import process_directory
from headrace.exchanges.py_files import find_py_files
from headrace.exchanges.spark.launch import DAEMON, DAEMON_SETTING
from headrace.model.plan import Plan

_CODE = "headrace-code-"
"""Begins the name of an archive of shipped modules."""


def ship_code(context: Any, plan: Plan, py_files: Sequence[str] = ()) -> None:
    """Give the workers of a SparkContext what they need: see `files_to_ship`."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with_headrace = not context.master.startswith("local")
    for path in files_to_ship(plan, py_files, with_headrace=with_headrace):
        if with_headrace and Path(path).name.startswith(_CODE):
            _let_daemons_import(context, Path(path).name)
        try:
            context.addPyFile(path)
        except (PySparkException, Py4JError) as error:
            raise not_shipped(path, error) from error


def files_to_ship(plan: Plan, py_files: Sequence[str], *, with_headrace: bool) -> list[str]:
    """Return files with every module that the plan's operators come from, and `py_files`.

    The modules of a script are the ones loaded from the directories that its operators' modules lie in.
    Installed packages are not shipped: the workers' own Python has to have them.
    """
    shipped = [str(path) for path in find_py_files(py_files)]
    files = dict(_user_files(plan))
    if with_headrace:
        files |= dict(_package_files(Path(__file__).parents[2], "headrace"))
    if files:
        shipped.append(_archive(files))
    return shipped


def not_shipped(path: str, error: Exception) -> ConfigurationError:
    """What to say when Spark does not take a file."""
    return ConfigurationError(
        f"{path} cannot be shipped to the workers: {str(error).splitlines()[0]}",
        hint="pipelines of one process share the workers: files for them need different names",
    )


def _let_daemons_import(context: Any, archive: str) -> None:
    """Let Headrace's daemon, which forks the workers, import Headrace from the shipped archive.

    Files that are shipped lie in the working directory of an executor, which is that of this process too.
    """
    if context.getConf().get(DAEMON_SETTING) == DAEMON:
        paths = context.environment.get("PYTHONPATH", "").split(os.pathsep)
        context.environment["PYTHONPATH"] = os.pathsep.join(
            [*(path for path in paths if path and not path.startswith(_CODE)), archive]
        )


def _user_files(plan: Plan) -> Iterator[tuple[str, Path]]:
    needed = {"__main__"}.union(*(_modules_of(node.payload) for node in plan.nodes))
    roots = {
        root
        for name in needed
        if (module := sys.modules.get(name)) is not None
        if (root := _root_of(module)) is not None
    }
    yield from modules_from(roots)


def modules_from(roots: Collection[Path]) -> Iterator[tuple[str, Path]]:
    """The files of the modules that were loaded from these directories, by their paths below them."""
    for module in list(sys.modules.values()) if roots else ():
        root = _root_of(module)
        if root is not None and root in roots and module.__name__ != "__main__":
            file = Path(str(module.__file__)).resolve()
            if file.name == "__init__.py":
                yield from _package_files(file.parent, str(file.parent.relative_to(root)))
            else:
                yield str(file.relative_to(root)), file


def _modules_of(payload: bytes) -> set[str]:
    """The modules that a pickled operator refers to: its class's, its functions', its attributes'."""
    modules: set[str] = set()

    def imported(name: str) -> ModuleType:
        modules.add(name)
        module: ModuleType = subimport(name)
        return module

    class Finder(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            attribute = super().find_class(module, name)
            modules.add(module)
            # A function that is pickled by value names the modules that its file has imported.
            return imported if attribute is subimport else attribute

    Finder(io.BytesIO(payload)).load()
    return modules


@functools.cache
def _installed() -> frozenset[Path]:
    """Where installed packages and Python's own modules are."""
    return frozenset(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib"))


def _root_of(module: ModuleType) -> Path | None:
    """The directory on the import path that a user's module was loaded from."""
    name = getattr(module, "__file__", None)
    if not isinstance(name, str) or not name.endswith(".py"):
        return None
    file = Path(name).resolve()
    if module.__name__ == "headrace" or module.__name__.startswith("headrace."):
        return None
    if any(file.is_relative_to(directory) for directory in _installed()) or "site-packages" in file.parts:
        return None
    depth = 0 if module.__name__ == "__main__" else module.__name__.count(".")
    root = file.parent.parent if file.name == "__init__.py" else file.parent
    for _ in range(depth):
        root = root.parent
    return root


def _package_files(directory: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    for file in sorted(directory.rglob("*.py")):
        yield str(Path(prefix) / file.relative_to(directory)), file


_archives: dict[tuple[int, str], str] = {}
_lock = threading.Lock()


def _archive(files: dict[str, Path]) -> str:
    """A zip of the files, named by its content so that a changed module is a new file to Spark.

    The same content gives the same file to every pipeline of this process.
    """
    digest = hashlib.sha256()
    contents = {name: file.read_bytes() for name, file in sorted(files.items())}
    for name, content in contents.items():
        digest.update(name.encode() + b"\0" + content)
    key = os.getpid(), digest.hexdigest()
    with _lock:
        path = _archives.get(key)
        if path is None or not Path(path).exists():
            path = _archives[key] = _write_archive(contents, digest.hexdigest()[:12])
        return path


def _write_archive(contents: dict[str, bytes], digest: str) -> str:
    # The workers run it: it is a new file, in a directory that nobody else can write to.
    path = process_directory() / f"{_CODE}{digest}-{secrets.token_hex(4)}.zip"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w+b") as file, zipfile.ZipFile(file, "w") as archive:
        # Without an entry of its own a directory is no namespace package to Python.
        for folder in sorted({f"{p}/" for name in contents for p in Path(name).parents if p.name}):
            archive.writestr(folder, b"")
        for name, content in contents.items():
            archive.writestr(name, content)
    return str(path)
