"""Expressions over columns, which are SQL: `hr.col("amount") * 2 > 10`, `hr.fn.sum("amount")`.

An expression object renders SQL and nothing else: what it means is what the same SQL means.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from headrace.api.arguments import check_argument
from headrace.api.other_names import missing_attribute
from headrace.base.call_site import located
from headrace.base.errors import PlanError
from headrace.model.fragments import literal, quote


class Column:
    """An expression over the columns of a stream; made by `hr.col`, `hr.lit`, `hr.fn` and `hr.expr`.

    The operators `+ - * / %`, `== != < <= > >=`, `& | ~` combine an expression with another one or with a
    Python value. They have the semantics of SQL: `/` of two integers is an integer.

    >>> import headrace as hr
    >>> (hr.col("price") * 2 > 10) & hr.col("name").is_not_null()
    Column((("price" * 2) > 10) AND ("name" IS NOT NULL))
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, sql: str, *, alias: str | None = None) -> None:
        self._sql = sql
        self._alias = alias

    @property
    def sql(self) -> str:
        """The SQL text of the expression, without its alias.

        >>> import headrace as hr
        >>> (hr.col("a") + 1).sql
        '("a" + 1)'
        """
        return self._sql

    @property
    def name(self) -> str | None:
        """The alias, if it has one.

        >>> import headrace as hr
        >>> hr.col("a").alias("b").name
        'b'
        """
        return self._alias

    if not TYPE_CHECKING:  # to a type checker a class with __getattr__ has every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name)

    def __repr__(self) -> str:
        text = self._sql[1:-1] if _is_enclosed(self._sql) else self._sql
        return f"Column({text}{'' if self._alias is None else f' AS {quote(self._alias)}'})"

    @located
    def alias(self, name: str) -> Column:
        """The expression under a name, for `select` and `aggregate`.

        Args:
            name: the name of the column.

        Returns:
            The named expression.

        >>> import headrace as hr
        >>> (hr.col("price") * hr.col("quantity")).alias("total")
        Column("price" * "quantity" AS "total")
        """
        if name == "" or not isinstance(name, str):
            raise PlanError(f"alias takes the name of a column, got {name!r}")
        return Column(self._sql, alias=name)

    @located
    def cast(self, kind: str) -> Column:
        """The value as another SQL type; an alias is kept.

        Args:
            kind: a type of SQL, such as `BIGINT`, `TEXT` or `TIMESTAMP`.

        Returns:
            The cast.

        Raises:
            PlanError: `kind` is not a string.

        >>> import headrace as hr
        >>> hr.col("price").cast("DOUBLE")
        Column(CAST("price" AS DOUBLE))
        """
        if kind == "" or not isinstance(kind, str):
            raise PlanError(
                f"cast takes a type of SQL, got {kind!r}", hint="such as `cast('BIGINT')` or `cast('TEXT')`"
            )
        return Column(f"CAST({self._sql} AS {kind})", alias=self._alias)

    @located
    def field(self, name: str) -> Column:
        """A field of a struct, such as the start of a window.

        Args:
            name: the field.

        Returns:
            The value of the field.

        >>> import headrace as hr
        >>> hr.col("window").field("start")
        Column("window"['start'])
        """
        check_argument(name, "field", (str,), "the name of a field", example="field('start')")
        return Column(f"{self._sql}[{literal(name)}]")

    def is_null(self) -> Column:
        """Whether the value is NULL.

        Returns:
            The condition.

        >>> import headrace as hr
        >>> hr.col("name").is_null()
        Column("name" IS NULL)
        """
        return Column(f"({self._sql} IS NULL)")

    def is_not_null(self) -> Column:
        """Whether the value is not NULL.

        Returns:
            The condition.

        >>> import headrace as hr
        >>> hr.col("name").is_not_null()
        Column("name" IS NOT NULL)
        """
        return Column(f"({self._sql} IS NOT NULL)")

    @located
    def is_in(self, *values: Any) -> Column:
        """Whether the value is one of `values`.

        Args:
            values: expressions or Python values.

        Returns:
            The condition.

        Raises:
            PlanError: no value is given.

        >>> import headrace as hr
        >>> hr.col("shop").is_in("mill", "weir")
        Column("shop" IN ('mill', 'weir'))
        """
        if not values:
            raise PlanError("is_in takes at least one value", hint="such as `is_in('mill', 'weir')`")
        for value in values:
            if isinstance(value, list | tuple | set | frozenset):
                raise PlanError(
                    f"is_in takes its values one by one, got {type(value).__name__} {value!r}",
                    hint="write `is_in('mill', 'weir')`, or `is_in(*values)`",
                )
        return Column(f"({self._sql} IN ({', '.join(_operand(value) for value in values)}))")

    @located
    def between(self, low: Any, high: Any) -> Column:
        """Whether the value is from `low` to `high`, both included.

        Args:
            low: an expression or a Python value.
            high: an expression or a Python value.

        Returns:
            The condition.

        >>> import headrace as hr
        >>> hr.col("price").between(1, 5)
        Column("price" BETWEEN 1 AND 5)
        """
        return Column(f"({self._sql} BETWEEN {_operand(low)} AND {_operand(high)})")

    @located
    def like(self, pattern: str) -> Column:
        """Whether a string matches a pattern, in which `%` is any characters and `_` is one.

        Args:
            pattern: the pattern.

        Returns:
            The condition.

        >>> import headrace as hr
        >>> hr.col("name").like("a%")
        Column("name" LIKE 'a%')
        """
        check_argument(pattern, "like", (str, Column), "a pattern", example="like('a%')")
        return Column(f"({self._sql} LIKE {_operand(pattern)})")

    @located
    def __bool__(self) -> bool:
        raise PlanError(
            f"`{self!r}` has no truth value while the pipeline is composed",
            hint="combine conditions with `&`, `|` and `~`, each in brackets",
        )

    def __add__(self, other: Any) -> Column:
        return self._binary("+", other)

    @located
    def __radd__(self, other: Any) -> Column:
        return lit(other)._binary("+", self)

    def __sub__(self, other: Any) -> Column:
        return self._binary("-", other)

    @located
    def __rsub__(self, other: Any) -> Column:
        return lit(other)._binary("-", self)

    def __mul__(self, other: Any) -> Column:
        return self._binary("*", other)

    @located
    def __rmul__(self, other: Any) -> Column:
        return lit(other)._binary("*", self)

    def __truediv__(self, other: Any) -> Column:
        return self._binary("/", other)

    @located
    def __rtruediv__(self, other: Any) -> Column:
        return lit(other)._binary("/", self)

    def __mod__(self, other: Any) -> Column:
        return self._binary("%", other)

    @located
    def __rmod__(self, other: Any) -> Column:
        return lit(other)._binary("%", self)

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        return self._binary("=", other)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]
        return self._binary("<>", other)

    def __lt__(self, other: Any) -> Column:
        return self._binary("<", other)

    def __le__(self, other: Any) -> Column:
        return self._binary("<=", other)

    def __gt__(self, other: Any) -> Column:
        return self._binary(">", other)

    def __ge__(self, other: Any) -> Column:
        return self._binary(">=", other)

    def __and__(self, other: Any) -> Column:
        return self._binary("AND", other)

    @located
    def __rand__(self, other: Any) -> Column:
        return lit(other)._binary("AND", self)

    def __or__(self, other: Any) -> Column:
        return self._binary("OR", other)

    @located
    def __ror__(self, other: Any) -> Column:
        return lit(other)._binary("OR", self)

    def __invert__(self) -> Column:
        return Column(f"(NOT {self._sql})")

    def __neg__(self) -> Column:
        return Column(f"(- {self._sql})")

    @located
    def _binary(self, operator: str, other: Any) -> Column:
        if other is None:
            hint = "write `.is_null()` or `.is_not_null()`"
            raise PlanError(f"`{operator}` with None is never true", hint=hint)
        return Column(f"({self._sql} {operator} {_operand(other)})")


