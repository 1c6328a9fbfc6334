"""A snapshot of a table, stored in the state directory until it is read."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv

from headrace.base.errors import ExternalError
from headrace.state.references import FileReference, write_referenced

FILE_ROWS = 20_000
"""The number of rows in each file but the last."""
_WHAT = "file of the table's first rows"
_PARSED_BYTES = 16 * 1024 * 1024
_STORED = pa.ipc.IpcWriteOptions(compression="zstd")


class Snapshot:
    """Files with the rows of a table, in one folder of the state storage.

    An index lists the files with their checksums. A snapshot of an earlier version has none.
    """

    def __init__(self, storage: Any, folder: str, index: Mapping[str, Any] | None = None) -> None:
        self._storage = storage
        self._folder = folder
        self._index = None if index is None else FileReference.from_json(index)
        self._files: list[FileReference] | None = None

    @classmethod
    def create(cls, storage: Any, node: str, *, check: Callable[[], None]) -> tuple[Snapshot, str]:
        """Create a snapshot, and return it and its folder; files of earlier attempts are removed.

        `check` raises if another run has taken over: what that one writes is not listed yet, and stays.
        """
        earlier = storage.list(f"snapshots/{node}/")
        check()
        for path in earlier:
            storage.delete(path)
        folder = f"snapshots/{node}/{uuid.uuid4().hex[:12]}"
        return cls(storage, folder), folder

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:06}.arrow"

    def write(self, tables: Iterator[pa.Table]) -> tuple[int, dict[str, Any]]:
        """Write tables of `FILE_ROWS` rows each, the last one smaller.

        Returns the number of rows, and the reference to the index for the offset.
        """
        total = 0
        files: list[FileReference] = []
        for number, rows in enumerate(tables):
            out = pa.BufferOutputStream()
            with pa.ipc.new_stream(out, rows.schema, options=_STORED) as writer:
                writer.write_table(rows)
            files.append(write_referenced(self._storage, self._path(number), out.getvalue().to_pybytes()))
            total += rows.num_rows
        data = json.dumps([file.to_json() for file in files]).encode()
        self._index = write_referenced(self._storage, f"{self._folder}/index.json", data, index=True)
        self._files = files
        return total, self._index.to_json()

    def _file(self, number: int) -> FileReference:
        if self._index is None:
            return FileReference(self._path(number))
        if self._files is None:
            listed = json.loads(self._index.read(self._storage, what=_WHAT))
            self._files = [FileReference.from_json(file) for file in listed]
        return self._files[number]

    def read(self, first: int, end: int) -> Iterator[pa.Table]:
        """Yield the rows from number `first` up to `end`."""
        while first < end:
            number = first // FILE_ROWS
            first_needed = self._path(number) if self._index is None else self._index.path
            if not self._storage.exists(first_needed):
                raise ExternalError(
                    "the rows that the table had when the pipeline first started are no longer kept",
                    hint="to read the table again, start the pipeline with another state directory",
                    where="postgres",
                )
            data = self._file(number).read(self._storage, what=_WHAT)
            last = min(end, (number + 1) * FILE_ROWS)
            rows = pa.ipc.open_stream(data).read_all()
            yield rows.slice(first - number * FILE_ROWS, last - first)
            first = last

    def delete(self) -> None:
        """Remove the files."""
        for path in self._storage.list(f"{self._folder}/"):
            self._storage.delete(path)


def copied_rows(
    blocks: Iterator[bytes], columns: int, read: Callable[[Sequence[pa.Array]], pa.Table]
) -> Iterator[pa.Table]:
    """Yield the rows of COPY … TO STDOUT (FORMAT csv), `FILE_ROWS` at a time; `read` converts strings."""
    lines: list[bytes] = []
    parts: list[pa.Table] = []
    size = rows = 0
    for block in blocks:
        lines.append(bytes(block))
        size, rows = size + len(lines[-1]), rows + 1
        if rows == FILE_ROWS or size > _PARSED_BYTES:
            parts.append(_read_csv(lines, columns, read))
            lines, size = [], 0
        if rows == FILE_ROWS:
            yield pa.concat_tables(parts)
            parts, rows = [], 0
    if lines:
        parts.append(_read_csv(lines, columns, read))
    if parts:
        yield pa.concat_tables(parts)


def _read_csv(
    lines: Sequence[bytes], columns: int, read: Callable[[Sequence[pa.Array]], pa.Table]
) -> pa.Table:
    data = b"".join(lines)
    numbered = [str(index) for index in range(columns)]
    texts = pyarrow.csv.read_csv(
        io.BytesIO(data),
        # As one block: a row may be longer than any size that could be chosen.
        pyarrow.csv.ReadOptions(column_names=numbered, use_threads=False, block_size=len(data) + 1),
        pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(numbered, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return read([column.combine_chunks() for column in texts.columns])
