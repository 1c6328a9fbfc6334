"""The columns and properties of a stream, and the nodes that produce it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.api.schemas import Schema, parse_schema
from headrace.base.columns import RETRACT
from headrace.connectors.columns import without_hidden
from headrace.model.builder import Port
from headrace.model.plan import EdgeKind
from headrace.sql.bind.logical import Windowing
from headrace.sql.streams import Relational


@dataclass(frozen=True, eq=False)
class Derived:
    """Rows of a query: its operators are made when the pipeline is planned."""

    rows: Relational
    name: str
    """What its operators are called after."""
    site: str | None
    """The line of the program that made it."""
    kind: EdgeKind = "forward"
    keys: tuple[str, ...] = ()


Part = Port | Derived


@dataclass(frozen=True)
class StreamShape:
    """What is known about the rows of a stream."""

    columns: pa.Schema | None = None
    updating: bool = False
    key: tuple[str, ...] = ()
    windowing: Windowing | None = None
    has_watermark: bool = False
    is_declared: bool = False
    """The columns are what the user says, and have to be checked when rows come."""


def declared_shape(schema: Schema | None, *, has_watermark: bool) -> StreamShape:
    """What is known of the rows of an operator: the columns that the user declares for it."""
    if schema is None:
        return StreamShape(has_watermark=has_watermark)
    columns = parse_schema(schema)
    return StreamShape(
        without_hidden(columns),
        updating=RETRACT in columns.names,
        has_watermark=has_watermark,
        is_declared=True,
    )
