"""Compacted topics as tables: a message is the current row of its key, one without a value deletes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from headrace.base.columns import RETRACT, TIMESTAMP
from headrace.base.errors import BadLineError
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.messages import MessageReader, Messages, bad_message
from headrace.connectors.base import report_bad
from headrace.formats.base import plain_field
from headrace.formats.json.format import JsonFormat
from headrace.model.operator import DEAD_LETTER, Collector, SourceContext

INDEX = "_index"
"""The column, and the metadata, that tells which message a row is of."""
_CHANGES: frozenset[str] = frozenset({"debezium_json"})


def is_upsert(options: Mapping[str, Any]) -> bool:
    """Whether the options of a table, as they are written or read, say that it is one of upserts."""
    return str(options.get("upsert", "")).lower() in {"true", "1"}


class UpsertOptions(DeclaredOptions):
    """Whether messages are the current rows of their keys, and how keys are written."""

    upsert: bool = Field(
        default=False,
        description=(
            "The topic is a table, as with Flink's `upsert-kafka`: a message is the current row of its key, "
            "the PRIMARY KEY, and a message without a value (a tombstone) deletes it."
        ),
    )
    key_format: Literal["raw", "json"] | None = Field(
        None,
        alias="key.format",
        description=(
            "With `upsert`: how keys are written. `raw`, for a key of one column: its text, or its bytes; "
            "`json`: an object with the key columns. By default `raw` for one column, `json` for several."
        ),
    )

    @model_validator(mode="after")
    def _is_a_table(self) -> Self:
        options: Any = self
        key: list[str] = options.primary_key
        if not self.upsert:
            if self.key_format is not None:
                raise ValueError("`key.format` needs `upsert` = true")
            return self
        if options.format in _CHANGES:
            raise ValueError("`upsert` needs a format of rows: `debezium_json` has changes of its own")
        if getattr(options, "framing", None) is not None:
            raise ValueError("`upsert` does not go with `framing`: a message is one row")
        if not key:
            raise ValueError("`upsert` needs the PRIMARY KEY of the table, or the option `primary_key`")
        missing = (
            [] if options.columns is None else [name for name in key if name not in options.columns.names]
        )
        if missing:
            raise ValueError(f"the primary key names `{missing[0]}`, which is not a column")
        if self.key_format == "raw" and len(key) > 1:
            raise ValueError("`key.format` = 'raw' is for a key of one column; use 'json'")
        return self

    @property
    def json_keys(self) -> bool:
        """Whether keys are objects."""
        options: Any = self
        return (self.key_format or ("raw" if len(options.primary_key) == 1 else "json")) == "json"


class UpsertReader:
    """Reads messages as rows of a table: with `_retract` those that delete the row of their key.

    The key columns are what the key of the message holds, whatever its value says. A key that is missing or
    cannot be read is bad data.
    """

    def __init__(self, options: Any, columns: pa.Schema, *, connector: str, where: str) -> None:
        key: list[str] = options.primary_key
        self._options, self._where = options, where
        self._columns = columns
        self._key = pa.schema([columns.field(name).with_nullable(False) for name in key])
        # The value may have the key too, or leave it out.
        fields = [field.with_nullable(True) if field.name in key else field for field in columns]
        inside = options.model_copy(
            update={
                "columns": pa.schema([*fields, pa.field(INDEX, pa.int64())]),
                "metadata": {**options.metadata, INDEX: INDEX},
            }
        )
        self._rows = MessageReader(inside, connector=connector, where=where)
        self._keys = JsonFormat(self._key, drop_bad=True)

    def read(self, messages: Messages, ctx: SourceContext, collector: Collector) -> pa.Table:
        """Return the rows of messages, in order."""
        keys, messages = self._read_keys(messages, ctx, collector)
        numbered = _numbered(messages)
        deletes = [index for index, value in enumerate(messages.values) if value is None]
        values = [index for index, value in enumerate(messages.values) if value is not None]
        ctx.metrics.add("tombstones", len(deletes))
        rows = self._rows.read(numbered.select(values), ctx, collector)
        upserts = self._with_key(rows, keys, retract=False)
        if not deletes:
            return upserts.drop_columns([INDEX])
        deleted = self._with_key(self._empty_rows(messages, deletes), keys, retract=True)
        both = pa.concat_tables([upserts, deleted])
        order = np.argsort(both.column(INDEX).to_numpy(), kind="stable")
        return both.take(pa.array(order)).drop_columns([INDEX])

    def _read_keys(
        self, messages: Messages, ctx: SourceContext, collector: Collector
    ) -> tuple[pa.Table, Messages]:
        """Return the key columns of each message that has a key, and these messages."""
        texts = list(messages.metadata("key"))
        keys, bad = self._json_keys(texts) if self._options.json_keys else self._raw_keys(texts)
        if not bad:
            return keys, messages
        errors = [self._bad_key(messages, index, reason) for index, reason in sorted(bad.items())]
        if self._options.bad_data == "fail":
            raise errors[0]
        report_bad(ctx, collector, errors, keep=self._options.bad_data == DEAD_LETTER)
        return keys, messages.select([index for index in range(len(texts)) if index not in bad])

    def _json_keys(self, texts: Sequence[bytes | None]) -> tuple[pa.Table, dict[int, str]]:
        objects = [(text or b"").replace(b"\n", b" ") or b"-" for text in texts]  # which is no JSON
        decoded = self._keys.decode(objects, first_line=0, where=self._where)
        return decoded.rows, {
            error.line: "it has none" if texts[error.line] is None else error.message for error in decoded.bad
        }

    def _raw_keys(self, texts: Sequence[bytes | None]) -> tuple[pa.Table, dict[int, str]]:
        field, keys, bad = self._key.field(0), pa.array(texts, pa.binary()), {}
        kind = plain_field(field).type
        try:
            column = _from_text(keys, kind)
        except (pa.ArrowInvalid, ValueError):
            good: list[Any] = []
            for index, text in enumerate(texts):
                try:
                    good.append(_from_text(pa.array([text], pa.binary()), kind)[0])
                except (pa.ArrowInvalid, ValueError):
                    bad[index] = f"it is not a value of the type {kind}"
            column = pa.array([value.as_py() for value in good], kind)
        bad |= {index: "it has none" for index, text in enumerate(texts) if text is None}
        return pa.table([column.filter(column.is_valid())], names=[field.name]), bad

    def _bad_key(self, messages: Messages, index: int, reason: str) -> BadLineError:
        names = ", ".join(self._key.names)
        return bad_message(
            messages,
            index,
            f"the key of the message at {messages.position(index)} cannot be read as {names}: {reason}",
            column=names,
            hint="see `key.format`; every message of a table that is read with `upsert` has its key",
            fault="missing-value" if reason == "it has none" else "wrong-value",
            where=self._where,
        )

    def _with_key(self, rows: pa.Table, keys: pa.Table, *, retract: bool) -> pa.Table:
        of = rows.column(INDEX)
        for name in self._key.names:
            index = rows.schema.get_field_index(name)
            rows = rows.set_column(index, rows.schema.field(index), keys.column(name).take(of))
        flags = pa.repeat(pa.scalar(retract), rows.num_rows)
        index = rows.schema.get_field_index(TIMESTAMP)
        return rows.add_column(index, pa.field(RETRACT, pa.bool_()), flags)

    def _empty_rows(self, messages: Messages, indices: Sequence[int]) -> pa.Table:
        """Rows of messages without a value: metadata and time only."""
        chosen, arrays, fields = messages.select(indices), [], []
        for field in self._columns:
            what = self._options.metadata.get(field.name)
            kind = plain_field(field).type
            arrays.append(
                pa.nulls(len(indices), kind) if what is None else pa.array(chosen.metadata(what), kind)
            )
            fields.append(plain_field(field))
        arrays += [pa.array(indices, pa.int64()), pa.array(chosen.times, pa.int64()).cast(pa.timestamp("ns"))]
        fields += [pa.field(INDEX, pa.int64()), pa.field(TIMESTAMP, pa.timestamp("ns"))]
        return pa.table(arrays, schema=pa.schema(fields))


def _numbered(messages: Messages) -> Messages:
    """Return the messages with their number among them as metadata."""
    return Messages(
        messages.values,
        messages.times,
        lambda name: range(len(messages.values)) if name == INDEX else messages.metadata(name),
        messages.position,
        messages.offset,
        messages.partition,
    )


def _from_text(keys: pa.Array, kind: pa.DataType) -> pa.Array:
    return keys.cast(kind) if pa.types.is_binary(kind) else keys.cast(pa.string()).cast(kind)


def latest_of_keys(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last row of each key, in the order of these."""
    order = pa.array(np.arange(rows.num_rows))
    numbered = rows.select(key).append_column(INDEX, order)
    last = numbered.group_by(list(key)).aggregate([(INDEX, "max")]).column(f"{INDEX}_max")
    return rows.take(last.take(pc.sort_indices(last)))
