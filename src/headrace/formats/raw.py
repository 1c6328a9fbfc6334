"""The formats `raw_string` and `raw_bytes`: lines and messages unchanged, in the one column `value`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.base.errors import ConfigurationError
from headrace.formats._shared.refused import not_utf8_values
from headrace.formats.base import Decoded, Format, Rows, bad_line, split_lines

COLUMN = "value"


class RawFormat(Format):
    """Each line or message is the value of the one column `value`; an empty line is an empty value."""

    def __init__(self, schema: pa.Schema | None, *, kind: pa.DataType, drop_bad: bool = False) -> None:
        if schema is not None:
            check_value_column(schema, kind)
        super().__init__(schema)
        self._kind = kind
        self._drop_bad = drop_bad

    def decode(self, data: bytes | Sequence[bytes], *, first_line: int = 1, where: str = "lines") -> Decoded:
        """Return a row for each line."""
        lines = split_lines(data, first_line)
        values = pa.array([line for _, line in lines], pa.binary())
        if pa.types.is_binary(self._kind):
            return Decoded(pa.table({COLUMN: values}))
        try:
            return Decoded(pa.table({COLUMN: values.cast(pa.string())}))
        except pa.ArrowInvalid:
            refused: list[int] = not_utf8_values(values).tolist()
        bad = [bad_line(*lines[index], "it is not UTF-8", where=where) for index in refused]
        if not self._drop_bad:
            raise bad[0]
        good = np.ones(len(lines), np.bool_)
        good[refused] = False
        return Decoded(pa.table({COLUMN: values.filter(pa.array(good)).cast(pa.string())}), bad)

    def encode(self, rows: Rows) -> bytes:
        """Return the values, each followed by a newline."""
        return b"".join(message + b"\n" for message in self.messages(rows))

    def messages(self, rows: Rows) -> list[bytes]:
        """Return the values; a null is an empty one."""
        _, batch = self.columns(rows)
        check_value_column(batch.schema, self._kind)
        return [value or b"" for value in batch.column(COLUMN).cast(pa.binary()).to_pylist()]


def check_value_column(schema: pa.Schema, kind: pa.DataType, *, what: str | None = None) -> None:
    """Raise an error for columns other than the one column of a raw format."""
    if schema.names != [COLUMN] or schema.field(COLUMN).type != kind:
        name, word = ("raw_bytes", "BYTEA") if pa.types.is_binary(kind) else ("raw_string", "TEXT")
        raise ConfigurationError(
            f"{what or f'the format `{name}`'} needs exactly one column, `{COLUMN} {word}`, "
            f"got {', '.join(f'{field.name} {field.type}' for field in schema) or 'none'}"
        )