@located
def col(name: str, *, table: str | None = None) -> Column:
    """A column of a stream by its exact name.

    Args:
        name: the name of the column, not an expression; case-sensitive.
        table: in the condition of a join, the stream of the column: `input` or `other`.

    Returns:
        The column as an expression.

    Raises:
        PlanError: `name` is not a string.

    >>> import headrace as hr
    >>> hr.col("amount") + 1
    Column("amount" + 1)
    >>> hr.col("id", table="input") == hr.col("order_id", table="other")
    Column("input"."id" = "other"."order_id")
    """
    if name == "" or not isinstance(name, str):
        raise PlanError(f"col takes the name of a column, got {name!r}")
    if table is not None:
        check_argument(table, "table", (str,), "the name of a stream in a join", example="table='other'")
    return Column(quote(name) if table is None else f"{quote(table)}.{quote(name)}")


@located
def expr(sql: str) -> Column:
    """A SQL expression as an object, to be combined with others.

    Args:
        sql: the expression.

    Returns:
        The expression.

    Raises:
        PlanError: `sql` is not a string.

    >>> import headrace as hr
    >>> hr.expr("upper(name)") == "MILL"
    Column((upper(name)) = 'MILL')
    """
    if sql == "" or not isinstance(sql, str):
        raise PlanError(f"expr takes a SQL expression, got {sql!r}")
    return Column(f"({sql})")


