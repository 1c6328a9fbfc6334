"""Ranges of the rows of a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.formats import parquet


class Counted(pq.ParquetFile):  # type: ignore[misc]
    """Counts the batches that are decoded."""

    decoded = 0

    def iter_batches(self, *args: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in super().iter_batches(*args, **options):
            self.decoded += 1
            yield batch


@pytest.mark.parametrize(
    ("first", "end", "decoded"), [(0, 25, 3), (35, 40, 4), (95, 100, 10), (120, 130, 3), (90, 110, 11)]
)
def test_nothing_behind_a_range_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, end: int, decoded: int
) -> None:
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 10)
    pq.write_table(pa.table({"a": range(200)}), tmp_path / "a.parquet", row_group_size=100)
    file = Counted(tmp_path / "a.parquet")
    found = parquet.read_rows(file, first, end, None, where="a.parquet")
    assert [value for one in found for value in one.rows["a"].to_pylist()] == list(range(first, end))
    assert file.decoded == decoded
