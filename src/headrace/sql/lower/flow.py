"""Rows of a relation on their way through a plan, and what rides along with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.model.builder import Port
from headrace.sql.bind.catalog import Table

TIME = pa.field(TIMESTAMP, pa.timestamp("ns"))
TAKEN_BACK = pa.field(RETRACT, pa.bool_())
LATE = f"{TIMESTAMP}:late"
"""The row as it was read, carried to the windows of a table with a late_table."""


@dataclass(frozen=True)
class Flow:
    """Rows of a relation on their way: where they come from, and SQL still to be applied to them."""

    ports: tuple[Port, ...]
    schema: pa.Schema
    """The columns of the rows at the ports, with event time and, if they are updating, retractions."""
    sql: str | None = None
    """A SELECT over `input`, the rows at the ports."""
    late_of: Table | None = None
    """The table whose late rows are wanted; rows carry what they were when they were read."""


def shuffle(ports: Sequence[Port], keys: Sequence[str]) -> tuple[Port, ...]:
    """The same ports, with rows of equal keys together."""
    return tuple(replace(port, kind="shuffle", keys=tuple(keys)) for port in ports)


def without(schema: pa.Schema, name: str) -> pa.Schema:
    """The other columns."""
    index = schema.get_field_index(name)
    return schema if index < 0 else schema.remove(index)
