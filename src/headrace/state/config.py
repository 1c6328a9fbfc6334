"""Declarations of state tables."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa

from headrace.base.durations import nanoseconds, parse_duration
from headrace.base.errors import PlanError

TableKind = Literal["global", "time", "keyed"]


@dataclass(frozen=True)
class TableConfig:
    """The declaration of a state table: its columns, retention and version."""

    name: str
    kind: TableKind
    description: str = ""
    version: int = 1
    schema: pa.Schema | None = None
    key: tuple[str, ...] = ()
    retention: timedelta | None = None
    generational: bool = False
    order_by: Literal["time", "key"] = "time"
    route: tuple[str, ...] = ()
    """The first columns of the key, if these alone decide the subtask of a row."""
    meaning: str = ""
    """A signature of what the rows mean; state that was saved with another one cannot be resumed."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "description": self.description,
            "version": self.version,
            "schema": None
            if self.schema is None
            else base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "columns": None if self.schema is None else {f.name: str(f.type) for f in self.schema},
            "key": list(self.key),
            "retention_ns": None if self.retention is None else nanoseconds(self.retention),
            "generational": self.generational,
            "order_by": self.order_by,
            "route": list(self.route),
            "meaning": self.meaning,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableConfig:
        schema, retention = data["schema"], data["retention_ns"]
        return cls(
            name=data["name"],
            kind=data["kind"],
            description=data["description"],
            version=data["version"],
            schema=None if schema is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema))),
            key=tuple(data["key"]),
            retention=None if retention is None else timedelta(microseconds=retention // 1000),
            generational=data["generational"],
            order_by=data["order_by"],
            route=tuple(data.get("route", ())),
            meaning=data.get("meaning", ""),
        )


def global_table_config(name: str, description: str = "", *, version: int = 1) -> TableConfig:
    """Declare a small table of named values; every subtask sees the entries of all subtasks."""
    return TableConfig(name=name, kind="global", description=description, version=version)


def timestamp_table_config(
    name: str,
    description: str,
    retention: timedelta | str,
    generational: bool = False,
    schema: pa.Schema | None = None,
    *,
    key: Sequence[str] = (),
    order_by: Literal["time", "key"] = "time",
    version: int = 1,
) -> TableConfig:
    """Declare a table of rows with a `_timestamp`, dropped when older than the watermark less `retention`.

    `generational` keeps, of rows with the same key, only the one of the latest epoch. `order_by` says
    which reads are cheap: ranges of time (windows) or keys (joins).
    """
    if schema is None:
        raise PlanError(f"table `{name}` needs a schema", hint="pass schema=pa.schema([...])")
    if "_timestamp" not in schema.names:
        raise PlanError(
            f"the schema of the time-keyed table `{name}` has no `_timestamp` column",
            hint='add pa.field("_timestamp", pa.timestamp("ns"))',
        )
    _check_key(name, key, schema)
    if generational and not key:
        raise PlanError(f"the generational table `{name}` needs a key", hint="pass key=[...]")
    return TableConfig(
        name=name,
        kind="time",
        description=description,
        version=version,
        schema=schema,
        key=tuple(key),
        retention=parse_duration(retention),
        generational=generational,
        order_by="key" if generational else order_by,
    )


def keyed_table_config(
    name: str,
    description: str,
    schema: pa.Schema,
    *,
    key: Sequence[str],
    route: Sequence[str] = (),
    version: int = 1,
) -> TableConfig:
    """Declare a table with one row per key; the cost of a read depends on the keys, not on the table.

    If rows are shuffled by the first columns of the key alone, `route` names these.
    """
    if not key:
        raise PlanError(f"the keyed table `{name}` needs a key", hint="pass key=[...]")
    _check_key(name, key, schema)
    if tuple(key[: len(route)]) != tuple(route):
        raise PlanError(
            f"the keyed table `{name}` is routed by {', '.join(route)}, but its key is {', '.join(key)}",
            hint="the key begins with the columns that rows are shuffled by",
        )
    return TableConfig(
        name=name,
        kind="keyed",
        description=description,
        version=version,
        schema=schema,
        key=tuple(key),
        order_by="key",
        route=tuple(route),
    )


def _check_key(name: str, key: Sequence[str], schema: pa.Schema) -> None:
    for column in key:
        if column not in schema.names:
            raise PlanError(
                f"key column `{column}` of table `{name}` is not in its schema",
                hint=f"the columns are {', '.join(schema.names)}",
            )
