"""Errors of the REST API: a status and a sentence."""

from __future__ import annotations

from headrace.base.errors import HeadraceError

_STATUS = {"user": 400, "external": 502, "internal": 500}


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
