"""Lines of a log: text or JSON, with the pipeline, the epoch and the operator that they are about."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from headrace.base.errors import HeadraceError, InternalError, PlacedError
from headrace.base.log_context import current_log_context
from headrace.base.secrets import Secrets
from headrace.base.spans import hide_written

ROOT = "headrace"
"""The logger above all areas."""


class JsonFormatter(logging.Formatter):
    """A JSON object for each event; `fields` are in every line. Secrets are masked."""

    def __init__(self, secrets: Secrets, **fields: object) -> None:
        super().__init__()
        self._secrets = secrets
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        """The line of an event."""
        fields = {**self._fields, **current_log_context(), **getattr(record, "fields", {})}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        area = record.name.removeprefix(f"{ROOT}.")
        level = record.levelname.lower()
        return _line(record.created, level, area, record.getMessage(), fields, self._secrets)


class ContextFormatter(logging.Formatter):
    """A line of text for each event, with its time, area, epoch and operator. Secrets are masked."""

    def __init__(self, secrets: Secrets) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s%(context)s: %(message)s")
        self._hide = secrets.hide

    def format(self, record: logging.LogRecord) -> str:
        """The line of an event."""
        named = ", ".join(f"{name} {value}" for name, value in current_log_context().items())
        record.context = f" ({named})" if named else ""
        return self._hide(super().format(record))


def error_lines(error: BaseException, *, pipeline: str | None, secrets: Secrets) -> Iterator[str]:
    """An error that ends a run, as JSON: a line for each problem."""
    more = error.more if isinstance(error, PlacedError) else ()
    for problem in (error, *more):
        is_known = isinstance(problem, HeadraceError)
        is_bug = not is_known or isinstance(problem, InternalError)
        fields = {
            "code": "internal" if is_bug else getattr(problem, "code", None),
            "where": getattr(problem, "where", None),
            "hint": getattr(problem, "hint", None),
            "operator": getattr(problem, "operator_id", None),
            "epoch": getattr(problem, "epoch", None),
            "traceback": getattr(problem, "traceback_text", None) or None,
            "log_file": getattr(problem, "log_file", None),
        }
        message = (
            problem.message if isinstance(problem, HeadraceError) else f"{type(problem).__name__}: {problem}"
        )
        yield _line(time.time(), "error", "run", message, {"pipeline": pipeline, **fields}, secrets)


def _line(
    at: float, level: str, area: str, message: str, fields: Mapping[str, object], secrets: Secrets
) -> str:
    """One line of JSON; secrets are masked before a quote in one is written as two characters."""

    def hidden(value: object) -> object:
        return hide_written(secrets.hide(value)) if isinstance(value, str) else value

    written = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {"time": written, "level": level, "area": area, "message": message, **fields}
    shown = {name: hidden(value) for name, value in line.items() if value is not None}
    return secrets.hide(json.dumps(shown, default=str, ensure_ascii=False))
