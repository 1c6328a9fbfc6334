"""SQL text becomes statements: definitions are parsed here, queries and expressions by sqlglot."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

import pyarrow as pa
from sqlglot import ErrorLevel, exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from headrace.durations import parse_duration
from headrace.errors import HeadraceError, SqlError, near
from headrace.problems import Problems
from headrace.spans import Source, Span
from headrace.sql.create_function import CreateFunction, parse_function
from headrace.sql.dialect import Headrace, tokenize
from headrace.sql.problems import fail, sql_error
from headrace.sql.sql_types import TYPE_NAMES, named_type


@dataclass(frozen=True)
class Option:
    """One `key = value` of a WITH clause."""

    value: Any
    span: Span


@dataclass(frozen=True)
class ColumnDefinition:
    """One column of a CREATE TABLE."""

    name: str
    field: pa.Field
    span: Span
    primary_key: bool = False
    generated: exp.Expr | None = None
    metadata: str | None = None


@dataclass(frozen=True)
class WatermarkDefinition:
    """`WATERMARK FOR column [AS expression]`."""

    column: str
    expression: exp.Expr | None
    span: Span


@dataclass(frozen=True)
class CreateTable:
    """`CREATE [TEMPORARY] TABLE name (…) WITH (…)`, or `… AS SELECT`."""

    name: str
    span: Span
    columns: tuple[ColumnDefinition, ...] = ()
    options: dict[str, Option] = field(default_factory=dict)
    watermark: WatermarkDefinition | None = None
    primary_key: tuple[str, ...] = ()
    partitioned_by: tuple[exp.Expr, ...] = ()
    temporary: bool = False
    has_columns: bool = False
    query: exp.Expr | None = None


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
    """Every statement of a text that can be parsed; what cannot goes to the problems."""
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


_ARGUMENTS = {
    **dict.fromkeys(("DECIMAL", "NUMERIC"), "DECIMAL(p, s) has 38 digits at most, s of them after the point"),
    **dict.fromkeys(
        ("TIMESTAMP", "DATETIME", "TIMESTAMPTZ"), "seconds have 0, 3, 6 or 9 digits: TIMESTAMP(3)"
    ),
}

_TEXTS = (TokenType.STRING, TokenType.HEREDOC_STRING)

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


class StatementParser:
    """A cursor over the tokens of one statement."""

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
        for token in self.tokens[self.at :]:
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

    def unexpected(self, expected: str, hint: str | None = None) -> None:
        if self.current is None:
            last = self.tokens[-1]
            end = Span(self.source, last.end, last.end + 1)
            fail(f"the statement ends where {expected} was expected", end, hint)
        fail(f"expected {expected}, found `{self.current.text}`", self.span(), hint)

    def table_name(self, what: str) -> tuple[str, Token]:
        """The name of a table, whose case does not matter."""
        name, token = self.name(what)
        return name.lower(), token

    def name(self, what: str) -> tuple[str, Token]:
        token = self.current
        if token is None or token.token_type in (TokenType.STRING, TokenType.NUMBER) or not _is_word(token):
            self.unexpected(what)
        if token is None:
            raise AssertionError
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

    # -------------------------------------------------------------------------------- statements

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
        known = ["CREATE", "INSERT", "SELECT", "SET", "WITH"]
        hint = near(word, known) or "a statement begins with CREATE, INSERT, SELECT, WITH or SET"
        raise sql_error(f"`{first.text}` does not begin a statement", self.span(first), hint)

    def _create(self) -> Statement:
        self.take("OR", "REPLACE")
        temporary = self.take("TEMPORARY") or self.take("TEMP")
        if self.take("VIEW"):
            self.take("IF", "NOT", "EXISTS")
            name, token = self.table_name("the name of the view")
            self.defined = name
            columns = tuple(one for one, _ in self._names()) if self.peek("(") else ()
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
        return self._table(name, token, temporary=temporary)

    def _table(self, name: str, token: Token, *, temporary: bool) -> CreateTable:
        has_columns = self.take("(")
        columns, keys, watermark = self._elements() if has_columns else ([], [], None)
        options: dict[str, Option] = {}
        partitioned: tuple[exp.Expr, ...] = ()
        query: exp.Expr | None = None
        while self.current is not None:
            if self.take("WITH"):
                options.update(self.read_options())
            elif self.take("PARTITIONED", "BY"):
                self.expect("(")
                partitioned = self._expressions()
                self.expect(")")
            elif self.take("AS"):
                query = self.query()
            else:
                self.unexpected("`WITH (…)`, `PARTITIONED BY (…)` or `AS SELECT …`")
        seen: dict[str, ColumnDefinition] = {}
        for column in columns:
            if column.name in seen:
                fail(f"column `{column.name}` is declared twice", column.span)
            seen[column.name] = column
        for key, at in keys:
            if key not in seen:
                fail(f"there is no column `{key}` for the primary key", self.span(at), near(key, seen))
        primary = [*(key for key, _ in keys), *(column.name for column in columns if column.primary_key)]
        return CreateTable(
            name=name,
            span=self.span(token),
            columns=tuple(columns),
            options=options,
            watermark=watermark,
            primary_key=tuple(dict.fromkeys(primary)),
            partitioned_by=partitioned,
            temporary=temporary,
            has_columns=has_columns,
            query=query,
        )

    def _elements(
        self,
    ) -> tuple[list[ColumnDefinition], list[tuple[str, Token]], WatermarkDefinition | None]:
        """What stands between the brackets of a CREATE TABLE: columns, the key, the watermark."""
        columns: list[ColumnDefinition] = []
        keys: list[tuple[str, Token]] = []
        watermark: WatermarkDefinition | None = None
        while not self.take(")"):
            if self.peek("WATERMARK", "FOR"):
                if watermark is not None:
                    fail("a table has one watermark at most", self.span())
                watermark = self._watermark()
            elif self.take("PRIMARY", "KEY"):
                keys += self._names()
            elif self.peek("CONSTRAINT") or self.peek("FOREIGN") or self.peek("UNIQUE") or self.peek("CHECK"):
                fail("this constraint is not known", self.span(), "PRIMARY KEY (…) and WATERMARK FOR … are")
            else:
                columns.append(self._column())
            if not self.take(",") and not self.peek(")"):
                self.unexpected("`,` or `)`")
        return columns, keys, watermark

    def _watermark(self) -> WatermarkDefinition:
        first = self.current
        self.at += 2
        name, last = self.name("the column of the watermark")
        expression = None
        if self.take("AS"):
            begin = self.tokens[self.at] if self.current else last
            tokens = self.balanced(",")
            expression = self.parse(tokens, exp.Condition, begin)
            last = self.tokens[self.at - 1]
        return WatermarkDefinition(name, expression, self.span(first, last))

    def _column(self) -> ColumnDefinition:
        name, first = self.name("the name of a column")
        if name in ("_timestamp", "_retract"):
            fail(
                f"`{name}` is a name of the engine",
                self.span(first),
                "name the column otherwise; row_time() is event time",
            )
        if self.current is None or self.peek(",") or self.peek(")"):
            fail(f"column `{name}` has no type", self.span(first), f"write `{name} TEXT`, for example")
        kind, is_json = self.read_type()
        nullable, primary, generated, metadata = True, False, None, None
        while self.at < len(self.tokens) and not (self.peek(",") or self.peek(")")):
            if self.take("NOT", "NULL"):
                nullable = False
            elif self.take("NULL"):
                pass
            elif self.take("PRIMARY", "KEY"):
                primary, nullable = True, False
            elif self.take("GENERATED", "ALWAYS", "AS"):
                self.expect("(")
                generated = self.parse(self.balanced(), exp.Condition, first)
                self.expect(")")
                if not self.take("STORED"):
                    self.take("VIRTUAL")
            elif self.take("METADATA", "FROM"):
                metadata = self._string("the key of the metadata, such as 'timestamp'")
            elif self.take("METADATA", "("):
                metadata = self._string("the key of the metadata, such as 'timestamp'")
                self.expect(")")
            else:
                self.unexpected(
                    "`,` or `)`",
                    "columns are separated by commas; after a type come NOT NULL, PRIMARY KEY, "
                    "GENERATED ALWAYS AS (…), METADATA FROM '…'",
                )
        marks = {b"headrace.json": b"true"} if is_json else None
        column = pa.field(name, kind, nullable=nullable, metadata=marks)
        return ColumnDefinition(name, column, self.span(first), primary, generated, metadata)

    def _string(self, expected: str) -> str:
        token = self.current
        if token is None or token.token_type != TokenType.STRING:
            self.unexpected(expected)
        if token is None:
            raise AssertionError
        self.at += 1
        return token.text

    # -------------------------------------------------------------------------------------- types

    def read_type(self) -> tuple[pa.DataType, bool]:
        first = self.current
        if first is None:
            self.unexpected("a type")
        if first is None:
            raise AssertionError
        name = first.text.upper()
        self.at += 1
        is_json = name in ("JSON", "JSONB")
        if name == "STRUCT":
            kind: pa.DataType | None = self._struct()
        elif name == "ARRAY" and self.take("<"):
            kind = pa.list_(self.read_type()[0])
            self._close_angle()
        else:
            arguments = self._arguments()
            kind = named_type(name, arguments)
            if kind is None and named_type(name, ()) is not None:
                shown = f"{first.text}({', '.join(map(str, arguments))})"
                fail(f"there is no {shown}", self.span(first, self.tokens[self.at - 1]), _ARGUMENTS.get(name))
            if name.startswith("TIMESTAMP") and (
                self.take("WITHOUT", "TIME", "ZONE") or self.take("WITH", "TIME", "ZONE")
            ):
                pass
            if self.take("UNSIGNED"):
                kind = named_type(f"{name} UNSIGNED", ())
        if kind is None:
            fail(
                f"`{first.text}` is not a type",
                self.span(first),
                near(name, TYPE_NAMES)
                or "types are INT, BIGINT, TEXT, TIMESTAMP, DOUBLE, STRUCT<…>, INT[], …",
            )
        while self.take("[", "]"):
            kind = pa.list_(kind)
        return kind, is_json

    def _arguments(self) -> tuple[int, ...]:
        if not self.take("("):
            return ()
        values = []
        while self.current is not None and self.current.token_type == TokenType.NUMBER:
            values.append(int(self.current.text))
            self.at += 1
            if not self.take(","):
                break
        self.expect(")")
        return tuple(values)

    def _struct(self) -> pa.DataType:
        self.expect("<", hint="write STRUCT<name TYPE, …>")
        fields = []
        while True:
            name, _ = self.name("the name of a field")
            self.take(":")
            kind, is_json = self.read_type()
            nullable = not self.take("NOT", "NULL")
            marks = {b"headrace.json": b"true"} if is_json else None
            fields.append(pa.field(name, kind, nullable=nullable, metadata=marks))
            if not self.take(","):
                break
        self._close_angle()
        return pa.struct(fields)

    def _close_angle(self) -> None:
        """`>>` closes two: it is taken apart."""
        token = self.current
        if token is not None and token.text == ">>":
            half = Token(TokenType.GT, ">", token.line, token.col, token.start, token.start)
            other = Token(TokenType.GT, ">", token.line, token.col, token.end, token.end)
            self.tokens = [*self.tokens[: self.at], half, other, *self.tokens[self.at + 1 :]]
        self.expect(">")

    # ------------------------------------------------------------------------------------ options

    def read_options(self) -> dict[str, Option]:
        self.expect("(")
        options: dict[str, Option] = {}
        while not self.take(")"):
            first = self.current
            key = self._option_name()
            span = self.span(first, self.tokens[self.at - 1])
            if not (self.take("=") or self.take("==")):
                self.unexpected("`=`", f"write {key} = 'value'")
            if key in options:
                fail(f"option `{key}` is given twice", span)
            options[key] = Option(self._option_value(key), span)
            if not self.take(",") and not self.peek(")"):
                self.unexpected("`,` or `)`", "options are separated by commas")
        return options

    def _option_name(self) -> str:
        token = self.current
        if token is not None and token.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            self.at += 1
            return token.text
        parts = []
        while True:
            token = self.current
            if token is None or not (_is_word(token) or token.token_type == TokenType.NUMBER):
                self.unexpected("the name of an option")
            if token is None:
                raise AssertionError
            parts.append(token.text.lower())
            self.at += 1
            if not self.take("."):
                return ".".join(parts)

    def _option_value(self, key: str) -> Any:
        token = self.current
        if token is None:
            self.unexpected(f"a value for `{key}`")
        if token is None:
            raise AssertionError
        if self.take("INTERVAL"):
            return self._interval(token)
        if self.take("["):
            values = []
            while not self.take("]"):
                values.append(self._option_value(key))
                if not self.take(",") and not self.peek("]"):
                    self.unexpected("`,` or `]`")
            return values
        if self.take("-"):
            return -self._option_value(key)
        if token.token_type == TokenType.STRING:
            self.at += 1
            return token.text
        if token.token_type == TokenType.NUMBER:
            self.at += 1
            return float(token.text) if re.search(r"[.eE]", token.text) else int(token.text)
        if self.take("TRUE"):
            return True
        if self.take("FALSE"):
            return False
        if not _is_word(token):
            self.unexpected(f"a value for `{key}`", "a text stands in single quotes")
        return self.name(f"a value for `{key}`")[0]

    def _interval(self, first: Token) -> timedelta:
        text = self._string("a duration, such as interval '10 seconds'")
        token = self.current
        if token is not None and _is_word(token) and re.fullmatch(r"\s*[\d.]+\s*", text):
            text = f"{text} {token.text}"
            self.at += 1
        try:
            return parse_duration(text)
        except HeadraceError as error:
            fail(f"`{text}` is not a duration", self.span(first, self.tokens[self.at - 1]), error.hint)

    # ------------------------------------------------------------------------------ insert and set

    def _insert(self) -> Insert:
        self.expect("INTO", hint="write INSERT INTO table SELECT …")
        name, token = self.table_name("the name of a table")
        columns = self._names() if self.peek("(") and not self.peek("(", "SELECT") else []
        if self.current is None:
            self.unexpected("a SELECT")
        spans = tuple(self.span(at) for _, at in columns)
        return Insert(name, self.span(token), self.query(), tuple(one for one, _ in columns), spans)

    def _set(self) -> SetOption:
        name, token = self.name("the name of a setting")
        if not (self.take("=") or self.take("TO")):
            self.unexpected("`=`")
        value = self._option_value(name)
        if self.current is not None:
            self.unexpected("the end of the statement")
        return SetOption(name, value, self.span(token))

    def _names(self) -> list[tuple[str, Token]]:
        self.expect("(")
        names = [self.name("a name")]
        while self.take(","):
            names.append(self.name("a name"))
        self.expect(")")
        return names

    def _expressions(self) -> tuple[exp.Expr, ...]:
        found = []
        while True:
            begin = self.current or self.tokens[-1]
            found.append(self.parse(self.balanced(","), exp.Condition, begin))
            if not self.take(","):
                return tuple(found)

    # ------------------------------------------------------------------------------------ sqlglot

    def query(self) -> exp.Expr:
        """The rest of the statement as a query."""
        rest = list(self.tokens[self.at :])
        first = self.current or self.tokens[-1]
        if not rest:
            self.unexpected("a SELECT")
        self.at = len(self.tokens)
        parsed: exp.Expr = self.parse(rest, None, first)
        if not isinstance(parsed, exp.Query | exp.Values):
            fail("expected a SELECT", self.span(first), "write SELECT … FROM …")
        if isinstance(parsed, exp.Select) and not parsed.expressions:
            fail("SELECT has no columns", self.span(first), "write SELECT * for all of them")
        if rest[-1].text.upper().endswith(("BY", ",")) and rest[-1].token_type != TokenType.IDENTIFIER:
            fail(f"something is missing after `{rest[-1].text}`", self.span(rest[-1]))
        return parsed

    def parse(self, tokens: list[Token], kind: Any, first: Token) -> Any:
        """What sqlglot makes of some tokens; its errors point into the whole text."""
        if not tokens:
            self.at = min(self.at, len(self.tokens))
            self.unexpected("an expression")
        parser = Headrace().parser(error_level=ErrorLevel.IMMEDIATE)
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
        if before is not None and after_name and (keyword := _meant(before)):
            return sql_error(
                f"`{before.text}` is not expected here", self.span(before), f"did you mean {keyword}?"
            )
        message = _describe(description, token)
        return sql_error(
            message, self.span(token), _advice(token, before) if "not expected" in message else None
        )


_KEYWORDS = (
    *(
        "SELECT",
        "FROM",
        "WHERE",
        "GROUP",
        "HAVING",
        "JOIN",
        "LEFT",
        "UNION",
        "INTERVAL",
        "BETWEEN",
        "ORDER",
        "LIMIT",
    ),
    *(
        "BY",
        "ON",
        "AS",
        "AND",
        "OR",
        "NOT",
        "IN",
        "IS",
        "NULL",
        "CASE",
        "WHEN",
        "THEN",
        "ELSE",
        "END",
        "CAST",
    ),
)


def _meant(token: Token) -> str | None:
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
    if keyword := _meant(token):
        return f"did you mean {keyword}?"
    if previous and word not in _KEYWORDS and re.match(r"[\w'\")]", previous[-1]) and re.match(r"\w", word):
        return "a comma or an operator may be missing before it"
    return None


def _is_word(token: Token) -> bool:
    return token.token_type == TokenType.IDENTIFIER or bool(re.fullmatch(r"[^\W\d][\w$]*", token.text))
