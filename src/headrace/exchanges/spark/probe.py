"""What a worker says about itself: sent by value, for workers that have neither Headrace nor its packages."""

from __future__ import annotations

import importlib
import os
import platform
import socket
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Any


class Question:
    """Asks a worker for its host, its Python, versions of modules (None: missing) and access to the state.

    `token` names a file that the driver has written to the state directory.
    """

    def __init__(self, modules: Sequence[str], url: str, token: str) -> None:
        self.modules, self.url, self.token = modules, url, token

    def __call__(self, numbers: Iterable[int]) -> list[dict[str, Any]]:
        """Answer for the worker of a task."""
        for _ in numbers:
            pass  # a worker whose input was not read is not used again
        return [_examine(self.modules, self.url, self.token)]


def _examine(modules: Sequence[str], state_url: str, token: str) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "host": socket.gethostname(),
        "python": sys.executable,
        "version": platform.python_version(),
        "modules": {},
        "broken": {},
        "state": None,
    }
    for name in modules:
        try:
            module = importlib.import_module(name)
            answer["modules"][name] = str(getattr(module, "__version__", "?"))
        except ImportError as error:
            answer["modules"][name] = None
            if getattr(error, "name", None) != name:
                answer["broken"][name] = f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001 - told to the driver
            answer["modules"][name] = None
            answer["broken"][name] = f"{type(error).__name__}: {error}"
    if None not in answer["modules"].values():
        answer["state"] = _state_problem(state_url, token)
    return answer


def _state_problem(url: str, token: str) -> str | None:
    from headrace.storage.open import open_storage

    try:
        storage = open_storage(url)
        if not storage.exists(token):
            return "a file that the driver has written there is missing"
        own = f"{token}-{socket.gethostname()}-{os.getpid()}"
        storage.write(own, b"")
        storage.delete(own)
    except Exception as error:  # noqa: BLE001 - told to the driver
        return traceback.format_exception_only(error)[-1].strip().splitlines()[0]
    return None
