"""SQL fragments over Arrow batches, computed by DataFusion inside an operator.

A fragment is a SELECT over named inputs. It is planned on the driver, which determines the types of its
result, and sent to the workers as SQL. A worker plans it once and runs the plan on one thread, batch after
batch: planning takes far longer than computing most batches.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from datafusion import DataFrame, SessionConfig, SessionContext
from pyarrow.dataset import InMemoryDataset

from headrace.base.errors import ExpressionError, InternalError
from headrace.functions.failures import take_failure
from headrace.functions.install import install_functions

Rows: TypeAlias = "pa.RecordBatch | pa.Table | Sequence[pa.RecordBatch]"

BATCH_ROWS = 65_536


class Function(Protocol):
    """A user-defined function, which registers itself with DataFusion; hashable, pickles."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> tuple[pa.DataType, ...]: ...

    def install(self, ctx: SessionContext) -> None: ...


def quote(name: str) -> str:
    """A name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def called_functions(functions: Sequence[Function], texts: Sequence[str]) -> tuple[Function, ...]:
    """The user-defined functions that are called in some SQL: an operator carries no others."""
    words = {word for text in texts for word in re.findall(r"\w+", text.lower())}
    return tuple(function for function in functions if function.name in words)


def new_context(functions: Sequence[Function] = ()) -> SessionContext:
    """A DataFusion session with Headrace's functions and the user's, one thread, no string views."""
    config = (
        SessionConfig()
        .with_target_partitions(1)
        .with_batch_size(BATCH_ROWS)
        .with_information_schema(enabled=True)
        .set("datafusion.sql_parser.map_string_types_to_utf8view", "false")
        # This rule loses a field of a struct that is used twice in GROUP BY: `w.start` and `f(w.start)`.
        .set("datafusion.optimizer.enable_leaf_expression_pushdown", "false")
    )
    ctx = SessionContext(config)
    install_functions(ctx)
    for function in functions:
        function.install(ctx)
    return ctx


@functools.lru_cache(maxsize=16)
def shared_context(functions: tuple[Function, ...] = ()) -> SessionContext:
    """The session of this process for these functions."""
    return new_context(functions)


_ONCE_A_PLAN = re.compile(r"\b(now|today|current_(timestamp|date|time))\b", re.IGNORECASE)
"""Functions whose value DataFusion folds into the plan."""
_REPEATABLE = re.compile(
    r"\s*(ProjectionExec|FilterExec|CooperativeExec|DatasetExec|AggregateExec|UnnestExec|WindowAggExec"
    r"|BoundedWindowAggExec|SortExec: expr=)"
)
"""Plan steps that keep nothing of an earlier run. A join keeps its build side, a Top-K its bound."""
_RUNS = 1_000
"""A plan keeps some kilobytes of metrics for each of its runs: it is planned anew after so many."""


EPOCH_CLOCK = "epoch__now"
"""What `now()` is in a fragment: the time of the epoch, the same for every subtask and every replay."""
_epoch_time: ContextVar[float | None] = ContextVar("epoch_time", default=None)


def set_epoch_time(seconds: float) -> None:
    """Set the time of the epoch whose operators are called from here on in this thread."""
    _epoch_time.set(seconds)


def _at_epoch(sql: str) -> str:
    """SQL with the time of the epoch as a constant; outside of epochs it is the time of the machine."""
    if EPOCH_CLOCK not in sql:
        return sql
    seconds = _epoch_time.get()
    instant = round((time.time() if seconds is None else seconds) * 1_000_000) * 1_000
    return sql.replace(
        f"{EPOCH_CLOCK}()", f"arrow_cast({instant}, 'Timestamp(Nanosecond, Some(\"+00:00\"))')"
    )


class _Named:
    """A batch with a schema that differs only in the names of list items, which Arrow considers equal."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch, self._schema = batch, schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


