"""Errors of the REST API: a status and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

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


def invalid_request(errors: Sequence[Any], model: type[BaseModel] | None) -> str:
    """What is wrong with a request, as one text; `model` is that of its body."""
    return "; ".join(_problem(item, model) for item in errors)


def _problem(item: Any, model: type[BaseModel] | None) -> str:
    path = [str(part) for part in item["loc"] if part not in _LOCATIONS]
    name = f"`{'.'.join(path)}`" if path else "the body"
    if item["type"] == "extra_forbidden":
        fields = [] if not _is_model(model) or len(path) > 1 else list(model.model_fields)  # type: ignore[union-attr]
        near = suggest(path[-1], fields)
        return f"unknown key {name}" if near is None else f"unknown key {name}: {near}"
    if item["type"] == "missing":
        return f"{name} is required"
    if item["type"] == "json_invalid":
        return f"the body is not valid JSON: {item['ctx']['error']}"
    message = describe_problem(item, name)
    if item["type"] in {"literal_error", "enum"}:
        message = f"{message}, got {item['input']!r}"
    near = suggest_value(item)
    return message if near is None else f"{message}: {near}"


def _is_model(model: object) -> bool:
    return isinstance(model, type) and issubclass(model, BaseModel)
