"""Functions of the user, for SQL.

    @headrace.udf
    def discount(price: float, code: str | None) -> float:
        return price * 0.9 if code == "SPRING" else price

A scalar function is called for each row. Its annotations are its types: bool, int (64 bits), float, str,
bytes, datetime, date, time, timedelta, Decimal (38 digits, 10 of them after the point), list[X], and
`Annotated[X, arrow_type]` for any other Arrow type. Times have the microseconds of Python. Where an argument
is NULL and its annotation is not `X | None`, the function is not called and the result is NULL.

A function whose arguments are all annotated `list[X]` is an aggregate: it is called once for each group, with
all its values. `list[X]` leaves out the rows in which such an argument is NULL, `list[X | None]` keeps them.
(To take arrays row by row instead, annotate `Annotated[list[int], pa.list_(pa.int64())]`.)

To DataFusion the functions are volatile: they are called for every row at every place they are written at,
and never ahead of time.
"""

from __future__ import annotations

import datetime as dt
import functools
import importlib.util
import inspect
import reprlib
import sys
import traceback
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, overload

import cloudpickle
import datafusion
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import SessionContext

from headrace.errors import ConfigurationError, ExpressionError, near
from headrace.functions.failures import keep_failure

_TYPES: Mapping[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.datetime: pa.timestamp("ns"),
    dt.date: pa.date32(),
    dt.time: pa.time64("ns"),
    dt.timedelta: pa.duration("ns"),
    Decimal: pa.decimal128(38, 10),
}
_TYPES_TEXT = "bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, list[X] and X | None"


@dataclass(frozen=True)
class _Defined:
    """What functions of both kinds have; called in Python they are the plain function."""

    name: str
    """As SQL knows it: in lower case."""
    arguments: tuple[pa.DataType, ...]
    returns: pa.DataType
    parameters: tuple[str, ...]
    nullable: tuple[bool, ...]
    """Which arguments may be NULL; rows in which another is are not given to the function."""
    function: Callable[..., Any] = field(compare=False, repr=False)
    identity: str = field(default_factory=lambda: uuid.uuid4().hex, repr=False)
    """Copies in other processes are equal to the original, another definition of the same name is not."""

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self.function(*values, **named)

    def complete(self, columns: Sequence[pa.Array]) -> pa.Array | None:
        """Which rows are given to the function; None if all are."""
        required = [column for column, nullable in zip(columns, self.nullable, strict=True) if not nullable]
        masks = [column.is_valid() for column in required if column.null_count]
        return functools.reduce(pc.and_, masks) if masks else None


@dataclass(frozen=True)
class ScalarFunction(_Defined):
    """A function of the user over the values of a row."""

    is_aggregate: ClassVar[bool] = False

    vectorized: bool = False
    """Whether it takes and gives whole Arrow arrays."""

    def install(self, ctx: SessionContext) -> None:
        """Make the function known to a session of DataFusion."""
        _check_free(ctx, self.name)
        call = self._call_arrays if self.vectorized else self._call_rows
        ctx.register_udf(datafusion.udf(call, list(self.arguments), self.returns, "volatile", self.name))

    def _call_rows(self, *columns: pa.Array) -> pa.Array:
        complete = self.complete(columns)
        if complete is not None:
            columns = tuple(column.filter(complete) for column in columns)
        rows = zip(*[_to_python(column) for column in columns], strict=True)
        results = []
        row: tuple[Any, ...] = ()
        try:
            for row in rows:
                results.append(self.function(*row))
        except Exception as error:
            raise _raised(self, error, f"the row {_described(self.parameters, row)}") from error
        array = _to_arrow(
            self, results, lambda at: f"the row {_described(self.parameters, _row(columns, at))}"
        )
        return array if complete is None else _spread(array, complete)

    def _call_arrays(self, *columns: pa.Array) -> pa.Array:
        rows = len(columns[0])
        try:
            result = self.function(*columns)
        except Exception as error:
            raise _raised(self, error, f"a batch of {rows} rows") from error
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        if not isinstance(result, pa.Array) or len(result) != rows:
            got = f"{len(result)} values" if isinstance(result, pa.Array) else type(result).__name__
            raise keep_failure(
                ExpressionError(
                    f"udf `{self.name}` returned {got} for a batch of {rows} rows, not an array of {rows}"
                )
            )
        try:
            return result.cast(self.returns)
        except pa.ArrowException as error:
            raise keep_failure(
                ExpressionError(
                    f"udf `{self.name}` returned {result.type}, which is not {self.returns}: {error}"
                )
            ) from error


