"""Files that are damaged, cut off or none of their kind: what comes before is read, the rest is told."""

from __future__ import annotations

import bz2
import gzip
import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.base.errors import BadLineError, ConfigurationError, HeadraceError
from headrace.connectors.filesystem.decompress import Decompressed
from headrace.connectors.filesystem.source import FileSystemSource
from headrace.model.operator import SourceContext
from tests.support import ListCollector, plan, task, to_rows

SCHEMA = {"a": "int64", "b": "string"}


def read(source: FileSystemSource, *, rows: int = 10**9) -> tuple[list[Any], list[dict[str, Any]], int]:
    """The values of `a` that are read, the dead letters, and how many bad rows were counted."""
    offsets = plan(source, [rows], start=100.0, now=101.0)
    good, letters, counted = [], [], 0
    for start, end in pairwise(offsets):
        for split in source.splits(start, end, parallelism=2):
            ctx, collector = SourceContext(task(), split), ListCollector()
            source.run(ctx, collector)
            for row in to_rows(collector.batches):
                if "record" in row:
                    letters.append(row)
                else:
                    good.append(row["a"])
            counted += int(ctx.metrics.values.get("bad_rows", 0))
    return good, letters, counted


def parquet(rows: int, *, group: int = 100) -> bytes:
    out = io.BytesIO()
    table = pa.table({"a": range(rows), "b": [f"text {n}" for n in range(rows)]})
    pq.write_table(table, out, row_group_size=group, compression="zstd", use_dictionary=False)
    return out.getvalue()


def folder(tmp_path: Path, files: dict[str, bytes]) -> str:
    (tmp_path / "in").mkdir()
    for name, data in files.items():
        (tmp_path / "in" / name).write_bytes(data)
    return str(tmp_path / "in")


@pytest.mark.parametrize("broken", [b"this is not Parquet", b"PAR1", parquet(5)[:-20], parquet(5)[:40]])
def test_a_file_that_is_not_parquet_is_one_bad_record(tmp_path: Path, broken: bytes) -> None:
    path = folder(tmp_path, {"1.parquet": parquet(5), "2.parquet": broken, "3.parquet": parquet(2)})
    options: dict[str, Any] = {"path": path, "format": "parquet"}
    for schema in (SCHEMA, None):
        dropped = FileSystemSource(**options, schema=schema, bad_data="drop", timestamp_column="a")
        assert read(dropped) == ([0, 1, 2, 3, 4, 0, 1], [], 1)
        kept = FileSystemSource(**options, schema=schema, bad_data="dead_letter")
        good, (letter,), counted = read(kept, rows=3)
        assert (good, counted) == ([0, 1, 2, 3, 4, 0, 1], 1)
        assert letter["source"].endswith("in/2.parquet")
        assert "in/2.parquet` cannot be read, it is not a Parquet file: " in letter["error"]
        assert letter["position"] == "the whole file"
        with pytest.raises(ConfigurationError, match=r"in/2\.parquet` is not a Parquet file: "):
            read(FileSystemSource(**options, schema=schema))


def test_what_is_damaged_in_a_parquet_file_does_not_touch_other_row_groups(tmp_path: Path) -> None:
    data = bytearray(parquet(300))
    middle = pq.read_metadata(io.BytesIO(bytes(data))).row_group(1).column(1)
    begin = middle.data_page_offset
    data[begin + 30 : begin + middle.total_compressed_size] = b"\xff" * (middle.total_compressed_size - 30)
    path = folder(tmp_path, {"1.parquet": bytes(data)})
    options: dict[str, Any] = {"path": path, "format": "parquet", "schema": SCHEMA}
    good, (letter,), counted = read(FileSystemSource(**options, bad_data="dead_letter"))
    assert (good, counted) == ([*range(100), *range(200, 300)], 1)
    assert letter["position"] == "in rows 100 to 199"
    with pytest.raises(BadLineError, match=r"1\.parquet` cannot be read, it is damaged in rows 100 to 199: "):
        read(FileSystemSource(**options))
    assert read(FileSystemSource(**{**options, "schema": {"a": "int64"}}))[0] == list(range(300))


def test_a_value_of_parquet_that_does_not_fit_is_a_bad_record(tmp_path: Path) -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"a": [1, None, 3, 4], "b": ["1", "2", "x", "400"]}), out)
    path = folder(tmp_path, {"1.parquet": out.getvalue()})
    columns = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int8())])
    options: dict[str, Any] = {"path": path, "format": "parquet", "schema": columns}
    good, letters, counted = read(FileSystemSource(**options, bad_data="dead_letter"))
    assert (good, counted) == ([1], 3)
    assert [(letter["position"], letter["content"]) for letter in letters] == [
        ("row 1", '{"a":null,"b":"2"}'),
        ("row 2", '{"a":3,"b":"x"}'),
        ("row 3", '{"a":4,"b":"400"}'),
    ]
    assert "column `a`: the value is missing, and the column is NOT NULL" in letters[0]["error"]
    with pytest.raises(BadLineError, match=r"row 1 cannot be read, column `a`: the value is missing"):
        read(FileSystemSource(**options))


