"""The base of lookup tables whose rows are encoded in a format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field

from headrace.base.errors import BadLineError, ConfigurationError
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors.base import Connector, check_column
from headrace.formats.options import DropOptions, FormatOptions
from headrace.model.operator import Lookup, OperatorContext


class LookupOptions(DropOptions, FormatOptions):
    """The options of a lookup table with one key and rows in a format."""

    format: Literal["json", "raw_string", "raw_bytes"] = Field(
        "json",
        description=(
            "`json`: an object for each row; `raw_string`, `raw_bytes`: the column `value`, unchanged."
        ),
    )


class FormatLookup(Connector, Lookup):
    """A lookup table with `LookupOptions`."""

    options: LookupOptions

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        name, key = type(self).__name__, self.options.primary_key
        if self.options.columns is None:
            raise ConfigurationError(
                f"{name} needs columns", hint="give their types with the option `schema`"
            )
        if len(key) != 1:
            raise ConfigurationError(
                f"{name} needs a primary key of one column, got {', '.join(key) or 'none'}",
                hint="give the column that rows are found by with the option `primary_key`",
            )
        check_column(key[0], self.options.columns.names, what=f"{name}, option `primary_key`")

    @property
    def key(self) -> str:
        return self.options.primary_key[0]

    @property
    def columns(self) -> pa.Schema:
        return self.options.columns


def report_bad(ctx: OperatorContext, bad: Sequence[BadLineError]) -> None:
    """Count dropped records, and log the first of them."""
    if bad:
        ctx.metrics.add("bad_rows", len(bad))
        ctx.report_error(f"dropped {len(bad)} bad rows of a lookup table, such as: {bad[0].message}")
