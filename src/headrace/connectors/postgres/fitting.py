"""Which values fit the columns of a table of PostgreSQL: its types tell, and for some only the server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.connectors._shared.table_limits import ColumnLimits
from headrace.connectors.postgres.client import PostgresColumn, load_client
from headrace.formats.base import is_binary, is_list, is_text, plain_field

_WHOLE = {"smallint": 2**15, "integer": 2**31, "bigint": 2**63}
_SIZES = re.compile(r"\((\d+)(?:,(-?\d+))?\)")
_TEXTS = {"text", "character varying", "character"}
_NUMBERS = {*_WHOLE, "numeric", "double precision"}
_TIMES = {"date", "timestamp without time zone", "timestamp with time zone"}
_CLOCKS = {"time without time zone", "time with time zone"}
_JSON = {"json", "jsonb"}


def limits_of(column: PostgresColumn) -> ColumnLimits:
    """Return what a column can hold, as far as its type tells."""
    base, sizes = _SIZES.sub("", column.declared), _SIZES.search(column.declared)
    first, second = (int(sizes[1]), int(sizes[2] or 0)) if sizes else (None, 0)
    most = _WHOLE.get(base)
    return ColumnLimits(
        column.declared,
        nullable=not column.refuses_null,
        whole=None if most is None else (-most, most - 1),
        characters=first if base in _TEXTS else None,
        digits=(first, second) if base == "numeric" and first is not None else None,
    )


def is_readable(field: pa.Field, declared: str) -> bool:
    """Whether a column of this type takes every value of the field that is within its limits."""
    kind, base = plain_field(field).type, _SIZES.sub("", declared)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if base in _TEXTS:
        return True
    if pa.types.is_integer(kind):
        return base in _NUMBERS
    if pa.types.is_floating(kind):
        return base in {"numeric", "double precision"} or (base == "real" and kind != pa.float64())
    if pa.types.is_nested(kind) and base in _JSON:
        return True
    return any(fits(kind) and base in bases for fits, bases in _READABLE)


_READABLE = (
    (pa.types.is_boolean, {"boolean"}),
    (pa.types.is_decimal, {"numeric"}),
    (is_binary, {"bytea"}),
    (pa.types.is_date, _TIMES),
    (pa.types.is_timestamp, _TIMES),
    (pa.types.is_time, _CLOCKS),
    (lambda kind: pa.types.is_interval(kind) or pa.types.is_duration(kind), {"interval"}),
    (lambda kind: is_list(kind) and is_text(kind.value_type), {"text[]"}),
    (lambda kind: is_list(kind) and pa.types.is_int64(kind.value_type), {"bigint[]"}),
    (lambda kind: is_list(kind) and pa.types.is_float64(kind.value_type), {"double precision[]"}),
)


def unreadable(connection: Any, texts: Sequence[str | None], declared: str, first: int = 0) -> Iterator[int]:
    """Yield the indices of the texts that the server cannot read as values of a type."""
    client = load_client()
    cast = client.sql.SQL("SELECT count(value::{}) FROM unnest(%s::text[]) AS value")
    try:
        # The type is written as the server itself shows it.
        connection.execute(cast.format(client.sql.SQL(declared)), [list(texts)])
    except (client.DataError, client.IntegrityError):
        if len(texts) == 1:
            yield first
            return
        half = len(texts) // 2
        yield from unreadable(connection, texts[:half], declared, first)
        yield from unreadable(connection, texts[half:], declared, first + half)
