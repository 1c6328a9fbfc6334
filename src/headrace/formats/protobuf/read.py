"""Read many Protobuf messages into columns at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.formats._shared.refused import not_utf8
from headrace.formats._shared.wire import Bytes, Numbers, Places, gather, offsets_of, parts_of, unzigzags
from headrace.formats.base import LineError
from headrace.formats.protobuf.schema import KINDS, TIMES, WRAPPERS, ProtoField, ProtoMessage, arrow_field
from headrace.formats.protobuf.wire import (
    BYTES,
    FIXED32,
    FIXED64,
    GROUP,
    PADDING,
    VARINT,
    FieldValues,
    Level,
    read_varints,
    walk,
)

_LAST_SECOND = 2**63 // 10**9 - 1
_WIRE = {
    "double": FIXED64,
    "fixed64": FIXED64,
    "sfixed64": FIXED64,
    "float": FIXED32,
    "fixed32": FIXED32,
    "sfixed32": FIXED32,
    "string": BYTES,
    "bytes": BYTES,
    "message": BYTES,
    "map": BYTES,
    "group": GROUP,
}
_VIEWS = {
    "double": "<f8",
    "fixed64": "<u8",
    "sfixed64": "<i8",
    "float": "<f4",
    "fixed32": "<u4",
    "sfixed32": "<i4",
}


def read_messages(
    messages: pa.Array,
    message: ProtoMessage,
    names: Sequence[str],
    as_json: Callable[[str, bytes], str],
) -> tuple[pa.Table, dict[int, LineError]]:
    """Read some fields of all messages; return the columns, and the errors of bad messages by index."""
    data, offsets = parts_of(messages)
    buffer = np.append(data, np.zeros(PADDING, np.uint8))
    bad: dict[int, LineError] = {}
    level = Level(buffer, offsets[:-1], offsets[1:], np.arange(len(messages)), bad, as_json)
    fields = [field for field in message.fields if field.name in names]
    walk(level, {field.number for field in message.fields if field.oneof or field in fields})
    columns = _columns(level, fields, message)
    schema = pa.schema([*(arrow_field(field) for field in fields), pa.field("", pa.null())])
    table = pa.table([*columns, pa.nulls(len(messages))], schema=schema)
    if bad:
        table = table.take(pa.array(np.delete(np.arange(len(messages)), list(bad))))
    return table, bad


# ------------------------------------------------------------------------------------------------- columns


def _columns(level: Level, fields: Sequence[ProtoField], message: ProtoMessage) -> list[pa.Array]:
    last = _last_of_oneofs(level, message)
    return [_column(level, field, last.get(field.number)) for field in fields]


def _last_of_oneofs(level: Level, message: ProtoMessage) -> dict[int, NDArray[np.bool_]]:
    """Return which messages have each field of a oneof last, if a message has several."""
    groups: dict[str, list[ProtoField]] = {}
    for field in message.fields:
        if field.oneof and field.number in level.values:
            groups.setdefault(field.oneof, []).append(field)
    chosen: dict[int, NDArray[np.bool_]] = {}
    for group in groups.values():
        steps = np.full((len(group), level.count), -1)
        for index, field in enumerate(group):
            for occurrences in _values(level, field):
                np.maximum.at(steps[index], occurrences.rows, occurrences.steps)
        if ((steps >= 0).sum(axis=0) > 1).any():
            latest = steps.max(axis=0)
            chosen |= {field.number: steps[index] == latest for index, field in enumerate(group)}
    return chosen


def _values(level: Level, field: ProtoField) -> list[FieldValues]:
    """Return the values of a field with the wire type of its type; others are unknown fields."""
    wire = _WIRE.get(field.kind, VARINT)
    return [occurrences for occurrences in level.values.get(field.number, ()) if occurrences.wire == wire]


def _without_unknown(field: ProtoField, occurrences: FieldValues) -> FieldValues:
    """Return the values without unknown numbers of an enum."""
    if not field.closed or not len(occurrences.rows):
        return occurrences
    numbers = occurrences.values.astype(np.uint32).view(np.int32)
    return _picked(occurrences, np.isin(numbers, list(field.values)))


def _column(level: Level, field: ProtoField, chosen: NDArray[np.bool_] | None) -> pa.Array:
    if field.repeated:
        return _repeated(level, field)
    occurrences = _without_unknown(field, _joined(_values(level, field)))
    if chosen is not None:
        occurrences = _picked(occurrences, chosen[occurrences.rows])
    if field.message is not None:
        return _inside(level, field, occurrences)
    values = _scalars(level, field, occurrences)
    order = np.full(level.count, -1)
    order[occurrences.rows] = np.arange(len(occurrences.rows))  # the last value of a message counts
    return _placed(values, order, field.default)


def _placed(values: pa.Array, order: Places, default: Any) -> pa.Array:
    """Return the values in an order, with the default where there is none."""
    missing = order < 0
    if not missing.any():
        same = len(order) == len(values) and bool((order == np.arange(len(order))).all())
        return values if same else values.take(pa.array(order))
    if default is None:
        return values.take(pa.array(order, mask=missing))
    order[missing] = len(values)
    return pa.concat_arrays([values, pa.array([default], values.type)]).take(pa.array(order))


def _joined(occurrences: Sequence[FieldValues]) -> FieldValues:
    if len(occurrences) == 1:
        return occurrences[0]
    if not occurrences:
        none = np.zeros(0, np.int64)
        return FieldValues(VARINT, none, none, none, none)
    parts = [
        [getattr(values, name) for values in occurrences] for name in ("rows", "values", "lengths", "steps")
    ]
    return FieldValues(occurrences[0].wire, *(np.concatenate(part) for part in parts))


def _picked(occurrences: FieldValues, places: Any) -> FieldValues:
    return FieldValues(
        occurrences.wire,
        occurrences.rows[places],
        occurrences.values[places],
        occurrences.lengths[places],
        occurrences.steps[places],
    )


def _in_order(occurrences: FieldValues) -> FieldValues:
    """Return the values by message, those of one message in order."""
    if len(occurrences.rows) < 2 or bool((np.diff(occurrences.rows) >= 0).all()):
        return occurrences
    return _picked(occurrences, np.lexsort((occurrences.steps, occurrences.rows)))


def _scalars(level: Level, field: ProtoField, occurrences: FieldValues) -> pa.Array:
    """Return the flat values of a scalar field."""
    if field.kind in ("string", "bytes"):
        return _texts(level, field, occurrences)
    if field.kind in _VIEWS:
        return pa.array(_fixed(level.buffer, occurrences.values, field.kind))
    return _from_varints(field, occurrences.values.astype(np.uint64, copy=False))


def _fixed(buffer: Bytes, places: Places, kind: str) -> NDArray[Any]:
    size = 8 if kind in ("double", "fixed64", "sfixed64") else 4
    windows = np.lib.stride_tricks.sliding_window_view(buffer, size)
    inside = np.minimum(places, len(windows) - 1)
    return np.ascontiguousarray(windows[inside]).view(_VIEWS[kind]).reshape(-1)


def _from_varints(field: ProtoField, numbers: Numbers) -> pa.Array:
    kind = KINDS[field.kind]
    if field.kind == "bool":
        return pa.array(numbers != 0)
    if field.kind == "enum":
        distinct, codes = np.unique(numbers.astype(np.uint32).view(np.int32), return_inverse=True)
        names = pa.array([field.values.get(number, str(number)) for number in distinct.tolist()], kind)
        return names.take(pa.array(codes)) if len(names) else names
    if field.kind in ("sint32", "sint64"):
        if field.kind == "sint32":
            numbers = numbers & np.uint64(0xFFFF_FFFF)
        return pa.array(unzigzags(numbers).astype(kind.to_pandas_dtype()))
    # Numbers of 32 bits may be written with 64, of which the lower half counts.
    return pa.array(numbers.view(np.int64).astype(kind.to_pandas_dtype()))


def _texts(level: Level, field: ProtoField, occurrences: FieldValues) -> pa.Array:
    data, offsets = gather(level.buffer, *_inside_buffer(level, occurrences))
    values = pa.Array.from_buffers(
        pa.large_binary(), len(occurrences.rows), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    if field.kind == "bytes":
        return values.cast(pa.binary())
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        wrong = not_utf8(data, offsets[:-1], offsets[1:])
        level.blame(occurrences.rows[wrong], f"field `{field.name}` is not UTF-8")
        lengths = occurrences.lengths.copy()
        lengths[wrong] = 0
        return _texts(
            level,
            field,
            FieldValues(occurrences.wire, occurrences.rows, occurrences.values, lengths, occurrences.steps),
        )


def _inside_buffer(level: Level, occurrences: FieldValues) -> tuple[Places, Places]:
    """Return the offsets and lengths of values; those of bad messages are clipped to the buffer."""
    starts = np.minimum(occurrences.values, len(level.buffer))
    return starts, np.minimum(occurrences.lengths, len(level.buffer) - starts)


def _repeated(level: Level, field: ProtoField) -> pa.Array:
    parts = _values(level, field)
    if field.kind not in _WIRE or field.kind in _VIEWS:
        packed = [
            occurrences for occurrences in level.values.get(field.number, ()) if occurrences.wire == BYTES
        ]
        parts += [_unpacked(level, field, occurrences) for occurrences in packed]
    occurrences = _in_order(_without_unknown(field, _joined(parts)))
    values = (
        _scalars(level, field, occurrences) if field.message is None else _messages(level, field, occurrences)
    )
    rows = occurrences.rows
    if field.kind == "map":
        last = _last_of_keys(rows, values.field(0))
        rows, values = rows[last], values.take(pa.array(last))
    offsets = pa.array(offsets_of(np.bincount(rows, minlength=level.count)).astype(np.int32))
    if field.kind == "map":
        return pa.MapArray.from_arrays(offsets, *values.flatten())
    return pa.ListArray.from_arrays(offsets, values)


def _last_of_keys(rows: Places, keys: pa.Array) -> Places:
    """Return the indices of map entries without those that are repeated with the same key."""
    codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    entries = rows * (int(codes.max(initial=0)) + 1) + codes
    _, last = np.unique(entries[::-1], return_index=True)
    return np.sort(len(entries) - 1 - last)


def _unpacked(level: Level, field: ProtoField, occurrences: FieldValues) -> FieldValues:
    """Return the single values of a packed field."""
    starts, lengths = _inside_buffer(level, occurrences)
    values: Any
    if field.kind in _VIEWS:
        size = np.dtype(_VIEWS[field.kind]).itemsize
        counts, cut = lengths // size, lengths % size > 0
        firsts = np.repeat(starts, counts)
        values = firsts + size * (np.arange(len(firsts)) - np.repeat(offsets_of(counts)[:-1], counts))
    else:
        data, offsets = gather(level.buffer, starts, lengths)
        # A number ends with a byte that says so, and begins behind the one before, or with the field.
        ends = np.flatnonzero(data < 0x80)
        owner = np.searchsorted(offsets[1:], ends, side="right")
        counts = np.bincount(owner, minlength=len(lengths))
        begins = np.maximum(np.append(0, ends + 1)[:-1], offsets[owner])
        cut = (lengths > 0) & (np.append(data, 0)[offsets[1:] - 1] >= 0x80)
        part = replace(level, buffer=np.append(data, np.zeros(PADDING, np.uint8)))
        values, _ = read_varints(part, begins, occurrences.rows[owner])
    if cut.any():
        level.blame(occurrences.rows[cut], f"field `{field.name}` ends too early")
    rows, steps = np.repeat(occurrences.rows, counts), np.repeat(occurrences.steps, counts)
    return FieldValues(_WIRE.get(field.kind, VARINT), rows, values, np.zeros(len(rows), np.int64), steps)


# ------------------------------------------------------------------------------------- messages in messages


def _inside(level: Level, field: ProtoField, occurrences: FieldValues) -> pa.Array:
    """Return the values of a message field, null where there is none."""
    if np.bincount(occurrences.rows, minlength=1).max() > 1:
        # Messages that come several times are parts of one, which their bytes in a row are, too.
        occurrences = _in_order(occurrences)
        data, offsets = gather(level.buffer, *_inside_buffer(level, occurrences))
        rows, firsts = np.unique(occurrences.rows, return_index=True)
        starts = offsets[firsts]
        lengths = np.append(starts[1:], len(data)) - starts
        level = replace(level, buffer=np.append(data, np.zeros(PADDING, np.uint8)))
        occurrences = FieldValues(occurrences.wire, rows, starts, lengths, rows)
    order = np.full(level.count, -1)
    order[occurrences.rows] = np.arange(len(occurrences.rows))
    return _placed(_messages(level, field, occurrences), order, None)


def _messages(level: Level, field: ProtoField, occurrences: FieldValues) -> pa.Array:
    """Return the flat messages that are values of a field."""
    message = field.message
    assert message is not None
    starts, lengths = _inside_buffer(level, occurrences)
    if message.free:
        return _free(level, message, occurrences, gather(level.buffer, starts, lengths))
    inner = Level(
        level.buffer, starts, starts + lengths, level.owners[occurrences.rows], level.bad, level.as_json
    )
    walk(inner, {member.number for member in message.fields})
    columns = _columns(inner, message.fields, message)
    if message.name in TIMES:
        return _times(inner, message, columns)
    if message.name in WRAPPERS:
        return columns[0]
    if not columns:
        return pa.array([{}] * inner.count, pa.struct([]))
    return pa.StructArray.from_arrays(columns, fields=[arrow_field(member) for member in message.fields])


def _times(level: Level, message: ProtoMessage, columns: Sequence[pa.Array]) -> pa.Array:
    seconds, nanoseconds = (column.to_numpy(zero_copy_only=False).astype(np.int64) for column in columns)
    far = np.abs(seconds) > _LAST_SECOND
    if far.any():
        level.blame(np.flatnonzero(far), "a time is too far from 1970 to be told in nanoseconds")
        seconds = np.where(far, 0, seconds)
    return pa.array(seconds * 10**9 + nanoseconds).view(TIMES[message.name])


def _free(
    level: Level, message: ProtoMessage, occurrences: FieldValues, slices: tuple[Bytes, Places]
) -> pa.Array:
    data, offsets = slices[0].tobytes(), slices[1].tolist()
    texts: list[str | None] = []
    for row, begin, end in zip(occurrences.rows.tolist(), offsets, offsets[1:], strict=False):
        try:
            texts.append(level.as_json(message.name, data[begin:end]))
        except ValueError as error:
            texts.append(None)
            level.blame(np.array([row]), f"a message `{message.name}` cannot be read: {error}")
    return pa.array(texts, pa.string())
