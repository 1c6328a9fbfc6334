"""Locations in the user's SQL or YAML, and excerpts with carets."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass
from functools import cached_property

_WIDE = 120
_AROUND = 50


@dataclass(frozen=True)
class Source:
    """A script and the name of its origin: a file, `-`, `-e` or `<sql>`."""

    name: str
    text: str

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(index + 1 for index, char in enumerate(self.text) if char == "\n")]

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of a character, both from 1."""
        line = bisect.bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def line(self, number: int) -> str:
        """The text of a line, without its end."""
        return self.text.splitlines()[number - 1] if self.text.splitlines()[number - 1 :] else ""


@dataclass(frozen=True)
class Span:
    """The characters from `start` to before `end` of a source."""

    source: Source
    start: int
    end: int

    @property
    def where(self) -> str:
        """`file.sql:3:14`."""
        line, column = self.source.position(self.start)
        return f"{self.source.name}:{line}:{column}"

    def excerpt(self) -> str:
        """The line, and carets below the span; passwords in it are masked.

        >>> print(Span(Source("a.sql", "select x"), 7, 8).excerpt())
          1 | select x
            |        ^
        """
        number, column = self.source.position(self.start)
        line = hide_written(self.source.line(number))
        width = max(1, min(self.end - self.start, len(line) - column + 1))
        before = line[: column - 1]
        if len(line) > _WIDE:
            # Of a long line only the part around the span is shown.
            before = before if len(before) <= _AROUND else "…" + before[-_AROUND:]
            width = min(width, _WIDE - _AROUND)
            after = line[column - 1 :]
            visible = after[: max(width, _WIDE - len(before))]
            line = before + visible + ("…" if len(visible) < len(after) else "")
        indent = "".join("\t" if char == "\t" else " " for char in before)
        margin = str(number)
        return f"  {margin} | {line}\n  {' ' * len(margin)} | {indent}{'^' * width}"


_HIDDEN_NAMES = (
    r"pas+w|secret|token|credential|authorization|nkey|seed|jwt|api[_-]?key|access_key|"
    r"headers|client_configs|settings|storage\.|subscription_message|\b(?:key|body|options)\w?\b"
)
_WRITTEN = re.compile(
    rf"((?:{_HIDDEN_NAMES})[\w.-]*['\"`]?\s*)(?:([=:>\s]+)(['\"])(.*?)(\3|$)|(:\s+)()([^'\"\s].*?)($))",
    re.IGNORECASE | re.MULTILINE,
)
"""`name = 'value'` in SQL and Python, `name: value` in YAML."""
_IN_ADDRESS = r"(?:\{\{[^'\"]*?\}\}|[^\s'\"?])"
_USER = re.compile(r"(://)((?:\{\{[^'\"]*?\}\}|[^/@\s'\"])+)(?=@)")
_QUERY = re.compile(rf"(://{_IN_ADDRESS}*\?)({_IN_ADDRESS}+)")
"""The user and the query of an address may hold a password or a key."""
_REFERENCE_OR_CHARACTER = re.compile(r"(\{\{.*?\}\})|.")


def hide_written(text: str) -> str:
    """A program, or a line of it, with masked values of options that are secret by their names.

    What is shown keeps its length; `{{ NAME }}` stays.

    >>> hide_written("WITH (password = 'hunter2', topic = 't')")
    "WITH (password = '*******', topic = 't')"
    >>> hide_written("url = 'postgresql://ada:hunter2@host:5432/shop?sslpassword=x'")
    "url = 'postgresql://***********@host:5432/shop?*************'"
    >>> hide_written("token: {{ TOKEN }}")
    'token: {{ TOKEN }}'
    """

    def mask_value(match: re.Match[str]) -> str:
        name, *rest = match.groups()
        sign, quote, value, end = rest[:4] if rest[0] is not None else rest[4:]
        return f"{name}{sign}{quote}{_mask(value)}{end}"

    def mask_part(match: re.Match[str]) -> str:
        return f"{match[1]}{_mask(match[2])}"

    return _QUERY.sub(mask_part, _USER.sub(mask_part, _WRITTEN.sub(mask_value, text)))


def _mask(value: str) -> str:
    return _REFERENCE_OR_CHARACTER.sub(lambda match: match[1] or "*", value)
