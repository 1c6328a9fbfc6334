"""Tables with connectors as relations: those that are read, and those that are looked up in."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from headrace.model.fragments import plain_type, quote
from headrace.model.registry import registry
from headrace.sql.bind.catalog import (
    CatalogTable,
    check_event_time,
    check_source_key,
    option_model,
    watermark_of,
)
from headrace.sql.bind.context import BindContext
from headrace.sql.bind.logical import Expression, Item, Scan
from headrace.sql.bind.meanings import Meaning, Meanings
from headrace.sql.bind.relations import BoundQuery, LookupTable, plain_columns
from headrace.sql.bind.scope import Scope, ScopeTable, identifier_name
from headrace.sql.bind.syntax import check_syntax
from headrace.sql.parse.dialect import to_sql
from headrace.sql.problems import fail
from headrace.sql.types import is_json_column, sql_type, type_name


def bind_scan(context: BindContext, table: CatalogTable) -> BoundQuery:
    """The rows of a table with a connector."""
    with context.reporting():
        option_model(table, "source")
        check_source_key(table)
        columns, read = _columns(table)
        check_event_time(table, columns.names)
        event_time, watermark = watermark_of(table)
        generated = _generated_columns(context, table, read)
        if event_time is not None and not pa.types.is_timestamp(kind := columns.field(event_time).type):
            fail(
                f"event time `{event_time}` is {type_name(kind)}, not TIMESTAMP",
                table.watermark_span("event_time_field"),
                "declare it as TIMESTAMP, or compute one with GENERATED ALWAYS AS (…)",
            )
        mark = None if watermark is None else _watermark(context, table, columns, watermark)
        lateness = None if watermark is None else _lateness(context, watermark, event_time)
    updating = table.has_changes
    time = None
    if event_time is not None:
        time = Expression(f"CAST({quote(event_time)} AS TIMESTAMP(9))", frozenset([event_time]))
    relation = Scan(
        plain_columns(columns),
        updating=updating,
        key=table.definition.primary_key if updating else (),
        table=table,
        read=read,
        generated=generated,
        event_time=time,
        watermark=mark,
        lateness=lateness,
    )
    return BoundQuery(relation, tuple(columns.names), _meanings(table, columns))


def _meanings(table: CatalogTable, columns: pa.Schema) -> Meanings:
    declared: dict[str, Meaning] = {
        column.name: "instant" if column.is_instant else "jsonb"
        for column in table.definition.columns
        if column.is_instant or column.is_jsonb
    }
    return {
        index: declared.get(column.name, "json")
        for index, column in enumerate(columns)
        if column.name in declared or is_json_column(column)
    }


def _columns(table: CatalogTable) -> tuple[pa.Schema, pa.Schema]:
    """(every column of a table, those that its connector reads)."""
    if table.columns is not None:
        return table.columns, pa.schema([column.field for column in table.physical])
    schema = getattr(registry.constructor("source", table.connector), "table_schema", None)
    if schema is None:
        fail(f"table `{table.name}` has no columns", table.span(), "write them: (name TYPE, …)")
    return schema, schema


def _generated_columns(context: BindContext, table: CatalogTable, read: pa.Schema) -> tuple[Item, ...]:
    scope = Scope(context, [ScopeTable(table.name, tuple(read.names), tuple(read))])
    items = []
    for column in table.definition.columns:
        if column.generated is None:
            continue
        check_syntax(context, column.generated)
        value = scope.expression(column.generated)
        if _type_of(value, scope, column.generated) != plain_type(column.field.type):
            value = Expression(f"CAST({value.text} AS {sql_type(column.field.type)})", value.columns)
            _type_of(value, scope, column.generated)
        items.append(Item(column.name, value))
    return tuple(items)


def _watermark(
    context: BindContext, table: CatalogTable, columns: pa.Schema, watermark: exp.Expr
) -> Expression:
    scope = Scope(context, [ScopeTable(table.name, tuple(columns.names), tuple(columns))])
    check_syntax(context, watermark)
    value = scope.expression(watermark)
    kind = _type_of(value, scope, watermark)
    if not pa.types.is_timestamp(kind):
        fail(
            f"the watermark is {type_name(kind)}, not TIMESTAMP",
            table.watermark_span("watermark_field"),
            "it is an expression such as `ts - INTERVAL '5 seconds'`",
        )
    return value


def _lateness(context: BindContext, watermark: exp.Expr, event_time: str | None) -> int | None:
    """How far behind event time a watermark is, if it is `event_time - INTERVAL '…'` without months."""
    behind: exp.Expr | None = None
    if isinstance(watermark, exp.Sub):
        watermark, behind = watermark.this, watermark.expression
    if not isinstance(watermark, exp.Column) or identifier_name(watermark.this) != event_time:
        return None
    if behind is None:
        return 0
    if not isinstance(behind, exp.Interval):
        return None
    months, nanoseconds = context.planner.interval(to_sql(behind))
    return None if months else nanoseconds


def _type_of(value: Expression, scope: Scope, node: exp.Expr) -> pa.DataType:
    with scope.context.planning(node):
        return scope.context.planner.types([value.text], scope.schema)[0].type


def bind_lookup_table(context: BindContext, table: CatalogTable) -> BoundQuery:
    """A lookup table, for the right side of a join."""
    definition = table.definition
    with context.reporting():
        option_model(table, "lookup")
        if table.columns is None:
            fail(f"lookup table `{table.name}` has no columns", table.span(), "write them: (name TYPE, …)")
        if len(definition.primary_key) != 1:
            hint = "declare the column that rows are found by, such as `id TEXT PRIMARY KEY`"
            fail(f"lookup table `{table.name}` needs a primary key of one column", table.span(), hint)
        for column in definition.columns:
            if column.generated is not None:
                hint = "compute it in the query that joins the table"
                fail("a lookup table cannot have generated columns", column.span, hint)
        if definition.watermark is not None:
            fail("a lookup table has no event time", definition.watermark.span)
    return BoundQuery(
        LookupTable(plain_columns(table.columns), table=table),
        tuple(table.columns.names),
        _meanings(table, table.columns),
    )
