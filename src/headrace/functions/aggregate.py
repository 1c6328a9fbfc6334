"""User-defined aggregates: functions over all values of a group, and accumulators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import datafusion
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import SessionContext

from headrace.base.errors import ExpressionError, HeadraceError
from headrace.functions.annotations import Convert, to_python
from headrace.functions.call_errors import exact_array, format_arguments, keep_call_error, short, to_arrow
from headrace.functions.failures import keep_failure
from headrace.functions.user_function import UserFunction, check_name_free

RETRACTED = "_retracted"
"""A field of partial states: the retracted rows, which are applied once all parts are merged."""


@dataclass(frozen=True)
class AggregateFunction(UserFunction):
    """A user-defined function over all values of a group."""

    is_aggregate: ClassVar[bool] = True

    def install(self, ctx: SessionContext) -> None:
        """Register the function with a session of DataFusion."""
        check_name_free(ctx, self.name)
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


class _Collector(datafusion.Accumulator):
    """Collects the values of one group; its state is one list for each argument."""

    def __init__(self, function: AggregateFunction) -> None:
        self._function = function
        # Each begins with an empty array, since an empty list of arrays cannot be concatenated.
        self._collected = [[pa.array([], kind)] for kind in function.arguments]

    def update(self, *columns: pa.Array) -> None:
        _check_unsorted(self._function, columns)
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
        values = function.values(self._values())
        inputs = f"the group {format_arguments(function.parameters, values)}"
        try:
            result = function.function(*values)
        except (Exception, SystemExit) as error:
            raise keep_call_error(function.name, error, inputs, function.sources) from error
        return _scalar(function, result, inputs)

    def _values(self) -> list[pa.Array]:
        return [pa.concat_arrays(collected) for collected in self._collected]


def _check_unsorted(function: UserFunction, columns: Sequence[pa.Array]) -> None:
    if len(columns) > len(function.arguments):
        # DataFusion appends the sort expressions as arguments, and leaves sorting to the function.
        raise keep_failure(
            ExpressionError(
                f"udf `{function.name}` cannot be called with ORDER BY",
                hint="sort the values in the function",
            )
        )


def _scalar(function: UserFunction, result: Any, inputs: str) -> pa.Scalar:
    try:
        return to_arrow(function.name, [result], function.returns, lambda _: inputs, function.dump)[0]
    except HeadraceError as error:
        raise keep_failure(error) from error


# ---------------------------------------------------------------------------------------- accumulators


@dataclass(frozen=True)
class AccumulatorFunction(UserFunction):
    """An accumulator class of the user, updated row by row; `function` is the class.

    Its fields are its state. With `merge`, partial states of a group can be merged, so rows need not be kept.
    An updating input needs `retract` too, since its rows may be retracted.
    """

    is_aggregate: ClassVar[bool] = True

    state: pa.StructType = field(kw_only=True)
    load_state: Convert = field(kw_only=True, compare=False, repr=False)
    dump_state: Convert = field(kw_only=True, compare=False, repr=False)
    merges: bool = field(kw_only=True)
    retracts: bool = field(kw_only=True)

    @property
    def part(self) -> pa.DataType:
        """The type of a partial state, as it is exchanged and stored."""
        fields = [self.state.field(i) for i in range(self.state.num_fields)]
        if self.retracts:
            row = pa.struct([(f"c{i}", kind) for i, kind in enumerate(self.arguments)])
            fields.append(pa.field(RETRACTED, pa.list_(row)))
        return pa.struct(fields)

    def part_of(self, arguments: Sequence[str], retract: str | None) -> str:
        """The SQL call for the partial state of rows; `retract` is the column that marks retractions."""
        if retract is None:
            return f"{self.name}__part({', '.join(arguments)})"
        return f"{self.name}__changes({', '.join([retract, *arguments])})"

    def merged(self, part: str) -> str:
        """The SQL call that merges partial states."""
        return f"{self.name}__merged({part})"

    def result(self, part: str) -> str:
        """The SQL call for the result of a state."""
        return f"{self.name}__result({part})"

    def install(self, ctx: SessionContext) -> None:
        """Register the function, and those of its partial states, with a session of DataFusion."""
        name, part, arguments = self.name, self.part, list(self.arguments)
        aggregates = {name: (_Whole, arguments, self.returns)}
        if self.merges:
            aggregates |= {
                f"{name}__part": (_Part, arguments, part),
                f"{name}__merged": (_Merged, [part], part),
            }
        if self.merges and self.retracts:
            aggregates[f"{name}__changes"] = (_Changes, [pa.bool_(), *arguments], part)
        check_name_free(ctx, *aggregates, f"{name}__result")
        for aggregate_name, (kind, takes, gives) in aggregates.items():
            factory = functools.partial(kind, self)
            ctx.register_udaf(datafusion.udaf(factory, takes, gives, [part], "volatile", aggregate_name))
        finish = datafusion.udf(self._results, [part], self.returns, "volatile", f"{name}__result")
        ctx.register_udf(finish)

    def _results(self, parts: pa.Array) -> pa.Array:
        finished = [_Running(self, part).finished() for part in to_python(parts)]
        try:
            return to_arrow(self.name, finished, self.returns, lambda _: "a group", self.dump)
        except HeadraceError as error:
            raise keep_failure(error) from error


class _Running:
    """An instance of the user's accumulator, with the retractions that it has not applied yet."""

    def __init__(self, function: AccumulatorFunction, part: dict[str, Any] | None = None) -> None:
        self.function = function
        self.value: Any = None
        self.retracted: list[tuple[Any, ...]] = []
        if part is not None:
            self.add_part(part)

    def make(self) -> Any:
        if self.value is None:
            self.value = self._call(self.function.function, (), "a new group")
        return self.value

    def _call(self, method: Callable[..., Any], values: Sequence[Any], inputs: str) -> Any:
        try:
            return method(*values)
        except (Exception, SystemExit) as error:
            function = self.function
            raise keep_call_error(function.name, error, inputs, function.sources) from error

    def add_rows(self, columns: Sequence[pa.Array], method: str = "update") -> None:
        function = self.function
        complete = function.complete(columns)
        if complete is not None:
            columns = [column.filter(complete) for column in columns]
        call = getattr(self.make(), method)
        row: tuple[Any, ...] = ()
        try:
            for row in zip(*function.values(columns), strict=True):
                call(*row)
        except (Exception, SystemExit) as error:
            inputs = f"the row {format_arguments(function.parameters, row)}"
            raise keep_call_error(function.name, error, inputs, function.sources) from error

    def add_part(self, part: dict[str, Any]) -> None:
        function = self.function
        state = dict(part)
        retracted = state.pop(RETRACTED, None) or []
        self.retracted += [tuple(row.values()) for row in retracted]
        other = self._call(function.load_state, (state,), f"the state {short(state)}")
        if self.value is None:
            self.value = other
        else:
            self._call(self.value.merge, (other,), f"the states {short(self.value)} and {short(other)}")

    def settle(self) -> None:
        """Apply the pending retractions; call it once all parts are merged."""
        rows, self.retracted = self.retracted, []
        if rows:
            kinds = self.function.arguments
            columns = [
                pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)
            ]
            self.add_rows(columns, "retract")

    def part(self) -> pa.Scalar:
        function = self.function
        state = function.dump_state(self.make())
        if function.retracts:
            names = [f"c{i}" for i in range(len(function.arguments))]
            state = {
                **state,
                RETRACTED: [dict(zip(names, row, strict=True)) for row in self.retracted],
            }
        try:
            return to_arrow(function.name, [state], function.part, lambda _: "its state")[0]
        except HeadraceError as error:
            raise keep_failure(self._misfit(state) or error) from error

    def _misfit(self, state: dict[str, Any]) -> ExpressionError | None:
        """The error for the field whose value is not of its type."""
        for child in self.function.part:
            try:
                exact_array([state[child.name]], child.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError, KeyError) as error:
                value = state.get(child.name)
                return ExpressionError(
                    f"the field `{child.name}` of `{self.function.name}` is {short(value)} "
                    f"({type(value).__name__}), which is not {child.type}: {error}",
                    hint="annotate the field with a type that holds what is put into it",
                )
        return None

    def finished(self) -> Any:
        self.settle()
        value = self.make()
        return self._call(value.finish, (), f"the state {short(value)}")


