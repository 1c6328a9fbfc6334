"""The SQL dialect: what users of Arroyo write, in sqlglot's terms.

Expressions are parsed only to find names in them and are written back for DataFusion as they were: no
function is translated into another, so each means what DataFusion says it means.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.dialects.postgres import Postgres
from sqlglot.generators.postgres import PostgresGenerator
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import Token, TokenType

IS_NOT = "is_not"
"""The key in the `meta` of a NOT that was written `x IS NOT …`; of rows that is not `NOT (x IS …)`."""


def copy_position(node: exp.Expr | None, copy: exp.Expr) -> None:
    """Let errors about `copy` point at the place in the text where `node` is written."""
    if node is not None:
        keys = ("line", "col", "start", "end")
        copy.meta.update({key: node.meta[key] for key in keys if key in node.meta})


def _call(name: str) -> Any:
    def build(_: Any, this: exp.Expr, argument: exp.Expr) -> exp.Expr:
        call = exp.Anonymous(this=name, expressions=[this, argument])
        copy_position(argument, call)
        copy_position(this, call)
        return call

    return build


TIME_UNIT_CALLS: Final = {"timestampadd": 2, "timestampdiff": 2, "floor_to": 1, "ceil_to": 1}
"""Functions whose first argument is a unit of time, a text; how many arguments follow it."""


def _parse_unit_call(parser: Any) -> exp.Expr:
    """`timestampdiff(DAY, a, b)`: the unit is a word, and no column."""
    name = parser._tokens[parser._index - 2]  # noqa: SLF001 - in front of the bracket
    arguments = parser._parse_csv(parser._parse_disjunction)  # noqa: SLF001 - what parsers of sqlglot call
    if arguments and isinstance(arguments[0], exp.Column) and len(arguments[0].parts) == 1:
        unit = exp.Literal.string(arguments[0].name)
        copy_position(arguments[0].this, unit)
        arguments[0] = unit
    return _positioned(exp.Anonymous(this=name.text, expressions=arguments), name)


def _parse_rounding(parser: Any) -> exp.Expr:
    """`floor(x)`, or `floor(ts TO DAY)`."""
    name = parser._tokens[parser._index - 2]  # noqa: SLF001 - in front of the bracket
    arguments = parser._parse_csv(parser._parse_lambda)  # noqa: SLF001 - what parsers of sqlglot call
    if len(arguments) == 1 and parser._match_text_seq("TO"):  # noqa: SLF001 - what parsers of sqlglot call
        unit = parser._parse_var(any_token=True)  # noqa: SLF001 - what parsers of sqlglot call
        text = exp.Literal.string("" if unit is None else unit.name)
        text.meta.update(_position(parser._prev))  # noqa: SLF001 - what parsers of sqlglot call
        called = "floor_to" if name.text.lower() == "floor" else "ceil_to"
        return _positioned(exp.Anonymous(this=called, expressions=[text, *arguments]), name)
    return _positioned(exp.Anonymous(this=name.text, expressions=arguments), name)


def _position(token: Token) -> dict[str, int]:
    return {"line": token.line, "col": token.col, "start": token.start, "end": token.end}


def _positioned(call: exp.Anonymous, token: Token) -> exp.Anonymous:
    call.meta.update(_position(token))
    return call


class HeadraceDialect(Dialect):
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
            "MATCH_CONDITION": TokenType.MATCH_CONDITION,
        }
        HEX_STRINGS: ClassVar[list[Any]] = [("x'", "'"), ("X'", "'")]

    class Parser(PostgresParser):
        """Functions keep their names; JSON operators become calls."""

        TABLE_ALIAS_TOKENS: ClassVar[set[TokenType]] = PostgresParser.TABLE_ALIAS_TOKENS - {
            TokenType.MATCH_CONDITION
        }
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: PostgresParser.FUNCTION_PARSERS[name]
            for name in ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "TRIM", "TRY_CAST")
        } | {
            "SAFE_CAST": PostgresParser.FUNCTION_PARSERS["TRY_CAST"],
            **dict.fromkeys(("TIMESTAMPADD", "TIMESTAMPDIFF"), _parse_unit_call),
            **dict.fromkeys(("FLOOR", "CEIL", "CEILING"), _parse_rounding),
        }
        COLUMN_OPERATORS: ClassVar[dict[TokenType, Any]] = {
            **PostgresParser.COLUMN_OPERATORS,
            TokenType.ARROW: _call("json_get"),
            TokenType.DARROW: _call("json_as_text"),
        }

        LAMBDAS: ClassVar[dict[TokenType, Any]] = {
            # `->` is an operator of JSON, in the arguments of a function too.
            token: parse
            for token, parse in PostgresParser.LAMBDAS.items()
            if token != TokenType.ARROW
        }

        def _parse_interval(self, *args: Any, **options: Any) -> Any:
            first = self._curr
            interval = super()._parse_interval(*args, **options)
            if isinstance(interval, exp.Interval):
                interval.meta.update(line=first.line, col=first.col, start=first.start, end=self._prev.end)
            return interval

        def _parse_interval_span(self, this: Any, *args: Any, **options: Any) -> Any:
            interval = super()._parse_interval_span(this, *args, **options)
            is_cut = this is not None and this.is_string and interval.this is not this
            if is_cut and not exp.INTERVAL_STRING_RE.fullmatch(this.name):
                interval.set("this", this)  # of '1 day 12:30' it has read the day alone
                interval.set("unit", None)
            return interval

        def _parse_is(self, this: exp.Expr | None) -> exp.Expr | None:
            tested = super()._parse_is(this)
            if isinstance(tested, exp.Not):
                tested.meta[IS_NOT] = True
            return tested

    class Generator(PostgresGenerator):
        """Writes for DataFusion's parser."""

        TRANSFORMS: ClassVar[dict[Any, Any]] = {
            **PostgresGenerator.TRANSFORMS,
            exp.BitwiseXor: lambda self, e: self.binary(e, "^"),
            exp.TryCast: lambda self, e: self.cast_sql(e, safe_prefix="TRY_"),
        }

        def nullsafeneq_sql(self, expression: exp.NullSafeNEQ) -> str:
            return self._in_parentheses(expression, super().nullsafeneq_sql(expression))

        def nullsafeeq_sql(self, expression: exp.NullSafeEQ) -> str:
            return self._in_parentheses(expression, super().nullsafeeq_sql(expression))

        @staticmethod
        def _in_parentheses(expression: exp.Expr, text: str) -> str:
            """DataFusion takes all that follows `IS DISTINCT FROM` for its right side, `AND` too."""
            return f"({text})" if isinstance(expression.parent, exp.Binary | exp.Unary) else text

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

        def distinct_sql(self, expression: exp.Distinct) -> str:
            """Several arguments behind DISTINCT are arguments, not a row: `string_agg(DISTINCT a, ',')`."""
            if isinstance(expression.parent, exp.Anonymous | exp.Order) and not expression.args.get("on"):
                return f"DISTINCT {self.expressions(expression, flat=True)}"
            return super().distinct_sql(expression)

        def array_sql(self, expression: exp.Array) -> str:
            return f"[{self.expressions(expression, flat=True)}]"

        def bracket_sql(self, expression: exp.Bracket) -> str:
            this = self.sql(expression, "this")
            if isinstance(expression.this, exp.Anonymous | exp.Array):
                this = f"({this})"
            return f"{this}[{self.expressions(expression, flat=True)}]"


def to_sql(expression: exp.Expr) -> str:
    """The expression as text for DataFusion, functions in the case they were written in."""
    return expression.sql(dialect=HeadraceDialect, normalize_functions=False, comments=False)


def tokenize(text: str) -> list[Token]:
    """The tokens of a text, with their positions."""
    tokens = list(HeadraceDialect().tokenize(text))
    return [_as_name(token) if _is_name(tokens, index) else token for index, token in enumerate(tokens)]


def _is_name(tokens: list[Token], index: int) -> bool:
    """Whether `window` is a name, and not the clause `WINDOW w AS (…)`."""
    if tokens[index].token_type != TokenType.WINDOW:
        return False
    return [token.text.upper() for token in tokens[index + 2 : index + 4]] != ["AS", "("]


def _as_name(token: Token) -> Token:
    return Token(
        TokenType.VAR, token.text, token.line, token.col, token.start, token.end, list(token.comments)
    )
