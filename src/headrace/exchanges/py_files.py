"""Files of Python code that tasks need, besides the modules of the plan."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.base.errors import ConfigurationError

_ARCHIVES = {".zip", ".egg", ".jar"}
"""What is itself on the import path, as Spark has it; of other files it is the directory."""


def find_py_files(names: Sequence[str]) -> list[Path]:
    """The files that `--py-files` names; raises for one that is not there."""
    for name in names:
        if not Path(name).exists():
            raise ConfigurationError(f"--py-files: there is no file {name}")
    return [Path(name).resolve() for name in names]


def import_here(names: Sequence[str]) -> None:
    """Let this process import what workers would get."""
    for file in find_py_files(names):
        entry = str(file if file.suffix.lower() in _ARCHIVES else file.parent)
        if entry not in sys.path:
            sys.path.append(entry)
