"""Functions of the user over the rows of a group: over all values at once, or one row after the other."""

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
from headrace.functions.defined import Defined, check_free
from headrace.functions.failures import keep_failure
from headrace.functions.raised import described, exact_array, keep_raised, short, to_arrow

RETRACTED = "_retracted"
"""In the parts of an accumulator: the values of rows that were taken back, while they wait for the others."""


@dataclass(frozen=True)
class AggregateFunction(Defined):
    """A function of the user over all values of a group."""

    is_aggregate: ClassVar[bool] = True

    def install(self, ctx: SessionContext) -> None:
        """Make the function known to a session of DataFusion."""
        check_free(ctx, self.name)
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
        # Each begins with an empty array, since no arrays at all cannot be joined.
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
        place = f"the group {described(function.parameters, values)}"
        try:
            result = function.function(*values)
        except (Exception, SystemExit) as error:
            raise keep_raised(function.name, error, place, function.sources) from error
        return _scalar(function, result, place)

    def _values(self) -> list[pa.Array]:
        return [pa.concat_arrays(collected) for collected in self._collected]


def _check_unsorted(function: Defined, columns: Sequence[pa.Array]) -> None:
    if len(columns) > len(function.arguments):
        # DataFusion adds what to sort by, and leaves the sorting to the function.
        raise keep_failure(
            ExpressionError(
                f"udf `{function.name}` cannot be called with ORDER BY",
                hint="sort the values in the function",
            )
        )


def _scalar(function: Defined, result: Any, place: str) -> pa.Scalar:
    try:
        return to_arrow(function.name, [result], function.returns, lambda _: place, function.dump)[0]
    except HeadraceError as error:
        raise keep_failure(error) from error


# ---------------------------------------------------------------------------------------- accumulators


@dataclass(frozen=True)
class AccumulatorFunction(Defined):
    """A class of the user that takes the rows of a group one after the other; `function` is the class.

    Its fields are its state. With `merge`, states of parts of a group can be made one, so rows are not
    kept; with `retract` too, rows can be taken back from it, which an updating input needs for that.
    """

    is_aggregate: ClassVar[bool] = True

    state: pa.StructType = field(kw_only=True)
    load_state: Convert = field(kw_only=True, compare=False, repr=False)
    dump_state: Convert = field(kw_only=True, compare=False, repr=False)
    merges: bool = field(kw_only=True)
    retracts: bool = field(kw_only=True)

    @property
    def part(self) -> pa.DataType:
        """The state of a part of a group, as it travels and is kept."""
        fields = [self.state.field(i) for i in range(self.state.num_fields)]
        if self.retracts:
            row = pa.struct([(f"c{i}", kind) for i, kind in enumerate(self.arguments)])
            fields.append(pa.field(RETRACTED, pa.list_(row)))
        return pa.struct(fields)

    def part_of(self, arguments: Sequence[str], retract: str | None) -> str:
        """The call that gives the state of some rows, of which `retract` tells those that are taken back."""
        if retract is None:
            return f"{self.name}__part({', '.join(arguments)})"
        return f"{self.name}__changes({', '.join([retract, *arguments])})"

    def merged(self, part: str) -> str:
        """The call that makes one state of those of parts."""
        return f"{self.name}__merged({part})"

    def result(self, part: str) -> str:
        """The call that gives the result of a state."""
        return f"{self.name}__result({part})"

    def install(self, ctx: SessionContext) -> None:
        """Make the function, and its parts, known to a session of DataFusion."""
        name, part, arguments = self.name, self.part, list(self.arguments)
        made = {name: (_Whole, arguments, self.returns)}
        if self.merges:
            made |= {f"{name}__part": (_Part, arguments, part), f"{name}__merged": (_Merged, [part], part)}
        if self.merges and self.retracts:
            made[f"{name}__changes"] = (_Changes, [pa.bool_(), *arguments], part)
        check_free(ctx, *made, f"{name}__result")
        for one, (kind, takes, gives) in made.items():
            factory = functools.partial(kind, self)
            ctx.register_udaf(datafusion.udaf(factory, takes, gives, [part], "volatile", one))
        finish = datafusion.udf(self._results, [part], self.returns, "volatile", f"{name}__result")
        ctx.register_udf(finish)

    def _results(self, parts: pa.Array) -> pa.Array:
        finished = [_Running(self, part).finished() for part in to_python(parts)]
        try:
            return to_arrow(self.name, finished, self.returns, lambda _: "a group", self.dump)
        except HeadraceError as error:
            raise keep_failure(error) from error


class _Running:
    """An accumulator of the user while rows come."""

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

    def _call(self, method: Callable[..., Any], values: Sequence[Any], place: str) -> Any:
        try:
            return method(*values)
        except (Exception, SystemExit) as error:
            function = self.function
            raise keep_raised(function.name, error, place, function.sources) from error

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
            place = f"the row {described(function.parameters, row)}"
            raise keep_raised(function.name, error, place, function.sources) from error

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
        """Take back what waits for it: all parts are here."""
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
        """Which field has a value that is not of its type."""
        for one in self.function.part:
            try:
                exact_array([state[one.name]], one.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError, KeyError) as error:
                value = state.get(one.name)
                return ExpressionError(
                    f"the field `{one.name}` of `{self.function.name}` is {short(value)} "
                    f"({type(value).__name__}), which is not {one.type}: {error}",
                    hint="annotate the field with a type that holds what is put into it",
                )
        return None

    def finished(self) -> Any:
        self.settle()
        value = self.make()
        return self._call(value.finish, (), f"the state {short(value)}")


class _Whole(datafusion.Accumulator):
    """Rows to the result."""

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
    """Rows to the state of a part."""

    def evaluate(self) -> pa.Scalar:
        return self._running.part()


class _Changes(_Part):
    """Rows, some of them taken back, to the state of a part."""

    def update(self, *columns: pa.Array) -> None:
        back, values = columns[0].fill_null(False), columns[1:]
        kept = pc.invert(back)
        self._running.add_rows([column.filter(kept) for column in values])
        gone = [column.filter(back) for column in values]
        self._running.retracted += zip(*[to_python(column) for column in gone], strict=True)


class _Merged(_Whole):
    """States of parts to one, from which is taken back what was."""

    def update(self, *columns: pa.Array) -> None:
        for part in to_python(columns[0]):
            self._running.add_part(part)

    def evaluate(self) -> pa.Scalar:
        self._running.settle()
        return self._running.part()
