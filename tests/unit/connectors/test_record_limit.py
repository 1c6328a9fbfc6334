"""Lines and messages of more than `max_record_bytes` are bad data and are not held in memory."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import BadLineError
from headrace.base.options import parse_options
from headrace.connectors.filesystem import lines as stream_lines
from headrace.connectors.filesystem.content import LineContent
from headrace.connectors.filesystem.lines import LongLine, read_blocks
from headrace.formats.options import FileReadOptions
from headrace.storage.local import LocalStorage

MEGABYTE = 1024 * 1024


@pytest.mark.parametrize("block", [4, 16, 1024])
@pytest.mark.parametrize("tail", [b"", b"\n", b"\nend", b"\n\nend\n"])
def test_a_long_line_is_apart_and_the_lines_around_it_keep_their_numbers(
    monkeypatch: pytest.MonkeyPatch, block: int, tail: bytes
) -> None:
    monkeypatch.setattr(stream_lines, "BLOCK", block)
    data = b"a\nbb\n" + b"x" * 50 + tail
    for end in (len(data), None):
        numbers: dict[int, Any] = {}
        for line, part in read_blocks(io.BytesIO(data), 0, end, line=1, where="here", limit=20):
            if isinstance(part, LongLine):
                numbers[line] = (part.size, part.newlines)
            else:
                numbers |= dict(enumerate(part.removesuffix(b"\n").split(b"\n"), line))
        rest = dict(enumerate(tail[1:].removesuffix(b"\n").split(b"\n"), 4)) if tail[1:] else {}
        assert numbers == {1: b"a", 2: b"bb", 3: (50 + bool(tail), int(bool(tail))), **rest}


def content(tmp_path: Path, **given: Any) -> tuple[LineContent, dict[str, Any]]:
    packed = tmp_path / "in.json.gz"
    with gzip.open(packed, "wb", compresslevel=1) as file:
        file.write(b'{"a": 1}\n{"a": "')
        for _ in range(100):
            file.write(b"x" * MEGABYTE)
        file.write(b'"}\n{"a": 2}\n')
    options = parse_options(FileReadOptions, {"schema": {"a": "int64"}, **given}, what="it")
    part = {"path": packed.name, "size": packed.stat().st_size, "from": 0, "to": None, "line": 1}
    return LineContent(LocalStorage(str(tmp_path)), options, "auto"), part


def test_a_long_compressed_line_is_dropped_without_being_held_in_memory(tmp_path: Path) -> None:
    lines, part = content(tmp_path, bad_data="drop", max_record_bytes=8 * MEGABYTE)
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    decoded = list(lines.read(part, pa.schema({"a": pa.int64()})))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [row["a"] for each in decoded for row in each.rows.to_pylist()] == [1, 2]
    (error,) = [error for each in decoded for error in each.bad]
    assert error.line == 2
    assert "it has 104,857,609 bytes, and `max_record_bytes` is 8,388,608" in str(error)
    assert peak + pa.total_allocated_bytes() - before < 40 * MEGABYTE


def test_a_long_line_ends_the_run_by_default(tmp_path: Path) -> None:
    lines, part = content(tmp_path)
    with pytest.raises(BadLineError, match=r"line 2 cannot be read, it has .* bytes"):
        list(lines.read(part, pa.schema({"a": pa.int64()})))


@pytest.mark.parametrize("quote", [b"", b'"'])
def test_a_long_csv_line_is_dropped_without_being_held_in_memory(tmp_path: Path, quote: bytes) -> None:
    packed = tmp_path / "in.csv.gz"
    with gzip.open(packed, "wb", compresslevel=1) as file:
        file.write(b'a,b\n1,"x\ny"\n2,' + quote)
        for _ in range(100):
            file.write(b"x" * MEGABYTE)
        file.write(quote + b"\n3,z\n")
    given = {"format": "csv", "bad_data": "drop", "max_record_bytes": 8 * MEGABYTE}
    options = parse_options(FileReadOptions, {"schema": {"a": "int64", "b": "string"}, **given}, what="it")
    lines = LineContent(LocalStorage(str(tmp_path)), options, "auto")
    part = {"path": packed.name, "size": packed.stat().st_size, "from": 0, "to": None, "line": 1}
    tracemalloc.start()
    decoded = list(lines.read(part, options.columns))
    reached = lines.advance(part, 0, 1, rows=10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [row["a"] for each in decoded for row in each.rows.to_pylist()] == [1, 3]
    (error,) = [error for each in decoded for error in each.bad]
    assert error.line == 4
    assert "bytes, and `max_record_bytes` is 8,388,608" in str(error)
    assert (reached.rows, reached.line, reached.at_end) == (3, 6, True)
    assert peak < 60 * MEGABYTE