@dataclass(frozen=True)
class AggregateFunction(_Defined):
    """A function of the user over all values of a group."""

    is_aggregate: ClassVar[bool] = True

    def install(self, ctx: SessionContext) -> None:
        """Make the function known to a session of DataFusion."""
        _check_free(ctx, self.name)
        ctx.register_udaf(
            datafusion.udaf(
                functools.partial(_Collector, self),
                list(self.arguments),
                self.returns,
                [pa.list_(kind) for kind in self.arguments],
                "volatile",
                self.name,
            )
        )


Function: TypeAlias = ScalarFunction | AggregateFunction


class _Collector(datafusion.Accumulator):
    """Collects the values of one group; its state is one list for each argument."""

    def __init__(self, function: AggregateFunction) -> None:
        self._function = function
        # Each begins with an empty array, since no arrays at all cannot be joined.
        self._collected = [[pa.array([], kind)] for kind in function.arguments]

    def update(self, *columns: pa.Array) -> None:
        if len(columns) > len(self._collected):
            # DataFusion adds what to sort by, and leaves the sorting to the function.
            raise keep_failure(
                ExpressionError(
                    f"udf `{self._function.name}` cannot be called with ORDER BY",
                    hint="sort the values in the function",
                )
            )
        complete = self._function.complete(columns)
        for collected, column in zip(self._collected, columns, strict=True):
            collected.append(column if complete is None else column.filter(complete))

    def merge(self, states: list[pa.Array]) -> None:
        for collected, state in zip(self._collected, states, strict=True):
            collected.append(state.flatten())

    def state(self) -> list[pa.Scalar]:
        return [pa.ListArray.from_arrays([0, len(values)], values)[0] for values in self._values()]

    def evaluate(self) -> pa.Scalar:
        function = self._function
        values = [_to_python(column) for column in self._values()]
        try:
            result = function.function(*values)
        except Exception as error:
            raise _raised(function, error, f"the group {_described(function.parameters, values)}") from error
        array = _to_arrow(
            function, [result], lambda _: f"the group {_described(function.parameters, values)}"
        )
        return array[0]

    def _values(self) -> list[pa.Array]:
        return [pa.concat_arrays(collected) for collected in self._collected]


def _check_free(ctx: SessionContext, name: str) -> None:
    if name in {*ctx.udfs(), *ctx.udafs(), *ctx.udwfs()}:
        raise ConfigurationError(
            f"there is already a function called `{name}`",
            hint='give yours another name: @udf(name="…")',
        )


def _spread(values: pa.Array, complete: pa.Array) -> pa.Array:
    """The values in the rows that are complete, NULL in the others."""
    at = pc.subtract(pc.cumulative_sum(complete.cast(pa.int64())), 1)
    return values.take(pc.if_else(complete, at, None))


