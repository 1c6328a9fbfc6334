"""Locations in a text of the user, and excerpts with carets."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass
from functools import cached_property

_WIDE = 120
_AROUND = 50


@dataclass(frozen=True)
class Source:
    """A text with the name of its origin: a file, `-`, `-e` or `<sql>`."""

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


_WRITTEN = re.compile(
    r"((?:password|secret|token|credentials|nkey_seed|jwt|api_key)[\w.]*['\"]?\s*[=:]\s*)(['\"])(?!\{\{)(.*?)(\2|$)",
    re.IGNORECASE,
)


def hide_written(line: str) -> str:
    """A line of a program with masked values of options that are secret by their names.

    >>> hide_written("WITH (password = 'hunter2', topic = 't')")
    "WITH (password = '*******', topic = 't')"
    """
    return _WRITTEN.sub(lambda match: f"{match[1]}{match[2]}{'*' * len(match[3])}{match[4]}", line)
