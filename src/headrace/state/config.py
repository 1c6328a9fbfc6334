"""Declarations of state tables."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.durations import format_duration, nanoseconds, parse_duration
from headrace.base.errors import PlanError

TableKind = Literal["global", "time", "keyed"]


@dataclass(frozen=True)
class TableConfig:
    """The declaration of a state table: its columns, retention and version.

    Made by `global_table_config`, `timestamp_table_config` and `keyed_table_config`.

    Attributes:
        name: the name of the table.
        kind: `global`, `time` or `keyed`.
        description: a description of its content.
        version: increased when the meaning of the columns changes.
        schema: its columns; None of a global table.
        key: the key columns.
        retention: of a time table: how far behind the watermark rows are kept.
        generational: of a time table: whether the row of the latest epoch replaces earlier ones.
        order_by: which reads are fast: `time` or `key`.

    >>> import headrace as hr, pyarrow as pa
    >>> schema = pa.schema([("shop", pa.string()), ("total", pa.int64())])
    >>> hr.keyed_table_config("totals", "sales so far", schema, key=["shop"])
    TableConfig('totals', kind='keyed', columns=[shop: string, total: int64], key=['shop'])
    """

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
    """The first columns of the key, if these alone decide which subtask has a row."""
    state_signature: str = ""
    """What the rows depend on besides the operator: rows saved with another signature cannot be resumed."""

    def __repr__(self) -> str:
        parts = [repr(self.name), f"kind={self.kind!r}"]
        if self.schema is not None:
            parts.append(f"columns=[{', '.join(f'{field.name}: {field.type}' for field in self.schema)}]")
        if self.key:
            parts.append(f"key={list(self.key)}")
        if self.retention is not None:
            parts.append(f"retention={format_duration(self.retention)!r}")
        if self.version != 1:
            parts.append(f"version={self.version}")
        return f"TableConfig({', '.join(parts)})"

    def to_json(self) -> dict[str, Any]:
        """The declaration as JSON, as it is stored in checkpoints.

        Returns:
            A dict of JSON values.

        >>> import headrace as hr
        >>> config = hr.global_table_config("seen", "files that were read")
        >>> hr.TableConfig.from_json(config.to_json()) == config
        True
        """
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
            "meaning": self.state_signature,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableConfig:
        """The declaration that `to_json` wrote.

        Args:
            data: the result of `to_json`.

        Returns:
            The declaration.

        >>> import headrace as hr
        >>> hr.TableConfig.from_json(hr.global_table_config("seen").to_json())
        TableConfig('seen', kind='global')
        """
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
            state_signature=data.get("meaning", ""),
        )


def global_table_config(name: str, description: str = "", *, version: int = 1) -> TableConfig:
    """Declare a small table of named values; every subtask sees the entries of all subtasks.

    Args:
        name: the name of the table.
        description: a description of its content.
        version: increase it when the meaning of the values changes.

    Returns:
        The table, for `tables()` of an operator.

    >>> import headrace as hr
    >>> hr.global_table_config("seen", "files that were read").kind
    'global'
    """
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
    """Declare a table of rows with a `_timestamp`, dropped when older than the watermark minus `retention`.

    `generational` keeps, of rows with the same key, only the one of the latest epoch. `order_by` says
    which reads are cheap: ranges of time (windows) or keys (joins).

    Args:
        name: the name of the table.
        description: a description of its content.
        retention: how far behind the watermark rows are kept.
        generational: whether the row of the latest epoch replaces earlier ones with its key.
        schema: its columns, `_timestamp` among them.
        key: the key columns.
        order_by: `time` or `key`.
        version: increase it when the meaning of the columns changes.

    Returns:
        The table, for `tables()` of an operator.

    Raises:
        PlanError: the schema has no `_timestamp`, or no column of the key.

    >>> import headrace as hr, pyarrow as pa
    >>> schema = pa.schema([("_timestamp", pa.timestamp("ns")), ("user", pa.string())])
    >>> hr.timestamp_table_config("clicks", "clicks of a minute", "1m", schema=schema).kind
    'time'
    """
    if schema is None:
        raise PlanError(f"table `{name}` needs a schema", hint="pass schema=pa.schema([...])")
    if TIMESTAMP not in schema.names:
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

    Args:
        name: the name of the table.
        description: a description of its content.
        schema: its columns.
        key: the key columns.
        route: the columns by which rows are shuffled, if these are fewer.
        version: increase it when the meaning of the columns changes.

    Returns:
        The table, for `tables()` of an operator.

    Raises:
        PlanError: there is no key, or the schema has no column of it.

    >>> import headrace as hr, pyarrow as pa
    >>> schema = pa.schema([("shop", pa.string()), ("total", pa.int64())])
    >>> hr.keyed_table_config("totals", "sales so far", schema, key=["shop"]).key
    ('shop',)
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
