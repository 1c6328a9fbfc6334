"""Asks DataFusion about SQL: which types and names its result has, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, cast

import pyarrow as pa
from datafusion import SessionContext, udf

from headrace.base.errors import ExpressionError
from headrace.functions.asynchronous import AsyncFunction
from headrace.functions.postgres.catalog import PUBLIC
from headrace.functions.signatures import FUNCTION_NAMES
from headrace.functions.table import TableFunction
from headrace.model.fragments import (
    EPOCH_CLOCK,
    Function,
    expression_error,
    new_context,
    plain_type,
    result_schema,
)
from headrace.sql.bind.datafusion_errors import explain_error
from headrace.sql.bind.row_functions import ROW_FUNCTIONS

WINDOWS: Final = {"tumble": 1, "hop": 2, "cumulate": 2, "session": 1}
"""The functions of windows, and how many intervals each takes."""

ORDERED_SETS: Final = frozenset({"percentile_disc", "percentile_cont", "mode"})
OTHER_NAMES: Final = {
    "approx_count_distinct": "approx_distinct", "every": "bool_and", "listagg": "string_agg",
    "logical_and": "bool_and", "logical_or": "bool_or", "variance": "var_samp",
}  # fmt: skip
"""Aggregates that DataFusion knows by another name."""
AGGREGATE_FORMS: Final = frozenset(
    {*ORDERED_SETS, *OTHER_NAMES, "json_agg", "jsonb_agg", "json_object_agg", "jsonb_object_agg"}
    | {"string_agg", "count_if", "countif", "group_concat", "arg_max", "arg_min", "max_by", "min_by"}
)
"""Names of aggregates that DataFusion does not know, or computes differently."""
JSON_BUILDERS: Final = frozenset(
    {
        "json_build_object",
        "jsonb_build_object",
        "json_build_array",
        "jsonb_build_array",
        "row_to_json",
        "to_json",
        "to_jsonb",
    }
)
"""Functions that make JSON of values of any type."""

WINDOW_TYPE: Final = pa.struct([("start", pa.timestamp("ns")), ("end", pa.timestamp("ns"))])
INTERVAL: Final = pa.month_day_nano_interval()


@dataclass(frozen=True)
class Planner:
    """DataFusion, with the functions of windows for planning alone."""

    functions: tuple[Function, ...] = ()

    @cached_property
    def ctx(self) -> SessionContext:
        """The session; nothing is computed in it but constants."""
        ctx = new_context(self.functions)
        for name, count in WINDOWS.items():
            ctx.register_udf(udf(_never, [INTERVAL] * count, WINDOW_TYPE, "volatile", name))
        ctx.register_udf(udf(_never, [], pa.timestamp("ns"), "volatile", "row_time"))
        ctx.register_udf(udf(_never, [], pa.timestamp("ns", "+00:00"), "volatile", EPOCH_CLOCK))
        return ctx

    @cached_property
    def user_functions(self) -> Mapping[str, Function]:
        """The user's own functions, by name."""
        return {function.name: function for function in self.functions}

    @cached_property
    def asynchronous(self) -> Mapping[str, AsyncFunction]:
        """The user's functions that wait for something outside, by name."""
        functions = self.user_functions.items()
        return {name: function for name, function in functions if isinstance(function, AsyncFunction)}

    @cached_property
    def table_functions(self) -> Mapping[str, TableFunction]:
        """The user's functions that give rows, by name."""
        functions = self.user_functions.items()
        return {name: function for name, function in functions if isinstance(function, TableFunction)}

    @cached_property
    def aggregates(self) -> frozenset[str]:
        """The names of aggregate functions."""
        return frozenset(self.ctx.udafs()) | AGGREGATE_FORMS

    @cached_property
    def window_functions(self) -> frozenset[str]:
        """The names of functions that need OVER."""
        return frozenset(self.ctx.udwfs())

    @cached_property
    def built_in(self) -> frozenset[str]:
        """The names of the functions that compute a value of a row in DataFusion."""
        return frozenset(self.ctx.udfs())

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all functions."""
        extra = ("proctime", "unnest", "cast", "try_cast", "extract", "row", "exists", "date_part", "struct")
        names = (
            self.aggregates
            | self.window_functions
            | frozenset(self.ctx.udfs())
            | FUNCTION_NAMES
            | PUBLIC
            | set(ROW_FUNCTIONS)
            | JSON_BUILDERS
            | set(extra)
            | set(self.table_functions)
        )
        return frozenset(name for name in names if name in self.user_functions or "__" not in name)

    def schema(self, sql: str, tables: Mapping[str, pa.Schema]) -> pa.Schema:
        """The names, types and nullability of a query's result; raises an ExpressionError."""
        for name, schema in tables.items():
            if self.ctx.table_exist(name):
                self.ctx.deregister_table(name)
            self.ctx.register_record_batches(name, [[pa.RecordBatch.from_pylist([], schema=schema)]])
        try:
            frame = self.ctx.sql(sql)
            frame.execution_plan()  # types that do not go together are found no earlier
            planned = result_schema(self.ctx, frame)
        except Exception as error:
            raise explain_error(expression_error(error, sql)) from error
        return pa.schema([pa.field(f.name, plain_type(f.type), nullable=f.nullable) for f in planned])

    def types(self, expressions: Sequence[str], schema: pa.Schema) -> list[pa.Field]:
        """The type and nullability of expressions over one table's columns."""
        if not expressions:
            return []
        items = ", ".join(f"{text} AS c{index}" for index, text in enumerate(expressions))
        return list(self.schema(f"SELECT {items} FROM input", {"input": schema}))

    def constant(self, sql: str) -> object:
        """The value of an expression without columns."""
        try:
            return self.ctx.sql(f"SELECT {sql} AS c").to_pylist()[0]["c"]
        except Exception as error:
            raise explain_error(expression_error(error, sql)) from error

    def interval(self, sql: str) -> tuple[int, int]:
        """The length of an INTERVAL: (months, nanoseconds)."""
        months, days, nanoseconds = cast("tuple[int, int, int]", self.constant(sql))
        return months, days * 86_400_000_000_000 + nanoseconds

    def rows(self, sql: str) -> pa.Table:
        """The rows of a query without tables."""
        try:
            return self.ctx.sql(sql).to_arrow_table()
        except Exception as error:
            raise explain_error(expression_error(error, sql)) from error


def _never(*_: pa.Array) -> pa.Array:
    raise ExpressionError("a window function was computed where it should have been planned away")
