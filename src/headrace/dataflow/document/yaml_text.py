"""Parses YAML into a tree of scalars, lists and mappings with their locations.

A scalar stays the text it was written as: what reads it decides whether it is a number, a flag or a text, so
that an id `1` or an output `on` is what the user sees. This is the only module that knows PyYAML.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import yaml

from headrace.base.errors import DataflowError, suggest
from headrace.base.problems import placed
from headrace.base.spans import Source, Span
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.model import span_within

_EMPTY = frozenset({"", "~", "null", "Null", "NULL"})
_FLAGS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_ESCAPES = {"x": 4, "u": 6, "U": 10}
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)+")
"""The anchor and the tag that stand in front of a value."""
_TAG = "tag:yaml.org,2002:"
_MOST = 100_000
"""Values that a document may have once its aliases are written out."""
_LONGEST = 4_000
"""Digits of a number: Python refuses to read more than a few thousand."""


@dataclass(frozen=True)
class Scalar:
    """A scalar as it was written: a string, a number, a boolean or null."""

    text: str
    plain: bool
    """Whether it stands without quotes, so that it may be something else than a text."""
    span: Span

    @property
    def empty(self) -> bool:
        """Whether it is YAML's null: nothing, `~` or `null`."""
        return self.plain and self.text in _EMPTY

    def flag(self) -> bool | None:
        """The flag it is, if it is one."""
        return _FLAGS.get(self.text) if self.plain else None

    def integer(self) -> int | None:
        """The whole number it is, if it is one.

        >>> Scalar("0x1f", plain=True, span=Span(Source("", ""), 0, 0)).integer()
        31
        """
        if not self.plain or len(self.text) > _LONGEST or not _INTEGER.fullmatch(self.text):
            return None
        return int(self.text, {"0x": 16, "0o": 8}.get(self.text[:2], 10))

    def number(self) -> float | None:
        """The number it is, if it is one."""
        return float(self.text) if self.plain and _NUMBER.fullmatch(self.text) else None

    def finite(self) -> float | None:
        """The number it is, if it is one and not too large for one."""
        number = self.number()
        return None if number is None or math.isinf(number) else number

    def value(self) -> Any:
        """What it is by the rules of YAML 1.2, for values that nothing here gives a meaning."""
        if self.empty:
            return None
        for value in (self.flag(), self.integer(), self.number()):
            if value is not None:
                return value
        return self.text

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each character of the text stands in the document.

        Indentation, folded line ends, quotes and escapes are in the document and not in the text.
        """
        raw, at = self.span.source.text, self.span.start
        if raw[at : at + 1] in {"|", ">"} and not self.plain:
            at = raw.find("\n", at) + 1
        quote = raw[at : at + 1] if not self.plain and raw[at : at + 1] in {"'", '"'} else ""
        at += len(quote)
        offsets = []
        for char in self.text:
            width = 1
            if char.isspace() and raw[at : at + 1] != "\\":
                width = 1 if raw[at : at + 1].isspace() else 0
            else:
                while raw[at : at + 1].isspace():
                    at += 1
                if quote == '"' and raw[at : at + 1] == "\\":
                    width = _ESCAPES.get(raw[at + 1 : at + 2], 2)
                elif quote == "'" and char == "'":
                    width = 2
            offsets.append(min(at, self.span.end))
            at += width
        return tuple(offsets)

    def span_of(self, start: int, end: int) -> Span:
        """The place in the document of the characters from `start` to before `end` of the text."""
        return span_within(self.span, self.offsets, start, end)


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[Tree, ...]
    span: Span


@dataclass(frozen=True)
class Fields:
    """A mapping: keys with their values, in the order of the document, each key once."""

    entries: tuple[tuple[Scalar, Tree], ...]
    span: Span

    def entry(self, name: str) -> tuple[Scalar, Tree]:
        """A key and its value."""
        return next(entry for entry in self.entries if entry[0].text == name)


Tree: TypeAlias = "Scalar | Items | Fields"


def plain_value(tree: Tree) -> Any:
    """A tree as dicts, lists and scalars, by the rules of YAML 1.2."""
    if isinstance(tree, Scalar):
        return tree.value()
    if isinstance(tree, Items):
        return [plain_value(item) for item in tree.items]
    return {key.text: plain_value(value) for key, value in tree.entries}


def parse_yaml(source: Source, findings: Findings) -> Tree | None:
    """The tree of a document; None, with an error in the findings, if it is not YAML."""
    try:
        root = yaml.compose(source.text, Loader=yaml.BaseLoader)
        if root is None:
            findings.refuse("the document is empty", Span(source, 0, 0), "begin with `nodes:`")
            return None
        return _Converter(source, findings).convert(root)
    except yaml.YAMLError as error:
        findings.add(_explain(error, source))
    except RecursionError:
        findings.refuse(
            "the document is nested too deeply",
            Span(source, 0, 1),
            "a dataflow is a few levels deep: look for brackets that are not closed",
        )
    except DataflowError as error:
        findings.add(error)
    return None


@dataclass
class _Converter:
    """Makes the tree; aliases become the values they stand for."""

    source: Source
    findings: Findings
    open: set[int] = field(default_factory=set)
    done: dict[int, tuple[Tree, int]] = field(default_factory=dict)
    """By the identity of a node: its tree, and how many values that is with every alias written out."""

    def convert(self, node: yaml.Node) -> Tree:
        tree, size = self._convert(node)
        if size > _MOST:
            raise placed(
                DataflowError,
                f"with its aliases written out the document has more than {_MOST:,} values",
                tree.span,
                "write out what the aliases stand for, and split the document into modules",
            )
        return tree

    def _convert(self, node: yaml.Node) -> tuple[Tree, int]:
        if id(node) in self.done:
            return self.done[id(node)]
        if id(node) in self.open:
            raise placed(
                DataflowError,
                "an alias stands inside of what it is an alias for",
                self._span(node),
                "write the value out",
            )
        self.open.add(id(node))
        if not node.tag.startswith(_TAG) or node.tag.startswith(f"{_TAG}python/"):
            self.findings.refuse(
                f"the tag `{node.tag}` has no meaning here",
                self._span(node),
                "leave it out; put a string that begins with `!` in quotes",
            )
        tree: Tree
        size = 1
        if isinstance(node, yaml.ScalarNode):
            tree = self._scalar(node)
        elif isinstance(node, yaml.SequenceNode):
            parts = [self._convert(item) for item in node.value]
            tree = Items(tuple(part for part, _ in parts), self._span(node))
            size += sum(part for _, part in parts)
        else:
            assert isinstance(node, yaml.MappingNode)
            fields = list(self._entries(node))
            span = fields[0][0].span if fields and not node.flow_style else self._span(node)
            tree = Fields(tuple((key, value) for key, value, _ in fields), span)
            size += sum(part for *_, part in fields)
        self.open.discard(id(node))
        self.done[id(node)] = tree, size
        return self.done[id(node)]

    def _scalar(self, node: yaml.ScalarNode) -> Scalar:
        span = self._span(node)
        if "\0" in node.value:
            raise placed(DataflowError, "a string has a NUL in it", span, "leave out the `\\0`")
        tagged = "!" in self.source.text[node.start_mark.index : span.start]
        return Scalar(node.value, plain=node.style is None and not tagged, span=span)

    def _entries(self, node: yaml.MappingNode) -> Iterator[tuple[Scalar, Tree, int]]:
        """The entries of a mapping, and behind them what `<<` merges into it."""
        seen: dict[str, Scalar] = {}
        merged: list[tuple[Scalar, Tree, int]] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.findings.refuse("a key must be a string, not a list or a mapping", self._span(key_node))
                continue
            key = self._scalar(key_node)
            if key.plain and key.text == "<<":
                merged += self._merged(key, value_node)
                continue
            if key.text in seen:
                line, _ = self.source.position(seen[key.text].span.start)
                self.findings.refuse(
                    f"`{key.text}` is written twice",
                    key.span,
                    f"it stands on line {line} already: keep one of the two",
                )
                continue
            seen[key.text] = key
            yield key, *self._convert(value_node)
        for key, value, size in merged:
            if key.text not in seen:
                seen[key.text] = key
                yield key, value, size

    def _merged(self, key: Scalar, node: yaml.Node) -> Iterator[tuple[Scalar, Tree, int]]:
        tree, size = self._convert(node)
        parts = tree.items if isinstance(tree, Items) else (tree,)
        for part in parts:
            if not isinstance(part, Fields):
                self.findings.refuse(
                    "`<<` merges mappings only",
                    key.span,
                    "give it an alias of a mapping, such as `<<: *defaults`",
                )
                continue
            for name, value in part.entries:
                yield name, value, size

    def _span(self, node: yaml.Node) -> Span:
        start, end = node.start_mark.index, node.end_mark.index
        if properties := _PROPERTIES.match(self.source.text, start, end):
            start = properties.end()
        if isinstance(node, yaml.ScalarNode) and node.style is None:
            # The end of a plain scalar may lie behind the comments and blank lines that follow it.
            end = start + len(self.source.text[start:end].rstrip())
        elif isinstance(node, yaml.CollectionNode) and not node.flow_style:
            end = start + 1
        return Span(self.source, start, end)


_EXPLAINED: tuple[tuple[str, str, str, bool], ...] = (
    (
        r"found character '\\t'",
        "a tab stands where YAML takes spaces only",
        "indent with spaces",
        False,
    ),
    (
        r"found character '(?P<char>.+)' that cannot start",
        "a value cannot begin with `{char}`",
        "put the text in quotes",
        False,
    ),
    (
        r"mapping values are not allowed",
        "a `:` is not expected here",
        "indent this line like its neighbours, and put a string that has `: ` in it in quotes",
        False,
    ),
    (
        r"sequence entries are not allowed|block sequence entries",
        "a `- ` is not expected here",
        "begin the list on a line of its own, below its key",
        False,
    ),
    (
        r"expected ',' or '(?P<char>[\]}}])'",
        "this bracket is not closed",
        "close it with `{char}`, or put a `,` between two values",
        True,
    ),
    (
        r"expected the node content, but found",
        "a value is missing here",
        "write the value, or put a string that begins with a bracket, a comma or `*` in quotes",
        False,
    ),
    (
        r"expected <block end>, but found",
        "this line does not belong to what is above it",
        "keys of one mapping and items of one list stand below each other, in the same column",
        False,
    ),
    (
        r"could not find expected ':'",
        "this is neither a `key: value` nor a `- item`",
        "write `key: value`, with a space after the `:`",
        True,
    ),
    (
        r"found unexpected end of stream|found unexpected document separator",
        "this quote is not closed",
        "close it with the quote it began with",
        True,
    ),
    (
        r"found unknown escape character",
        "this escape is not known",
        "put the text in single quotes, or write `\\\\` for a backslash",
        False,
    ),
    (
        r"but found another document",
        "a second document begins here",
        "one file is one dataflow: put the other one in a file of its own",
        False,
    ),
    (
        r"second occurrence",
        "this anchor is used twice",
        "give each anchor a name of its own",
        False,
    ),
)
"""What PyYAML says, what that means, what to do, and whether the place is where the part began."""


def _explain(error: yaml.YAMLError, source: Source) -> DataflowError:
    """The error of the YAML parser, in terms of the document."""
    if isinstance(error, yaml.reader.ReaderError):
        return placed(
            DataflowError,
            f"the character U+{int(error.character):04X} cannot stand in YAML",
            Span(source, error.position, error.position + 1),
            "delete it; inside double quotes it can be written as an escape",
        )
    if not isinstance(error, yaml.MarkedYAMLError):
        return placed(DataflowError, f"this is not YAML: {error}", Span(source, 0, 1))
    problem = error.problem or ""
    mark = error.problem_mark or error.context_mark
    if alias := re.search(r"found undefined alias '(.+)'", problem):
        anchors = re.findall(r"(?<!\S)&([^\s\[\]{},]+)", source.text)
        message, hint = f"there is no anchor `&{alias[1]}`", suggest(alias[1], anchors)
        return placed(
            DataflowError,
            message,
            _at(source, mark, width=len(alias[1]) + 1),
            hint or "anchors stand before the aliases that use them",
        )
    for pattern, meaning, advice, began in _EXPLAINED:
        if match := re.search(pattern, problem):
            names = match.groupdict()
            return placed(
                DataflowError,
                meaning.format(**names),
                _at(source, (error.context_mark or mark) if began else mark),
                advice.format(**names),
            )
    return placed(DataflowError, f"this is not YAML: {problem}", _at(source, mark))


def _at(source: Source, mark: Any, width: int = 1) -> Span:
    # At the end of the file the last character is pointed at: there is no line behind it.
    at = min(mark.index, max(0, len(source.text.rstrip()) - 1)) if mark is not None else 0
    return Span(source, at, at + width)
