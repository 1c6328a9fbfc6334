"""Rewrite JSON lines that Arrow's parser refuses into a form that it reads, without loss."""

from __future__ import annotations

import base64
import binascii
import decimal
import json
import math
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.formats.base import LineError, Path, is_json, is_list, missing_value
from headrace.formats.json.write import JsonStyle

_EXACT = decimal.Context(prec=100, rounding=decimal.ROUND_HALF_UP)
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_FRACTION = re.compile(r"\.(\d+)")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_ODD_FLOATS = {
    "nan": "NaN",
    "inf": "Infinity",
    "infinity": "Infinity",
    "-inf": "-Infinity",
    "-infinity": "-Infinity",
}
_MARK = uuid.uuid4().hex
_MARKED = re.compile(f'"{_MARK}([^"]*)"')


@dataclass(frozen=True)
class Reading:
    """What is read from values that JSON has no type for."""

    decimal_bytes: bool = False
    """Whether a string in a decimal column is the base64 of its bytes, and not its digits."""
    milliseconds: bool = False
    """Whether a number in a timestamp column is in milliseconds, and not in the unit of the column."""


READING = Reading()


def reading_of(style: JsonStyle) -> Reading:
    """Return what reads values that were written in a style."""
    return Reading(style.decimals == "bytes", style.timestamps == "unix_millis")


class JsonRewriter:
    """Rewrites JSON objects with the members `fields` into the form that Arrow's parser reads.

    Raises a LineError for a value that does not fit its field.
    """

    def __init__(self, fields: Sequence[pa.Field], *, reading: Reading) -> None:
        self._reading = reading
        self._rewrite = self._members(fields, ())

    def normal(self, line: bytes) -> bytes:
        """Return the line in the form of Arrow's parser, with declared members only."""
        try:
            message = _DECODER.decode(line.decode())
        except UnicodeDecodeError:
            raise LineError("it is not UTF-8") from None
        except (ValueError, RecursionError) as error:
            raise LineError(f"it is not JSON: {error}") from None
        if not isinstance(message, dict):
            raise LineError("it is not a JSON object")
        return _dump(self._rewrite(message)).encode()

    def _members(self, fields: Iterable[pa.Field], path: Path) -> Callable[[Any], Any]:
        members = [(field.name, self._rewriter(field, (*path, field.name))) for field in fields]

        def rewrite(value: Any) -> Any:
            if not isinstance(value, dict):
                raise _mismatch(value, "an object", path)
            return {name: rewrite(value.get(name)) for name, rewrite in members}

        return rewrite

    def _items(self, field: pa.Field, path: Path) -> Callable[[Any], Any]:
        item = self._rewriter(field, path)

        def rewrite(value: Any) -> Any:
            if not isinstance(value, list):
                raise _mismatch(value, "a list", path)
            return [item(element) for element in value]

        return rewrite

    def _leaf(self, kind: pa.DataType, path: Path) -> Callable[[Any], Any]:
        read = next(read for applies, read in _READERS if applies(kind))
        reading = self._reading

        def rewrite(value: Any) -> Any:
            try:
                return read(value, kind, reading)
            except LineError as error:
                raise error.under(path) from None
            except (ValueError, ArithmeticError):
                raise _mismatch(value, f"a value of type {kind}", path) from None

        return rewrite

    def _rewriter(self, field: pa.Field, path: Path) -> Callable[[Any], Any]:
        """Return a function that converts a value of this field to the form of Arrow's parser."""
        if is_json(field):
            present = _json_text(path)
        elif pa.types.is_struct(field.type):
            present = self._members(field.type, path)
        elif is_list(field.type):
            present = self._items(field.type.value_field, path)
        else:
            present = self._leaf(field.type, path)
        nullable = field.nullable

        def rewrite(value: Any) -> Any:
            if value is not None:
                return present(value)
            if not nullable:
                raise missing_value(path)
            return None

        return rewrite


def _json_text(path: Path) -> Callable[[Any], str]:
    def rewrite(value: Any) -> str:
        try:
            return _dump(value)
        except ValueError:
            raise LineError("NaN and Infinity are not JSON", path=path) from None

    return rewrite


class _Number(str):
    """A JSON number with a fraction or an exponent, which is written back unchanged."""

    __slots__ = ()

    @property
    def text(self) -> str:
        return self[len(_MARK) :]


_DECODER = json.JSONDecoder(parse_float=lambda text: _Number(_MARK + text))
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _dump(value: Any) -> str:
    text = _ENCODER.encode(value)
    return _MARKED.sub(r"\1", text) if _MARK in text else text


