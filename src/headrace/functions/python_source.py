"""User-defined functions whose Python source is embedded in SQL.

The source is a `def` (or `async def`, or a class for an aggregate) of the function's name, with imports and
helpers around it; or only the body of a function, with `return` or `yield`. Its lines keep the numbers that
they have in the surrounding text, so that errors point there.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import keyword
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import cloudpickle
import pyarrow as pa

from headrace.base.errors import ConfigurationError
from headrace.base.options import parse_options
from headrace.functions.aggregate import AccumulatorFunction, AggregateFunction
from headrace.functions.asynchronous import AsyncFunction, AsyncOptions
from headrace.functions.definition import FUNCTIONS, Definition, Function
from headrace.functions.python_stub import UnknownTypesError, evaluate_stub
from headrace.functions.scalar import ScalarFunction
from headrace.functions.source_error import SourceError
from headrace.functions.table import TableFunction, row_dump

_numbers = itertools.count()
_runs_sources: ContextVar[bool] = ContextVar("runs_sources", default=True)


@contextlib.contextmanager
def parsed_only() -> Iterator[None]:
    """Let `define` read the signatures of sources without running anything of them.

    The functions that it returns then do nothing; they can be planned with, not run.
    """
    token = _runs_sources.set(False)
    try:
        yield
    finally:
        _runs_sources.reset(token)


def define(
    source: str,
    *,
    name: str,
    file: str,
    text: str,
    line: int,
    column: int = 0,
    arguments: Sequence[tuple[str, pa.DataType]] | None = None,
    returns: pa.DataType | None = None,
    columns: Sequence[tuple[str, pa.DataType]] = (),
    called_on_null: bool = False,
    is_aggregate: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Function:
    """The function of a source that begins in `text`, the content of `file`, at `line` and `column`.

    Without `arguments` the types are the annotations of its `def`; `columns` are those of a table function.
    """
    parameters = None if arguments is None else [parameter for parameter, _ in arguments]
    tree, indent = _parsed(source, name, parameters)
    _set_positions(tree, line=line, column=column, indent=indent)
    function = _evaluated(tree, name, file, line, typed=arguments is not None)
    sources = ((file, text),)
    if arguments is None:
        try:
            return _annotated(
                function,
                name,
                sources,
                options=options or {},
                is_aggregate=is_aggregate,
                gives_rows=bool(columns) or inspect.isgeneratorfunction(function),
            )
        except (ConfigurationError, NameError) as error:
            unknown = error if isinstance(error, NameError) else error.__cause__
            if _runs_sources.get() or not isinstance(unknown, NameError | AttributeError | TypeError):
                raise
            raise _unknown_types(name, str(unknown), None) from error
    if not inspect.isfunction(function):
        raise SourceError(
            "a class says its types itself",
            hint=f"leave the arguments out: CREATE AGGREGATE FUNCTION {name} …",
        )
    parameter_count = len(inspect.signature(function).parameters)
    if parameter_count != len(arguments):
        raise SourceError(
            f"`{name}` is declared with {len(arguments)} arguments, and its `def` takes {parameter_count}",
            function.__code__.co_firstlineno - line + 1,
        )
    signature = {
        "name": name,
        "arguments": tuple(kind for _, kind in arguments),
        "parameters": tuple(parameter for parameter, _ in arguments),
        "nullable": (called_on_null,) * len(arguments),
        "function": function,
        "sources": sources,
    }
    return _declared(
        signature, function, returns=returns, columns=columns, is_aggregate=is_aggregate, options=options
    )


def _declared(
    signature: dict[str, Any],
    function: Any,
    *,
    returns: pa.DataType | None,
    columns: Sequence[tuple[str, pa.DataType]],
    is_aggregate: bool,
    options: Mapping[str, Any] | None,
) -> Function:
    """A function whose types are declared."""
    name = signature["name"]
    if inspect.iscoroutinefunction(function) and (columns or is_aggregate):
        raise SourceError(
            "it is asynchronous, and gives more than a value for a row", hint="write it with `def`"
        )
    if columns:
        names = [column for column, _ in columns]
        dump = None if len(names) == 1 else row_dump(names, [None] * len(names))
        rows = pa.struct([pa.field(column, kind) for column, kind in columns])
        return TableFunction(**signature, returns=rows, dump=dump, single=len(names) == 1)
    if returns is None:
        raise SourceError("it does not say what it returns", hint="write RETURNS type")
    if inspect.isgeneratorfunction(function):
        raise SourceError("it yields rows", hint="write RETURNS TABLE (name TYPE, …)")
    if is_aggregate:
        return AggregateFunction(**signature, returns=returns)
    if inspect.iscoroutinefunction(function):
        checked = parse_options(AsyncOptions, options or {}, what=f"function `{name}`")
        return AsyncFunction(**signature, returns=returns, options=checked)
    if options:
        raise SourceError(
            f"{', '.join(options)}: only for asynchronous functions", hint="use async def, or await"
        )
    return ScalarFunction(**signature, returns=returns)


def _annotated(
    function: Any,
    name: str,
    sources: tuple[tuple[str, str], ...],
    *,
    options: Mapping[str, Any],
    is_aggregate: bool,
    gives_rows: bool,
) -> Function:
    """A function whose types are its annotations; it may have been decorated."""
    if not isinstance(function, FUNCTIONS):
        definition = Definition(function, name)
        if inspect.isclass(function) or is_aggregate:
            function = definition.aggregate()
        elif gives_rows:
            function = definition.table()
        else:
            function = definition.scalar(options)
    if is_aggregate and not isinstance(function, AggregateFunction | AccumulatorFunction):
        raise SourceError("it is not an aggregate")
    renamed: Function = replace(function, name=name, sources=sources)
    return renamed


def _parsed(source: str, name: str, parameters: Sequence[str] | None) -> tuple[ast.Module, int]:
    """(the source as a module, with a `def` around it if it is only a body; its indentation)."""
    plain, indent = _dedented(source)
    try:
        tree = ast.parse(plain)
    except SyntaxError as error:
        raise SourceError(error.msg, error.lineno, (error.offset or 1) + indent) from None
    if any(getattr(statement, "name", "").lower() == name for statement in tree.body):
        return tree, indent
    if not _is_body(tree):
        hint = f"write `def {name}(…):`, or a body with `return`, `yield` or `raise`"
        raise SourceError(f"it defines no function `{name}`", hint=hint)
    if parameters is None:
        hint = f"write CREATE FUNCTION {name}(a BIGINT, …), or a whole `def`"
        raise SourceError("the arguments have no names and types", hint=hint)
    for parameter in parameters:
        if not parameter.isidentifier() or keyword.iskeyword(parameter):
            raise SourceError(f"`{parameter}` cannot name an argument in Python", hint="choose another name")
    is_async = any(isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in ast.walk(tree))
    wrapper = ast.parse(f"{'async ' if is_async else ''}def {name}({', '.join(parameters)}): ...")
    function = wrapper.body[0]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    function.body = tree.body
    return wrapper, indent


def _dedented(source: str) -> tuple[str, int]:
    """The source without the indentation that its first line of code has, and how deep that is."""
    lines = source.split("\n")
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())]
    return "\n".join(line.removeprefix(indent) for line in lines).rstrip(), len(indent)


def _set_positions(tree: ast.Module, *, line: int, column: int, indent: int) -> None:
    """Shift the line numbers of a syntax tree to those of the surrounding file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.expr):
            node.col_offset += indent + (column if node.lineno == 1 else 0)
            if node.end_col_offset is not None:
                node.end_col_offset += indent + (column if node.end_lineno == 1 else 0)
    ast.increment_lineno(tree, line - 1)


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _is_body(tree: ast.Module) -> bool:
    """Whether it has a `return` or a `yield` of its own, which only a body can have; or does but raise."""
    left: list[ast.AST] = list(tree.body)
    raises = False
    while left:
        node = left.pop()
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom | ast.Await):
            return True
        raises |= isinstance(node, ast.Raise)
        if not isinstance(node, (*_DEFINITIONS, ast.Lambda)):
            left += ast.iter_child_nodes(node)
    return raises and not any(isinstance(statement, _DEFINITIONS) for statement in tree.body)


