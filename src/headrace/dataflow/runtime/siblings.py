"""Modules beside an operator's file: found by `import`, and kept apart from those of other directories.

In dora each operator is a process, so two of them may both say `import settings` and mean two files. Here
they share an interpreter: what one directory's operators have imported from it is in `sys.modules` only while
one of them is at work.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType


class Siblings:
    """The modules of one directory."""

    _at_work: Siblings | None = None
    _known: dict[Path, Siblings] = {}  # noqa: RUF012 - one for each directory, in each process

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.modules: dict[str, ModuleType] = {}
        self._found: set[str] = set()

    @classmethod
    def of(cls, directory: Path) -> Siblings:
        """The modules of a directory."""
        if directory not in cls._known:
            cls._known[directory] = Siblings(directory)
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.append(_Finder())
        return cls._known[directory]

    def enter(self) -> Siblings | None:
        """From now on these are the ones that `import` finds; returns the ones it found before."""
        before = Siblings._at_work
        if before is not self:
            if before is not None:
                before.put_away()
            sys.modules.update(self.modules)
            Siblings._at_work = self
        return before

    def leave(self, before: Siblings | None) -> None:
        """The ones from before count again."""
        if before is not self:
            self.put_away()
            if before is not None:
                sys.modules.update(before.modules)
            Siblings._at_work = before

    def find(self, name: str) -> ModuleSpec | None:
        """Where a module is, if it is in the directory."""
        spec = PathFinder.find_spec(name, [str(self._directory)])
        if spec is not None:
            self._found.add(name)
        return spec

    def put_away(self) -> None:
        """Take what was imported out of `sys.modules`, and remember it."""
        if self._found:
            for name, module in list(sys.modules.items()):
                if name.partition(".")[0] in self._found:
                    self.modules[name] = module
            self._found.clear()
        for name in self.modules:
            sys.modules.pop(name, None)


class _Finder:
    """A finder at the end of Python's list, so that installed packages come first."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find modules in the directory of the running operator."""
        at_work = Siblings._at_work  # noqa: SLF001 - a part of it
        return at_work.find(name) if at_work is not None and path is None else None