def _text(value: Any) -> str:
    """Return a number or a string as it was written."""
    if isinstance(value, _Number):
        return value.text
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError  # noqa: TRY004 - every mismatch is told in the same way
    return str(value).strip()


def _read_integer(value: Any, kind: pa.DataType, _: Reading) -> int:
    number = int(value) if isinstance(value, int) and not isinstance(value, bool) else _integer(_text(value))
    low, high = (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    if pa.types.is_unsigned_integer(kind):
        low, high = 0, 2**kind.bit_width - 1
    if not low <= number <= high:
        raise LineError(f"{number} is out of the range of {kind}")
    return number


def _integer(text: str) -> int:
    number = Decimal(text)
    if abs(number.adjusted()) > 40 or number != int(number):
        raise ValueError
    return int(number)


def _read_float(value: Any, _: pa.DataType, __: Reading) -> str:
    text = _text(value)
    text = _ODD_FLOATS.get(text.lower().removeprefix("+"), text)
    if text not in _ODD_FLOATS.values() and not (_NUMBER.fullmatch(text) and math.isfinite(float(text))):
        raise ValueError
    return _Number(_MARK + (text if text in _ODD_FLOATS.values() else repr(float(text))))


def _read_decimal(value: Any, kind: pa.DataType, reading: Reading) -> str:
    if reading.decimal_bytes and isinstance(value, str) and not isinstance(value, _Number):
        number = decode_decimal(value, kind)
        assert number is not None
    else:
        number = Decimal(_text(value))
    return format(number.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT), "f")


def _read_timestamp(value: Any, kind: pa.DataType, reading: Reading) -> str:
    if not isinstance(value, str) or isinstance(value, _Number):
        number = _integer(_text(value))
        if not reading.milliseconds:
            return str(np.datetime64(number, kind.unit))
        return str(np.datetime64(number // 1000, "s") if kind.unit == "s" else np.datetime64(number, "ms"))
    digits = _DIGITS[kind.unit]
    return _FRACTION.sub(lambda match: f".{match[1][:digits]}" if digits else "", value.strip().upper())


def _read_date(value: Any, _: pa.DataType, __: Reading) -> str:
    if isinstance(value, str) and not isinstance(value, _Number):
        return value
    return str(np.datetime64(_integer(_text(value)), "D"))


def _read_time(value: Any, kind: pa.DataType, _: Reading) -> str:
    if isinstance(value, str) and not isinstance(value, _Number):
        return _FRACTION.sub(lambda match: match[0][:10], value)
    time = np.datetime64(_integer(_text(value)), kind.unit)
    if not np.datetime64(0, "D") <= time < np.datetime64(1, "D"):
        raise ValueError
    return str(time).partition("T")[2]


def _read_boolean(value: Any, _: pa.DataType, __: Reading) -> bool:
    if not isinstance(value, bool):
        raise ValueError  # noqa: TRY004 - every mismatch is told in the same way
    return value


def _read_text(value: Any, _: pa.DataType, __: Reading) -> str:
    if not isinstance(value, str) or isinstance(value, _Number):
        raise ValueError  # noqa: TRY004 - every mismatch is told in the same way
    return value


_READERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType, Reading], Any]], ...] = (
    (pa.types.is_integer, _read_integer),
    (pa.types.is_floating, _read_float),
    (pa.types.is_boolean, _read_boolean),
    (pa.types.is_decimal, _read_decimal),
    (pa.types.is_timestamp, _read_timestamp),
    (pa.types.is_date, _read_date),
    (pa.types.is_time, _read_time),
    (pa.types.is_duration, lambda value, _, __: _integer(_text(value))),
    (pa.types.is_null, lambda _, __, ___: None),
    (lambda _: True, _read_text),
)


def decode_base64(text: str | None) -> bytes | None:
    """Decode the base64 of bytes."""
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError(f"`{text}` is not base64") from None


def decode_decimal(text: str | None, kind: pa.DataType) -> Decimal | None:
    """Decode a decimal from the base64 of its unscaled value, big-endian in two's complement."""
    data = decode_base64(text)
    if data is None:
        return None
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-kind.scale, context=_EXACT)


def _mismatch(value: Any, expected: str, path: Path) -> LineError:
    excerpt = _dump(value) if not isinstance(value, float) else repr(value)
    return LineError(f"{excerpt[:60]} is not {expected}", path=path)
