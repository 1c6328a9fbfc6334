"""Describes what a relation computes, so that its state is recognized where operators change places."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import pyarrow as pa

from headrace.functions.asynchronous import AsyncFunction
from headrace.functions.table import TableFunction
from headrace.model.builder import Port
from headrace.sql.bind.catalog import CatalogTable
from headrace.sql.bind.logical import Expression, Relation


class Derivations:
    """What relations and all they are made of compute, as hashes."""

    def __init__(self) -> None:
        self._hashes: dict[Relation, str] = {}

    def of(self, relation: Relation) -> str:
        """The hash of a relation, the same whichever queries stand beside it.

        Streams are left out: the plan knows what they are made of, and their ids may change.
        """
        if relation not in self._hashes:
            values = [self._text(getattr(relation, field.name)) for field in fields(relation)]
            text = f"{type(relation).__name__}({'; '.join(values)})"
            self._hashes[relation] = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self._hashes[relation]

    def _text(self, value: Any) -> str:
        if isinstance(value, Relation):
            return self.of(value)
        if isinstance(value, Port):
            return "stream"
        if isinstance(value, CatalogTable | AsyncFunction | TableFunction):
            return value.name
        if isinstance(value, pa.Schema | pa.Table):
            return ", ".join(value.names if isinstance(value, pa.Schema) else value.schema.names)
        if isinstance(value, Expression):
            return value.text
        if is_dataclass(value):
            value = [getattr(value, field.name) for field in fields(value)]
        elif isinstance(value, Mapping):
            value = [item for name in sorted(value) for item in (name, value[name])]
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return f"[{'; '.join(map(self._text, value))}]" if is_list else str(value)
