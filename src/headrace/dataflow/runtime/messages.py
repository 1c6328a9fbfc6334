"""What travels between the units of a dataflow: Arrow arrays with metadata."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_UTC = dt.UTC
_from_timestamp = dt.datetime.fromtimestamp
TICK = pa.nulls(0)
"""The value of a timer's message."""


class Message(NamedTuple):
    """One message: an array, its event time in nanoseconds and the sender's metadata (without the time)."""

    value: pa.Array
    time: int
    metadata: Mapping[str, Any] | None = None


class Unreadable(NamedTuple):
    """A received message that cannot be decoded, and why."""

    error: str
    time: int


class Closed(NamedTuple):
    """The end of an output: nothing will follow."""

    time: int


def to_datetime(time: int) -> dt.datetime:
    """An instant in nanoseconds as dora's `timestamp`: aware, UTC, in microseconds."""
    return _from_timestamp(time // 1000 / 1_000_000, _UTC)


def to_nanoseconds(moment: dt.datetime) -> int:
    """A `timestamp` as nanoseconds; one without a zone is UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return ((moment - _EPOCH) // _MICROSECOND) * 1000


def to_array(data: Any) -> pa.Array:  # noqa: PLR0911 - one line per kind of value
    """What an operator sends, as an Arrow array; raises a TypeError that says what can be sent.

    What dora takes (bytes, arrays, record batches, anything with the Arrow C interface), and lists, numpy
    arrays, scalars, texts, numbers, tables and chunked arrays besides. What may lie in memory that the sender
    can still write to is copied: a buffer can be used again as soon as it was sent.
    """
    if isinstance(data, pa.Array):
        return copy_array(data.storage if isinstance(data, pa.ExtensionArray) else data)
    if isinstance(data, bytes | bytearray | memoryview):
        fixed = bytes(data)
        return pa.Array.from_buffers(pa.uint8(), len(fixed), [None, pa.py_buffer(fixed)])
    if isinstance(data, pa.RecordBatch):
        return copy_array(data.to_struct_array())
    if isinstance(data, pa.Table):
        return to_array(data.combine_chunks().to_struct_array())
    if isinstance(data, pa.ChunkedArray):
        return pa.concat_arrays(data.chunks) if data.num_chunks else pa.array([], data.type)
    if isinstance(data, pa.Scalar):
        return pa.array([data.as_py()], type=data.type)
    if isinstance(data, np.ndarray):
        return copy_array(pa.array(data.reshape(-1)))
    if isinstance(data, np.generic):
        return copy_array(pa.array(np.asarray(data).reshape(-1)))
    if isinstance(data, str | int | float | bool | dt.datetime) or data is None:
        return pa.array([data])
    if isinstance(data, list | tuple):
        return pa.array(data)
    if isinstance(data, dict):
        return pa.array([data])
    if hasattr(data, "__arrow_c_array__"):
        return copy_array(pa.array(data))
    raise TypeError(
        f"{type(data).__name__} cannot be sent: give a pyarrow array, a record batch, bytes, a numpy array, "
        "a list or a number"
    )


def copy_array(data: pa.Array) -> pa.Array:
    """The array in memory of its own, from its first value on."""
    try:
        return pa.concat_arrays([data])
    except pa.ArrowNotImplementedError:
        return data  # a type that cannot be brought together, such as a union: never a view of other memory


def check_metadata(metadata: Mapping[str, Any], warn: Any) -> tuple[dict[str, Any], int | None]:
    """Metadata that can be sent, and the event time in it if it has one.

    What is not a bool, a number, a text, a time or a list of one of them becomes its text, and `warn` is
    called with what was changed.
    """
    if not isinstance(metadata, dict):
        raise TypeError(f"metadata must be a dict, got {type(metadata).__name__}")
    checked: dict[str, Any] = {}
    time: int | None = None
    for key, value in metadata.items():
        if not isinstance(key, str):
            raise TypeError(f"the keys of metadata must be strings, got {key!r}")
        if key == "timestamp":
            if not isinstance(value, dt.datetime):
                raise TypeError(f"the metadata `timestamp` must be a datetime, got {type(value).__name__}")
            time = to_nanoseconds(value)
        else:
            checked[key] = _plain(key, value, warn)
    return checked, time


def _plain(key: str, value: Any, warn: Any) -> Any:
    if isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"metadata `{key}`: {value} does not fit into 64 bits")
        return value
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC) if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
    if isinstance(value, list | tuple):
        kinds = {type(item) for item in value}
        if len(kinds) > 1 and kinds != {int, float}:
            raise ValueError(f"metadata `{key}`: a list of {', '.join(sorted(k.__name__ for k in kinds))}")
        if kinds <= {int, float, str}:
            return list(value)
    warn(f"metadata `{key}`: {type(value).__name__} is sent as a string")
    return str(value)


def encode_metadata(metadata: Mapping[str, Any] | None) -> str | None:
    """Metadata as JSON; times are objects with the one key `$time`."""
    return json.dumps(metadata, default=_encode) if metadata else None


def _encode(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return {"$time": to_nanoseconds(value)}
    raise TypeError(f"{type(value).__name__} in metadata")


def decode_metadata(text: str | None) -> dict[str, Any] | None:
    """What `encode_metadata` made."""
    return json.loads(text, object_hook=_decode) if text else None


def _decode(value: dict[str, Any]) -> Any:
    return to_datetime(value["$time"]) if set(value) == {"$time"} else value
