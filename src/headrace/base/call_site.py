"""Where in the user's program a method of the API was called, for its errors."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import ParamSpec, TypeVar

from headrace.base.errors import HeadraceError, suggest

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_LOADERS = tuple(f"{_PACKAGE}{layer}{os.sep}" for layer in ("cli", "server"))
"""What loads programs of users: a frame of theirs, above that of one of these, is of no user."""
_SHOWN = 100
"""How much of a line of the program is shown."""
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def call_site() -> str | None:
    """The line of the program that called the API: `flow.py, line 12: orders.filter("amount > 5")`."""
    frame = _user_frame()
    if frame is None:
        return None
    file, number = frame.f_code.co_filename, frame.f_lineno
    code = linecache.getline(file, number).strip()
    code = code if len(code) <= _SHOWN else f"{code[:_SHOWN]}…"
    return f"{_shown(file)}, line {number}" + (f": {code}" if code else "")


def text_name() -> str:
    """The name of a SQL string of the user's program in errors: `flow.py:12 (SQL)`."""
    frame = _user_frame()
    return "<sql>" if frame is None else f"{_shown(frame.f_code.co_filename)}:{frame.f_lineno} (SQL)"


def _user_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what `inspect` uses, without reading the source
    while frame is not None and _is_own(frame):
        if frame.f_code.co_filename.startswith(_LOADERS):
            return None  # no program of the user has called it
        frame = frame.f_back
    return frame


def _is_own(frame: FrameType) -> bool:
    """Whether the code is Headrace's; that of dataclasses is compiled from a string."""
    file = frame.f_code.co_filename
    return file.startswith(_PACKAGE) or (
        file == "<string>" and str(frame.f_globals.get("__name__")).startswith("headrace.")
    )


def _shown(file: str) -> str:
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def located(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a public function so that its errors name the line of the user's program."""

    @functools.wraps(method)
    def call(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            return method(*args, **options)
        except HeadraceError as error:
            error.where = error.where or call_site()
            raise
        except TypeError as error:
            trace = error.__traceback__
            if trace is None or trace.tb_next is not None:
                raise  # raised inside, not by the call
            raise TypeError(suggest_argument(error, inspect.signature(method))) from None

    return call


_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'$")


def suggest_argument(error: TypeError, signature: inspect.Signature) -> str:
    """The message of a call that does not fit its signature, with the names similar to a misspelt one."""
    message = str(error)
    match = _UNEXPECTED.search(message)
    names = [name for name, parameter in signature.parameters.items() if parameter.kind in _BY_NAME]
    hint = None if match is None else suggest(match[1], names)
    return message if hint is None else f"{message}: {hint}"


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