def _unknown_types(name: str, reason: str, line: int | None) -> SourceError:
    return SourceError(
        f"its types are only known when it runs: {reason}",
        line,
        hint=f"declare them, CREATE FUNCTION {name}(a BIGINT, …) RETURNS …, or run it with --run-functions",
    )


def _evaluated(tree: ast.Module, name: str, file: str, first_line: int, *, typed: bool) -> Any:
    """The function of a source; unless sources are run, one of its signature that does nothing."""
    # A module of its own that is pickled by value: workers do not have it.
    module = types.ModuleType(f"headrace_source_{name}_{next(_numbers)}")
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)
    space = vars(module)
    try:
        code = compile(tree, file, "exec", dont_inherit=True)
        if _runs_sources.get():
            exec(code, space)  # noqa: S102 - the user's own code
        else:
            evaluate_stub(tree, name, file, space, typed=typed)
    except UnknownTypesError as error:
        raise _unknown_types(name, error.reason, error.line - first_line + 1) from None
    except ConfigurationError as error:
        raise SourceError(error.message, hint=error.hint) from error
    except SyntaxError as error:  # such as a `return` outside of a function
        line = None if error.lineno is None else error.lineno - first_line + 1
        raise SourceError(error.msg, line, error.offset or 1) from None
    except Exception as error:
        trace, line = error.__traceback__, None
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == file:
                line = trace.tb_lineno - first_line + 1
            trace = trace.tb_next
        raise SourceError(f"it raised {type(error).__name__}: {error}", line) from error
    return next(value for key, value in space.items() if key.lower() == name)
