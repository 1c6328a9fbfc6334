"""Builds SELECTs from a user's expressions and records the position of each expression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from headrace.api.arguments import check_mapping
from headrace.api.expressions import Column
from headrace.base.call_site import call_site, text_name
from headrace.base.errors import PlacedError, PlanError, SqlError
from headrace.base.spans import Source, Span
from headrace.model.fragments import quote


class QueryText:
    """A SELECT under construction: generated SQL with the user's expressions in it."""

    def __init__(self, *words: str) -> None:
        self._parts: list[str] = []
        self._length = 0
        self._expressions: list[tuple[int, str]] = []
        for word in words:
            self.add(word)

    def add(self, sql: str) -> QueryText:
        """Append SQL that the API writes."""
        self._parts.append(sql)
        self._length += len(sql)
        return self

    def expression(self, text: str) -> QueryText:
        """Append an expression of the user; a comment at its end does not reach what follows."""
        self._expressions.append((self._length, text))
        return self.add(f"{text}\n")

    @property
    def source(self) -> Source:
        """The SQL for the binder."""
        return Source("<expression>", "".join(self._parts))

    def explained(self) -> Explained:
        """A context in which SQL errors point at the user's line and expression."""
        return Explained(self)

    def explain(self, error: PlacedError, site: str | None) -> PlacedError:
        """The error, located at `site` in the user's program and in the expression."""
        elsewhere = error.where is not None and not error.where.startswith("<expression>")
        message = error.message
        if not any("input." in text for _, text in self._expressions):
            message = message.replace("`input.", "`")  # a name that the user did not write
        located = SqlError(message, hint=_own_functions(error), where=error.where if elsewhere else site)
        located.excerpt, located.offset = error.excerpt if elsewhere else "", error.offset
        for start, text in self._expressions:
            if not elsewhere and start <= error.offset <= start + len(text):
                first = error.offset - start
                width = max(1, error.excerpt.count("^"))
                located.excerpt = Span(Source("", text), first, min(first + width, len(text))).excerpt()
        located.more = tuple(self.explain(other, site) for other in error.more)
        return located


class SqlText(QueryText):
    """A query that the user wrote as a whole."""

    def __init__(self, text: str) -> None:
        super().__init__()
        if not isinstance(text, str):
            raise PlanError(
                f"sql takes a SELECT, got {type(text).__name__} {text!r}",
                hint="such as `sql('SELECT * FROM input')`",
            )
        self._source = Source(text_name(), text)

    @property
    def source(self) -> Source:
        """The SQL for the binder."""
        return self._source

    def explain(self, error: PlacedError, site: str | None) -> PlacedError:
        """The error, located in the user's program; its excerpt already shows the query."""
        if error.where is None or error.where.startswith(self._source.name):
            error.where = site
        error.hint = _own_functions(error)
        for other in error.more:
            self.explain(other, site)
        return error


def _own_functions(error: PlacedError) -> str | None:
    """The hint of an error; if a function is not found, how those of the user are."""
    if error.hint is None and error.message.startswith("there is no function `"):
        return "functions of your own come with the pipeline: `hr.Pipeline('name', udfs=[…])`"
    return error.hint


class Explained:
    """Raises SQL errors again, located in the user's program."""

    def __init__(self, text: QueryText) -> None:
        self._text = text

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, PlacedError):
            raise self._text.explain(error, call_site()) from None


def expression_text(value: Any, columns: list[str], what: str) -> str:
    """An expression as SQL: a string, which may be the exact name of a column, or a `Column`."""
    if isinstance(value, Column):
        return value.sql
    if isinstance(value, str) and value.strip():
        return quote(value) if value in columns else value
    if isinstance(value, list | tuple | set):
        separate = ", ".join(map(repr, value))
        raise PlanError(
            f"{what} takes its columns one by one, got {type(value).__name__} {value!r}",
            hint=f"write `{what}({separate})`, or `{what}(*columns)`",
        )
    raise PlanError(
        f"{what} takes SQL expressions, as strings or made with hr.col(…), got {_described(value)}",
        hint="such as `'amount > 5'` or `hr.col('amount') > 5`",
    )


def add_items(
    text: QueryText,
    columns: Sequence[str | Column | Mapping[str, str | Column]],
    named: Mapping[str, str | Column],
    input_names: list[str],
    method: str,
) -> list[str]:
    """Append the items of a SELECT list; returns the expressions in it."""
    items: list[tuple[str, str | None]] = []
    for column in columns:
        if isinstance(column, Mapping):
            by_name = check_mapping(column, method, f"{method}({{'name': 'a + b'}})")
            items += [(expression_text(value, input_names, method), name) for name, value in by_name.items()]
            continue
        alias = column.name if isinstance(column, Column) else None
        items.append((expression_text(column, input_names, method), alias))
    items += [(expression_text(value, input_names, method), name) for name, value in named.items()]

    for index, (expression, alias) in enumerate(items):
        text.add(", " if index else "")
        if alias is None:
            text.expression(expression)
        else:
            text.add("(").expression(expression).add(f") AS {quote(alias)}")
    return [expression for expression, _ in items]


def _described(value: Any) -> str:
    if callable(value) and not isinstance(value, type):
        return f"the function {getattr(value, '__name__', value)!s} (functions over batches go to `map`)"
    return f"{type(value).__name__} {value!r}"
