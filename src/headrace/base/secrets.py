"""Environment variables that a program refers to as `{{ NAME }}`; their values are masked in all output."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote

SECRET = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
"""The name of a variable in double braces."""

SHORTEST = 4
"""Shorter values are not hidden: they would match everywhere, and a secret is longer."""


class Secrets:
    """Values that must not be shown; each is replaced by the `{{ NAME }}` that refers to it."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        written = {
            form: name
            for name, value in (values or {}).items()
            if len(value) >= SHORTEST
            for form in (
                value,
                repr(value)[1:-1],
                json.dumps(value)[1:-1],
                quote(value),
                quote(value, safe=""),
            )
        }
        self._names = written
        # The longest first: one secret may begin with another.
        forms = sorted(written, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, forms))) if forms else None

    @classmethod
    def named_in(cls, texts: Iterable[str], environ: Mapping[str, str] = os.environ) -> Secrets:
        """The secrets that these programs refer to, if they are set in the environment."""
        names = {name for text in texts for name in SECRET.findall(text)}
        return cls({name: environ[name] for name in sorted(names) if name in environ})

    def hide(self, text: str) -> str:
        """The string with each secret value replaced by its name.

        >>> Secrets({"PASSWORD": "hunter2"}).hide("postgres://me:hunter2@host")
        'postgres://me:{{ PASSWORD }}@host'
        """
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: f"{{{{ {self._names[match[0]]} }}}}", text)


@contextmanager
def hidden_in_logs(secrets: Secrets) -> Iterator[None]:
    """Within the context, hide secrets in what Headrace logs."""

    def hide(record: logging.LogRecord) -> bool:
        record.msg, record.args = secrets.hide(record.getMessage()), ()
        return True

    log = logging.getLogger("headrace")
    log.addFilter(hide)
    try:
        yield
    finally:
        log.removeFilter(hide)
