"""The base classes of user-defined functions: types, NULL handling, registration with DataFusion."""

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
class UserFunction:
    """A function that the user defined for SQL; called in Python it is the plain function."""

    is_aggregate: ClassVar[bool] = False

    name: str
    """Its name in SQL, lower-cased."""
    arguments: tuple[pa.DataType, ...]
    returns: pa.DataType
    parameters: tuple[str, ...]
    nullable: tuple[bool, ...]
    """Which arguments may be NULL; the function is not called for rows in which another one is."""
    function: Callable[..., Any] = field(compare=False, repr=False)
    loads: tuple[Convert | None, ...] = field(default=(), compare=False, repr=False)
    """How the values of each argument are converted for the function; empty if none is."""
    dump: Convert | None = field(default=None, compare=False, repr=False)
    """How results of the function are converted for Arrow."""
    sources: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    """(file, text) of code whose lines an error should show, also where there is no such file."""
    identity: str = field(default_factory=lambda: uuid.uuid4().hex, repr=False)
    """Copies in other processes are equal to the original; another definition of the same name is not."""

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self.function(*values, **named)

    def complete(self, columns: Sequence[pa.Array]) -> pa.Array | None:
        """A mask of the rows that the function is called for; None if it is for all."""
        required = [column for column, nullable in zip(columns, self.nullable, strict=True) if not nullable]
        masks = [column.is_valid() for column in required if column.null_count]
        return functools.reduce(pc.and_, masks) if masks else None

    def values(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        """The values of each argument, as the function takes them."""
        loads = self.loads or (None,) * len(columns)
        return [to_python(column, load) for column, load in zip(columns, loads, strict=True)]

    def row(self, columns: Sequence[pa.Array], at: int) -> list[Any]:
        """The values of one row."""
        return [column[0] for column in self.values([column.slice(at, 1) for column in columns])]


class ColumnFunction(UserFunction, ABC):
    """A function that has a result for each row."""

    def install(self, ctx: SessionContext) -> None:
        """Register the function with a session of DataFusion."""
        check_name_free(ctx, self.name)
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


def check_name_free(ctx: SessionContext, *names: str) -> None:
    """Raise a ConfigurationError if another function has one of the names."""
    registered = {*ctx.udfs(), *ctx.udafs(), *ctx.udwfs()}
    for name in names:
        if name in registered:
            raise ConfigurationError(
                f"there is already a function called `{name}`",
                hint='give yours another name: @udf(name="…")',
            )


def spread(values: pa.Array, complete: pa.Array) -> pa.Array:
    """The values in the rows that are complete, NULL in the others."""
    at = pc.subtract(pc.cumulative_sum(complete.cast(pa.int64())), 1)
    return values.take(pc.if_else(complete, at, None))
