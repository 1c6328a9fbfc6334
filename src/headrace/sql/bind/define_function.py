"""Defines the function of a CREATE FUNCTION; errors in its source point into the SQL text."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from headrace.base.errors import ConfigurationError, SqlError
from headrace.base.spans import Span
from headrace.functions import python_source, rust
from headrace.functions.definition import Function
from headrace.functions.native import Library, NativeFunction
from headrace.functions.source_error import SourceError
from headrace.sql.parse.create_function import CreateFunction, FunctionBody
from headrace.sql.problems import fail, sql_error
from headrace.sql.types import type_name


def define_function(statement: CreateFunction) -> Function:
    """The function that a statement creates; raises a SqlError."""
    if statement.language != "python" and (statement.options or statement.columns or statement.is_aggregate):
        what = "options" if statement.options else "rows" if statement.columns else "aggregates"
        hint = "write it in LANGUAGE python"
        fail(f"{what} are for functions in Python", statement.span, hint)
    definers = {"python": _python, "native": _native, "rust": _rust}
    try:
        return definers[statement.language](statement)
    except SqlError:
        raise
    except ConfigurationError as error:
        wrong = [name for name, _ in error.problems if name in statement.options]
        span = statement.options[wrong[0]].span if wrong and wrong[0] is not None else statement.span
        raise sql_error(error.message, span, error.hint) from error


def _python(statement: CreateFunction) -> Function:
    body = statement.body
    source = body.span.source
    line, column = source.position(body.span.start)
    try:
        return python_source.define(
            body.text,
            name=statement.name,
            file=source.name,
            text=source.text,
            line=line,
            column=column - 1,
            arguments=statement.arguments,
            returns=statement.returns,
            columns=statement.columns,
            called_on_null=statement.called_on_null,
            is_aggregate=statement.is_aggregate,
            options={name: option.value for name, option in statement.options.items()},
        )
    except SourceError as error:
        raise _placed(statement, error.message, error.line, error.column, error.hint) from error


def _placed(
    statement: CreateFunction, message: str, line: int | None, column: int, hint: str | None
) -> SqlError:
    """An error at a line and column of the source."""
    body = statement.body
    if line is None or not body.is_literal:
        return sql_error(f"function `{statement.name}`: {message}", statement.span, hint)
    lines = body.text.split("\n")
    line = min(max(line, 1), len(lines))
    offset = sum(len(text) + 1 for text in lines[: line - 1])
    start = body.span.start + offset + min(column - 1, max(0, len(lines[line - 1]) - 1))
    return sql_error(
        f"function `{statement.name}`: {message}", Span(body.span.source, start, start + 1), hint
    )


def _native(statement: CreateFunction) -> Function:
    if statement.arguments is None or statement.returns is None:
        raise sql_error(
            f"function `{statement.name}` does not say its types",
            statement.span,
            f"write CREATE FUNCTION {statement.name}(a BIGINT, …) RETURNS BIGINT LANGUAGE native AS …",
        )
    file = _file(statement.body)
    try:
        library = Library.load(file)
    except ConfigurationError as error:
        raise sql_error(error.message, statement.body.span, error.hint) from error
    symbol = statement.symbol
    try:
        return NativeFunction.make(
            statement.name,
            statement.arguments,
            statement.returns,
            library=library,
            symbol=statement.name if symbol is None else symbol.text,
            nullable=statement.called_on_null,
        )
    except ConfigurationError as error:
        raise sql_error(error.message, (symbol or statement.body).span, error.hint) from error


def _file(body: FunctionBody) -> Path:
    """A file by its path from the working directory, or from that of the SQL file."""
    path = Path(body.text)
    beside = Path(body.span.source.name).parent / path
    return beside if not path.exists() and beside.exists() else path


def _rust(statement: CreateFunction) -> Function:
    body = statement.body
    text = body.text
    if not body.is_literal:
        file = _file(body)
        if not file.is_file():
            raise sql_error(f"there is no file {file}", body.span, "write the source itself in $$ … $$")
        text = file.read_text(encoding="utf-8")
    symbol = statement.name if statement.symbol is None else statement.symbol.text
    try:
        names = [signature.name for signature in rust.read_signatures(text)]
        name = next((name for name in names if name.lower() == symbol.lower()), None)
        if name is None:
            raise sql_error(
                f"the source of `{statement.name}` has no function `{symbol}`",
                statement.span,
                f"it has {', '.join(names)}" if names else f"write fn {symbol}(a: i64) -> i64 {{ … }}",
            )
        (function,) = rust.define(text, {name: statement.name})
    except SourceError as error:
        where = "" if body.is_literal or error.line is None else f"{body.text}, line {error.line}: "
        raise _placed(statement, f"{where}{error.message}", error.line, error.column, error.hint) from error
    _check_types(statement, function)
    return function


def _check_types(statement: CreateFunction, function: NativeFunction) -> None:
    """Check that the types declared in SQL are those of the source."""

    def shown(kinds: tuple[pa.DataType, ...]) -> str:
        return ", ".join(map(type_name, kinds))

    declared = None if statement.arguments is None else tuple(kind for _, kind in statement.arguments)
    if declared is not None and declared != function.arguments:
        fail(
            f"`{statement.name}` is declared with ({shown(declared)}), and its source takes "
            f"({shown(function.arguments)})",
            statement.span,
        )
    if statement.returns is not None and statement.returns != function.returns:
        fail(
            f"`{statement.name}` is declared to return {type_name(statement.returns)}, "
            f"and its source returns {type_name(function.returns)}",
            statement.span,
        )