@located
def lit(value: Any) -> Column:
    """A Python value as an expression.

    Args:
        value: None, a bool, a number, a string, bytes, a date, a datetime or a timedelta. A datetime with a
            time zone is converted to UTC.

    Returns:
        The value as SQL.

    Raises:
        PlanError: SQL has no literal of this type.

    >>> import headrace as hr
    >>> hr.lit("it's")
    Column('it''s')
    """
    return value if isinstance(value, Column) else Column(_literal(value))


def _operand(value: Any) -> str:
    return value.sql if isinstance(value, Column) else _literal(value)


def _literal(value: Any) -> str:  # noqa: PLR0911 - one for each type
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value) if value >= 0 else f"({value})"
    if isinstance(value, float) and math.isfinite(value):
        return f"CAST({value!r} AS DOUBLE)"
    if isinstance(value, Decimal) and value.is_finite():
        scale = max(0, -int(value.as_tuple().exponent))
        return f"CAST({literal(format(value, 'f'))} AS DECIMAL(38, {scale}))"
    if isinstance(value, str):
        return literal(value)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, datetime):
        instant = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return f"TIMESTAMP '{instant.isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, timedelta):
        return interval(value)
    raise PlanError(
        f"SQL has no literal for {type(value).__name__} {value!r}",
        hint="use a bool, a finite number, a string, bytes, a date, a datetime or a timedelta",
    )


def interval(value: timedelta) -> str:
    """A duration as a SQL interval."""
    micros = value // timedelta(microseconds=1)
    return (
        f"INTERVAL '{micros // 10**6} seconds'"
        if micros % 10**6 == 0
        else f"INTERVAL '{micros} microseconds'"
    )


class SqlFunction:
    """A function of SQL that makes expressions; an attribute of `hr.fn`.

    >>> import headrace as hr
    >>> hr.fn.sum
    headrace.fn.sum
    >>> hr.fn.sum("amount")
    Column(sum(amount))
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name

    @located
    def __call__(self, *arguments: Any) -> Column:
        """The call of the function; arguments that are strings are SQL expressions."""
        texts = [value if isinstance(value, str) else _operand(value) for value in arguments]
        if self.__name__.lower() == "count" and not texts:
            texts = ["*"]
        return Column(f"{self.__name__}({', '.join(texts)})")

    def __repr__(self) -> str:
        return f"headrace.fn.{self.__name__}"


class Functions:
    """Every function of SQL as an attribute: `hr.fn.sum("amount")`, `hr.fn.upper("name")`.

    Arguments that are strings are SQL expressions, as everywhere: a string value is `hr.lit("…")`. Functions
    of the user are called in the same way, if the pipeline has them: `hr.Pipeline("name", udfs=[…])`.

    >>> import headrace as hr
    >>> hr.fn.sum("price * quantity").alias("total")
    Column(sum(price * quantity) AS "total")
    >>> hr.fn.count()
    Column(count(*))
    """

    def __getattr__(self, name: str) -> SqlFunction:
        if name.startswith("_"):
            raise AttributeError(name)
        return SqlFunction(name)

    def __dir__(self) -> list[str]:
        from headrace.sql.bind.planning import Planner

        return sorted(name for name in Planner().names if name.isidentifier())

    def __repr__(self) -> str:
        return "headrace.fn"


fn: Final = Functions()
"""The functions of SQL."""


def _is_enclosed(sql: str) -> bool:
    """Whether one pair of brackets is around all of the text."""
    if not sql.startswith("(") or not sql.endswith(")"):
        return False
    depth, quoted = 0, ""
    for index, char in enumerate(sql):
        if quoted:
            quoted = "" if char == quoted else quoted
        elif char in "'\"":
            quoted = char
        else:
            depth += {"(": 1, ")": -1}.get(char, 0)
            if depth == 0 and index < len(sql) - 1:
                return False
    return True
