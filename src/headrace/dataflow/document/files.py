"""Where the files that a document names are: Python files, shared libraries and programs."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import suggest
from headrace.base.spans import Span
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.model import DYNAMIC
from headrace.dataflow.document.yaml_text import Scalar

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PYTHONS = frozenset({"python", "python3"})
PYTHON = "python"
"""In the place of a program: the Python that runs Headrace."""
ENVIRONMENTS = Path(".headrace") / "envs"
"""Beside a document: the virtual environments of its nodes."""
_CALLS_PYTHON = re.compile(r"(?<![\w./-])(?:python3?|pip3?|uv|poetry|maturin)(?![\w./-])")
_PREFIX, _SUFFIX = {"win32": ("", ".dll"), "darwin": ("lib", ".dylib")}.get(sys.platform, ("lib", ".so"))
_SPECIAL = {
    "shell": "a shell is not run; write the command into a script and give its path here",
}


def calls_python(build: str) -> bool:
    """Whether build commands install packages or run Python, which takes an environment.

    >>> calls_python("pip install -e ."), calls_python("make python-lib"), calls_python("cargo build")
    (True, False, False)
    """
    return _CALLS_PYTHON.search(build) is not None


@dataclass(frozen=True)
class Files:
    """Finds the files that a document, or one of its modules, names."""

    directory: Path
    findings: Findings
    check: bool
    """Whether a missing file is a mistake."""
    search_path: str | None
    """`PATH`, for programs that are not beside the document."""

    def python(self, path: Scalar, *, built: bool) -> Path | None:
        """The file of a Python operator."""
        text = path.text
        if self._is_remote(path):
            return None
        if not text.endswith(".py"):
            self.findings.refuse(
                f"`{text}` is not a Python file", path.span, "the name of a Python file ends in `.py`"
            )
            return None
        return self._found([(self.directory / text).resolve()], path, "Python file", built=built)

    def library(self, path: Scalar, *, built: bool) -> Path | None:
        """The file of a shared library, which a document names without `lib` and `.so`."""
        if self._is_remote(path):
            return None
        written = (self.directory / path.text).resolve()
        usual = written.with_name(f"{_PREFIX}{written.name}{_SUFFIX}")
        forms = [usual, written.with_name(written.name + _SUFFIX), written]
        if written.suffix == _SUFFIX:
            forms.reverse()
        return self._found(forms, path, "shared library", built=built)

    def program(
        self, path: Scalar, *, built: bool, python_env: Path | None = None
    ) -> tuple[Path | None, str] | None:
        """The file of a program, and the first word of its command; its own environment is searched first."""
        text = path.text
        if text in _SPECIAL:
            self.findings.refuse(f"`path: {text}` cannot be run here", path.span, _SPECIAL[text])
            return None
        if self._is_remote(path):
            return None
        if text == DYNAMIC or text in _PYTHONS:
            return None, DYNAMIC if text == DYNAMIC else PYTHON
        beside = self.directory / text
        if text.endswith(".py"):
            file = self._found([beside], path, "Python file", built=built)
            return None if file is None else (file, PYTHON)
        if beside.is_file() or "/" in text or os.sep in text:
            file = self._found([beside], path, "program", built=built)
            if file is None:
                return None
            if self.check and file.is_file() and not os.access(file, os.X_OK):
                self.findings.refuse(
                    f"`{text}` cannot be executed", path.span, f"make it executable: chmod +x {text}"
                )
            return file, str(file)
        search_path = os.environ.get("PATH", os.defpath) if self.search_path is None else self.search_path
        if python_env is not None:
            search_path = os.pathsep.join([str(python_env / "bin"), search_path])
        if installed := shutil.which(text, path=search_path):
            return Path(installed), installed
        file = self._found([beside], path, "program", built=built)
        return None if file is None else (file, text)

    def module(self, path: Scalar) -> Path | None:
        """The file of a module."""
        if self._is_remote(path):
            return None
        file = (self.directory / path.text).resolve()
        if file.is_file():
            return file
        self._missing(file, path.text, path.span, "module")
        return None

    def _is_remote(self, path: Scalar) -> bool:
        if not _URL.match(path.text):
            return False
        self.findings.refuse(
            "files are not downloaded",
            path.span,
            "download it beside the document, and write its path there",
        )
        return True

    def _found(self, forms: Iterable[Path], path: Scalar, what: str, *, built: bool) -> Path | None:
        """The first of the forms that is a file; the first of all, if that does not matter."""
        first, *_ = files = list(forms)
        for file in files:
            if file.is_file():
                return file
        if self.check and built:
            self.findings.warn(f"`{path.text}` is not there yet: its `build` has to make it", path.span)
        elif self.check:
            self._missing(first, path.text, path.span, what)
            return None
        return first

    def _missing(self, file: Path, written: str, span: Span, what: str) -> None:
        if file.is_dir():
            self.findings.refuse(f"`{written}` is a directory, not a {what}", span)
            return
        shown = f"`{written}`" if file.name == Path(written).name else f"`{written}` (`{file.name}`)"
        beside = [entry.name for entry in file.parent.iterdir()] if file.parent.is_dir() else []
        hint = "variables are expanded in `env` only" if "$" in written else suggest(file.name, beside)
        if hint is None and not file.parent.is_dir():
            hint = f"there is no directory `{Path(written).parent}` beside the document"
        if what == "program" and hint is None:
            hint = "it is neither beside the document nor on PATH; if a `build` makes it, write that"
        self.findings.refuse(
            f"there is no {what} {shown}", span, hint or "paths are relative to the document they stand in"
        )
