"""Errors of the REST API: a status and a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError

from headrace.base.errors import HeadraceError, suggest
from headrace.base.option_errors import describe_problem, suggest_value

_STATUS = {"user": 400, "external": 502, "internal": 500}
_LOCATIONS = ("body", "query", "path", "header")
"""Where FastAPI looks for a value; the name alone says enough."""


class RequestError(Exception):
    """A request that cannot be answered, with the status that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def not_found(what: str, name: str) -> RequestError:
    """The error for an unknown id."""
    return RequestError(404, f"there is no {what} `{name}`")


def status_of(error: HeadraceError) -> int:
    """The HTTP status of an error, by its domain."""
    return _STATUS[error.domain]


def sentence(error: HeadraceError) -> str:
    """An error as one text: the message, its place and what to do."""
    parts = [error.message]
    if error.where:
        parts.append(f"at {error.where}")
    text = " ".join(parts)
    return f"{text}; {error.hint}" if error.hint else text


def request_problems(error: RequestValidationError, keys: Sequence[str]) -> str:
    """What is wrong with a request, without its values; `keys` are those that its body may have."""
    return "; ".join(_problem(item, keys) for item in error.errors())


def _problem(item: Any, keys: Sequence[str]) -> str:
    kind, (part, *location) = item["type"], item["loc"]
    name = "`" + ".".join(map(str, location)) + "`"
    if kind == "json_invalid":
        return f"the body is no JSON: {item['ctx']['error']} at character {location[0] + 1}"
    if kind == "missing":
        return f"{name} is missing" if location else "the request has no body; send a JSON object"
    if not location:
        return "the body is a JSON object, sent with `content-type: application/json`"
    if kind == "extra_forbidden":
        near = suggest(str(location[0]), keys, listing="there are") if len(location) == 1 else None
        return f"there is no {name}" + (f": {near}" if near else "")
    text = describe_problem(item, name if part == "body" else f"the parameter {name}")
    near = suggest_value(item)
    return f"{text}: {near}" if near else text


def method_problem(method: str, path: str, methods: Iterable[str]) -> str:
    """What is wrong with a request whose method a path does not have."""
    return f"{method} is not possible at {path}; {' and '.join(sorted(methods))} can be asked for"
