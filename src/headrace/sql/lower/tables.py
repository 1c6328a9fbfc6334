"""Lowers sources, lookup tables and sinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import HeadraceError, SqlError
from headrace.base.options import parse_options
from headrace.model.builder import Port
from headrace.model.fragments import literal, plain_schema, quote
from headrace.model.operator import DEAD_LETTER, DEAD_LETTERS
from headrace.model.registry import registry
from headrace.operators.latest_rows import LatestRows
from headrace.operators.lookup_join import CacheOptions, LookupJoin
from headrace.operators.not_null import NotNull
from headrace.operators.watermark import ExpressionWatermark
from headrace.sql.bind.catalog import CatalogTable, connector_options, option_error
from headrace.sql.bind.logical import ColumnPath, DeadLetters, LateScan, LookupJoinRelation, Relation, Scan
from headrace.sql.lower.context import (
    LATE,
    TAKEN_BACK,
    TIME,
    LoweredRelation,
    LoweringContext,
    shuffle,
    without,
)
from headrace.sql.lower.required_columns import prune_columns
from headrace.sql.problems import fail
from headrace.sql.types import column_lines

_WATERMARK = f"{TIMESTAMP}:watermark"
_READS_FIELDS = ("json", "parquet")
"""Formats of which single fields of a column can be read."""
_DEFAULT_WATERMARK = ExpressionWatermark(TIMESTAMP, drop=False, lateness=1_000_000_000)
"""One second behind event time, where a table says nothing."""


def lower_scan(context: LoweringContext, relation: Scan) -> LoweredRelation:
    """The rows of a table, with their event time and watermarks."""
    table = relation.table
    paths = _scanned_paths(context, relation)
    key = table.definition.primary_key if table.has_upserts else ()
    names = {path[0] for path in paths} | {*key}
    read = _read_columns(relation, paths)
    details = (
        {"columns found": ", ".join(column_lines(table.inferred_columns))} if table.inferred_columns else {}
    )
    port = _connector(context, "source", table, [], read, f"source_{table.name}", details=details)
    context.sources[table] = port
    hidden = [quote(TIMESTAMP)] + ([quote(RETRACT)] if relation.updating else [])
    generated = [item for item in relation.generated if item.name in names]
    time = quote(TIMESTAMP) if relation.event_time is None else relation.event_time.text
    if key:  # a message that deletes a row has no columns but its key
        time = f"coalesce({time}, {quote(TIMESTAMP)})"
    late_of = table if table.value("late_table") is not None else None
    wanted = context.columns(relation)
    items = [quote(name) for name in [*wanted, *(name for name in key if name not in wanted)]]
    if late_of is not None:
        fields = ", ".join(f"{literal(name)}, {quote(name)}" for name in relation.columns.names)
        items.append(f"named_struct({fields}) AS {quote(LATE)}")
    items += hidden
    column = _read_time(relation)
    watermark = ExpressionWatermark(TIMESTAMP, drop=False, lateness=relation.lateness or 0, event_time=column)
    if relation.watermark is None:
        watermark = ExpressionWatermark(TIMESTAMP, drop=False, lateness=10**9, event_time=column)
    elif relation.lateness is None:
        watermark = ExpressionWatermark(_WATERMARK, event_time=column)
        items.append(f"CAST({relation.watermark.text} AS TIMESTAMP(9)) AS {quote(_WATERMARK)}")
    schema = plain_schema(pa.schema([*read, TIME, *([TAKEN_BACK] if relation.updating else [])]))
    rows = LoweredRelation((port,), schema)
    # Generated columns are computed from what is read, event time from both, the watermark from all.
    computed = [f"{item.value.text} AS {quote(item.name)}" for item in generated]
    rows = rows.select([*map(quote, read.names), *computed, *hidden])
    columns = [quote(name) for name in relation.columns.names if name in names]
    rows = rows.select([*columns, f"{time} AS {quote(TIMESTAMP)}", *hidden[1:]])
    rows = context.apply_sql(rows.select(items))
    port = context.add(watermark, [rows.ports], "watermark")
    schema = without(rows.schema, _WATERMARK)
    if not key:
        return LoweredRelation((port,), schema, late_of=late_of)
    latest = LatestRows(schema, key)
    port = context.add(latest, [shuffle((port,), key)], "latest")
    return LoweredRelation((port,), latest.output).select([*map(quote, wanted), *hidden])


def _read_time(relation: Scan) -> tuple[str, str] | None:
    """The column that event time is read into, and the unit of numbers in it; None if it is computed."""
    names = () if relation.event_time is None else relation.event_time.columns
    for name in names:
        if name in relation.read.names and pa.types.is_timestamp(kind := relation.read.field(name).type):
            return name, kind.unit
    return None


def _scanned_paths(context: LoweringContext, relation: Scan) -> set[ColumnPath]:
    """What is read of a table: by queries, for event time, the watermark and generated columns."""
    table = relation.table
    # Values of CSV without a header have only their places; late rows and bad records are whole.
    options = ("late_table", "dead_letter_table")
    if table.value("format") == "csv" or any(table.value(option) is not None for option in options):
        paths: set[ColumnPath] = {(name,) for name in relation.columns.names}
    else:
        paths = set(context.required.paths[relation])
    for value in (relation.event_time, relation.watermark):
        paths |= set() if value is None else value.paths
    for item in relation.generated:
        if any(path[0] == item.name for path in paths):
            paths |= item.value.paths
    return paths


def _read_columns(relation: Scan, paths: set[ColumnPath]) -> pa.Schema:
    """The columns that the connector reads: at least one, and those of changes all."""
    if relation.updating or relation.table.columns is None:
        return relation.read
    names = {path[0] for path in paths}
    columns = [column for column in relation.read if column.name in names]
    if relation.table.value("format") in _READS_FIELDS:
        columns = prune_columns(columns, paths)
    return pa.schema(columns or [relation.read.field(0)])


def lower_late_rows(context: LoweringContext, relation: LateScan) -> LoweredRelation:
    """The late rows of a table."""
    outputs = context.late.get(relation.table)
    if not outputs:
        table = relation.table
        fail(
            f"no row of `{table.name}` can be late: no window reads it",
            table.span("late_table"),
            "late rows are those of GROUP BY tumble(…), hop(…) or session(…) over the table itself",
        )
    names = context.columns(relation)
    items = [f"{quote(LATE)}[{literal(name)}] AS {quote(name)}" for name in names] + [quote(TIMESTAMP)]
    ports: list[Port] = []
    for rows in outputs:
        ports += context.apply_sql(rows.select(items, where=f" WHERE {quote(LATE)} IS NOT NULL")).ports
    return LoweredRelation(tuple(ports), context.batch_schema(relation))


def lower_dead_letters(context: LoweringContext, relation: DeadLetters) -> LoweredRelation:
    """The records of a table that could not be read."""
    table = relation.table
    if table not in context.sources:
        fail(
            f"no record of `{table.name}` can be bad: nothing reads it",
            table.span("dead_letter_table"),
            f"records are read by a query: SELECT … FROM {table.name}",
        )
    port = replace(context.sources[table], output=DEAD_LETTER)
    items = [quote(name) for name in [*context.columns(relation), TIMESTAMP]]
    rows = context.apply_sql(LoweredRelation((port,), DEAD_LETTERS).select(items))
    return LoweredRelation((context.add(_DEFAULT_WATERMARK, [rows.ports], "watermark"),), rows.schema)


def lower_lookup_join(context: LoweringContext, relation: LookupJoinRelation) -> LoweredRelation:
    """Rows with what a lookup table has for their key."""
    key = f"{TIMESTAMP}:key"
    source = context.lower(relation.left)
    hidden = [TIMESTAMP] + ([LATE] if source.late_of is not None else [])
    names = context.columns(relation)
    left = [name for name in names if name in relation.left.columns.names]
    items = [*(quote(name) for name in [*left, *hidden]), f"{relation.on.text} AS {quote(key)}"]
    rows = context.apply_sql(source.select(items))
    columns = {column: name for column, name in relation.prefix.items() if name in names}
    operator = _lookup_operator(context, relation, key, columns)
    port = context.add(operator, [rows.ports], f"lookup_{relation.table.name}")
    schema = pa.schema([*rows.schema, *(relation.columns.field(name) for name in columns.values())])
    joined = LoweredRelation((port,), plain_schema(schema), late_of=source.late_of)
    return joined.select([quote(name) for name in [*names, *hidden]])


def _lookup_operator(
    context: LoweringContext, relation: LookupJoinRelation, key: str, columns: dict[str, str]
) -> LookupJoin:
    table = relation.table
    with _options_of(context, table):
        options = connector_options(table, "lookup", table.columns)
        cache = {
            name: table.value(name)
            for name in ("lookup.cache.max_bytes", "lookup.cache.ttl")
            if table.value(name) is not None
        }
        return LookupJoin(
            registry.build_lookup(table.connector, options),
            on=key,
            columns=columns,
            kind="left" if relation.kind == "left" else "inner",
            cache=parse_options(CacheOptions, cache, what=table.connector),
        )


def add_sink(
    context: LoweringContext,
    table: CatalogTable,
    relations: Sequence[Relation],
    columns: pa.Schema,
    *,
    instead: tuple[str, dict[str, Any]] | None = None,
) -> None:
    """Write relations, whose columns are the table's, into a table, or into another sink `instead`."""
    context.within = table.name
    ports: list[Port] = []
    updating = any(relation.updating for relation in relations)
    for relation in relations:
        rows = context.emitted(relation)
        if updating and not relation.updating:
            names = [quote(name) for name in [*relation.columns.names, TIMESTAMP]]
            rows = rows.select([*names, f"FALSE AS {quote(RETRACT)}"])
        ports += context.apply_sql(rows).ports
    not_null = [column.name for column in table.definition.columns if column.not_null]
    if not_null:
        ports = [context.add(NotNull(table.name, not_null), [ports], "not_null")]
    node = f"sink_{table.name}"
    if instead is None:
        key = relations[0].key if len(relations) == 1 else ()
        _connector(context, "sink", table, [ports], columns, node, key=key)
    else:
        name, options = instead
        context.builder.add("sink", name, [ports], id=context.node_id(node), options=options)


def add_preview(context: LoweringContext, relation: Relation, sink: str, options: dict[str, Any]) -> None:
    """Show a relation's rows in a sink."""
    context.within = "query"
    rows = context.apply_sql(context.emitted(relation))
    context.builder.add("sink", sink, [rows.ports], id=context.node_id("preview"), options=options)


def _connector(
    context: LoweringContext,
    role: Literal["source", "sink"],
    table: CatalogTable,
    inputs: Sequence[Sequence[Port]],
    columns: pa.Schema,
    name: str,
    *,
    key: Sequence[str] = (),
    details: Mapping[str, str] | None = None,
) -> Port:
    with _options_of(context, table):
        options = connector_options(table, role, columns, key=key)
        return context.builder.add(
            role, table.connector, inputs, id=context.node_id(name), options=options, details=details
        )


@contextmanager
def _options_of(context: LoweringContext, table: CatalogTable) -> Iterator[None]:
    """Let errors of a table's options point at them."""
    try:
        yield
    except SqlError:
        raise
    except HeadraceError as error:
        first, *others = option_error(error, table)
        for other in others:
            context.problems.add(other)
        raise first from error
