"""Functions of the user as operators: `stream.call(function, "column", into="result")`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.base.errors import PlanError
from headrace.functions.asynchronous import AsyncFunction
from headrace.functions.native import NativeFunction
from headrace.functions.scalar import ScalarFunction
from headrace.functions.table import TableFunction
from headrace.functions.user import load_udfs
from headrace.model.fragments import Function, plain_type
from headrace.model.operator import ArrowOperator
from headrace.operators.async_call import AsyncCall
from headrace.operators.function_call import FunctionCall
from headrace.operators.table_function import TableFunctionCall

_HINT = "decorate it with @hr.udf, or use `stream.map(…)` for a function over batches"


def call_operator(
    function: Any, columns: Sequence[str], names: Sequence[str], schema: pa.Schema | None
) -> ArrowOperator:
    """The operator that calls a function with columns of each row and names its results."""
    if not hasattr(function, "install") or not hasattr(function, "arguments"):
        what = getattr(function, "__name__", repr(function)) if callable(function) else repr(function)
        raise PlanError(f"call takes a function made with @hr.udf or its like, got {what}", hint=_HINT)
    for column in columns:
        if not isinstance(column, str):
            raise PlanError(f"the arguments of `{function.name}` are names of columns, got {column!r}")
    if isinstance(function, TableFunction):
        if len(names) != len(function.columns):
            raise PlanError(
                f"`{function.name}` gives {len(function.columns)} columns, and {len(names)} are named",
                hint=f"its columns are {', '.join(function.columns.names)}",
            )
        return TableFunctionCall(
            function, columns, columns=dict(zip(function.columns.names, names, strict=True))
        )
    if len(names) != 1:
        raise PlanError(f"`{function.name}` gives one column, and {len(names)} are named")
    if isinstance(function, AsyncFunction):
        if schema is None:
            raise PlanError(
                f"`{function.name}` is asynchronous, and rows that wait for it are kept in the checkpoint",
                hint="say which columns they have: stream.call(…, schema=pa.schema([…]))",
            )
        return AsyncCall(function, {names[0]: tuple(columns)}, schema=schema)
    if isinstance(function, ScalarFunction | NativeFunction):
        return FunctionCall(function, columns, output=names[0])
    raise PlanError(
        f"`{function.name}` is an aggregate, and cannot be called for a row",
        hint="call it in `group_by(…).aggregate(…)`, with hr.Pipeline(…, udfs=[…])",
    )


def call_schema(function: Function, names: Sequence[str], schema: pa.Schema | None) -> pa.Schema | None:
    """The columns of the rows with the results of a call, if those of the rows are known."""
    if schema is None:
        return None
    types: Sequence[pa.DataType]
    if isinstance(function, TableFunction):
        types = function.columns.types
    elif isinstance(function, ScalarFunction | NativeFunction | AsyncFunction):
        types = [function.returns]
    else:
        return None
    fields = {field.name: field for field in schema}
    fields |= {name: pa.field(name, plain_type(kind)) for name, kind in zip(names, types, strict=True)}
    return pa.schema(list(fields.values()))


def load_functions(functions: Iterable[Function | str | Path]) -> tuple[Function, ...]:
    """Functions, and those that files and modules define."""
    if isinstance(functions, str | Path):
        functions = [functions]
    if not isinstance(functions, Iterable):
        raise _not_functions(functions)
    loaded = [
        load_udfs(item) if isinstance(item, str | Path) else [_check_function(item)] for item in functions
    ]
    return tuple(function for several in loaded for function in several)


def _check_function(item: Function) -> Function:
    if not callable(getattr(item, "install", None)):
        raise _not_functions(item)
    return item


def _not_functions(value: object) -> PlanError:
    return PlanError(
        f"`udfs` takes functions made with @hr.udf or its like, and files of them, got {value!r}",
        hint="decorate it with @hr.udf",
    )
