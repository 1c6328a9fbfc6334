"""Parses SQL into statements: definitions here, queries and expressions by sqlglot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlglot import exp
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from headrace.base.errors import SqlError, suggest
from headrace.base.problems import Problems
from headrace.base.spans import Source, Span
from headrace.sql.parse.create_function import CreateFunction, parse_function
from headrace.sql.parse.dialect import tokenize
from headrace.sql.parse.table_definition import CreateTable, DefinitionParser
from headrace.sql.problems import fail, sql_error


@dataclass(frozen=True)
class CreateView:
    """`CREATE VIEW name AS SELECT`."""

    name: str
    span: Span
    query: exp.Expr
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Insert:
    """`INSERT INTO table [(columns)] SELECT`."""

    table: str
    span: Span
    query: exp.Expr
    columns: tuple[str, ...] = ()
    column_spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class BrokenDefinition:
    """A CREATE that cannot be read: its name is known, so that its uses are no further mistakes."""

    name: str
    is_function: bool = False


@dataclass(frozen=True)
class SelectStatement:
    """A bare SELECT: its result is shown."""

    query: exp.Expr
    span: Span


@dataclass(frozen=True)
class SetOption:
    """`SET name = value`."""

    name: str
    value: Any
    span: Span


Statement: TypeAlias = (
    "BrokenDefinition | CreateFunction | CreateTable | CreateView | Insert | SelectStatement | SetOption"
)


def parse_statements(source: Source, problems: Problems) -> list[tuple[Source, Statement]]:
    """Every statement of a script that can be parsed; errors are added to the problems."""
    try:
        tokens = tokenize(source.text)
    except TokenError as error:
        problems.add(_token_error(error, source))
        return []
    statements: list[tuple[Source, Statement]] = []
    for chunk in _chunks(tokens):
        parser = StatementParser(chunk, source)
        try:
            statements.append((source, parser.statement()))
        except SqlError as error:
            problems.add(error)
            if parser.defined is not None:
                statements.append((source, BrokenDefinition(parser.defined, parser.is_function)))
    return statements


def _chunks(tokens: Sequence[Token]) -> list[list[Token]]:
    chunks: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            chunks.append([])
        else:
            chunks[-1].append(token)
    return [chunk for chunk in chunks if chunk]


def _token_error(error: TokenError, source: Source) -> SqlError:
    opened = _unclosed(source.text)
    if opened is None:
        return sql_error(str(error), None)
    what, end = _CLOSED_BY[source.text[opened]]
    return sql_error(f"this {what} is never closed", Span(source, opened, opened + 1), f"close it with {end}")


_CLOSED_BY = {"'": ("text", "'"), '"': ("name", '"'), "/": ("comment", "*/"), "$": ("text", "the same $$")}


def _unclosed(text: str) -> int | None:
    """Where a quote or a comment begins that never ends."""
    pattern = re.compile(
        r"'(?:[^']|'')*('|\Z)|\"(?:[^\"]|\"\")*(\"|\Z)|--[^\n]*|/\*.*?(\*/|\Z)"
        r"|(?P<dollars>\$\w*\$).*?((?P=dollars)|\Z)",
        re.DOTALL,
    )
    for match in pattern.finditer(text):
        if match.end() == len(text) and any(group == "" for group in match.groups()):
            return match.start()
    return None


_REFUSED = {
    "EXPLAIN": "run `headrace explain FILE`",
    "DESCRIBE": "run `headrace explain FILE`",
    "ANALYZE": None,
    "COPY": "write a table with a connector and INSERT INTO it",
    "DELETE": "a stream has no rows to delete; an updating result retracts them",
    "UPDATE": "a stream has no rows to update; an updating result changes them",
    "DROP": "leave the definition out of the file",
    "ALTER": "change the definition in the file",
    "MERGE": None,
    "TRUNCATE": None,
}


class StatementParser(DefinitionParser):
    """Reads one statement."""

    def statement(self) -> Statement:
        """The statement that the tokens are."""
        first = self.tokens[0]
        word = first.text.upper()
        if self.take("CREATE"):
            return self._create()
        if self.take("INSERT"):
            return self._insert()
        if self.take("SET"):
            return self._set()
        if word in ("SELECT", "WITH", "(", "VALUES", "FROM"):
            return SelectStatement(self.query(), self.span(first))
        if word in _REFUSED:
            fail(f"{word} is not a statement of streaming SQL", self.span(first), _REFUSED[word])
        keywords = ["CREATE", "INSERT", "SELECT", "SET", "WITH"]
        hint = suggest(word, keywords) or "a statement begins with CREATE, INSERT, SELECT, WITH or SET"
        raise sql_error(f"`{first.text}` does not begin a statement", self.span(first), hint)

    def _create(self) -> Statement:
        self.take("OR", "REPLACE")
        temporary = self.take("TEMPORARY") or self.take("TEMP")
        if self.take("VIEW"):
            self.take("IF", "NOT", "EXISTS")
            name, token = self.table_name("the name of the view")
            self.defined = name
            columns = tuple(column for column, _ in self.names()) if self.peek("(") else ()
            self.expect("AS")
            return CreateView(name, self.span(token), self.query(), columns)
        if self.take("MATERIALIZED", "VIEW"):
            at = self.span(self.tokens[self.at - 2])
            self.defined, _ = self.table_name("the name of the view")
            fail("materialized views do not exist here", at, "write CREATE VIEW, or a table with a connector")
        is_aggregate = self.take("AGGREGATE")
        if self.take("FUNCTION"):
            self.is_function = True
            return parse_function(self, is_aggregate=is_aggregate)
        if not self.take("TABLE"):
            self.unexpected("`TABLE`, `VIEW` or `FUNCTION`")
        self.take("IF", "NOT", "EXISTS")
        name, token = self.table_name("the name of the table")
        self.defined = name
        return self.table(name, token, temporary=temporary)

    def _insert(self) -> Insert:
        self.expect("INTO", hint="write INSERT INTO table SELECT …")
        name, token = self.table_name("the name of a table")
        columns = self.names() if self.peek("(") and not self.peek("(", "SELECT") else []
        if self.current is None:
            self.unexpected("a SELECT")
        spans = tuple(self.span(at) for _, at in columns)
        return Insert(name, self.span(token), self.query(), tuple(column for column, _ in columns), spans)

    def _set(self) -> SetOption:
        name, token = self.name("the name of a setting")
        if not (self.take("=") or self.take("TO")):
            self.unexpected("`=`")
        value = self.option_value(name)
        if self.current is not None:
            self.unexpected("the end of the statement")
        return SetOption(name, value, self.span(token))
