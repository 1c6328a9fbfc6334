"""Partition rows like an Iceberg table: `identity(c)`, `bucket(c, 16)`, `day(at)` and so on."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator

from headrace.base.errors import ConfigurationError, suggest

_ONE = re.compile(r"\s*(?:(\w+)\s*\(\s*\"?([\w.]+)\"?\s*(?:,\s*(\d+)\s*)?\)|\"?([\w.]+)\"?)\s*")
_TIMES = ("year", "month", "day", "hour")
_SIZED = ("bucket", "truncate")
KINDS = ("identity", "void", *_TIMES, *_SIZED)


def _read(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    parts = re.findall(r"[^,(]+(?:\([^)]*\))?", value.strip().removeprefix("[").removesuffix("]"))
    return [part.strip() for part in parts if part.strip()]


PartitionFields = Annotated[list[str], BeforeValidator(_read)]
"""An option that takes `day(at), bucket(id, 16)`, or a list of such fields."""


def parse_field(text: str) -> tuple[str, str]:
    """Parse a partition field into the column and the Iceberg transform, such as `bucket[16]`."""
    match = _ONE.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"`{text}` is no partition", hint="write one such as `country`, `day(at)` or `bucket(id, 16)`"
        )
    kind, column, size, plain = match.groups()
    kind = (kind or "identity").lower()
    if kind not in KINDS:
        raise ConfigurationError(
            f"`{kind}` in `{text}` is no transform",
            hint=suggest(kind, KINDS, listing="there are"),
        )
    if (kind in _SIZED) is (size is None):
        expected = f"{kind}({column or plain}, 16)" if size is None else f"{kind}({column})"
        raise ConfigurationError(f"`{text}` is no partition", hint=f"write it as `{expected}`")
    return column or plain, f"{kind}[{size}]" if size else kind


def field_texts(table: Any) -> list[str]:
    """Return the partition fields of a table, in the form of the option."""
    texts = []
    for field in table.spec().fields:
        column = table.schema().find_column_name(field.source_id)
        kind, _, size = str(field.transform).rstrip("]").partition("[")
        texts.append(column if kind == "identity" else f"{kind}({column}{f', {size}' if size else ''})")
    return texts


def part_rows(rows: pa.Table, table: Any) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each partition of a table, with the partition's values as JSON."""
    spec, schema = table.spec(), table.schema()
    if spec.is_unpartitioned():
        yield "", rows
        return
    levels = []
    for field in spec.fields:
        column = schema.find_column_name(field.source_id)
        if "." in column:
            raise ConfigurationError(f"the table is partitioned by `{column}`, inside of a column")
        levels.append(_texts(rows.column(column).combine_chunks(), field, schema))
    keys = pc.binary_join_element_wise(*levels, ",").dictionary_encode()
    codes = keys.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(keys.dictionary)), side="right")
    begin = 0
    for key, end in zip(keys.dictionary.to_pylist(), ends.tolist(), strict=True):
        yield f"[{key}]", rows.take(pa.array(order[begin:end]))
        begin = end


def _texts(column: pa.Array, field: Any, schema: Any) -> pa.Array:
    """Return the transformed values of a column, each as JSON; each distinct value is transformed once."""
    from pyiceberg.partitioning import partition_record_value

    source = schema.find_field(field.source_id).field_type
    name = str(field.transform)
    if name in _TIMES and pa.types.is_timestamp(column.type):
        column = pc.floor_temporal(column, unit=name)
    apply = field.transform.transform(source)
    coded = column.dictionary_encode(null_encoding="encode")
    texts = [
        json.dumps(_to_json(apply(partition_record_value(field, value, schema))))
        for value in coded.dictionary.to_pylist()
    ]
    return pa.array(texts, pa.string()).take(coded.indices)


def _to_json(value: Any) -> Any:
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return Decimal(value["decimal"]) if "decimal" in value else base64.b64decode(value["bytes"])
    return value


def values_of(key: str) -> Sequence[Any]:
    """Parse the partition values that `part_rows` returned."""
    return [_from_json(value) for value in json.loads(key)] if key else []