def _python_type(kind: pa.DataType) -> pa.DataType:
    """The type whose values Python has: microseconds, not nanoseconds."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_time64(kind):
        return pa.time64("us")
    return pa.list_(_python_type(kind.value_type)) if pa.types.is_list(kind) else kind


def _to_python(column: pa.Array) -> list[Any]:
    values: list[Any] = column.cast(_python_type(column.type), safe=False).to_pylist()
    return values


def _row(columns: Sequence[pa.Array], at: int) -> list[Any]:
    return [_to_python(column.slice(at, 1))[0] for column in columns]


def _to_arrow(function: Function, results: list[Any], place: Callable[[int], str]) -> pa.Array:
    try:
        return pa.array(results, function.returns)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        at, reason = _first_misfit(results, function.returns, error)
        raise keep_failure(
            ExpressionError(
                f"udf `{function.name}` returned {_short(results[at])} ({type(results[at]).__name__}), "
                f"which is not {function.returns}, for {place(at)}: {reason}"
            )
        ) from error


def _first_misfit(results: list[Any], kind: pa.DataType, error: Exception) -> tuple[int, Exception]:
    for at, result in enumerate(results):
        try:
            pa.array([result], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as reason:
            return at, reason
    return 0, error


def _raised(function: Function, error: Exception, place: str) -> Exception:
    """A raise in the user's function as an error that shows the values and the user's lines."""
    said = f": {error}" if str(error) else ""
    made = ExpressionError(f"udf `{function.name}` raised {type(error).__name__}{said} for {place}")
    own = error.__traceback__.tb_next if error.__traceback__ else None
    made.traceback_text = "".join(traceback.format_exception(type(error), error, own))
    made.__cause__ = error
    return keep_failure(made)


_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = 200
_shortener.maxlist = 20
_short = _shortener.repr


def _described(parameters: Iterable[str], values: Iterable[Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in zip(parameters, values, strict=True))


@overload
def udf(function: Callable[..., Any], /) -> Function: ...


@overload
def udf(
    *,
    name: str | None = None,
    arguments: Sequence[pa.DataType] | None = None,
    returns: pa.DataType | None = None,
    vectorized: bool = False,
) -> Callable[[Callable[..., Any]], Function]: ...


def udf(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    arguments: Sequence[pa.DataType] | None = None,
    returns: pa.DataType | None = None,
    vectorized: bool = False,
) -> Function | Callable[[Callable[..., Any]], Function]:
    """Make a function callable from SQL: `@udf`, or `@udf(name="another_name")`.

    With `vectorized=True` the function takes and gives Arrow arrays of whole batches, NULLs included, and
    `arguments` and `returns` say their types:

        @udf(arguments=[pa.int64()], returns=pa.int64(), vectorized=True)
        def double(values):
            return pc.multiply(values, 2)
    """
    if function is None:
        return functools.partial(
            _define, name=name, arguments=arguments, returns=returns, vectorized=vectorized
        )
    return _define(function)


@overload
def udaf(function: Callable[..., Any], /) -> AggregateFunction: ...


@overload
def udaf(*, name: str | None = None) -> Callable[[Callable[..., Any]], AggregateFunction]: ...


def udaf(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None
) -> AggregateFunction | Callable[[Callable[..., Any]], AggregateFunction]:
    """Make a function over all values of a group callable from SQL; its arguments are all `list[X]`."""
    if function is None:
        return functools.partial(_define_aggregate, name=name)
    return _define_aggregate(function)


def _define_aggregate(function: Callable[..., Any], *, name: str | None = None) -> AggregateFunction:
    definition = _Definition(function, name)
    made = definition.by_annotations()
    if isinstance(made, ScalarFunction):
        raise definition.wrong(
            "an argument is not a list", "an aggregate takes the values of a group: annotate each `list[X]`"
        )
    return made


def _define(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    arguments: Sequence[pa.DataType] | None = None,
    returns: pa.DataType | None = None,
    vectorized: bool = False,
) -> Function:
    definition = _Definition(function, name)
    if vectorized:
        return definition.by_types(arguments, returns)
    if arguments is not None or returns is not None:
        raise definition.wrong(
            "`arguments` and `returns` are for functions over Arrow arrays",
            "add vectorized=True, or leave them out and annotate the function",
        )
    return definition.by_annotations()


@dataclass(frozen=True)
class _Annotation:
    """What an annotation says: the type, whether NULL is among its values, and the items of a list."""

    kind: pa.DataType
    nullable: bool = False
    items: _Annotation | None = None


class _Definition:
    """A function as the user wrote it, while it becomes one of SQL."""

    def __init__(self, function: Any, name: str | None) -> None:
        if not inspect.isfunction(function):
            raise ConfigurationError(
                f"a udf is a function, and this is {_short(function)}", hint="decorate a `def` with @udf"
            )
        self.function = function
        self.name = (name or function.__name__).lower()
        if name is None and function.__name__ == "<lambda>":
            raise self.wrong("a lambda has no name for SQL and no types", "write a `def` with annotations")
        if not self.name.isidentifier():
            raise self.wrong("it cannot be called by this name", "use letters, digits and underscores")
        self.parameters = self._parameters()

    def wrong(self, message: str, hint: str) -> ConfigurationError:
        """The error that says what is wrong with the definition, and where it is."""
        code = self.function.__code__
        return ConfigurationError(
            f"udf `{self.name}`: {message}",
            hint=hint,
            where=f"{code.co_filename}, line {code.co_firstlineno}",
        )

    def by_types(
        self, arguments: Sequence[pa.DataType] | None, returns: pa.DataType | None
    ) -> ScalarFunction:
        """A function over Arrow arrays of the given types."""
        count = len(self.parameters)
        if arguments is None or returns is None or len(arguments) != count:
            raise self.wrong(
                f"vectorized=True needs the Arrow types of its {count} arguments and of the result",
                "write @udf(arguments=[pa.int64()], returns=pa.int64(), vectorized=True)",
            )
        return ScalarFunction(
            self.name,
            tuple(arguments),
            returns,
            self.parameters,
            (True,) * count,
            vectorized=True,
            function=self.function,
        )

    def by_annotations(self) -> Function:
        """A function over Python values of the annotated types."""
        read = self._annotations()
        returns = read.pop("return").kind
        lists = [one.items for one in read.values() if one.items is not None and not one.nullable]
        if len(lists) == len(read):
            return AggregateFunction(
                self.name,
                tuple(items.kind for items in lists),
                returns,
                self.parameters,
                tuple(items.nullable for items in lists),
                function=self.function,
            )
        return ScalarFunction(
            self.name,
            tuple(one.kind for one in read.values()),
            returns,
            self.parameters,
            tuple(one.nullable for one in read.values()),
            function=self.function,
        )

    def _parameters(self) -> tuple[str, ...]:
        if inspect.iscoroutinefunction(self.function) or inspect.isasyncgenfunction(self.function):
            raise self.wrong("it is async", "write it with `def`, not `async def`")
        if inspect.isgeneratorfunction(self.function):
            raise self.wrong("it yields, and a udf gives one value", "return a list instead")
        parameters = inspect.signature(self.function).parameters.values()
        for one in parameters:
            if one.kind not in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD):
                raise self.wrong(
                    f"`{one}` is not an argument that SQL can give", "name each argument, without a `*`"
                )
        if not parameters:
            raise self.wrong("it has no arguments", "give it the column that it is computed from")
        return tuple(one.name for one in parameters)

    def _annotations(self) -> dict[str, _Annotation]:
        """What the annotations of the arguments say, in their order, and that of the result, as `return`."""
        try:
            hints = typing.get_type_hints(self.function, include_extras=True)
        except (NameError, TypeError, AttributeError, SyntaxError) as error:
            raise self.wrong(f"an annotation cannot be read: {error}", "import the names it uses") from error
        read = {}
        for name in (*self.parameters, "return"):
            what = "the result" if name == "return" else f"the argument `{name}`"
            if name not in hints:
                raise self.wrong(f"{what} has no annotation", f"annotate it with one of {_TYPES_TEXT}")
            meaning = _read(hints[name])
            if meaning is None:
                shown = inspect.formatannotation(hints[name])
                raise self.wrong(f"{what} is `{shown}`, which SQL has no type for", f"use {_TYPES_TEXT}")
            read[name] = meaning
        return read


def _read(annotation: Any) -> _Annotation | None:
    """What an annotation says; None if there is no such type in SQL."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        others = [one for one in arguments if one is not types.NoneType]
        inner = _read(others[0]) if len(others) == 1 else None
        return inner and replace(inner, nullable=True)
    if origin is typing.Annotated:
        given = [one for one in arguments[1:] if isinstance(one, pa.DataType)]
        nullable = types.NoneType in typing.get_args(arguments[0])
        return _Annotation(given[0], nullable) if given else _read(arguments[0])
    if origin is list:
        items = _read(arguments[0])
        return items and _Annotation(pa.list_(items.kind), items=items)
    kind = _TYPES.get(annotation) if isinstance(annotation, type) else None
    return kind and _Annotation(kind)


