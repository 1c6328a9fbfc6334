"""A cursor over the tokens of a statement, and what sqlglot makes of some of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from sqlglot import ErrorLevel, exp
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from headrace.base.errors import SqlError
from headrace.base.spans import Source, Span
from headrace.sql.parse.dialect import HeadraceDialect
from headrace.sql.parse.window_functions import (
    EMIT,
    refuse_unsupported,
    rewrite_group_windows,
    rewrite_window_functions,
    take_emit,
    take_window_functions,
)
from headrace.sql.problems import fail, sql_error

_TEXTS = (TokenType.STRING, TokenType.HEREDOC_STRING)


class Cursor:
    """Reads the tokens of one statement one after the other."""

    def __init__(self, tokens: Sequence[Token], source: Source) -> None:
        self.tokens = tokens
        self.source = source
        self.at = 0
        self.defined: str | None = None
        """What the statement creates, as soon as its name was read."""
        self.is_function = False

    # ------------------------------------------------------------------------------------ tokens

    @property
    def current(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def span(self, first: Token | None = None, last: Token | None = None) -> Span:
        first = first or self.current or self.tokens[-1]
        last = last or first
        return Span(self.source, first.start, last.end + 1)

    def _matching(self, words: tuple[str, ...]) -> int:
        """How many tokens spell these words; 0 if they do not. A token may be several words."""
        left, count = list(words), 0
        for token in self.tokens[self.at : self.at + len(words)]:
            if not left:
                break
            spelled = token.text.upper().split() if token.token_type not in _TEXTS else []
            if not spelled or left[: len(spelled)] != spelled:
                return 0
            left, count = left[len(spelled) :], count + 1
        return 0 if left else count

    def peek(self, *words: str) -> bool:
        return self._matching(words) > 0

    def take(self, *words: str) -> bool:
        count = self._matching(words)
        self.at += count
        return count > 0

    def expect(self, *words: str, hint: str | None = None) -> None:
        if not self.take(*words):
            self.unexpected(f"`{' '.join(words)}`", hint)

    def unexpected(self, expected: str, hint: str | None = None) -> NoReturn:
        if self.current is None:
            last = self.tokens[-1]
            end = Span(self.source, last.end, last.end + 1)
            fail(f"the statement ends where {expected} was expected", end, hint)
        # A string may be a password: the line shows it, if it is none.
        token = "a string" if self.current.token_type == TokenType.STRING else f"`{self.current.text}`"
        fail(f"expected {expected}, found {token}", self.span(), hint)

    def table_name(self, what: str) -> tuple[str, Token]:
        """The name of a table, whose case does not matter."""
        name, token = self.name(what)
        return name.lower(), token

    def name(self, what: str) -> tuple[str, Token]:
        token = self.current
        if token is None or token.token_type in (TokenType.STRING, TokenType.NUMBER) or not is_word(token):
            self.unexpected(what)
        self.at += 1
        quoted = token.token_type == TokenType.IDENTIFIER
        return (token.text if quoted else token.text.lower()), token

    def balanced(self, *stops: str) -> list[Token]:
        """The tokens up to one of `stops` outside brackets, or to the bracket that closes this level."""
        begin, depth = self.at, 0
        while self.current is not None:
            text = self.current.text if self.current.token_type != TokenType.STRING else ""
            if depth == 0 and (text in (")", "]") or text.upper() in stops):
                break
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text, 0)
            self.at += 1
        return list(self.tokens[begin : self.at])

    def string(self, expected: str) -> str:
        token = self.current
        if token is None or token.token_type != TokenType.STRING:
            self.unexpected(expected)
        self.at += 1
        return token.text

    def names(self) -> list[tuple[str, Token]]:
        self.expect("(")
        names = [self.name("a name")]
        while self.take(","):
            names.append(self.name("a name"))
        self.expect(")")
        return names

    def expressions(self) -> tuple[exp.Expr, ...]:
        expressions = []
        while True:
            begin = self.current or self.tokens[-1]
            expressions.append(self.parse(self.balanced(","), exp.Condition, begin))
            if not self.take(","):
                return tuple(expressions)

    # ------------------------------------------------------------------------------------ sqlglot

    def query(self) -> exp.Expr:
        """The rest of the statement as a query."""
        rest = list(self.tokens[self.at :])
        first = self.current or self.tokens[-1]
        if not rest:
            self.unexpected("a SELECT")
        self.at = len(self.tokens)
        refuse_unsupported(rest, self.span)
        rest, emit = take_emit(rest, self.span)
        closes = emit is not None and emit.name == "close"
        rest, calls = take_window_functions(rest, self.span, closes=closes)
        parsed: exp.Expr = self.parse(rest, None, first)
        if not isinstance(parsed, exp.Query | exp.Values):
            fail("expected a SELECT", self.span(first), "write SELECT … FROM …")
        if isinstance(parsed, exp.Select) and not parsed.expressions:
            fail("SELECT has no columns", self.span(first), "write SELECT * for all of them")
        if rest[-1].text.upper().endswith(("BY", ",")) and rest[-1].token_type != TokenType.IDENTIFIER:
            fail(f"something is missing after `{rest[-1].text}`", self.span(rest[-1]))
        parsed, grouped = rewrite_group_windows(parsed)
        calls = {**calls, **grouped}
        query = rewrite_window_functions(parsed, calls, self.span) if calls else parsed
        if emit is not None:
            query.meta[EMIT] = emit
        return query

    def parse(self, tokens: list[Token], kind: Any, first: Token) -> Any:
        """What sqlglot makes of some tokens; its errors point into the whole text."""
        if not tokens:
            self.at = min(self.at, len(self.tokens))
            self.unexpected("an expression")
        parser = HeadraceDialect().parser(error_level=ErrorLevel.IMMEDIATE)
        try:
            if kind is None:
                parsed = parser.parse(tokens, self.source.text)
            else:
                parsed = parser.parse_into(kind, tokens, self.source.text)
        except ParseError as error:
            raise self._parse_error(error, tokens) from None
        return parsed[0]

    def _parse_error(self, error: ParseError, tokens: list[Token]) -> SqlError:
        details = error.errors[0] if error.errors else {}
        inner = details.get("into_expression") and error.__cause__
        if isinstance(inner, ParseError) and inner.errors:
            details = inner.errors[0]
        description = str(details.get("description") or error).strip()
        line, column = details.get("line"), details.get("col")
        token = next((t for t in tokens if (t.line, t.col) == (line, column)), tokens[-1])
        at = tokens.index(token)
        before = tokens[at - 1] if at else None
        # `id FORM orders`: a name before was taken for an alias, and is a keyword.
        after_name = at > 1 and tokens[at - 2].text.upper() not in (*_KEYWORDS, ",", "(")
        if before is not None and after_name and (keyword := _misspelled_keyword(before)):
            return sql_error(
                f"`{before.text}` is not expected here", self.span(before), f"did you mean {keyword}?"
            )
        message = _describe(description, token)
        return sql_error(
            message, self.span(token), _advice(token, before) if "not expected" in message else None
        )


_KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP", "HAVING", "JOIN", "LEFT", "UNION", "INTERVAL", "BETWEEN", "ORDER"),
    *("LIMIT", "BY", "ON", "AS", "AND", "OR", "NOT", "IN", "IS", "NULL", "CASE", "WHEN", "THEN", "ELSE"),
    *("END", "CAST"),
)


def _misspelled_keyword(token: Token) -> str | None:
    """The keyword that a name is nearly."""
    word = token.text.upper()
    if token.token_type == TokenType.STRING or word in _KEYWORDS:
        return None
    return next(iter(difflib.get_close_matches(word, _KEYWORDS, n=1, cutoff=0.75)), None)


def _describe(description: str, token: Token) -> str:
    if match := re.match(r"Expecting (\S+)", description):
        return f"expected `{match.group(1)}` near `{token.text}`"
    if match := re.match(r"Expected (END|THEN)\b", description):
        return f"CASE without {match.group(1)}"
    if description.startswith("Expected table name") and token.text.upper() not in ("FROM", "JOIN"):
        return f"expected a table, found `{token.text}`"
    if description.startswith(("Required keyword", "Expected table name")):
        return f"something is missing after `{token.text}`"
    if description.startswith(("Invalid expression", "Expected")):
        return f"`{token.text}` is not expected here"
    return description.rstrip(".")


def _advice(token: Token, before: Token | None) -> str | None:
    word, previous = token.text.upper(), "" if before is None else before.text.upper()
    if previous in ("GROUP", "ORDER", "PARTITION"):
        return f"write {previous} BY"
    if word in ("SELECT", "INSERT", "CREATE", "WITH"):
        return "a statement ends with `;`"
    if word == ")":
        return "there is no `(` for it"
    if keyword := _misspelled_keyword(token):
        return f"did you mean {keyword}?"
    if previous and word not in _KEYWORDS and re.match(r"[\w'\")]", previous[-1]) and re.match(r"\w", word):
        return "a comma or an operator may be missing before it"
    return None


def is_word(token: Token) -> bool:
    """Whether a token can be a name."""
    return token.token_type == TokenType.IDENTIFIER or bool(re.fullmatch(r"[^\W\d][\w$]*", token.text))