class _Whole(datafusion.Accumulator):
    """From rows to the result."""

    def __init__(self, function: AccumulatorFunction) -> None:
        self._running = _Running(function)

    def update(self, *columns: pa.Array) -> None:
        _check_unsorted(self._running.function, columns)
        self._running.add_rows(columns)

    def merge(self, states: list[pa.Array]) -> None:
        for part in to_python(states[0]):
            self._running.add_part(part)

    def state(self) -> list[pa.Scalar]:
        return [self._running.part()]

    def evaluate(self) -> pa.Scalar:
        running = self._running
        return _scalar(running.function, running.finished(), f"the state {short(running.value)}")


class _Part(_Whole):
    """From rows to a partial state."""

    def evaluate(self) -> pa.Scalar:
        return self._running.part()


class _Changes(_Part):
    """From rows, some of them retractions, to a partial state."""

    def update(self, *columns: pa.Array) -> None:
        back, values = columns[0].fill_null(False), columns[1:]
        added = pc.invert(back)
        self._running.add_rows([column.filter(added) for column in values])
        retracted = [column.filter(back) for column in values]
        self._running.retracted += zip(*[to_python(column) for column in retracted], strict=True)


class _Merged(_Whole):
    """From partial states to one merged state, with retractions applied."""

    def update(self, *columns: pa.Array) -> None:
        for part in to_python(columns[0]):
            self._running.add_part(part)

    def evaluate(self) -> pa.Scalar:
        self._running.settle()
        return self._running.part()