def load_udfs(path: str | Path) -> list[Function]:
    """The functions that a Python file decorates with `udf` or `udaf`, in their order.

    Files written for Arroyo load unchanged: `from arroyo_udf import udf` gives this module's. The functions,
    and what they use from their file, are pickled by value, so workers need not have the file.
    """
    file = Path(path)
    if not file.is_file():
        siblings = [one.name for one in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise ConfigurationError(f"there is no file {file} with functions", hint=near(file.name, siblings))
    module = _load_module(file.resolve())
    cloudpickle.register_pickle_by_value(module)
    found = dict.fromkeys(
        value for value in vars(module).values() if isinstance(value, ScalarFunction | AggregateFunction)
    )
    if not found:
        raise ConfigurationError(
            f"{file} defines no functions for SQL",
            hint="decorate them: `from headrace import udf`, then `@udf`",
        )
    return list(found)


def _load_module(file: Path) -> types.ModuleType:
    # A name of its own, so that a file called json.py takes nobody's place.
    name = f"headrace_udfs_{file.stem}_{uuid.uuid5(uuid.NAMESPACE_URL, str(file)).hex[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{file} is not a Python file", hint="functions are read from .py files")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        with _arroyo_shim():
            spec.loader.exec_module(module)
    except ConfigurationError:
        raise
    except SyntaxError as error:
        raise ConfigurationError(f"{error.msg}", where=f"{file}, line {error.lineno}") from error
    except Exception as error:
        lines = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == str(file)]
        where = f"{file}, line {lines[-1].lineno}: {lines[-1].line}" if lines else str(file)
        text = "".join(traceback.format_exception_only(error)).strip()
        raise ConfigurationError(f"{file} raised {text}", where=where) from error
    return module


@contextmanager
def _arroyo_shim() -> Iterator[None]:
    """While it lasts, `from arroyo_udf import udf` gives ours."""
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
