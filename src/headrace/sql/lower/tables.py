"""Lowers what touches the outside: tables that are read, looked up in and written to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import HeadraceError, SqlError
from headrace.base.options import parse_options
from headrace.model.builder import Port
from headrace.model.fragments import literal, plain_schema, quote
from headrace.model.operator import DEAD_LETTER, DEAD_LETTERS
from headrace.model.registry import registry
from headrace.operators.lookup_join import CacheOptions
from headrace.operators.lookup_join import LookupJoin as LookupOperator
from headrace.operators.not_null import NotNull
from headrace.operators.watermark import ExpressionWatermark
from headrace.sql.bind.catalog import Table, connector_options, option_error
from headrace.sql.bind.logical import DeadLetters, Late, LookupJoin, Path, Relation, Scan
from headrace.sql.find_columns import column_lines
from headrace.sql.lower.flow import LATE, TAKEN_BACK, TIME, Flow, without
from headrace.sql.lower.needs import narrow
from headrace.sql.problems import sql_error

if TYPE_CHECKING:
    from headrace.sql.lower.lowering import Lowering

_WATERMARK = f"{TIMESTAMP}:watermark"
_READS_FIELDS = ("json", "parquet")
"""Formats of which single fields of a column can be read."""
_DEFAULT_WATERMARK = ExpressionWatermark(TIMESTAMP, drop=False, lateness=1_000_000_000)
"""One second behind event time, where a table says nothing."""


def lower_scan(lowering: Lowering, relation: Scan) -> Flow:
    """The rows of a table, with their event time and watermarks."""
    table = relation.table
    # Values of CSV without a header have only their places.
    whole = table.value("format") == "csv" or any(
        table.value(option) is not None for option in ("late_table", "dead_letter_table")
    )
    paths: set[Path] = {(name,) for name in relation.columns.names}
    if not whole:
        paths = set(lowering.needs.paths[relation])
    for value in (relation.event_time, relation.watermark):
        paths |= set() if value is None else value.paths
    for item in relation.generated:
        if any(path[0] == item.name for path in paths):
            paths |= item.value.paths
    wanted = {path[0] for path in paths}
    read = relation.read
    if not relation.updating and table.columns is not None:
        read = pa.schema([one for one in relation.read if one.name in wanted])
        if table.value("format") in _READS_FIELDS:
            read = pa.schema([narrow(one, paths) for one in read])
    if not len(read):
        read = pa.schema([relation.read.field(0)])
    found = {"columns found": ", ".join(column_lines(table.found))} if table.found else {}
    port = _connector(lowering, "source", table, [], read, f"source_{table.name}", details=found)
    lowering.sources[table] = port
    schema = plain_schema(pa.schema([*read, TIME, *([TAKEN_BACK] if relation.updating else [])]))
    hidden = [quote(TIMESTAMP)] + ([quote(RETRACT)] if relation.updating else [])
    inner = [quote(name) for name in read.names]
    inner += [f"{i.value.text} AS {quote(i.name)}" for i in relation.generated if i.name in wanted]
    source = f"(SELECT {', '.join([*inner, *hidden])} FROM input)"
    time = quote(TIMESTAMP) if relation.event_time is None else relation.event_time.text
    columns = [quote(name) for name in relation.columns.names if name in wanted]
    middle = [*columns, f"{time} AS {quote(TIMESTAMP)}", *hidden[1:]]
    outer = [quote(name) for name in lowering.columns(relation)]
    late_of = table if table.value("late_table") is not None else None
    if late_of is not None:
        fields = ", ".join(f"{literal(name)}, {quote(name)}" for name in relation.columns.names)
        outer.append(f"named_struct({fields}) AS {quote(LATE)}")
    outer += hidden
    marks = ExpressionWatermark(TIMESTAMP, drop=False, lateness=relation.lateness or 0)
    if relation.watermark is None:
        marks = _DEFAULT_WATERMARK
    elif relation.lateness is None:
        marks = ExpressionWatermark(_WATERMARK)
        outer.append(f"CAST({relation.watermark.text} AS TIMESTAMP(9)) AS {quote(_WATERMARK)}")
    sql = f"SELECT {', '.join(outer)} FROM (SELECT {', '.join(middle)} FROM {source})"
    flow = lowering.settle(Flow((port,), schema, sql))
    marked = lowering.add(marks, [flow.ports], "watermark")
    return Flow((marked,), without(flow.schema, _WATERMARK), late_of=late_of)


def lower_late(lowering: Lowering, relation: Late) -> Flow:
    """The rows of a table that came too late for its windows."""
    flows = lowering.late.get(relation.table)
    if not flows:
        table = relation.table
        raise sql_error(
            f"no row of `{table.name}` can be late: no window reads it",
            table.span("late_table"),
            "late rows are those of GROUP BY tumble(…), hop(…) or session(…) over the table itself",
        )
    names = lowering.columns(relation)
    items = [f"{quote(LATE)}[{literal(name)}] AS {quote(name)}" for name in names] + [quote(TIMESTAMP)]
    where = f"WHERE {quote(LATE)} IS NOT NULL"
    ports: list[Port] = []
    for flow in flows:
        sql = f"SELECT {', '.join(items)} FROM input {where}"
        ports += lowering.settle(Flow(flow.ports, flow.schema, sql)).ports
    return Flow(tuple(ports), lowering.batch_schema(relation))


def lower_dead_letters(lowering: Lowering, relation: DeadLetters) -> Flow:
    """The records of a table that could not be read."""
    table = relation.table
    if table not in lowering.sources:
        raise sql_error(
            f"no record of `{table.name}` can be bad: nothing reads it",
            table.span("dead_letter_table"),
            f"records are read by a query: SELECT … FROM {table.name}",
        )
    port = replace(lowering.sources[table], output=DEAD_LETTER)
    columns = [quote(name) for name in lowering.columns(relation)]
    sql = f"SELECT {', '.join([*columns, quote(TIMESTAMP)])} FROM input"
    flow = lowering.settle(Flow((port,), DEAD_LETTERS, sql))
    marked = lowering.add(_DEFAULT_WATERMARK, [flow.ports], "watermark")
    return Flow((marked,), flow.schema)


def lower_lookup_join(lowering: Lowering, relation: LookupJoin) -> Flow:
    """Rows with what a table says about a key of theirs."""
    key = f"{TIMESTAMP}:key"
    flow = lowering.flow(relation.left)
    hidden = [TIMESTAMP] + ([LATE] if flow.late_of is not None else [])
    names = lowering.columns(relation)
    kept = [name for name in names if name in relation.left.columns.names]
    items = [*(quote(name) for name in [*kept, *hidden]), f"{relation.on.text} AS {quote(key)}"]
    rows = lowering.mapped(flow, items)
    columns = {column: name for column, name in relation.prefix.items() if name in names}
    operator = _looking_up(lowering, relation, key, columns)
    port = lowering.add(operator, [rows.ports], f"lookup_{relation.table.name}")
    schema = pa.schema([*rows.schema, *(relation.columns.field(name) for name in columns.values())])
    sql = f"SELECT {', '.join(quote(name) for name in [*names, *hidden])} FROM input"
    return Flow((port,), plain_schema(schema), sql, late_of=flow.late_of)


def _looking_up(
    lowering: Lowering, relation: LookupJoin, key: str, columns: dict[str, str]
) -> LookupOperator:
    table = relation.table
    with _options_of(lowering, table):
        options = connector_options(table, "lookup", table.columns)
        cache = {
            name: table.value(name)
            for name in ("lookup.cache.max_bytes", "lookup.cache.ttl")
            if table.value(name) is not None
        }
        return LookupOperator(
            registry.build_lookup(table.connector, options),
            on=key,
            columns=columns,
            kind="left" if relation.kind == "left" else "inner",
            cache=parse_options(CacheOptions, cache, what=table.connector),
        )


def add_sink(
    lowering: Lowering,
    table: Table,
    relations: Sequence[Relation],
    columns: pa.Schema,
    *,
    instead: tuple[str, dict[str, Any]] | None = None,
) -> None:
    """Write relations, whose columns are the table's, into a table, or into another sink `instead`."""
    lowering.within = table.name
    ports: list[Port] = []
    updating = any(relation.updating for relation in relations)
    for relation in relations:
        flow = lowering.flow(relation)
        if updating and not relation.updating:
            items = [
                *(quote(name) for name in relation.columns.names),
                quote(TIMESTAMP),
                f"FALSE AS {quote(RETRACT)}",
            ]
            flow = lowering.mapped(flow, items)
        ports += lowering.settle(flow).ports
    required = [column.name for column in table.definition.columns if column.not_null]
    if required:
        ports = [lowering.add(NotNull(table.name, required), [ports], "not_null")]
    if instead is None:
        key = relations[0].key if len(relations) == 1 else ()
        _connector(lowering, "sink", table, [ports], columns, f"sink_{table.name}", key=key)
    else:
        name, options = instead
        lowering.builder.add("sink", name, [ports], id=lowering.unique(f"sink_{table.name}"), options=options)


def _connector(
    lowering: Lowering,
    role: Any,
    table: Table,
    inputs: Sequence[Sequence[Port]],
    columns: pa.Schema,
    name: str,
    *,
    key: Sequence[str] = (),
    details: Mapping[str, str] | None = None,
) -> Port:
    with _options_of(lowering, table):
        options = connector_options(table, role, columns, key=key)
        return lowering.builder.add(
            role, table.connector, inputs, id=lowering.unique(name), options=options, details=details
        )


@contextmanager
def _options_of(lowering: Lowering, table: Table) -> Iterator[None]:
    """Let errors of a table's options point at them."""
    try:
        yield
    except SqlError:
        raise
    except HeadraceError as error:
        first, *others = option_error(error, table)
        for other in others:
            lowering.problems.add(other)
        raise first from error
