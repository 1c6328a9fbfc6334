"""Finds the pipeline that a Python file defines."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.api import Pipeline
from headrace.errors import UserError, near


def load_pipeline(path: str) -> Pipeline:
    """The pipeline that a Python file defines: `file.py`, or `file.py:name` if it defines several.

    The name may be that of a `Pipeline` or of a function that returns one.
    """
    file, _, name = path.partition(":")
    found = _pipelines(_load_module(Path(file)))
    if name:
        if name not in found:
            raise UserError(
                f"there is no pipeline called `{name}` in {file}",
                hint=near(name, found) or f"it defines {', '.join(found) or 'none'}",
            )
        return _called(found[name], name, file)
    pipelines = {n: value for n, value in found.items() if isinstance(value, Pipeline)}
    candidates = pipelines or {n: value for n, value in found.items() if n == "pipeline"}
    if len({id(value) for value in candidates.values()}) == 1:
        only = next(iter(candidates))
        return _called(candidates[only], only, file)
    if not candidates:
        raise UserError(
            f"{file} defines no pipeline",
            hint="make one at the top level of the file, `pipeline = headrace.Pipeline('name')`, or write a "
            "function `pipeline()` that returns one",
        )
    raise UserError(
        f"{file} defines several pipelines: {', '.join(candidates)}",
        hint=f"say which: {file}:{next(iter(candidates))}",
    )


def _called(value: Any, name: str, file: str) -> Pipeline:
    if isinstance(value, Pipeline):
        return value
    try:
        made = value()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{name}() in {file} raised {type(error).__name__}: {error}") from error
    if not isinstance(made, Pipeline):
        raise UserError(f"{name}() in {file} returned {type(made).__name__}, not a Pipeline")
    return made


def _pipelines(namespace: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in namespace.items()
        if not name.startswith("_")
        and (
            isinstance(value, Pipeline)
            or (callable(value) and not isinstance(value, type) and _is_local(value, namespace))
        )
    }


def _is_local(value: Any, namespace: Mapping[str, Any]) -> bool:
    return getattr(value, "__module__", None) == namespace.get("__name__")


def _load_module(file: Path) -> Mapping[str, Any]:
    if file.is_dir():
        raise UserError(f"{file} is a directory", hint="name the Python file in it that defines the pipeline")
    if not file.is_file():
        siblings = [p.name for p in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise UserError(f"there is no file {file}", hint=near(file.name, siblings))
    if file.suffix != ".py":
        raise UserError(f"{file} is not a Python file", hint="`headrace run` takes a .py file")
    file = file.resolve()
    directory, name = str(file.parent), file.stem
    if directory not in sys.path:
        sys.path.insert(0, directory)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except UserError as error:
        error.where = error.where or _line_in(error, file)
        raise
    except SyntaxError as error:
        caret = (
            ""
            if error.text is None
            else f"\n    {error.text.rstrip()}\n    {' ' * ((error.offset or 1) - 1)}^"
        )
        raise UserError(
            f"{error.msg}{caret}", where=f"{file}, line {error.lineno}, column {error.offset}"
        ) from error
    except Exception as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        raise UserError(f"{file} raised {text}", where=_line_in(error, file)) from error
    return vars(module)


def _line_in(error: BaseException, file: Path) -> str | None:
    """The last line of the user's file that an error came through."""
    lines = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == file or Path(frame.filename).resolve() == file.resolve()
    ]
    if not lines:
        return None
    return f"{file}, line {lines[-1].lineno}: {lines[-1].line}"
