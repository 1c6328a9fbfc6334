"""The nodes of a dataflow that the engine has anyway: connectors and SQL."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import ConfigurationError, DataflowError, HeadraceError, PlacedError, suggest
from headrace.base.problems import placed
from headrace.base.secrets import SECRET
from headrace.base.spans import Source
from headrace.dataflow.document.model import Unit
from headrace.model.builder import PlanBuilder, Port
from headrace.model.fragments import Fragment, Function, called_functions, plain_schema
from headrace.model.operator import ArrowOperator, Collector, OperatorContext
from headrace.model.registry import registry
from headrace.sql.embed import EmbeddedSql, PlannedStream, columns_of

LATENESS = "1s"
"""How far behind event time the watermark of rows from operators is, as for a table that says nothing."""


def node_id(unit: Unit) -> str:
    """What a unit is called in the plan."""
    return unit.address.replace("/", ".")


def add_table(sql: EmbeddedSql, unit: Unit) -> PlannedStream:
    """The rows of a connector."""
    definition = Source(unit.address, _definition(unit))
    try:
        return sql.table(definition)
    except HeadraceError as error:
        raise _of_unit(error, unit) from error


def add_sink(builder: PlanBuilder, unit: Unit, ports: tuple[Port, ...], *, parallelism: int | None) -> None:
    """Write rows to a connector."""
    try:
        options = {name: _filled(name, value) for name, value in unit.options.items()}
        declared = registry.options("sink", unit.connector or "").model_fields
        if unit.columns is not None:
            columns = columns_of(Source(unit.address, _columns(unit.columns)))
            conform = Conform(columns, f"sink `{unit.address}`")
            name = f"{node_id(unit)}.columns"
            ports = (builder.add("operator", conform, [ports], id=name, max_parallelism=parallelism),)
            if any((field.alias or field_name) == "schema" for field_name, field in declared.items()):
                options.setdefault("schema", columns)
        builder.add(
            "sink",
            unit.connector or "",
            [ports],
            id=node_id(unit),
            options=options,
            max_parallelism=parallelism,
        )
    except HeadraceError as error:
        raise _of_unit(error, unit) from error


def add_sql(
    builder: PlanBuilder, sql: EmbeddedSql, unit: Unit, inputs: Mapping[str, PlannedStream | tuple[Port, ...]]
) -> PlannedStream | tuple[Port, ...]:
    """A SELECT over inputs; where columns are not known, one that looks at a row at a time."""
    text = Source(unit.address, unit.sql or "")
    tables: dict[str, PlannedStream] = {}
    try:
        unknown: list[str] = []
        for unit_input in unit.inputs:
            rows = inputs[unit_input.id]
            if isinstance(rows, PlannedStream):
                tables[unit_input.id] = rows
            elif unit_input.columns is not None:
                columns = columns_of(Source(unit.address, _columns(unit_input.columns)))
                tables[unit_input.id] = _with_columns(
                    builder, rows, columns, f"{node_id(unit)}.{unit_input.id}"
                )
            else:
                unknown.append(unit_input.id)
        if not unknown:
            return sql.query(text, tables, name=node_id(unit))
        query, functions = sql.row_query(text)
        ports = inputs[unknown[0]]
        assert isinstance(ports, tuple)
        return (builder.add("operator", RowSql(query, unknown[0], functions), [ports], id=node_id(unit)),)
    except HeadraceError as error:
        raise _of_unit(error, unit) from error


def _with_columns(
    builder: PlanBuilder, ports: tuple[Port, ...], columns: pa.Schema, name: str
) -> PlannedStream:
    conform = Conform(columns, f"input `{name.rpartition('.')[2]}`")
    fitted = builder.add("operator", conform, [ports], id=f"{name}.columns")
    options = {"column": TIMESTAMP, "lateness": LATENESS}
    marked = builder.add("operator", "watermark", [(fitted,)], id=f"{name}.watermark", options=options)
    return PlannedStream((marked,), columns)


class Conform(ArrowOperator):
    """Gives rows the columns that the document declares."""

    def __init__(self, columns: pa.Schema, what: str) -> None:
        self._columns = plain_schema(columns)
        self._what = what

    @property
    def name(self) -> str:
        return "columns"

    def display(self) -> str:
        """The columns."""
        return f"columns({', '.join(f'{column.name}: {column.type}' for column in self._columns)})"

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Choose and cast the columns."""
        for column in self._columns:
            if column.name not in batch.schema.names:
                names = [name for name in batch.schema.names if name != TIMESTAMP]
                raise ConfigurationError(
                    f"{self._what}: the messages have no column `{column.name}`; "
                    f"they have {', '.join(names)}",
                    hint=suggest(column.name, names)
                    or "send record batches with the columns that are declared",
                )
        schema = pa.schema([*self._columns, batch.schema.field(TIMESTAMP)])
        try:
            collector.collect(batch.select(schema.names).cast(schema))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ConfigurationError(
                f"{self._what}: the messages do not fit the declared columns: {error}",
                hint=f"they are {batch.schema.to_string().replace(chr(10), ', ')}",
            ) from None


