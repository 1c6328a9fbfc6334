"""The Debezium JSON format: changes, `{"before": …, "after": …, "op": "c" | "r" | "u" | "d"}`."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.base.columns import RETRACT
from headrace.base.errors import ConfigurationError, suggest
from headrace.formats.base import Decoded, Format, LineError, Rows, plain_field
from headrace.formats.json.connect_schema import connect_schema
from headrace.formats.json.format import JsonFormat
from headrace.formats.json.read import ROW, JsonReader
from headrace.formats.json.rewrite import reading_of
from headrace.formats.json.schema import RegisteredJson, json_schema
from headrace.formats.json.write import DecimalEncoding, JsonStyle, encode_objects, encode_values, join_lines

_OP = pa.field("op", pa.string())
_OPERATIONS = JsonFormat(pa.schema([_OP, pa.field("payload", pa.struct([_OP]))]))

DEBEZIUM = JsonStyle(timestamps="unix")

_TEXT = pa.large_string()


class DebeziumFormat(Format):
    """Reads changes as added and retracted rows (`_retract`), and writes such rows as changes.

    Reading: `c` and `r` add the row `after`, `d` retracts `before`, `u` retracts `before` and adds `after`; a
    message may be wrapped in `{"schema": …, "payload": …}`. Writing: the rows of one call are grouped by
    `primary_key`, and the first and the last row of a group decide whether it was created, updated, deleted
    or unchanged; without a key equal added and retracted rows cancel each other.

    Reading understands what writing in the same style wrote. A string in a decimal column is what
    `decimal_strings` says; a number is a number.
    """

    updating = True

    def __init__(
        self,
        schema: pa.Schema | None = None,
        *,
        primary_key: Sequence[str] = (),
        style: JsonStyle = DEBEZIUM,
        decimal_strings: DecimalEncoding = "bytes",
        with_schema: bool = False,
        drop_bad: bool = False,
    ) -> None:
        super().__init__(schema)
        for name in primary_key:
            if schema is not None and name not in schema.names:
                raise ConfigurationError(
                    f"the primary key names `{name}`, which is not a column",
                    hint=suggest(name, schema.names, listing="the columns are"),
                )
        self._key = tuple(primary_key)
        self._style = style
        self._reading = reading_of(JsonStyle(style.timestamps, decimal_strings))
        self._with_schema = with_schema
        self._drop_bad = drop_bad

    @functools.cached_property
    def _reader(self) -> JsonReader:
        assert self.schema is not None, "reading needs a schema"
        change = change_fields(self.schema)
        return JsonReader(
            pa.schema([*change, pa.field("payload", pa.struct(change))]),
            reading=self._reading,
            drop_bad=self._drop_bad,
            finish=_unroll,
        )

    def decode(
        self, data: bytes | Sequence[bytes], *, first_line: int = 1, where: str = "Debezium JSON"
    ) -> Decoded:
        """Decode all changes into added and retracted rows, with the column `_retract`."""
        return self._reader.decode(data, first_line=first_line, where=where)

    def encode(self, rows: Rows) -> bytes:
        """Encode the net changes of the rows as lines."""
        fields, batch = self.columns(rows)
        objects = encode_objects(fields, batch, self._style)
        if RETRACT in rows.schema.names:
            retracts = _combine(rows.column(RETRACT)).to_numpy(zero_copy_only=False).astype(bool)
            if self._key:
                keys = [self._key_text(fields, batch, name) for name in self._key]
                before, after = _by_key(
                    pc.binary_join_element_wise(*keys, pa.scalar(",", _TEXT)), objects, retracts
                )
            else:
                before, after = _cancelled(objects, retracts)
        else:
            before, after = pa.nulls(len(objects), _TEXT), objects
        ops = pc.if_else(pc.is_null(before), "c", pc.if_else(pc.is_null(after), "d", "u")).cast(_TEXT)
        changes = _join(
            '{"before":',
            pc.fill_null(before, "null"),
            ',"after":',
            pc.fill_null(after, "null"),
            ',"op":"',
            ops,
            '"}',
        )
        if not self._with_schema:
            return join_lines("", changes, "")
        schema = connect_schema(change_fields(fields), self._style)
        text = json.dumps(schema, ensure_ascii=False)
        return join_lines(f'{{"schema":{text},"payload":', changes, "}")

    def _key_text(self, fields: Sequence[pa.Field], batch: pa.RecordBatch, name: str) -> pa.Array:
        return encode_values(batch.column(name), fields[batch.schema.get_field_index(name)], self._style)


def debezium_format(options: Any, schema: pa.Schema | None) -> Format:
    """Return the format for the FormatOptions of a table."""
    style, drop = options.style(DEBEZIUM), options.drop_bad
    inner = DebeziumFormat(
        schema,
        primary_key=options.primary_key,
        style=style,
        # Debezium sends decimals as bytes, unless its `decimal.handling.mode` says otherwise.
        decimal_strings=options.json_decimal_encoding or "bytes",
        with_schema=options.json_include_schema,
        drop_bad=drop,
    )
    registry = options.registry() if options.json_confluent_schema_registry else None
    if registry is None:
        return inner
    describe = functools.partial(_describe, style=style)
    return RegisteredJson(inner, registry, describe=describe, counts=count_rows, drop_bad=drop)


def _describe(fields: Sequence[pa.Field], style: JsonStyle) -> dict[str, Any]:
    return json_schema(change_fields(fields), style, title="Change")


def count_rows(changes: Sequence[bytes]) -> NDArray[np.int64]:
    """Return the number of rows of each change: an update has two, a retraction and an addition."""
    rows = _OPERATIONS.decode(changes).rows
    if not rows.num_rows:
        return np.zeros(0, np.int64)
    payload = rows.column("payload").combine_chunks()
    ops = pc.coalesce(payload.field("op"), rows.column("op").combine_chunks())
    updates: NDArray[np.bool_] = pc.equal(ops, "u").to_numpy(zero_copy_only=False)
    return 1 + updates.astype(np.int64)


def change_fields(fields: Any) -> list[pa.Field]:
    """Return the members of a change of rows with these columns."""
    row = pa.struct(list(fields))
    return [
        pa.field("before", row, metadata=ROW),
        pa.field("after", row, metadata=ROW),
        pa.field("op", pa.string()),
    ]


def _combine(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _join(*parts: Any) -> pa.Array:
    texts = [pa.scalar(part, _TEXT) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*texts, pa.scalar("", _TEXT))


def _unroll(messages: pa.Table) -> pa.Table:
    payload = _combine(messages.column("payload"))
    inner = dict(zip(("before", "after", "op"), payload.flatten(), strict=True))
    wrapped = payload.is_valid()
    change = {}
    for name, nested in inner.items():
        plain = _combine(messages.column(name))
        change[name] = pc.if_else(wrapped, nested, plain) if payload.null_count < len(payload) else plain
    before, after, op = change["before"], change["after"], change["op"]
    removes, adds = _is_any_of(op, "u", "d"), _is_any_of(op, "c", "r", "u")
    _check(op, before, after, removes, adds)
    # Of each message first the row that is taken back, then the one that is added.
    position = np.sort(np.concatenate([np.flatnonzero(removes) * 2, np.flatnonzero(adds) * 2 + 1]))
    added = position % 2 == 1
    rows = pa.concat_arrays([before, after]).take(pa.array(position // 2 + added * len(op)))
    schema = pa.schema([plain_field(field) for field in before.type])
    table = pa.table(rows.flatten(), schema=schema) if len(schema) else pa.table({})
    return table.append_column(pa.field(RETRACT, pa.bool_()), pa.array(~added))


def _is_any_of(op: pa.Array, *names: str) -> NDArray[np.bool_]:
    matches: NDArray[np.bool_] = pc.is_in(op, pa.array(names, op.type)).to_numpy(zero_copy_only=False)
    return matches


def _check(
    op: pa.Array, before: pa.Array, after: pa.Array, removes: NDArray[np.bool_], adds: NDArray[np.bool_]
) -> None:
    unknown = ~(removes | adds)
    if unknown.any():
        value = op[int(np.flatnonzero(unknown)[0])].as_py()
        raise LineError(
            "there is no `op`" if value is None else f"the op `{value}` is not one of c, r, u and d",
            hint="a Debezium message has the members `before`, `after` and `op`",
            fault="bad-change",
        )
    if (removes & before.is_null().to_numpy(zero_copy_only=False)).any():
        raise LineError(
            "an update or a delete has no `before`",
            hint="let the database log whole old rows: in PostgreSQL, ALTER TABLE … REPLICA IDENTITY FULL",
            fault="bad-change",
        )
    if (adds & after.is_null().to_numpy(zero_copy_only=False)).any():
        raise LineError("a row that was created or updated has no `after`", fault="bad-change")


def _by_key(keys: pa.Array, objects: pa.Array, retracts: NDArray[np.bool_]) -> tuple[pa.Array, pa.Array]:
    """Return the row of each key before its first and after its last change, in order of the first."""
    codes = keys.dictionary_encode().indices.to_numpy()
    places = np.arange(len(codes))
    count = int(codes.max()) + 1 if len(codes) else 0
    first, last = np.zeros(count, np.int64), np.zeros(count, np.int64)
    last[codes] = places
    first[codes[::-1]] = places[::-1]
    before = objects.take(pa.array(first, mask=~retracts[first]))
    after = objects.take(pa.array(last, mask=retracts[last]))
    same = pc.or_(
        pc.and_(pc.is_null(before), pc.is_null(after)), pc.fill_null(pc.equal(before, after), False)
    )
    changed = pc.invert(same)
    return before.filter(changed), after.filter(changed)


def _cancelled(objects: pa.Array, retracts: NDArray[np.bool_]) -> tuple[pa.Array, pa.Array]:
    """Return the rows without pairs of equal added and retracted ones."""
    codes = objects.dictionary_encode().indices.to_numpy()
    signs = np.where(retracts, -1, 1)
    net = np.bincount(codes, weights=signs).astype(np.int64) if len(codes) else np.zeros(0, np.int64)
    same_sign = np.flatnonzero(np.sign(net[codes]) == signs)
    # Of equal rows the last ones stay: count them from the end.
    order = same_sign[::-1][np.argsort(codes[same_sign[::-1]], kind="stable")]
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    remaining = np.sort(order[rank < np.abs(net[codes[order]])])
    rows, removed = objects.take(pa.array(remaining)), pa.array(retracts[remaining])
    nothing = pa.nulls(len(remaining), _TEXT)
    return pc.if_else(removed, rows, nothing), pc.if_else(removed, nothing, rows)
