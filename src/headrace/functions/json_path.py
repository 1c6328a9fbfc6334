"""JSONPath (RFC 9535): `$.orders[0].id`, `$..price`, `$.items[?@.price < 10].name`.

Names, indexes, slices, wildcards, descendants, several selectors in one bracket, and filters of comparisons,
existence tests, `&&`, `||`, `!` and parentheses. Function extensions, such as `length()`, are not part of it.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from headrace.base.errors import ExpressionError
from headrace.functions.documents import MISSING, JsonNumber

_Selector = Callable[[Any, Any], Iterable[Any]]
"""From a node and the root to the selected children."""
_Term = Callable[[Any, Any], Any]
"""From a node and the root to a value, MISSING if there is none."""
_Test = Callable[[Any, Any], bool]


@dataclass(frozen=True)
class _Segment:
    selectors: tuple[_Selector, ...]
    descends: bool

    def apply(self, nodes: Sequence[Any], root: Any) -> list[Any]:
        if self.descends:
            nodes = [below for node in nodes for below in _descendants(node)]
        return [match for node in nodes for selector in self.selectors for match in selector(node, root)]


@dataclass(frozen=True)
class JsonPath:
    """A compiled path."""

    segments: tuple[_Segment, ...]

    def select(self, node: Any, root: Any) -> list[Any]:
        """The elements that the path leads to from `node`."""
        nodes = [node]
        for segment in self.segments:
            nodes = segment.apply(nodes, root)
        return nodes


@functools.lru_cache(maxsize=1024)
def compile_path(text: str) -> JsonPath:
    """Compile a path that starts at `$`; raises an ExpressionError if it is invalid."""
    return _Parser(text).parse()


def _descendants(node: Any) -> Iterator[Any]:
    yield node
    for child in _children(node):
        yield from _descendants(child)


def _children(node: Any) -> Iterable[Any]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()


def _name(name: str) -> _Selector:
    return lambda node, _: (node[name],) if isinstance(node, dict) and name in node else ()


def _index(index: int) -> _Selector:
    return lambda node, _: (
        (node[index],) if isinstance(node, list) and -len(node) <= index < len(node) else ()
    )


def _slice(cut: slice) -> _Selector:
    return lambda node, _: node[cut] if isinstance(node, list) and cut.step != 0 else ()


def _wildcard(node: Any, _root: Any) -> Iterable[Any]:
    return _children(node)


def _filter(test: _Test) -> _Selector:
    return lambda node, root: [child for child in _children(node) if test(child, root)]


def _comparable(value: Any) -> Any:
    return float(value) if isinstance(value, JsonNumber) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(left: Any, right: Any) -> bool:
    # True == 1 in Python, and not in JSON.
    return bool(isinstance(left, bool) == isinstance(right, bool) and left == right)


def _less(left: Any, right: Any) -> bool:
    ordered = (_is_number(left) and _is_number(right)) or (isinstance(left, str) and isinstance(right, str))
    return bool(ordered and left < right)


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<=": lambda left, right: _less(left, right) or _equal(left, right),
    ">=": lambda left, right: _less(right, left) or _equal(left, right),
    "<": _less,
    ">": lambda left, right: _less(right, left),
}

_BLANK = re.compile(r"[ \t\n\r]*")
_SHORT_NAME = re.compile(r"[^\W\d]\w*")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_SLICE = re.compile(r"(-?\d+)?\s*:\s*(-?\d+)?\s*(?::\s*(-?\d+)?)?")
_INTEGER = re.compile(r"-?\d+")
_LITERAL = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true\b|false\b|null\b")
_COMPARISON = re.compile("|".join(_COMPARISONS))


class _Parser:
    """A recursive-descent parser; `at` is the position in the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def parse(self) -> JsonPath:
        self._blank()
        if not self._accept("$"):
            self._fail("a path starts with `$`")
        path = self._segments()
        self._blank()
        if self.at < len(self.text):
            self._fail("expected `.`, `..` or `[`")
        return path

    def _fail(self, expected: str) -> NoReturn:
        raise ExpressionError(
            f"`{self.text}` is not a JSONPath: {expected} at column {self.at + 1}",
            hint="such as $.name, $.items[0], $['a key'], $..id, $.items[?@.price < 10].name",
        )

    def _blank(self) -> None:
        blank = _BLANK.match(self.text, self.at)
        assert blank is not None
        self.at = blank.end()

    def _accept(self, token: str) -> bool:
        if not self.text.startswith(token, self.at):
            return False
        self.at += len(token)
        return True

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def _segments(self) -> JsonPath:
        segments: list[_Segment] = []
        while True:
            start = self.at
            self._blank()
            descends = self._accept("..")
            if self._accept("["):
                selectors = self._bracketed()
            elif descends or self._accept("."):
                selectors = (self._shorthand(),)
            else:
                self.at = start
                return JsonPath(tuple(segments))
            segments.append(_Segment(selectors, descends))

    def _shorthand(self) -> _Selector:
        if self._accept("*"):
            return _wildcard
        name = self._match(_SHORT_NAME)
        if name is None:
            self._fail("expected a name or `*`")
        return _name(name[0])

    def _bracketed(self) -> tuple[_Selector, ...]:
        selectors: list[_Selector] = []
        while True:
            self._blank()
            selectors.append(self._selector())
            self._blank()
            if self._accept("]"):
                return tuple(selectors)
            if not self._accept(","):
                self._fail("expected `]` or `,`")

    def _selector(self) -> _Selector:
        if self._accept("*"):
            return _wildcard
        if self._accept("?"):
            return _filter(self._either())
        if (quoted := self._match(_QUOTED)) is not None:
            return _name(self._unquoted(quoted[0]))
        if (cut := self._match(_SLICE)) is not None:
            return _slice(slice(*[None if part is None else int(part) for part in cut.groups()]))
        if (index := self._match(_INTEGER)) is None:
            self._fail("expected a name in quotes, an index, a slice, `*` or `?`")
        return _index(int(index[0]))

    def _unquoted(self, quoted: str) -> str:
        body = quoted[1:-1]
        if quoted[0] == "'":
            body = body.replace("\\'", "'").replace('"', '\\"')
        try:
            return str(json.loads(f'"{body}"'))
        except ValueError:
            self._fail("a name in quotes has a wrong escape before")

    def _either(self) -> _Test:
        tests = [self._both()]
        while self._operator("||"):
            tests.append(self._both())
        return tests[0] if len(tests) == 1 else lambda node, root: any(test(node, root) for test in tests)

    def _both(self) -> _Test:
        tests = [self._condition()]
        while self._operator("&&"):
            tests.append(self._condition())
        return tests[0] if len(tests) == 1 else lambda node, root: all(test(node, root) for test in tests)

    def _operator(self, token: str) -> bool:
        self._blank()
        return self._accept(token)

    def _condition(self) -> _Test:
        if self._operator("!"):
            test = self._condition()
            return lambda node, root: not test(node, root)
        if self._operator("("):
            test = self._either()
            if not self._operator(")"):
                self._fail("expected `)`")
            return test
        return self._comparison()

    def _comparison(self) -> _Test:
        left, path = self._term()
        self._blank()
        sign = self._match(_COMPARISON)
        if sign is None:
            if path is None:
                self._fail("expected a comparison")
            return path
        right, _ = self._term()
        compare = _COMPARISONS[sign[0]]
        return lambda node, root: compare(_comparable(left(node, root)), _comparable(right(node, root)))

    def _term(self) -> tuple[_Term, _Test | None]:
        """A side of a comparison, and the test for existence if it is a path."""
        self._blank()
        if (quoted := self._match(_QUOTED)) is not None:
            return _constant(self._unquoted(quoted[0])), None
        if (literal := self._match(_LITERAL)) is not None:
            return _constant(json.loads(literal[0])), None
        if self._accept("@"):
            return _path_term(self._segments(), operator.itemgetter(0))
        if not self._accept("$"):
            self._fail("expected `@`, `$`, a number, a text in quotes, true, false or null")
        return _path_term(self._segments(), operator.itemgetter(1))


def _constant(value: Any) -> _Term:
    return lambda _node, _root: value


def _path_term(path: JsonPath, start: Callable[[tuple[Any, Any]], Any]) -> tuple[_Term, _Test]:
    def value(node: Any, root: Any) -> Any:
        matches = path.select(start((node, root)), root)
        return matches[0] if len(matches) == 1 else MISSING

    def exists(node: Any, root: Any) -> bool:
        return bool(path.select(start((node, root)), root))

    return value, exists
