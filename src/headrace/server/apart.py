"""Runs a function in a process of its own that is warm: for what loads code of users.

A fork server has imported the product once; each call is a fork of it that ends with the call. So a function
of a user never runs in the server, and whatever it changes, prints or crashes is gone after the call.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

from headrace.base.errors import ExternalError, HeadraceError, InternalError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

SECONDS = 60.0
"""How long a call may take; a function in Rust is built within it."""
_AT_ONCE = threading.BoundedSemaphore(max(2, (os.cpu_count() or 1)))
_PRELOADED = ["headrace.server.changes"]


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def warm_up() -> None:
    """Start the fork server, so that the first call is quick."""
    with contextlib.suppress(HeadraceError):
        run_apart(os.getpid)


def run_apart(
    function: Callable[..., Result], /, *values: Any, environ: Mapping[str, str] | None = None
) -> Result:
    """Call a function of a module in a process of its own; its HeadraceErrors are raised here.

    `environ` is added to the environment of the call.
    """
    context = _context()
    with _AT_ONCE:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_call, args=(theirs, function, values, dict(environ or {})), daemon=True
        )
        process.start()
        theirs.close()
        try:
            if not ours.poll(SECONDS):
                raise ExternalError(
                    f"it took longer than {SECONDS:g} seconds",
                    hint="ask for less; or does a function of yours do something when it is loaded?",
                )
            outcome = ours.recv()
        except EOFError:
            process.join(5)
            raise ExternalError(
                f"the process that planned it died (exit code {process.exitcode})",
                hint="does a function of yours end the process when it is loaded?",
            ) from None
        finally:
            process.kill()
            process.join()
            process.close()
            ours.close()
    if isinstance(outcome, BaseException):
        raise outcome
    result: Result = outcome[0]
    return result


def _call(
    answer: Connection, function: Callable[..., Any], values: tuple[Any, ...], environ: Mapping[str, str]
) -> None:
    os.environ.update(environ)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    try:
        outcome: Any = (function(*values),)
    except HeadraceError as error:
        error.__traceback__ = None
        error.__cause__ = error.__context__ = None
        outcome = error
    except BaseException as error:  # noqa: BLE001 - the server tells what it was
        outcome = InternalError(f"{type(error).__name__}: {error}")
    answer.send(outcome)
    answer.close()
