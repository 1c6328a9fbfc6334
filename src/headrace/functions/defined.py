"""What functions of the user have in common, whatever they are called with."""

from __future__ import annotations

import functools
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import datafusion
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import SessionContext

from headrace.base.errors import ConfigurationError, HeadraceError
from headrace.functions.annotations import Convert, to_python
from headrace.functions.failures import keep_failure


@dataclass(frozen=True)
class Defined:
    """A function of the user as SQL knows it; called in Python it is the plain function."""

    is_aggregate: ClassVar[bool] = False

    name: str
    """As SQL knows it: in lower case."""
    arguments: tuple[pa.DataType, ...]
    returns: pa.DataType
    parameters: tuple[str, ...]
    nullable: tuple[bool, ...]
    """Which arguments may be NULL; rows in which another is are not given to the function."""
    function: Callable[..., Any] = field(compare=False, repr=False)
    loads: tuple[Convert | None, ...] = field(default=(), compare=False, repr=False)
    """What the values of each argument are made into; empty if nothing is."""
    dump: Convert | None = field(default=None, compare=False, repr=False)
    """What makes values for Arrow of the function's results."""
    sources: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    """(file, text) of code whose lines an error should show, though there may be no such file."""
    identity: str = field(default_factory=lambda: uuid.uuid4().hex, repr=False)
    """Copies in other processes are equal to the original, another definition of the same name is not."""

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self.function(*values, **named)

    def complete(self, columns: Sequence[pa.Array]) -> pa.Array | None:
        """Which rows are given to the function; None if all are."""
        required = [column for column, nullable in zip(columns, self.nullable, strict=True) if not nullable]
        masks = [column.is_valid() for column in required if column.null_count]
        return functools.reduce(pc.and_, masks) if masks else None

    def values(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        """The values of each argument, as the function gets them."""
        loads = self.loads or (None,) * len(columns)
        return [to_python(column, load) for column, load in zip(columns, loads, strict=True)]

    def row(self, columns: Sequence[pa.Array], at: int) -> list[Any]:
        """The values of one row."""
        return [one[0] for one in self.values([column.slice(at, 1) for column in columns])]


class ColumnFunction(Defined, ABC):
    """One that has a result for each row."""

    def install(self, ctx: SessionContext) -> None:
        """Make the function known to a session of DataFusion."""
        check_free(ctx, self.name)
        ctx.register_udf(
            datafusion.udf(self._guarded, list(self.arguments), self.returns, "volatile", self.name)
        )

    def _guarded(self, *columns: pa.Array) -> pa.Array:
        try:
            return self.call(columns)
        except HeadraceError as error:
            raise keep_failure(error) from error

    @abstractmethod
    def call(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The result for each row of some columns; raises an ExpressionError."""


def check_free(ctx: SessionContext, *names: str) -> None:
    """Refuse a name that another function has."""
    taken = {*ctx.udfs(), *ctx.udafs(), *ctx.udwfs()}
    for name in names:
        if name in taken:
            raise ConfigurationError(
                f"there is already a function called `{name}`",
                hint='give yours another name: @udf(name="…")',
            )


def spread(values: pa.Array, complete: pa.Array) -> pa.Array:
    """The values in the rows that are complete, NULL in the others."""
    at = pc.subtract(pc.cumulative_sum(complete.cast(pa.int64())), 1)
    return values.take(pc.if_else(complete, at, None))
