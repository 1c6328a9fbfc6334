"""`CREATE FUNCTION`: a function of the user, written in the SQL text itself or in a shared library.

CREATE FUNCTION discount(price DOUBLE, code TEXT) RETURNS DOUBLE LANGUAGE python AS $$
return price * 0.9 if code == "SPRING" else price
$$;

CREATE FUNCTION twice(BIGINT) RETURNS BIGINT LANGUAGE native AS 'libtwice.so', 'twice';
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sqlglot.tokenizer_core import TokenType

from headrace.base.errors import suggest
from headrace.base.spans import Span
from headrace.sql.parse.table_definition import DefinitionParser, Option
from headrace.sql.problems import fail

LANGUAGES = ("python", "native", "rust")
_TEXTS = (TokenType.STRING, TokenType.HEREDOC_STRING)


@dataclass(frozen=True)
class FunctionBody:
    """The body of a function, after AS: a string and its position."""

    text: str
    span: Span
    is_literal: bool
    """Whether it is in dollars, so that its characters are those of the SQL text."""


@dataclass(frozen=True)
class CreateFunction:
    """`CREATE [AGGREGATE] FUNCTION name (…) RETURNS … LANGUAGE … AS …`."""

    name: str
    span: Span
    language: str
    body: FunctionBody
    arguments: tuple[tuple[str, pa.DataType], ...] | None = None
    """None if the types are those that the source of the function says."""
    returns: pa.DataType | None = None
    columns: tuple[tuple[str, pa.DataType], ...] = ()
    """Of `RETURNS TABLE (…)`."""
    symbol: FunctionBody | None = None
    called_on_null: bool = False
    is_aggregate: bool = False
    options: dict[str, Option] = field(default_factory=dict)


def parse_function(parser: DefinitionParser, *, is_aggregate: bool) -> CreateFunction:
    """What follows FUNCTION."""
    parser.take("IF", "NOT", "EXISTS")
    name, token = parser.name("the name of the function")
    parser.defined = name
    span = parser.span(token)
    arguments = _arguments(parser) if parser.take("(") else None
    clauses: dict[str, Any] = {}
    while parser.current is not None:
        if parser.take("RETURNS", "NULL", "ON", "NULL", "INPUT") or parser.take("STRICT"):
            clauses["called_on_null"] = False
        elif parser.take("CALLED", "ON", "NULL", "INPUT"):
            clauses["called_on_null"] = True
        elif parser.take("RETURNS", "TABLE"):
            clauses["columns"] = _table(parser)
        elif parser.take("RETURNS"):
            clauses["returns"], _ = parser.read_type()
        elif parser.take("LANGUAGE"):
            clauses["language"] = _language(parser)
        elif parser.take("AS"):
            clauses["body"] = _body(parser)
            clauses["symbol"] = _body(parser) if parser.take(",") else None
        elif parser.take("WITH"):
            clauses["options"] = parser.read_options()
        elif not (parser.take("IMMUTABLE") or parser.take("STABLE") or parser.take("VOLATILE")):
            parser.unexpected("`RETURNS`, `LANGUAGE`, `AS` or `WITH (…)`")
    if "body" not in clauses:
        fail(f"function `{name}` has no source", span, "write AS $$ … $$")
    if "language" not in clauses:
        hint = f"write LANGUAGE {', LANGUAGE '.join(LANGUAGES[:-1])} or LANGUAGE {LANGUAGES[-1]}"
        fail(f"function `{name}` does not say its language", span, hint)
    return CreateFunction(
        name=name.lower(), span=span, arguments=arguments, is_aggregate=is_aggregate, **clauses
    )


def _arguments(parser: DefinitionParser) -> tuple[tuple[str, pa.DataType], ...]:
    arguments: list[tuple[str, pa.DataType]] = []
    while not parser.take(")"):
        # `price DOUBLE`, or a type alone, whose next token ends it or belongs to it.
        ahead = parser.tokens[parser.at + 1].text if parser.at + 1 < len(parser.tokens) else ")"
        name = f"arg{len(arguments) + 1}"
        first = parser.current
        if ahead not in (",", ")", "(", "<", "["):
            name, first = parser.name("the name of an argument")
        if name in dict(arguments):
            fail(f"two arguments are called `{name}`", parser.span(first))
        arguments.append((name, parser.read_type()[0]))
        if not parser.take(",") and not parser.peek(")"):
            parser.unexpected("`,` or `)`", "write name TYPE, name TYPE, …")
    return tuple(arguments)


def _table(parser: DefinitionParser) -> tuple[tuple[str, pa.DataType], ...]:
    parser.expect("(")
    columns: dict[str, pa.DataType] = {}
    while not parser.take(")"):
        name, first = parser.name("the name of a column")
        if name in columns:
            fail(f"column `{name}` is declared twice", parser.span(first))
        columns[name] = parser.read_type()[0]
        if not parser.take(",") and not parser.peek(")"):
            parser.unexpected("`,` or `)`")
    if not columns:
        fail("a table has columns", parser.span(), "write RETURNS TABLE (name TYPE, …)")
    return tuple(columns.items())


def _language(parser: DefinitionParser) -> str:
    token = parser.current
    if token is None:
        parser.unexpected("a language")
    parser.at += 1
    name = {"plpython3u": "python", "python3": "python", "c": "native"}.get(
        token.text.lower(), token.text.lower()
    )
    if name not in LANGUAGES:
        hint = suggest(name, LANGUAGES, listing="the languages are")
        fail(f"there is no language `{token.text}` for functions", parser.span(token), hint)
    return name


def _body(parser: DefinitionParser) -> FunctionBody:
    token = parser.current
    if token is None or token.token_type not in _TEXTS:
        parser.unexpected("a string", "write AS $$ … $$, or AS 'file'")
    parser.at += 1
    literal = token.token_type == TokenType.HEREDOC_STRING
    start = token.start + (parser.source.text.index("$", token.start + 1) - token.start + 1 if literal else 1)
    return FunctionBody(token.text, Span(parser.source, start, start + max(1, len(token.text))), literal)