class _Input(InMemoryDataset):  # type: ignore[misc]
    """A table whose rows are set before each run, so that a plan over it can be reused."""

    batches: Sequence[pa.RecordBatch] = ()

    def set(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Set the rows of the next run."""
        if any(pa.types.is_nested(kind) for kind in self.schema.types):
            batches = [pa.record_batch(_Named(batch, self.schema)) for batch in batches]
        self.batches = batches

    def get_fragments(self, filter: Any = None) -> list[_InputRows]:  # noqa: A002 - pyarrow's name
        """The rows as one fragment; filters cannot be pushed down."""
        if filter is not None:
            raise InternalError("a filter was pushed into the rows of a fragment")
        return [_InputRows(self)]


class _InputRows:
    """The interface of a dataset's fragment that DataFusion uses."""

    def __init__(self, table: _Input) -> None:
        self._table = table
        self._columns: list[str] = []
        self.projected_schema = table.schema

    def scanner(self, schema: pa.Schema, *, columns: list[str] | None = None, **_: Any) -> _InputRows:
        self._columns = schema.names if columns is None else columns
        self.projected_schema = pa.schema([schema.field(name) for name in self._columns])
        return self

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._table.batches:
            yield batch.select(self._columns)


class PlannedFragment:
    """A SELECT that DataFusion has planned, over inputs whose rows are set for each run."""

    def __init__(self, ctx: SessionContext, sql: str, inputs: Mapping[str, pa.Schema]) -> None:
        self._ctx = ctx
        self._sql = sql
        self._inputs = {name: _Input(schema.empty_table()) for name, schema in inputs.items()}
        self._runs = 0
        self._plan = self._make()

    def _make(self) -> Any:
        for name, table in self._inputs.items():
            self._ctx.register_dataset(name, table)
        try:
            return self._ctx.sql(self._sql).execution_plan()
        finally:
            for name in self._inputs:
                self._ctx.deregister_table(name)

    @property
    def is_repeatable(self) -> bool:
        """Whether a run of the plan does not affect the next one."""
        lines = self._plan.display_indent().splitlines()
        return self._plan.partition_count == 1 and all(
            _REPEATABLE.match(line) and "lim=[" not in line for line in lines
        )

    def run(self, rows: Mapping[str, Sequence[pa.RecordBatch]]) -> list[pa.RecordBatch]:
        """The result over these rows."""
        self._runs += 1
        if self._runs % _RUNS == 0:
            self._plan = self._make()
        for name, table in self._inputs.items():
            table.set(rows[name])
        try:
            return [batch.to_pyarrow() for batch in self._ctx.execute(self._plan, 0)]
        finally:
            for table in self._inputs.values():
                table.set(())


@functools.lru_cache(maxsize=16)
def _planning_context(functions: tuple[Function, ...]) -> SessionContext:
    """A session for plans that are reused: filters are not pushed down to the inputs."""
    ctx = new_context(functions)
    ctx.remove_optimizer_rule("push_down_filter")
    return ctx


@functools.lru_cache(maxsize=256)
def plan_once(
    sql: str, inputs: tuple[tuple[str, pa.Schema], ...], functions: tuple[Function, ...]
) -> PlannedFragment | None:
    """The plan of this process for a fragment; None if it has to be planned for each run."""
    if EPOCH_CLOCK in sql or _ONCE_A_PLAN.search(sql):
        return None
    planned = PlannedFragment(_planning_context(functions), sql, dict(inputs))
    return planned if planned.is_repeatable else None


_SELECTED = re.compile(r'"((?:[^"]|"")+)"(?: AS "((?:[^"]|"")+)")?(, | FROM )')


def selected_columns(sql: str, inputs: Mapping[str, pa.Schema]) -> dict[str, str] | None:
    """The columns of a SELECT that only selects and renames columns: the input's column by name.

    None if it does anything else. DataFusion's planner takes quadratic time for the columns of such a SELECT.

    >>> schema = pa.schema({"a": pa.int64()})
    >>> selected_columns('SELECT "b" FROM (SELECT "a" AS "b" FROM input)', {"input": schema})
    {'b': 'a'}
    """
    if len(inputs) != 1:
        return None
    ((table, schema),) = inputs.items()
    selects: list[dict[str, str]] = []
    rest = sql
    while rest != table:
        if selects:
            if not (rest.startswith("(") and rest.endswith(")")):
                return None
            rest = rest[1:-1]
        if not rest.startswith("SELECT "):
            return None
        items: dict[str, str] = {}
        at, separator = len("SELECT "), ", "
        while separator == ", ":
            item = _SELECTED.match(rest, at)
            if item is None:
                return None
            column, alias, separator = item.groups()
            name = (alias or column).replace('""', '"')
            if name in items:
                return None
            items[name], at = column.replace('""', '"'), item.end()
        selects.append(items)
        rest = rest[at:]
    columns = {name: name for name in schema.names}
    for items in reversed(selects):
        if not columns.keys() >= set(items.values()):
            return None
        columns = {name: columns[column] for name, column in items.items()}
    return columns


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type as it is used between operators: no views, dictionaries or large offsets."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if kind in (pa.string_view(), pa.large_string()):
        return pa.string()
    if kind in (pa.binary_view(), pa.large_binary()):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(kind.field(i)) for i in range(kind.num_fields)])
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.ListViewType | pa.LargeListViewType):
        return pa.list_(pa.field("item", plain_type(kind.value_type)))
    return kind


