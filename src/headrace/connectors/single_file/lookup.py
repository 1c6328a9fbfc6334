"""The `single_file` lookup table: find the lines of one local file by key."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pydantic import Field

from headrace.base.errors import ConfigurationError, ExternalError
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.lookup import FormatLookup, LookupOptions, report_bad
from headrace.connectors.filesystem.lines import decode_block, read_blocks
from headrace.connectors.single_file.path import absolute_path
from headrace.formats.options import LimitOptions
from headrace.model.operator import OperatorContext, key_values


@dataclass
class _Loaded:
    """The rows of the file as last read, and the index of the last row of each key."""

    rows: pa.Table | None = None
    rows_by_key: dict[Any, int] = field(default_factory=dict)
    version: tuple[int, ...] = ()


class SingleFileLookup(FormatLookup):
    """Looks rows up in one local file, by the column that is the primary key.

    Every worker loads the whole file into memory, from the same path. The last line of a key counts. Before
    each batch the worker checks the size and the modification time of the file, and reads a changed file
    again: replace it atomically, as `mv` does. A line that does not fit ends the run, or is dropped and
    counted in the metric `bad_rows`.
    """

    cache_bytes = 0

    class Options(LimitOptions, LookupOptions):
        """The options of the single_file lookup."""

        path: str = Field(min_length=1, description="The file to read.")

    options: Options

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self._path = absolute_path(self.options.path)
        self._format = self.options.format_for(self.columns)

    def validate(self) -> None:
        """Raise an error for a file that cannot be read."""
        if not self._path.is_file():
            what = (
                f"`{self._path}` is not a file" if self._path.exists() else f"there is no file `{self._path}`"
            )
            raise ConfigurationError(what)
        if not os.access(self._path, os.R_OK):
            raise ConfigurationError(f"`{self._path}` may not be read", hint="check its permissions")

    def lookup(self, keys: pa.Array, ctx: OperatorContext) -> pa.Table:
        """Return the last row of each key."""
        loaded = ctx.resource("lookup.file", _Loaded)
        rows = self._refresh(loaded, ctx)
        indices = [loaded.rows_by_key[key] for key in key_values(keys) if key in loaded.rows_by_key]
        return rows.take(pa.array(indices, pa.int64()))

    def _refresh(self, loaded: _Loaded, ctx: OperatorContext) -> pa.Table:
        """Return the rows of the file, which is read again if it changed."""
        try:
            if loaded.rows is not None and _version(self._path.stat()) == loaded.version:
                return loaded.rows
            with self._path.open("rb") as file:
                about = os.fstat(file.fileno())
                where, limit = str(self._path), self.options.max_record_bytes
                blocks = read_blocks(
                    file, 0, about.st_size, line=1, where=where, limit=limit, row_ends=self._format.row_ends
                )
                drop_bad = self.options.bad_data != "fail"
                decoded = [
                    decode_block(self._format, block, line=line, where=where, limit=limit, drop_bad=drop_bad)
                    for line, block in blocks
                ]
        except OSError as error:
            raise ExternalError(
                f"`{self._path}` cannot be read: {error.strerror}", where="single_file"
            ) from None
        report_bad(ctx, [bad for part in decoded for bad in part.bad])
        tables = [part.rows for part in decoded] or [self._format.decode(b"").rows]
        loaded.rows = pa.concat_tables(tables).combine_chunks()
        keys = key_values(loaded.rows.column(self.key).combine_chunks())
        loaded.rows_by_key = dict(zip(keys, range(len(keys)), strict=True))
        loaded.version = _version(about)
        return loaded.rows


def _version(about: os.stat_result) -> tuple[int, ...]:
    return about.st_mtime_ns, about.st_size, about.st_ino
