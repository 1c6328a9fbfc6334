"""The SQL dialect: what users of Arroyo write, in sqlglot's terms.

Expressions are parsed only to find names in them and are written back for DataFusion as they were: no
function is translated into another, so each means what DataFusion says it means.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.dialects.postgres import Postgres
from sqlglot.generators.postgres import PostgresGenerator
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import Token, TokenType


def _call(name: str) -> Any:
    def build(_: Any, this: exp.Expr, argument: exp.Expr) -> exp.Expr:
        made = exp.Anonymous(this=name, expressions=[this, argument])
        for key in ("line", "col", "start", "end"):
            for part in (argument, this):
                if key in part.meta:
                    made.meta[key] = part.meta[key]
        return made

    return build


class Headrace(Dialect):
    """Postgres' grammar, DataFusion's names."""

    NULL_ORDERING = "nulls_are_large"
    TYPED_DIVISION = True
    SAFE_DIVISION = False
    INDEX_OFFSET = 0
    STRICT_STRING_CONCAT = True

    class Tokenizer(Postgres.Tokenizer):
        """`session` is a function here, not a keyword."""

        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            **{key: kind for key, kind in Postgres.Tokenizer.KEYWORDS.items() if key != "SESSION"},
            "==": TokenType.EQ,
        }
        HEX_STRINGS: ClassVar[list[Any]] = [("x'", "'"), ("X'", "'")]

    class Parser(PostgresParser):
        """Functions keep their names; JSON operators become calls."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: PostgresParser.FUNCTION_PARSERS[name]
            for name in ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "TRIM", "TRY_CAST")
        }
        COLUMN_OPERATORS: ClassVar[dict[TokenType, Any]] = {
            **PostgresParser.COLUMN_OPERATORS,
            TokenType.ARROW: _call("json_get"),
            TokenType.DARROW: _call("json_as_text"),
            TokenType.PLACEHOLDER: _call("json_contains"),
        }

        def _parse_interval(self, *args: Any, **options: Any) -> Any:
            first = self._curr
            made = super()._parse_interval(*args, **options)
            if isinstance(made, exp.Interval):
                made.meta.update(line=first.line, col=first.col, start=first.start, end=self._prev.end)
            return made

        EXPONENT: ClassVar[dict[TokenType, Any]] = {}
        BITWISE: ClassVar[dict[TokenType, Any]] = {
            **PostgresParser.BITWISE,
            TokenType.CARET: exp.BitwiseXor,
        }

    class Generator(PostgresGenerator):
        """Writes for DataFusion's parser."""

        TRANSFORMS: ClassVar[dict[Any, Any]] = {
            **PostgresGenerator.TRANSFORMS,
            exp.BitwiseXor: lambda self, e: self.binary(e, "^"),
            exp.TryCast: lambda self, e: self.cast_sql(e, safe_prefix="TRY_"),
        }

        TYPE_MAPPING: ClassVar[dict[Any, str]] = {
            **PostgresGenerator.TYPE_MAPPING,
            exp.DataType.Type.UTINYINT: "TINYINT UNSIGNED",
            exp.DataType.Type.USMALLINT: "SMALLINT UNSIGNED",
            exp.DataType.Type.UINT: "INT UNSIGNED",
            exp.DataType.Type.UBIGINT: "BIGINT UNSIGNED",
            exp.DataType.Type.TINYINT: "TINYINT",
            exp.DataType.Type.DOUBLE: "DOUBLE",
            exp.DataType.Type.FLOAT: "FLOAT",
            exp.DataType.Type.VARBINARY: "BYTEA",
            exp.DataType.Type.BINARY: "BYTEA",
            exp.DataType.Type.JSON: "TEXT",
            exp.DataType.Type.JSONB: "TEXT",
        }

        def ignorenulls_sql(self, expression: exp.IgnoreNulls) -> str:
            return f"{self.sql(expression, 'this')} IGNORE NULLS"

        def respectnulls_sql(self, expression: exp.RespectNulls) -> str:
            return f"{self.sql(expression, 'this')} RESPECT NULLS"

        def array_sql(self, expression: exp.Array) -> str:
            return f"[{self.expressions(expression, flat=True)}]"

        def bracket_sql(self, expression: exp.Bracket) -> str:
            this = self.sql(expression, "this")
            if isinstance(expression.this, exp.Anonymous | exp.Array):
                this = f"({this})"
            return f"{this}[{self.expressions(expression, flat=True)}]"


def to_sql(expression: exp.Expr) -> str:
    """The expression as text for DataFusion, functions in the case they were written in."""
    return expression.sql(dialect=Headrace, normalize_functions=False, comments=False)


def tokenize(text: str) -> list[Token]:
    """The tokens of a text, with their positions."""
    found = list(Headrace().tokenize(text))
    return [_as_name(token) if _is_name(found, index) else token for index, token in enumerate(found)]


def _is_name(found: list[Token], index: int) -> bool:
    """Whether `window` is a name, and not the clause `WINDOW w AS (…)`."""
    if found[index].token_type != TokenType.WINDOW:
        return False
    return [token.text.upper() for token in found[index + 2 : index + 4]] != ["AS", "("]


def _as_name(token: Token) -> Token:
    return Token(
        TokenType.VAR, token.text, token.line, token.col, token.start, token.end, list(token.comments)
    )
