"""User-defined functions for SQL: the decorators, and loading functions from files and modules.

    @headrace.udf
    def discount(price: float, code: str | None) -> float:
        return price * 0.9 if code == "SPRING" else price

A scalar function is called for each row. Its annotations are its types (`headrace.functions.annotations`).
Where an argument is NULL and its annotation is not `X | None`, the function is not called and the result is
NULL. An `async def` is called for many rows at a time.

A function whose arguments are all annotated `list[X]` is an aggregate: it is called once for each group, with
all values of the group. `list[X]` skips the rows in which such an argument is NULL, `list[X | None]` keeps
them. (To take arrays row by row instead, annotate `Annotated[list[int], pa.list_(pa.int64())]`.)

To DataFusion the functions are volatile: every call in a query is evaluated for every row, and none while
planning.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
import traceback
import types
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, overload

import cloudpickle
import pyarrow as pa

from headrace.base.call_site import located
from headrace.base.errors import ConfigurationError, suggest
from headrace.functions.aggregate import AccumulatorFunction, AggregateFunction
from headrace.functions.asynchronous import AsyncFunction, AsyncOptions
from headrace.functions.definition import FUNCTIONS, Definition, Function
from headrace.functions.native import Library, NativeFunction
from headrace.functions.rust import load_rust
from headrace.functions.scalar import ScalarFunction
from headrace.functions.table import TableFunction

__all__ = [
    "AccumulatorFunction",
    "AggregateFunction",
    "AsyncFunction",
    "Function",
    "NativeFunction",
    "ScalarFunction",
    "TableFunction",
    "async_udf",
    "get_include",
    "load_udfs",
    "native_udf",
    "udaf",
    "udf",
    "udtf",
]

OnError = Literal["fail", "null"]


@overload
def udf(function: Callable[..., Any], /) -> Function: ...


@overload
def udf(
    *,
    name: str | None = None,
    arguments: Sequence[pa.DataType] | None = None,
    returns: pa.DataType | None = None,
    vectorized: bool = False,
    ordered: bool | None = None,
    timeout: str | float | timedelta | None = None,
    max_in_flight: int | None = None,
    allowed_in_flight: int | None = None,
    retries: int | None = None,
    on_error: OnError | None = None,
) -> Callable[[Callable[..., Any]], Function]: ...


@located
def udf(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    arguments: Sequence[pa.DataType] | None = None,
    returns: pa.DataType | None = None,
    vectorized: bool = False,
    **options: Any,
) -> Function | Callable[[Callable[..., Any]], Function]:
    """Make a function callable from SQL: `@udf`, or `@udf(name="another_name")`.

    A function over pyarrow's arrays takes and returns whole batches, NULLs included. Its types are those of
    its annotations, `def double(values: pa.Int64Array) -> pa.Int64Array`, or of the arguments of `udf`:

        @udf(arguments=[pa.int64()], returns=pa.int64(), vectorized=True)
        def double(values):
            return pc.multiply(values, 2)

    Calls of an `async def` run concurrently, at most `max_in_flight` (or `allowed_in_flight`) in a subtask. A
    call that exceeds `timeout` or raises is retried up to `retries` times; then `on_error` decides whether
    the run fails or the result is NULL. With `ordered`, the order of rows is kept.

    Args:
        function: annotated with the types of its arguments and of its result.
        name: its name in SQL; by default its own name.
        arguments: the types of its arguments, with `vectorized`.
        returns: the type of its result, with `vectorized`.
        vectorized: whether it takes Arrow arrays.
        options: for an `async def`: `ordered`, `timeout`, `max_in_flight`, `retries`, `on_error`.

    Returns:
        The function for SQL, which can still be called.

    Raises:
        ConfigurationError: its types are not declared, or have no SQL type.

    >>> import headrace as hr
    >>> @hr.udf
    ... def double(value: int) -> int:
    ...     return value * 2
    >>> double(4)
    8
    """
    define = functools.partial(
        _define, name=name, arguments=arguments, returns=returns, vectorized=vectorized, options=options
    )
    return define if function is None else define(function)


@overload
def async_udf(function: Callable[..., Any], /) -> AsyncFunction: ...


@overload
def async_udf(
    *,
    name: str | None = None,
    ordered: bool = False,
    timeout: str | float | timedelta = ...,
    max_in_flight: int = ...,
    retries: int = ...,
    on_error: OnError = ...,
) -> Callable[[Callable[..., Any]], AsyncFunction]: ...


@located
def async_udf(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any
) -> AsyncFunction | Callable[[Callable[..., Any]], AsyncFunction]:
    """Make an `async def` callable from SQL: like `@udf`, but a plain `def` is an error.

    Args:
        function: an `async def`, annotated.
        name: its name in SQL.
        options: `ordered`, `timeout`, `max_in_flight`, `retries`, `on_error`: see `udf`.

    Returns:
        The function for SQL.

    Raises:
        ConfigurationError: it is not asynchronous, or its types are not declared.

    >>> import headrace as hr
    >>> @hr.async_udf(timeout="2s", on_error="null")
    ... async def rate(currency: str) -> float:
    ...     return 1.0
    >>> rate.name
    'rate'
    """
    define = functools.partial(_define_async, name=name, options=options)
    return define if function is None else define(function)


@overload
def udaf(function: Callable[..., Any], /) -> AggregateFunction | AccumulatorFunction: ...


@overload
def udaf(
    *, name: str | None = None
) -> Callable[[Callable[..., Any]], AggregateFunction | AccumulatorFunction]: ...


@located
def udaf(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None
) -> (
    AggregateFunction
    | AccumulatorFunction
    | Callable[[Callable[..., Any]], AggregateFunction | AccumulatorFunction]
):
    """Make an aggregate callable from SQL: a function over all values of a group, or an accumulator.

    The arguments of a function are all `list[X]`, and the rows of a group are kept in state. An accumulator
    is a class whose annotated fields are its state:

        @udaf
        class Mean:
            total: float = 0.0
            count: int = 0

            def update(self, value: float) -> None: ...
            def merge(self, other: "Mean") -> None: ...    # optional
            def retract(self, value: float) -> None: ...   # optional
            def finish(self) -> float | None: ...

    With `merge`, its state is kept instead of the rows, and rows are pre-aggregated where they are read. With
    `retract`, this holds for updating inputs too, whose rows may be retracted.

    Args:
        function: a function over lists, or the class of an accumulator.
        name: its name in SQL.

    Returns:
        The aggregate for SQL.

    Raises:
        ConfigurationError: its types are not declared, or a method is missing.

    >>> import headrace as hr
    >>> @hr.udaf
    ... def spread(values: list[int]) -> int:
    ...     return max(values) - min(values)
    >>> spread.name
    'spread'
    """
    if function is None:
        return lambda decorated: Definition(decorated, name).aggregate()
    return Definition(function, name).aggregate()


@overload
def udtf(function: Callable[..., Any], /) -> TableFunction: ...


@overload
def udtf(*, name: str | None = None) -> Callable[[Callable[..., Any]], TableFunction]: ...


@located
def udtf(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None
) -> TableFunction | Callable[[Callable[..., Any]], TableFunction]:
    """Make a generator of rows callable from SQL, in FROM: `FROM pages, words(pages.text) AS w (word)`.

        @udtf
        def words(text: str) -> Iterator[str]:
            yield from text.split()

    Rows of several columns are tuples, `Iterator[tuple[str, int]]`, or, with names, a NamedTuple.

    Args:
        function: a generator, annotated.
        name: its name in SQL.

    Returns:
        The function for SQL.

    Raises:
        ConfigurationError: its types are not declared.

    >>> import headrace as hr
    >>> from collections.abc import Iterator
    >>> @hr.udtf
    ... def words(text: str) -> Iterator[str]:
    ...     yield from text.split()
    >>> words.name
    'words'
    """
    if function is None:
        return lambda decorated: Definition(decorated, name).table()
    return Definition(function, name).table()


@located
def native_udf(
    name: str,
    *,
    library: str | Path,
    arguments: Sequence[pa.DataType],
    returns: pa.DataType,
    symbol: str | None = None,
    nullable: bool = False,
) -> NativeFunction:
    """Make a function of a shared library callable from SQL; `headrace_function.h` is its interface.

    The function is not called for rows with a NULL argument, unless it is `nullable`.

    Args:
        name: its name in SQL.
        library: the file.
        arguments: the types of its arguments.
        returns: the type of its result.
        symbol: its name in the library; by default `name`.
        nullable: whether it is also called for rows in which an argument is NULL.

    Returns:
        The function for SQL.

    Raises:
        ConfigurationError: there is no such file, or it has no such function.

    >>> import headrace as hr, pyarrow as pa
    >>> try:
    ...     hr.native_udf("area", library="missing.so", arguments=[pa.float64()], returns=pa.float64())
    ... except hr.UserError as error:
    ...     print(error.message)
    there is no shared library at missing.so
    """
    named = [(f"arg{index + 1}", kind) for index, kind in enumerate(arguments)]
    return NativeFunction.make(
        name.lower(),
        named,
        returns,
        library=Library.load(Path(library)),
        symbol=symbol or name,
        nullable=nullable,
    )


def get_include() -> str:
    """The directory of `headrace_function.h`, for a C compiler: `cc -I …`.

    Returns:
        The path.

    >>> import headrace as hr
    >>> from pathlib import Path
    >>> (Path(hr.get_include()) / "headrace_function.h").is_file()
    True
    """
    return str(Path(__file__).parent / "include")


def _define(
    function: Callable[..., Any],
    *,
    name: str | None,
    arguments: Sequence[pa.DataType] | None,
    returns: pa.DataType | None,
    vectorized: bool,
    options: dict[str, Any],
) -> Function:
    definition = Definition(function, name)
    unknown = [
        option for option in options if option not in (*AsyncOptions.model_fields, "allowed_in_flight")
    ]
    if unknown:
        raise definition.wrong(f"there is no option `{unknown[0]}`", "see help(headrace.udf)")
    call_options = {key: value for key, value in options.items() if value is not None}
    if vectorized:
        return definition.over_arrays(arguments, returns)
    if arguments is not None or returns is not None:
        raise definition.wrong(
            "`arguments` and `returns` are for functions over Arrow arrays",
            "add vectorized=True, or leave them out and annotate the function",
        )
    return definition.scalar(call_options)


def _define_async(
    function: Callable[..., Any], *, name: str | None, options: dict[str, Any]
) -> AsyncFunction:
    definition = Definition(function, name)
    defined = definition.scalar(options)
    if not isinstance(defined, AsyncFunction):
        raise definition.wrong("it is not asynchronous", "write it with `async def`, or use @udf")
    return defined


# ------------------------------------------------------------------------------------ files and modules

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@located
def load_udfs(path: str | Path) -> list[Function]:
    """The functions of a Python file, of a Python module (`package.module`), or of a Rust file, in order.

    Files written for Arroyo load unchanged: `from arroyo_udf import udf` gives this module's. The functions
    of a file, and what they use from it, are pickled by value, so workers do not need the file.

    Args:
        path: the file, or the name of the module.

    Returns:
        The functions.

    Raises:
        ConfigurationError: there is no such file, or it has no functions.

    >>> import headrace as hr
    >>> try:
    ...     hr.load_udfs("missing.py")
    ... except hr.ConfigurationError as error:
    ...     print(error.message)
    there is no file missing.py with functions
    """
    if not isinstance(path, str | Path):
        raise ConfigurationError(
            f"load_udfs takes a file or the name of a module, got {type(path).__name__} {path!r}"
        )
    file = Path(path)
    if file.suffix == ".rs" and file.is_file():
        return list(load_rust(file))
    if not file.is_file():
        if _is_module(str(path)):
            return _functions_of(_import_module(str(path)), str(path))
        siblings = [sibling.name for sibling in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise ConfigurationError(
            f"there is no file {file} with functions",
            hint=suggest(file.name, siblings) or "name a .py or .rs file, or a module such as package.module",
        )
    module = _load_module(file.resolve())
    cloudpickle.register_pickle_by_value(module)
    return _functions_of(module, str(file))


def _is_module(name: str) -> bool:
    if _MODULE.fullmatch(name) is None or name.endswith((".py", ".rs")):
        return False
    try:
        _append_to_sys_path(str(Path.cwd()))
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return "." in name  # a parent package is missing: importing it says which


def _append_to_sys_path(directory: str) -> None:
    if directory not in sys.path:
        sys.path.append(directory)


def _functions_of(module: types.ModuleType, name: str) -> list[Function]:
    functions = dict.fromkeys(value for value in vars(module).values() if isinstance(value, FUNCTIONS))
    if not functions:
        raise ConfigurationError(
            f"{name} defines no functions for SQL",
            hint="decorate them: `from headrace import udf`, then `@udf`",
        )
    return list(functions)


def _import_module(name: str) -> types.ModuleType:
    try:
        with _arroyo_shim():
            return importlib.import_module(name)
    except ConfigurationError:
        raise
    except Exception as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        raise ConfigurationError(f"the module {name} cannot be imported: {text}") from error


def _load_module(file: Path) -> types.ModuleType:
    # A unique name, so that a file called json.py does not replace the module json.
    name = f"headrace_udfs_{file.stem}_{uuid.uuid5(uuid.NAMESPACE_URL, str(file)).hex[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{file} is not a Python file", hint="functions are read from .py files")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _append_to_sys_path(str(file.parent))
    try:
        with _arroyo_shim():
            spec.loader.exec_module(module)
    except ConfigurationError:
        raise
    except SyntaxError as error:
        raise ConfigurationError(f"{error.msg}", where=f"{file}, line {error.lineno}") from error
    except Exception as error:
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        where = f"{file}, line {lines[-1].lineno}: {lines[-1].line}" if lines else str(file)
        text = "".join(traceback.format_exception_only(error)).strip()
        raise ConfigurationError(f"{file} raised {text}", where=where) from error
    return module


@contextmanager
def _arroyo_shim() -> Iterator[None]:
    """Within the context, `from arroyo_udf import udf` imports this module's `udf`."""
    shim = types.ModuleType("arroyo_udf")
    vars(shim)["udf"] = udf
    before = sys.modules.get(shim.__name__)
    sys.modules[shim.__name__] = shim
    try:
        yield
    finally:
        del sys.modules[shim.__name__]
        if before is not None:
            sys.modules[shim.__name__] = before
