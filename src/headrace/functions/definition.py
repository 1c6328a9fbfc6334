"""Turns a `def` or a class of the user into a function of SQL, by its annotations."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.base.errors import ConfigurationError
from headrace.base.options import parse_options
from headrace.functions.aggregate import RETRACTED, AccumulatorFunction, AggregateFunction
from headrace.functions.annotations import TYPES_TEXT, Annotation, Convert, read_annotation, struct_fields
from headrace.functions.asynchronous import AsyncFunction, AsyncOptions
from headrace.functions.call_errors import short
from headrace.functions.native import NativeFunction
from headrace.functions.scalar import ScalarFunction
from headrace.functions.table import TableFunction, row_dump

Function: TypeAlias = (
    ScalarFunction | AggregateFunction | AccumulatorFunction | TableFunction | AsyncFunction | NativeFunction
)
FUNCTIONS = (
    ScalarFunction,
    AggregateFunction,
    AccumulatorFunction,
    TableFunction,
    AsyncFunction,
    NativeFunction,
)

_ROWS = (
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.Sequence,
    list,
)


class Definition:
    """A `def` or a class of the user, and the SQL functions that it can define."""

    def __init__(self, function: Any, name: str | None) -> None:
        if not inspect.isfunction(function) and not inspect.isclass(function):
            raise ConfigurationError(
                f"a udf is a function, and this is {short(function)}", hint="decorate a `def` with @udf"
            )
        self.function = function
        self.name = (name or function.__name__).lower()
        if name is None and function.__name__ == "<lambda>":
            raise self.wrong("a lambda has no name for SQL and no types", "write a `def` with annotations")
        if not self.name.isidentifier():
            raise self.wrong("it cannot be called by this name", "use letters, digits and underscores")

    def wrong(self, message: str, hint: str) -> ConfigurationError:
        """An error about the definition, with its file and line."""
        return ConfigurationError(f"udf `{self.name}`: {message}", hint=hint, where=self._where())

    def _where(self) -> str:
        if inspect.isfunction(self.function):
            code = self.function.__code__
            return f"{code.co_filename}, line {code.co_firstlineno}"
        try:
            line = inspect.getsourcelines(self.function)[1]
            return f"{inspect.getsourcefile(self.function)}, line {line}"
        except (OSError, TypeError):
            return f"class {self.function.__qualname__}"

    # --------------------------------------------------------------------------------------- scalar

    def scalar(self, options: Mapping[str, Any]) -> Function:
        """The function over a row, or over all values of a group if every argument is a list."""
        function = self.function
        if inspect.isclass(function):
            raise self.wrong("it is a class", "an accumulator is decorated with @udaf")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise self.wrong(
                "it yields, and a udf gives one value", "return a list instead, or give rows with @udtf"
            )
        is_async = inspect.iscoroutinefunction(function)
        if options and not is_async:
            names = ", ".join(options)
            raise self.wrong(f"{names}: only for asynchronous functions", "write it with `async def`")
        parameters = self.parameters(function)
        read = self._annotations(function, parameters)
        returns = read.pop("return")
        arguments = list(read.values())
        if returns.is_array or any(argument.is_array for argument in arguments):
            if is_async or not all(annotation.is_array for annotation in (*arguments, returns)):
                raise self.wrong(
                    "arrays are mixed with single values",
                    "annotate all arguments and the result with pyarrow's arrays, or none",
                )
            return self.over_arrays([argument.kind for argument in arguments], returns.kind)
        if not is_async and all(
            argument.items is not None and not argument.nullable for argument in arguments
        ):
            return self._aggregate(parameters, arguments, returns)
        signature = self._signature(parameters, arguments, returns)
        if is_async:
            checked = parse_options(AsyncOptions, options, what=f"udf `{self.name}`")
            return AsyncFunction(**signature, options=checked)
        return ScalarFunction(**signature)

    def over_arrays(
        self, arguments: Sequence[pa.DataType] | None, returns: pa.DataType | None
    ) -> ScalarFunction:
        """The function over Arrow arrays of these types."""
        parameters = self.parameters(self.function)
        count = len(parameters)
        if arguments is None or returns is None or len(arguments) != count:
            raise self.wrong(
                f"vectorized=True needs the Arrow types of its {count} arguments and of the result",
                "write @udf(arguments=[pa.int64()], returns=pa.int64(), vectorized=True)",
            )
        return ScalarFunction(
            self.name,
            tuple(arguments),
            returns,
            parameters,
            (True,) * count,
            vectorized=True,
            function=self.function,
        )

    def _signature(
        self, parameters: tuple[str, ...], arguments: Sequence[Annotation], returns: Annotation
    ) -> dict[str, Any]:
        loads = tuple(argument.load for argument in arguments)
        return {
            "name": self.name,
            "arguments": tuple(argument.kind for argument in arguments),
            "returns": returns.kind,
            "parameters": parameters,
            "nullable": tuple(argument.nullable for argument in arguments),
            "function": self.function,
            "loads": loads if any(loads) else (),
            "dump": returns.dump,
        }

    # ------------------------------------------------------------------------------------ aggregate

    def aggregate(self) -> AggregateFunction | AccumulatorFunction:
        """The aggregate: a function over all values of a group, or an accumulator class."""
        if inspect.isclass(self.function):
            return self._accumulator(self.function)
        function = self.scalar({})
        if not isinstance(function, AggregateFunction):
            raise self.wrong(
                "an argument is not a list",
                "an aggregate takes the values of a group: annotate each `list[X]`",
            )
        return function

    def _aggregate(
        self, parameters: tuple[str, ...], arguments: Sequence[Annotation], returns: Annotation
    ) -> AggregateFunction:
        items = [argument.items for argument in arguments if argument.items is not None]
        return AggregateFunction(**self._signature(parameters, items, returns))

    def _accumulator(self, kind: type) -> AccumulatorFunction:
        if not dataclasses.is_dataclass(kind):
            if "__init__" in vars(kind):
                raise self.wrong(
                    "it has an __init__ of its own",
                    "its state is its annotated fields with their defaults, as in a dataclass",
                )
            for name, default in list(vars(kind).items()):
                if isinstance(default, list):  # groups must not share it
                    setattr(kind, name, dataclasses.field(default_factory=functools.partial(list, default)))
            kind = dataclasses.dataclass(kind)
        for needed in ("update", "finish"):
            if not inspect.isfunction(getattr(kind, needed, None)):
                raise self.wrong(f"it has no method `{needed}`", "write update(self, …) and finish(self)")
        state = self._state(kind)
        update: Any = kind.update  # type: ignore[attr-defined]
        parameters = self.parameters(update, method=True)
        read = self._annotations(update, parameters, returns=False)
        finish: Any = kind.finish  # type: ignore[attr-defined]
        returns = self._annotations(finish, ())["return"]
        retract = getattr(kind, "retract", None)
        if retract is not None and len(self.parameters(retract, method=True)) != len(parameters):
            raise self.wrong("`retract` takes other arguments than `update`", "give it the same ones")
        if retract is not None and not hasattr(kind, "merge"):
            raise self.wrong("`retract` needs `merge`", "write merge(self, other)")
        signature = self._signature(parameters, list(read.values()), returns)
        return AccumulatorFunction(
            **{**signature, "function": kind},
            state=state.kind,
            load_state=state.load or (lambda value: kind(**value)),
            dump_state=state.dump or dataclasses.asdict,
            merges=hasattr(kind, "merge"),
            retracts=retract is not None,
        )

    def _state(self, kind: type) -> Annotation:
        for field in dataclasses.fields(kind):
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise self.wrong(f"the field `{field.name}` has no default", "a new group begins with it")
            if field.name == RETRACTED:
                raise self.wrong(f"`{RETRACTED}` is a name of the engine", "call the field otherwise")
        try:
            state = read_annotation(kind) if dataclasses.fields(kind) else None
        except NameError as error:
            raise self.wrong(f"an annotation cannot be read: {error}", "import the names it uses") from error
        if state is None:
            raise self.wrong(
                "its fields are its state, and SQL has no type for one, or there is none",
                f"use {TYPES_TEXT}; anything else as bytes",
            )
        return state

    # ----------------------------------------------------------------------------------------- rows

    def table(self) -> TableFunction:
        """The table function, which returns rows."""
        function = self.function
        if inspect.isclass(function) or inspect.iscoroutinefunction(function):
            raise self.wrong(
                "it is not a plain `def`", "write a generator: def rows(a: str) -> Iterator[str]"
            )
        parameters = self.parameters(function)
        read = self._annotations(function, parameters, returns=False)
        columns, dump, single = self._columns(function)
        row = Annotation(pa.struct(columns), dump=dump)
        return TableFunction(**self._signature(parameters, list(read.values()), row), single=single)

    def _columns(self, function: Callable[..., Any]) -> tuple[list[pa.Field], Convert | None, bool]:
        """(the columns of the rows, how results are converted to rows, whether results are single values)."""
        hint = self._hints(function).get("return")
        usage = "annotate it `-> Iterator[X]`, with X a type, tuple[A, B], or a NamedTuple for named columns"
        if typing.get_origin(hint) not in _ROWS:
            raise self.wrong("it does not say which rows it gives", usage)
        row = typing.get_args(hint)[0]
        if typing.get_origin(row) is tuple:
            items = [read_annotation(item) for item in typing.get_args(row)]
            supported = [item for item in items if item is not None and not item.is_array]
            if len(supported) != len(items):
                raise self.wrong(f"a row is `{inspect.formatannotation(row)}`", f"use {TYPES_TEXT}")
            names = [f"column{index + 1}" for index in range(len(supported))]
            fields = [pa.field(name, item.kind) for name, item in zip(names, supported, strict=True)]
            return fields, row_dump(names, [item.dump for item in supported]), False
        read = read_annotation(row)
        if read is None or read.is_array:
            raise self.wrong(f"a row is `{inspect.formatannotation(row)}`", usage)
        if isinstance(row, type) and struct_fields(row) is not None:
            return [read.kind.field(i) for i in range(read.kind.num_fields)], read.dump, False
        return [pa.field(self.name, read.kind)], read.dump, True

    # ------------------------------------------------------------------------------------ signature

    def parameters(self, function: Callable[..., Any], *, method: bool = False) -> tuple[str, ...]:
        """The names of the arguments; those of a method without `self`."""
        parameters = list(inspect.signature(function).parameters.values())[int(method) :]
        for parameter in parameters:
            if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                raise self.wrong(
                    f"`{parameter}` is not an argument that SQL can give", "name each argument, without a `*`"
                )
        if not parameters:
            raise self.wrong("it has no arguments", "give it the column that it is computed from")
        return tuple(parameter.name for parameter in parameters)

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        try:
            return typing.get_type_hints(function, include_extras=True)
        except (NameError, TypeError, AttributeError, SyntaxError) as error:
            raise self.wrong(f"an annotation cannot be read: {error}", "import the names it uses") from error

    def _annotations(
        self, function: Callable[..., Any], parameters: Sequence[str], *, returns: bool = True
    ) -> dict[str, Annotation]:
        """The annotations of the arguments, in their order, and that of the result, as `return`."""
        hints = self._hints(function)
        annotations = {}
        for name in (*parameters, *(("return",) if returns else ())):
            what = "the result" if name == "return" else f"the argument `{name}`"
            if name not in hints:
                raise self.wrong(f"{what} has no annotation", f"annotate it with one of {TYPES_TEXT}")
            annotation = read_annotation(hints[name])
            if annotation is None:
                written = inspect.formatannotation(hints[name])
                raise self.wrong(f"{what} is `{written}`, which SQL has no type for", f"use {TYPES_TEXT}")
            annotations[name] = annotation
        return annotations