class RowSql(ArrowOperator):
    """A SELECT that looks at one row at a time, over whatever columns come."""

    def __init__(self, sql: str, table: str, functions: Sequence[Function] = ()) -> None:
        self._sql = sql
        self._table = table
        self._functions = called_functions(functions, [sql])

    @property
    def name(self) -> str:
        return "sql"

    def display(self) -> str:
        """The SELECT."""
        return f"sql({self._sql})"

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Compute the SELECT over the batch."""
        fragment = Fragment(self._sql, {self._table: batch.schema}, self._functions)
        for part in fragment.run(**{self._table: pa.Table.from_batches([batch])}).to_batches():
            collector.collect(part)


def _definition(unit: Unit) -> str:
    columns = "" if unit.columns is None else f" ({_columns(unit.columns)})"
    options = {"connector": unit.connector, **unit.options}
    listed = ", ".join(f"'{name}' = '{_option_text(value)}'" for name, value in options.items())
    return f'CREATE TABLE "{unit.address}"{columns} WITH ({listed})'


def _columns(columns: Mapping[str, str]) -> str:
    return ", ".join(f'"{name}" {kind}' for name, kind in columns.items())


def _option_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ", ".join(_option_text(item) for item in value)
    return str(value).replace("'", "''")


def _filled(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value

    def look_up(match: Any) -> str:
        if match[1] not in os.environ:
            raise ConfigurationError(
                f"option `{name}`: the environment has no `{match[1]}`",
                hint=f"set it before the run: export {match[1]}=…",
            )
        return os.environ[match[1]]

    return SECRET.sub(look_up, value)


def _of_unit(error: HeadraceError, unit: Unit) -> HeadraceError:
    """An error in SQL or options, located in the document."""
    if isinstance(error, DataflowError):
        return error
    if (
        isinstance(error, PlacedError)
        and unit.sql is not None
        and error.offset >= 0
        and unit.sql_span is not None
    ):
        return _in_document(error, unit)
    refusal = placed(DataflowError, f"`{unit.address}`: {error.message}", unit.span, error.hint)
    refusal.more = tuple(
        placed(DataflowError, f"`{unit.address}`: {other.message}", unit.span, other.hint)
        for other in getattr(error, "more", ())
    )
    return refusal


def _in_document(error: PlacedError, unit: Unit) -> DataflowError:
    """An error in a step's SELECT, located in the document."""
    end = error.offset + max(1, error.excerpt.count("^"))
    span = unit.sql_span_of(error.offset, end) if error.offset >= 0 else unit.sql_span
    refusal = placed(DataflowError, f"`{unit.address}`: {error.message}", span or unit.span, error.hint)
    refusal.more = tuple(_in_document(other, unit) for other in error.more)
    return refusal
