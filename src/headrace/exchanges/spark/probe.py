"""The self-check of a worker: sent by value, for workers without Headrace and its packages."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import socket
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

UNFIT = "headrace: this worker cannot run tasks: "
"""Begins an error of a worker; its answer follows as JSON."""


class Question:
    """Asks a worker for its host, its Python, versions of modules (None: missing) and access to the state.

    `versions` are those that the driver has, None where any will do. `token` names a file that the driver has
    written to the state directory.
    """

    def __init__(self, versions: Mapping[str, str | None], url: str, token: str) -> None:
        self.versions, self.url, self.token = versions, url, token

    def __call__(self, numbers: Iterable[int]) -> list[dict[str, Any]]:
        """Answer for the worker of a task."""
        for _ in numbers:
            pass  # a worker whose input was not read is not used again
        return [self.answer()]

    def answer(self) -> dict[str, Any]:
        """What this process has, and what it lacks of what it needs."""
        return _examine(self.versions, self.url, self.token)

    def require(self) -> None:
        """Raise an error with the result of the check if this process cannot run tasks of Headrace."""
        answer = self.answer()
        if answer["state"] is not None or None in answer["modules"].values() or answer["differing"]:
            raise RuntimeError(f"{UNFIT}{json.dumps(answer)}")


class RowQuestion:
    """Lets the worker that computes a row answer with JSON, and tell which Headrace it has."""

    def __init__(self, question: Question) -> None:
        self.question = question

    def __call__(self, _row: int) -> str:
        """Answer for the worker of a task."""
        return json.dumps({**self.question.answer(), "package": package_digest()})


def package_digest() -> str | None:
    """A digest of the files of the Headrace that this Python has installed."""
    try:
        package = importlib.import_module("headrace")
    except ImportError:
        return None
    root = Path(str(package.__file__)).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _examine(versions: Mapping[str, str | None], state_url: str, token: str) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "host": socket.gethostname(),
        "python": sys.executable,
        "version": platform.python_version(),
        "modules": {},
        "broken": {},
        "differing": [],
        "state": None,
        "url": state_url,
    }
    for name, wanted in versions.items():
        try:
            module = importlib.import_module(name)
            version = answer["modules"][name] = str(getattr(module, "__version__", "?"))
            if wanted is not None and version.partition(".")[0] != wanted.partition(".")[0]:
                answer["differing"].append(name)
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
        own = f"preflight-{socket.gethostname()}-{os.getpid()}"
        storage.write(own, b"")
        storage.delete(own)
    except Exception as error:  # noqa: BLE001 - told to the driver
        return traceback.format_exception_only(error)[-1].strip().splitlines()[0]
    return None
