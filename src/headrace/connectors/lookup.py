"""What lookup tables share whose rows are written in a format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.connectors.base import Connector
from headrace.errors import BadLineError
from headrace.formats.options import FormatOptions
from headrace.operator import Lookup, OperatorContext


class LookupOptions(FormatOptions):
    """The options of a table with one key and rows in a format."""

    format: Literal["json", "raw_string", "raw_bytes"] = Field(
        "json",
        description="`json`: an object for each row; `raw_string`, `raw_bytes`: the column `value` as it is.",
    )

    @model_validator(mode="after")
    def _has_a_key(self) -> Self:
        if self.framing is not None:
            raise ValueError("`framing` does not go with a lookup: there is one row for each key")
        if self.columns is None:
            raise ValueError("a lookup needs columns")
        if len(self.primary_key) != 1:
            given = ", ".join(self.primary_key) or "none"
            raise ValueError(f"a lookup needs a primary key of one column, got {given}")
        if self.primary_key[0] not in self.columns.names:
            raise ValueError(f"there is no column `{self.primary_key[0]}` for the primary key")
        return self


class FormatLookup(Connector, Lookup):
    """A lookup table with `LookupOptions`."""

    options: LookupOptions

    @property
    def key(self) -> str:
        return self.options.primary_key[0]

    @property
    def columns(self) -> pa.Schema:
        return self.options.columns


def report_bad(ctx: OperatorContext, bad: Sequence[BadLineError]) -> None:
    """Count records that were dropped, and tell about the first of them."""
    if bad:
        ctx.metrics.add("bad_rows", len(bad))
        ctx.report_error(f"dropped {len(bad)} bad rows of a lookup table, such as: {bad[0].message}")
