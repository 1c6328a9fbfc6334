"""`CREATE TABLE`: columns, types, the key, the watermark and options."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa
from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.durations import parse_duration
from headrace.base.errors import HeadraceError, suggest
from headrace.base.spans import Span
from headrace.sql.parse.cursor import Cursor, is_word
from headrace.sql.problems import fail
from headrace.sql.types import JSON_MARK, TYPE_NAMES, named_type


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
    not_null: bool = False
    """Whether it says so itself; the key of an updating result may be NULL, as that of a group may."""
    is_instant: bool = False
    """Whether it is a TIMESTAMP WITH TIME ZONE; there is one type for both kinds."""
    is_jsonb: bool = False
    """Whether it is JSONB, whose elements are written as PostgreSQL does."""


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
    """Whether it says which columns are read or written; computed ones alone do not."""
    query: exp.Expr | None = None


_ARGUMENTS = {
    **dict.fromkeys(("DECIMAL", "NUMERIC"), "DECIMAL(p, s) has 38 digits at most, s of them after the point"),
    **dict.fromkeys(
        ("TIMESTAMP", "DATETIME", "TIMESTAMPTZ"), "seconds have 0, 3, 6 or 9 digits: TIMESTAMP(3)"
    ),
}


def _case_hint(column: ColumnDefinition) -> str | None:
    """For names that were written with upper-case letters, which only count in quotes."""
    written = column.span.source.text[column.span.start : column.span.end]
    if written == column.name or written.startswith('"'):
        return None
    return f'names without double quotes are lower-cased: write "{written}" if that is another column'


class DefinitionParser(Cursor):
    """Parses definitions of tables: columns, types and options."""

    def table(self, name: str, token: Token, *, temporary: bool) -> CreateTable:
        columns, keys, watermark = self._elements() if self.take("(") else ([], [], None)
        has_columns = any(column.generated is None for column in columns)
        options: dict[str, Option] = {}
        partitioned: tuple[exp.Expr, ...] = ()
        query: exp.Expr | None = None
        while self.current is not None:
            if self.take("WITH"):
                options.update(self.read_options())
            elif self.take("PARTITIONED", "BY"):
                self.expect("(")
                partitioned = self.expressions()
                self.expect(")")
            elif self.take("AS"):
                query = self.query()
            else:
                self.unexpected("`WITH (…)`, `PARTITIONED BY (…)` or `AS SELECT …`")
        seen: dict[str, ColumnDefinition] = {}
        for column in columns:
            if column.name in seen:
                fail(f"column `{column.name}` is declared twice", column.span, _case_hint(column))
            seen[column.name] = column
        for key, at in keys:
            if has_columns and key not in seen:
                fail(f"there is no column `{key}` for the primary key", self.span(at), suggest(key, seen))
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
        """The body of a CREATE TABLE: columns, the primary key, the watermark."""
        columns: list[ColumnDefinition] = []
        keys: list[tuple[str, Token]] = []
        watermark: WatermarkDefinition | None = None
        while not self.take(")"):
            if self.peek("WATERMARK", "FOR"):
                if watermark is not None:
                    fail("a table has one watermark at most", self.span())
                watermark = self._watermark()
            elif self.take("PRIMARY", "KEY"):
                keys += self.names()
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
        if name in (TIMESTAMP, RETRACT):
            fail(
                f"`{name}` is a name of the engine",
                self.span(first),
                "name the column otherwise; row_time() is event time",
            )
        if self.current is None or self.peek(",") or self.peek(")"):
            fail(f"column `{name}` has no type", self.span(first), f"write `{name} TEXT`, for example")
        type_at = self.at
        kind, is_json = self.read_type()
        words = [token.text.upper() for token in self.tokens[type_at : self.at]]
        is_instant = pa.types.is_timestamp(kind) and (words[0] == "TIMESTAMPTZ" or "WITH" in words)
        nullable, not_null, primary, generated, metadata = True, False, False, None, None
        while self.at < len(self.tokens) and not (self.peek(",") or self.peek(")")):
            if self.take("NOT", "NULL"):
                nullable, not_null = False, True
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
                metadata = self.string("the key of the metadata, such as 'timestamp'")
            elif self.take("METADATA", "("):
                metadata = self.string("the key of the metadata, such as 'timestamp'")
                self.expect(")")
            else:
                self.unexpected(
                    "`,` or `)`",
                    "columns are separated by commas; after a type come NOT NULL, PRIMARY KEY, "
                    "GENERATED ALWAYS AS (…), METADATA FROM '…'",
                )
        marks = JSON_MARK if is_json else None
        column = pa.field(name, kind, nullable=nullable, metadata=marks)
        return ColumnDefinition(
            name,
            column,
            self.span(first),
            primary,
            generated,
            metadata,
            not_null,
            is_instant,
            is_jsonb=is_json and words[0] == "JSONB",
        )

    def read_type(self) -> tuple[pa.DataType, bool]:
        first = self.current
        if first is None:
            self.unexpected("a type")
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
                suggest(name, TYPE_NAMES)
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
        fields: list[pa.Field] = []
        while True:
            name, at = self.name("the name of a field")
            if any(field.name == name for field in fields):
                fail(f"field `{name}` is declared twice", self.span(at))
            self.take(":")
            kind, is_json = self.read_type()
            nullable = not self.take("NOT", "NULL")
            marks = JSON_MARK if is_json else None
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
            options[key] = Option(self.option_value(key), span)
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
            if token is None or not (is_word(token) or token.token_type == TokenType.NUMBER):
                self.unexpected("the name of an option")
            parts.append(token.text.lower())
            self.at += 1
            if not self.take("."):
                return ".".join(parts)

    def option_value(self, key: str) -> Any:
        token = self.current
        if token is None:
            self.unexpected(f"a value for `{key}`")
        if self.take("INTERVAL"):
            return self._interval(token)
        if self.take("["):
            values = []
            while not self.take("]"):
                values.append(self.option_value(key))
                if not self.take(",") and not self.peek("]"):
                    self.unexpected("`,` or `]`")
            return values
        if self.take("-"):
            return -self.option_value(key)
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
        if not is_word(token):
            self.unexpected(f"a value for `{key}`", "write a string in single quotes")
        return self.name(f"a value for `{key}`")[0]

    def _interval(self, first: Token) -> timedelta:
        text = self.string("a duration, such as interval '10 seconds'")
        token = self.current
        if token is not None and is_word(token) and re.fullmatch(r"\s*[\d.]+\s*", text):
            text = f"{text} {token.text}"
            self.at += 1
        try:
            return parse_duration(text)
        except HeadraceError as error:
            fail(f"`{text}` is not a duration", self.span(first, self.tokens[self.at - 1]), error.hint)