def _plain_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, plain_type(field.type))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema as it is used between operators: plain types, all nullable, no metadata."""
    return pa.schema([_plain_field(field) for field in schema])


def as_batches(rows: Rows, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Rows as record batches of exactly this schema; an empty batch if there are none."""
    if isinstance(rows, pa.RecordBatch):
        rows = [rows]
    elif isinstance(rows, pa.Table):
        rows = rows.to_batches()
    batches = [
        batch if batch.schema == schema else conform(batch, schema) for batch in rows if batch.num_rows
    ]
    return batches or [pa.RecordBatch.from_pylist([], schema=schema)]


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`, by name, in its order and of its types."""
    return batch.select(schema.names).cast(schema)


def result_schema(ctx: SessionContext, frame: DataFrame) -> pa.Schema:
    """The columns of a query's result, whose types are final only after the plan was analysed.

    Before that a UNION has the types of its first side, and a CASE those of its first branch.
    """
    schema: pa.Schema = ctx.create_dataframe_from_logical_plan(frame.optimized_logical_plan()).schema()
    return schema


@dataclass(frozen=True)
class Fragment:
    """A SELECT over named inputs: `Fragment("SELECT a + 1 AS b FROM input", {"input": schema})`."""

    sql: str
    inputs: Mapping[str, pa.Schema]
    functions: tuple[Function, ...] = ()
    output: pa.Schema = field(init=False)
    """The schema of the result: plain types, all nullable."""

    def __post_init__(self) -> None:
        inputs = {name: plain_schema(schema) for name, schema in self.inputs.items()}
        object.__setattr__(self, "inputs", inputs)
        if self._selected is not None:
            (schema,) = inputs.values()
            fields = [schema.field(column).with_name(name) for name, column in self._selected.items()]
            object.__setattr__(self, "output", pa.schema(fields))
            return
        empty: dict[str, Rows] = {name: [] for name in inputs}
        plan = self._plan(empty)
        try:
            planned = result_schema(shared_context(self.functions), plan)
        except Exception as error:
            raise expression_error(error, self.sql) from error
        object.__setattr__(self, "output", plain_schema(planned))

    @functools.cached_property
    def _selected(self) -> dict[str, str] | None:
        """The columns of the input by name of the result, if the fragment only selects them."""
        return selected_columns(self.sql, self.inputs)

    def _plan(self, tables: Mapping[str, Rows]) -> Any:
        ctx = shared_context(self.functions)
        for name, schema in self.inputs.items():
            if ctx.table_exist(name):
                ctx.deregister_table(name)
            ctx.register_record_batches(name, [as_batches(tables[name], schema)])
        try:
            return ctx.sql(_at_epoch(self.sql))
        except Exception as error:
            raise expression_error(error, self.sql) from error

    def run(self, **tables: Rows) -> pa.Table:
        """The result over these rows, one keyword for each input."""
        if self._selected is not None:
            ((name, schema),) = self.inputs.items()
            rows = pa.Table.from_batches(as_batches(tables[name], schema))
            columns = list(self._selected.values())
            return (
                rows.select(columns).rename_columns(self.output.names)
                if len(rows)
                else self.output.empty_table()
            )
        try:
            planned = plan_once(self.sql, tuple(self.inputs.items()), self.functions)
            if planned is None:
                batches = self._collect(tables)
            else:
                batches = planned.run(
                    {name: as_batches(tables[name], schema) for name, schema in self.inputs.items()}
                )
        except Exception as error:
            raise expression_error(error, self.sql) from error
        if not batches:
            return self.output.empty_table()
        return pa.Table.from_batches(batches).cast(self.output)

    def _collect(self, tables: Mapping[str, Rows]) -> list[pa.RecordBatch]:
        ctx = shared_context(self.functions)
        try:
            batches: list[pa.RecordBatch] = self._plan(tables).collect()
        finally:
            for name in self.inputs:
                ctx.deregister_table(name)
        return batches


_NOISE = re.compile(
    r"^(type_coercion\s+|DataFusion error: |Exception: |External error: |Execution error: |Arrow error: "
    r"|caused by\s*|Optimizer rule '\w+' failed\s*|Error during planning: |Schema error: |SQL error: "
    r"|Invalid argument error: |Compute error: )+"
)


def tidy(message: str) -> str:
    """A message of DataFusion without its chain of prefixes."""
    message = _NOISE.sub("", message.strip())
    return _NOISE.sub("", message).strip()


_TYPES = {
    "Int8": "TINYINT", "Int16": "SMALLINT", "Int32": "INT", "Int64": "BIGINT", "UInt8": "TINYINT UNSIGNED",
    "UInt16": "SMALLINT UNSIGNED", "UInt32": "INT UNSIGNED", "UInt64": "BIGINT UNSIGNED", "Float32": "FLOAT",
    "Float64": "DOUBLE", "Boolean": "BOOLEAN", "Date32": "DATE", "Interval": "INTERVAL",
}  # fmt: skip
_TRY = "TRY_CAST gives NULL where a value cannot be cast"
_VALUES = [
    (re.compile(pattern, re.DOTALL), message, hint)
    for pattern, message, hint in (
        (r"Divide by zero", "division by zero", "nullif(…, 0) makes the result NULL"),
        (r"Can't cast value (\S+) to type (\w+)", "{0} is out of range for {1}", _TRY),
        (r"Cannot cast string '(.*?)' to value of Decimal", "'{0}' is not of type DECIMAL", _TRY),
        (r"Cannot cast value '(.*?)' to value of Boolean type", "'{0}' is not of type BOOLEAN", _TRY),
        (r"Invalid input syntax for type interval: \"(.*?)\"", "`{0}` is not an interval",
         "it is a number and a unit, such as INTERVAL '10 minutes'"),
        (r"Cannot cast string '(.*?)' to value of (\w+) type", "'{0}' is not of type {1}", _TRY),
        (r"Error parsing timestamp from '(.*?)'", "'{0}' is not a timestamp", _TRY),
        (r"Cannot cast string '(.*?)' to .*Date", "'{0}' is not a date", _TRY),
        (r"Overflow happened on: (.+?)(?:\n|$)", "{0} is out of range", "cast one side to a wider type"),
        (r"(\S+) is too (?:large|small) to store in a Decimal\d+ of precision (\d+)",
         "{0} has no room in a DECIMAL of {1} digits", "cast it to a DECIMAL with more digits"),
        (r"Regular expression did not compile: (.*)", "`{0}` is not a regular expression", None),
        (r"There is no built-in encoding named '(.*?)'", "there is no encoding `{0}`", "base64 and hex are"),
        (r"Failed to decode (?:value using|from) (\w+): (?:DecodeError: )?(.*)",
         "a text is not {0}: {1}", "CASE leaves such texts out"),
        (r"Granularity of `date_trunc` must be non-null scalar", "the unit of date_trunc is written out",
         "date_trunc('hour', ts)"),
        (r"Unable to cast to Date32", "a text is not a date", _TRY),
        (r"Format error", "a pattern of a time is wrong", "use strftime's %Y-%m-%d %H:%M:%S"),
        (r"DATE_BIN stride must be non-zero", "the width of date_bin is zero", "INTERVAL '15 minutes'"),
        (r"Overflow happened on FACTORIAL", "the factorial is out of range for BIGINT", "it ends at 20"),
        (r"COUNT DISTINCT with multiple arguments", "count(DISTINCT …) takes one value",
         "select distinct rows in a subquery, and count these"),
        (r"regex parse error:.*error: ([^\n\"]+)", "a regular expression is wrong: {0}", None),
        (r"non UTF-8 data|invalid utf-8", "bytes are not a text in UTF-8", "encode(…, 'hex') shows them"),
    )
]  # fmt: skip
"""What a value can be wrong with, as DataFusion says it and as we do."""


def expression_error(error: BaseException, sql: str) -> ExpressionError:
    """A failure of DataFusion as an error for the user; that of a user-defined function as it was raised."""
    failure = take_failure(error)
    if isinstance(failure, ExpressionError):
        return failure
    text = tidy(str(error))
    for pattern, message, hint in _VALUES:
        if match := pattern.search(text):
            parts = [_TYPES.get(part, part) for part in match.groups()]
            user_error = ExpressionError(message.format(*parts), hint=hint)
            break
    else:
        user_error = ExpressionError(text, hint=f"in: {sql}" if len(sql) < 300 else None)
    user_error.__cause__ = error
    return user_error
