"""Values of the environment that a text names as `{{ NAME }}`: used, and never shown."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

SECRET = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
"""The name of a variable in double braces."""

SHORTEST = 4
"""Shorter values are not hidden: they would be found everywhere, and a secret is longer."""


class Secrets:
    """Values that must not be seen; each is shown as the `{{ NAME }}` it came from."""

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
        """The secrets that texts name, as far as the environment has them."""
        names = {name for text in texts for name in SECRET.findall(text)}
        return cls({name: environ[name] for name in sorted(names) if name in environ})

    def hide(self, text: str) -> str:
        """The text with the name in the place of each value.

        >>> Secrets({"PASSWORD": "hunter2"}).hide("postgres://me:hunter2@host")
        'postgres://me:{{ PASSWORD }}@host'
        """
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: f"{{{{ {self._names[match[0]]} }}}}", text)
