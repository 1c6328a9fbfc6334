"""Registers Headrace's own functions with DataFusion."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from datafusion import ScalarUDF, SessionContext, udf

from headrace.base.errors import HeadraceError
from headrace.functions.failures import keep_failure
from headrace.functions.signatures import all_signatures


def install_functions(ctx: SessionContext) -> None:
    """Register every function of this package."""
    for function in _udfs():
        ctx.register_udf(function)


@functools.cache
def _udfs() -> tuple[ScalarUDF, ...]:
    return tuple(
        udf(
            _guarded(signature.call),
            list(signature.arguments),
            signature.returns,
            "immutable",
            signature.name,
        )
        for signature in all_signatures()
    )


def _guarded(call: Callable[..., pa.Array]) -> Callable[..., pa.Array]:
    def guarded(*columns: Any) -> pa.Array:
        try:
            return call(*columns)
        except HeadraceError as error:
            raise keep_failure(error) from error

    return guarded
