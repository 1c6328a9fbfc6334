"""Global tables: small tables of named values, stored as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from headrace.base.errors import PlanError
from headrace.state.base import StateTable
from headrace.state.config import TableConfig
from headrace.state.messages import KeyedData, TableData
from headrace.state.runs import MIN_TIME, everything, live_rows

GlobalKey: TypeAlias = "str | int | tuple[GlobalKey, ...]"

_BYTES: Final = "__bytes__"
_OBJECT: Final = "__object__"


def encode_value(value: Any) -> bytes:
    """Encode a value as JSON.

    Bytes become `{"__bytes__": "<base64>"}`. An object that has that key, or `__object__`, itself is
    wrapped as `{"__object__": {…}}`. Tuples come back as lists.
    """
    try:
        text = json.dumps(_to_json(value), ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"a value of type {type(value).__name__} cannot be kept in a global table: {error}",
            hint="use None, booleans, numbers, texts, bytes, and lists or dicts of these",
        ) from None
    return text.encode()


def decode_value(text: bytes) -> Any:
    """Decode a value that `encode_value` wrote."""
    return _from_json(json.loads(text))


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return {_BYTES: base64.b64encode(bytes(value)).decode()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} of a dict is not a text")
        encoded = {key: _to_json(item) for key, item in value.items()}
        return {_OBJECT: encoded} if encoded.keys() & {_BYTES, _OBJECT} else encoded
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {_BYTES}:
            return base64.b64decode(value[_BYTES])
        if value.keys() == {_OBJECT}:
            value = value[_OBJECT]
        return {key: _from_json(item) for key, item in value.items()}
    return value


def encode_key(key: GlobalKey) -> bytes:
    """Encode a key of a global table as JSON; a tuple becomes a list."""
    return json.dumps(_key_to_json(key), ensure_ascii=False, separators=(",", ":")).encode()


def decode_key(text: bytes) -> GlobalKey:
    """Decode a key that `encode_key` wrote."""
    return _key_from_json(json.loads(text))


def _key_to_json(key: GlobalKey) -> Any:
    if isinstance(key, tuple):
        return [_key_to_json(part) for part in key]
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise PlanError(
            f"{key!r} of type {type(key).__name__} cannot be a key of a global table",
            hint="use a text, an integer, or a tuple of these",
        )
    return key


def _key_from_json(value: Any) -> GlobalKey:
    return tuple(_key_from_json(part) for part in value) if isinstance(value, list) else value


class GlobalTable(StateTable):
    """A small table of named values; after a restore every subtask sees the entries of all.

    When two subtasks change one key in the same epoch, the one with the greater number wins. An operator
    declares it with `global_table_config`, and gets it from `ctx.global_table`.

    >>> import headrace as hr
    >>> config = hr.global_table_config("seen", "files that were read")
    >>> seen = hr.GlobalTable(config, files=(), run_files=None, low=0, high=2**64 - 1)  # by the engine
    >>> seen.insert("a.json", {"lines": 10})
    >>> seen.insert(("day", 5), b"bytes")
    >>> seen.get("a.json")["lines"], seen.get("b.json")
    (10, None)
    >>> seen.delete("a.json")
    >>> seen.get_all()
    {('day', 5): b'bytes'}
    >>> seen.take(), seen.get_all()
    ({('day', 5): b'bytes'}, {})
    >>> seen
    GlobalTable('seen')
    """

    def __init__(self, config: TableConfig, **where: Any) -> None:
        super().__init__(config, **where)
        self._changed: dict[bytes, bytes | None] = {}
        self._loaded: dict[bytes, bytes] | None = None

    @property
    def _entries(self) -> dict[bytes, bytes]:
        if self._loaded is None:
            rows = live_rows(self.saved, self.layout, everything, cutoff=MIN_TIME).table
            keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
            self._loaded = dict(zip(keys, values, strict=True))
        return self._loaded

    def insert(self, key: GlobalKey, value: Any) -> None:
        """Set the value of `key`.

        Args:
            key: a string, an integer, or a tuple of these.
            value: anything that JSON can represent, and bytes.

        Raises:
            PlanError: the key or the value has another type.
        """
        self._changed[encode_key(key)] = encode_value(value)

    def get(self, key: GlobalKey, default: Any = None) -> Any:
        """Return a copy of the value of `key`, or `default`.

        Args:
            key: a string, an integer, or a tuple of these.
            default: the result if there is no such key.

        Returns:
            The value; tuples are returned as lists.

        Raises:
            PlanError: the key has another type.
        """
        name = encode_key(key)
        text = self._changed[name] if name in self._changed else self._entries.get(name)
        return default if text is None else decode_value(text)

    def get_all(self) -> dict[GlobalKey, Any]:
        """Return every entry.

        Returns:
            Key → value, in the order of the keys' JSON.
        """
        merged: dict[bytes, bytes | None] = {**self._entries, **self._changed}
        return {
            decode_key(key): decode_value(text) for key, text in sorted(merged.items()) if text is not None
        }

    def delete(self, key: GlobalKey) -> None:
        """Remove `key` if it exists.

        Args:
            key: a string, an integer, or a tuple of these.

        Raises:
            PlanError: the key has another type.
        """
        self._changed[encode_key(key)] = None

    def take(self) -> dict[GlobalKey, Any]:
        """Return and remove every entry.

        Returns:
            Key → value, in the order of the keys' JSON.
        """
        entries = self.get_all()
        for key in entries:
            self.delete(key)
        return entries

    def changes(self) -> Iterator[TableData]:
        """Return the keys that were set or deleted in this epoch."""
        for key, value in sorted(self._changed.items()):
            yield TableData(self.name, KeyedData(key, value))