def test_an_avro_file_that_is_cut_off_gives_the_blocks_before_that(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}
    out = io.BytesIO()
    fastavro.writer(out, schema, [{"a": n} for n in range(1000)], sync_interval=100)
    cut = out.getvalue()[: len(out.getvalue()) // 2]
    path = folder(tmp_path, {"1.avro": cut, "2.avro": b"Obj\1 nothing", "3.avro": out.getvalue()})
    options: dict[str, Any] = {"path": path, "format": "avro", "schema": {"a": "int64"}}
    good, letters, counted = read(FileSystemSource(**options, bad_data="dead_letter"))
    before = len(good) - 1000
    assert 300 < before < 500
    assert good == [*range(before), *range(1000)]
    assert counted == 2
    assert [letter["position"] for letter in letters] == [f"after {before} records", "the whole file"]
    assert [letter["source"].rpartition("/")[2] for letter in letters] == ["1.avro", "2.avro"]
    assert (letters[0]["record"], letters[0]["content"]) == (b"", "")  # a file may be large
    assert "1.avro` cannot be read, a block of the Avro file is cut off" in letters[0]["error"]
    assert read(FileSystemSource(**options, bad_data="drop")) == (good, [], 2)
    with pytest.raises(HeadraceError, match=r"1\.avro`: a block of the Avro file is cut off"):
        read(FileSystemSource(**options))


COUNT = 40_000
LINES = b"".join(b'{"a":%d,"b":"text %d"}\n' % (n, n * 7919 % 1000) for n in range(COUNT))


def packed(codec: str) -> bytes:
    if codec in {"gzip", "bz2"}:
        return gzip.compress(LINES) if codec == "gzip" else bz2.compress(LINES, 1)
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, codec) as stream:
        stream.write(LINES)
    return bytes(out.getvalue())


@pytest.mark.parametrize("codec", ["gzip", "zstd", "bz2", "lz4", "brotli"])
def test_the_lines_before_the_break_of_a_compressed_file_count(tmp_path: Path, codec: str) -> None:
    ending = {"gzip": "gz", "zstd": "zst", "brotli": "br"}.get(codec, codec)
    data = packed(codec)
    path = folder(tmp_path, {f"1.json.{ending}": data[: len(data) * 2 // 3], f"2.json.{ending}": data})
    options: dict[str, Any] = {"path": path, "schema": SCHEMA}
    good, (letter,), counted = read(FileSystemSource(**options, bad_data="dead_letter"))
    before = len(good) - COUNT
    assert COUNT // 4 < before < COUNT
    assert good == [*range(before), *range(COUNT)]
    assert counted == 1
    assert letter["source"].endswith(f"1.json.{ending}")
    assert "Truncated compressed stream" in letter["error"]
    # However the epochs are cut, the same is read.
    assert read(FileSystemSource(**options, bad_data="drop"), rows=7777) == (good, [], 1)
    with pytest.raises(BadLineError, match=rf"1\.json\.{ending}` cannot be read, it is damaged"):
        read(FileSystemSource(**options))


def test_a_bad_end_of_a_gzip_file_costs_no_line(tmp_path: Path) -> None:
    data = packed("gzip")
    path = folder(
        tmp_path,
        {"1.json.gz": data[:-8] + b"\0" * 8, "2.json.gz": data + b"junk", "3.json.gz": b"not compressed\n"},
    )
    good, letters, counted = read(FileSystemSource(path=path, schema=SCHEMA, bad_data="dead_letter"))
    assert (good, counted) == ([*range(COUNT), *range(COUNT)], 3)
    reasons = [letter["error"].rpartition("zlib inflate failed: ")[2] for letter in letters]
    assert reasons == ["incorrect data check", "incorrect header check", "incorrect header check"]


@pytest.mark.parametrize("codec", ["gzip", "zstd", "bz2", "lz4", "brotli"])
def test_all_that_can_be_read_is_read_in_whatever_steps(codec: str) -> None:
    data = packed(codec)
    cut = data[: len(data) // 2]
    found = set()
    for step in (1000, 65_536, 10**7):
        with Decompressed(lambda: pa.BufferReader(cut), codec) as stream:
            stream.skip(100)
            pieces = []
            while piece := stream.read(step):
                pieces.append(piece)
        assert stream.damage is not None
        found.add(b"".join(pieces))
    (only,) = found
    assert LINES[100:].startswith(only)
    assert len(only) > len(LINES) // 5


def test_an_error_of_the_disk_is_no_damage() -> None:
    class Failing(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            raise OSError(5, "Input/output error")

    with (
        Decompressed(lambda: pa.PythonFile(Failing(), mode="r"), "gzip") as stream,
        pytest.raises(OSError, match="Input/output error"),
    ):
        stream.read(10)
