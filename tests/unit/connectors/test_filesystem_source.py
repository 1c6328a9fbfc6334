import bz2
import gzip
import json
import os
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import cloudpickle
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.base.errors import BadLineError, ConfigurationError, ExternalError, RefusedError
from headrace.connectors.filesystem import content as filesystem_content
from headrace.connectors.filesystem import files as filesystem_files
from headrace.connectors.filesystem import listing as filesystem_listing
from headrace.connectors.filesystem.files import LANE
from headrace.connectors.filesystem.source import FileSystemSource
from headrace.model.operator import Limit, SourceContext
from headrace.storage import base as storage_base
from headrace.storage.base import RequestRetry
from headrace.storage.open import open_storage
from headrace.testing.in_process import run_in_process
from tests.support import ListCollector, plan, read_range, task


def everything(source: Any, *, parallelism: int = 1) -> Any:
    offsets = plan(source, [10**9], start=100.0, now=101.0)
    return read_range(source, offsets[0], offsets[-1], parallelism=parallelism)


def write(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = folder / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder / "in")


def test_files_are_read_in_the_order_of_their_paths_without_hidden_ones(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "b.json": '{"a":3}\n',
            "a/2.json": '{"a":2}',
            "a/1.json": '\n{"a":1}\n',
            ".staged/x.json": "oops",
            "_log/x.json": "oops",
            "a/.hidden": "oops",
        },
    )
    for url in (path, f"file://{path}"):
        rows = everything(FileSystemSource(path=url))
        assert [row["a"] for row in rows] == [1, 2, 3]
        assert {row["_timestamp"] for row in rows} == {100 * 10**9}
    assert [row["a"] for row in everything(FileSystemSource(path=f"{path}/b.json"))] == [3]


def test_a_pattern_chooses_files_by_their_path_below_the_directory(tmp_path: Path) -> None:
    path = write(tmp_path, {"x/1.json": '{"a":1}', "y/1.json": '{"a":2}', "x/1.txt": "oops"})
    options: dict[str, Any] = {"path": path, "source.regex_pattern": r"^x/.*\.json$"}
    assert [row["a"] for row in everything(FileSystemSource(**options))] == [1]


def test_files_that_come_later_and_lines_that_are_appended_are_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, {"1.json": '{"a":1}\n', "3.json": '{"a":3}\n'})
    source = FileSystemSource(path=path)
    start, end = plan(source, [10**9], start=100.0, now=101.0)
    write(tmp_path, {"2.json": '{"a":2}\n', "3.json": '{"a":3}\n{"a":4}\n'})
    assert [row["a"] for row in read_range(source, start, end)] == [1, 3]
    assert [file["path"] for file in start[LANE]["pages"][0]] == ["1.json", "3.json"]
    write(tmp_path, {"1.json": ""})
    with pytest.raises(ExternalError, match=r"1\.json` has changed"):
        read_range(source, start, end)


def test_large_files_are_shared_by_tasks_at_line_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem_content, "WORTH_SPLITTING", 100)
    lines = [json.dumps({"a": i, "pad": "x" * (i * 37 % 200)}) for i in range(300)]
    lines[200] = '{"a":"bad"}'
    path = write(tmp_path, {"1.json": "\n".join(lines), "2.json": '{"a":300}\n'})
    source = FileSystemSource(path=path, schema={"a": "int64"}, bad_data="drop")
    start, end = plan(source, [10**9], start=100.0, now=101.0)
    for parallelism in (1, 2, 7):
        splits = source.splits(start, end, parallelism=parallelism)
        assert len(splits) == parallelism
        rows = read_range(source, start, end, parallelism=parallelism)
        assert [row["a"] for row in rows] == [i for i in range(301) if i != 200]
    strict = FileSystemSource(path=path, schema={"a": "int64"})
    with pytest.raises(BadLineError, match=r"line 201 ") as caught:
        read_range(strict, start, end, parallelism=7)
    assert "1.json" in str(caught.value)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_files_may_consist_of_several_parts(tmp_path: Path, compression: str) -> None:
    (tmp_path / "in").mkdir()
    parts = [b'{"a":1}\n{"a":2}\n{"a"', b':3}\n{"a":4}']
    packed = b"".join(pa.compress(part, codec=compression, asbytes=True) for part in parts)
    (tmp_path / "in" / "x").write_bytes(packed)
    options: dict[str, Any] = {"path": str(tmp_path / "in"), "source.compression": compression}
    source = FileSystemSource(**options)
    offsets = plan(source, [3, 1], start=100.0, now=101.0)
    rows = [[row["a"] for row in read_range(source, *two, parallelism=2)] for two in pairwise(offsets)]
    assert rows == [[1, 2, 3], [4]]
    assert source.is_finished(offsets[-1])
    (tmp_path / "in" / "x").write_bytes(b"neither this nor that")
    with pytest.raises(ConfigurationError, match=compression):
        FileSystemSource(**options).initial_offset(time=0.0)


def test_dropped_rows_are_counted(tmp_path: Path) -> None:
    source = FileSystemSource(
        path=write(tmp_path, {"1": 'x\n{"a":1}\ny'}), schema={"a": "int64"}, bad_data="drop"
    )
    start, end = plan(source, [10**9], start=100.0, now=101.0)
    (split,) = source.splits(start, end, parallelism=1)
    ctx = SourceContext(task(), split)
    source.run(ctx, ListCollector())
    assert ctx.metrics.values == {"bad_rows": 2, "bad_rows.malformed": 2}


def parquet_file(folder: Path, name: str, table: pa.Table, **options: Any) -> str:
    (folder / "in").mkdir(exist_ok=True)
    pq.write_table(table, folder / "in" / name, **options)
    return str(folder / "in")


def test_parquet_columns_come_as_they_are_declared(tmp_path: Path) -> None:
    parquet_file(tmp_path, "1.parquet", pa.table({"b": ["x"], "a": pa.array([1], pa.int32()), "c": [1]}))
    path = parquet_file(tmp_path, "2.parquet", pa.table({"a": pa.array([2], pa.int64())}))
    path = parquet_file(tmp_path, "3.parquet", pa.table({"z": [1, 2]}))
    schema = pa.schema({"a": pa.decimal128(21, 2), "b": pa.string()})
    rows = everything(FileSystemSource(path=path, format="parquet", schema=schema))
    assert [(row["a"], row["b"]) for row in rows] == [
        (Decimal(1), "x"),
        (Decimal(2), None),
        *[(None, None)] * 2,
    ]
    assert {row["_timestamp"] for row in rows} == {100 * 10**9}
    whole = FileSystemSource(path=f"{path}/1.parquet", format="parquet", timestamp_column="c")
    assert everything(whole) == [{"b": "x", "a": 1, "c": 1, "_timestamp": 1}]


def test_any_range_of_rows_is_read_across_row_groups_and_files(tmp_path: Path) -> None:
    for number in range(3):
        table = pa.table({"a": range(number * 100, (number + 1) * 100)})
        parquet_file(tmp_path, f"{number}.parquet", table, row_group_size=30)
    source = FileSystemSource(path=str(tmp_path / "in"), format="parquet")
    offsets = plan(source, [17, 90, 1], start=100.0, now=101.0)
    counts = [source.count(begin, end) for begin, end in pairwise(offsets)]
    assert counts[:3] == [17, 90, 1]
    assert sum(count or 0 for count in counts) == 300
    found = [
        row["a"] for begin, end in pairwise(offsets) for row in read_range(source, begin, end, parallelism=3)
    ]
    assert found == list(range(300))


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_tasks_have_equal_shares_wherever_an_epoch_begins_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(filesystem_content, "BATCH_ROWS", 10)
    monkeypatch.setattr(filesystem_content, "WORTH_SPLITTING", 100)
    for number in range(6):
        values = range(1000 + number * 100, 1100 + number * 100)
        if kind == "json":
            write(tmp_path, {f"{number}.json": "".join(f'{{"a":{value}}}\n' for value in values)})
        else:
            parquet_file(tmp_path, f"{number}.parquet", pa.table({"a": values}))
    source = FileSystemSource(path=str(tmp_path / "in"), format=kind, schema={"a": "int64"})
    offsets = plan(source, [37, 222, 10**9], start=100.0, now=101.0)
    for parallelism in (2, 3, 5):
        for start, end in pairwise(offsets[1:]):
            splits = source.splits(start, end, parallelism=parallelism)
            shares = [sum(part["to"] - part["from"] for part in split.detail["parts"]) for split in splits]
            assert len(shares) == parallelism
            # A bound within half of what is worth a task from the end of a file is moved there.
            assert max(shares) - min(shares) <= (120 if kind == "json" else 12)
            rows = read_range(source, start, end, parallelism=parallelism)
            assert [row["a"] for row in rows] == sorted(row["a"] for row in rows)
            assert len(rows) == (222 if start == offsets[1] else 341)


def test_many_small_files_are_shared_and_a_small_one_is_not(tmp_path: Path) -> None:
    files = {f"{number}.json": '{"a":1}\n' for number in range(7)}
    source = FileSystemSource(path=write(tmp_path, files), schema={"a": "int64"})
    start, end = plan(source, [10**9], start=100.0, now=101.0)
    parts = [len(split.detail["parts"]) for split in source.splits(start, end, parallelism=3)]
    assert (len(parts), sum(parts), max(parts)) == (3, 7, 3)
    start, *_, end = plan(source, [1], start=100.0, now=101.0)[:2]
    assert len(source.splits(start, end, parallelism=3)) == 1


def test_a_task_reads_what_it_has_of_a_file_in_one_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem_content, "BATCH_ROWS", 10)
    for number in range(4):
        table = pa.table({"a": range(number * 100, (number + 1) * 100)})
        parquet_file(tmp_path, f"{number}.parquet", table)
    source = FileSystemSource(path=str(tmp_path / "in"), format="parquet")
    start, end = plan(source, [10**9], start=100.0, now=101.0)
    for parallelism, expected in ((1, 4), (2, 4), (3, 6), (8, 8)):
        splits = source.splits(start, end, parallelism=parallelism)
        assert [len(split.detail["parts"]) for split in splits] == (
            [expected // parallelism] * parallelism
        ), parallelism
        rows = read_range(source, start, end, parallelism=parallelism)
        assert [row["a"] for row in rows] == list(range(400))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"a": pa.int64()}, "row 0 cannot be read, column `a`"),
        ({"b": pa.struct({"x": pa.int64()})}, "column `b`"),
    ],
)
def test_a_column_that_cannot_be_what_it_is_declared_is_named(
    tmp_path: Path, schema: dict[str, pa.DataType], message: str
) -> None:
    path = parquet_file(tmp_path, "1.parquet", pa.table({"a": ["x"], "b": [1]}))
    with pytest.raises((BadLineError, ConfigurationError), match=message) as caught:
        everything(FileSystemSource(path=path, format="parquet", schema=pa.schema(schema)))
    assert "1.parquet" in str(caught.value)
    missing = pa.schema([pa.field("c", pa.int64(), nullable=False)])
    with pytest.raises(ConfigurationError, match="NOT NULL"):
        everything(FileSystemSource(path=path, format="parquet", schema=missing))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "nowhere"}, "there is no file or directory"),
        ({"path": "in", "source.regex_pattern": "("}, "source.regex_pattern"),
        ({"path": "in", "format": "parquet"}, "not a Parquet file"),
        ({"path": "in", "format": "parquet", "source.compression": "gzip"}, "source.compression"),
        ({"path": "in", "source.regex_pattern": "nothing"}, "option `schema`"),
        ({"path": "in", "timestamp_column": "b", "schema": {"a": "int64"}}, "no column `b`"),
    ],
)
def test_what_cannot_be_read_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"a.json": '{"a":1}\n'})
    with pytest.raises(ConfigurationError) as caught:
        FileSystemSource(**options).initial_offset(time=0.0)
    assert message in str(caught.value)


def test_a_directory_without_files_is_finished_at_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = FileSystemSource(path=str(tmp_path / "in"), schema={"a": "int64"})
    assert source.is_finished(source.initial_offset(time=0.0))


def test_directories_name_columns(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "day=3/k=a%2Fb/1.json": '{"a":1}\n{"a":2,"k":"own"}\n',
            "day=4/k=__HIVE_DEFAULT_PARTITION__/1.json": '{"a":3}\n',
            "5.json": '{"a":4,"day":5}\n',
        },
    )
    schema = pa.schema([pa.field("day", pa.int32(), nullable=False), ("k", pa.string()), ("a", pa.int64())])
    rows = everything(FileSystemSource(path=path, schema=schema))
    assert [(row["day"], row["k"], row["a"]) for row in rows] == [
        (5, None, 4),
        (3, "a/b", 1),
        (3, "own", 2),
        (4, None, 3),
    ]
    only = everything(FileSystemSource(path=path, schema={"a": "int64"}))
    assert set(only[0]) == {"a", "_timestamp"}
    found = FileSystemSource(path=f"{path}/day=3")
    assert [(row["k"], row["a"]) for row in everything(found)] == [("a/b", 1), ("own", 2)]
    with pytest.raises(ConfigurationError, match=r"`x` in the path cannot be read as int64"):
        everything(FileSystemSource(path=write(tmp_path / "m", {"m=x/1": "{}\n"}), schema={"m": "int64"}))
    strict = pa.schema([pa.field("k", pa.string(), nullable=False)])
    with pytest.raises(ConfigurationError, match="null in the path"):
        everything(FileSystemSource(path=f"{path}/day=4", schema=strict))


def test_directories_name_columns_of_parquet_files(tmp_path: Path) -> None:
    for day in (1, 2):
        (tmp_path / "in" / f"day={day}").mkdir(parents=True)
        parquet_file(tmp_path, f"day={day}/x.parquet", pa.table({"a": [day * 10]}))
    source = FileSystemSource(path=str(tmp_path / "in"), format="parquet")
    assert [(row["day"], row["a"]) for row in everything(source)] == [("1", 10), ("2", 20)]
    declared = FileSystemSource(path=str(tmp_path / "in"), format="parquet", schema={"day": "int64"})
    assert [row["day"] for row in everything(declared)] == [1, 2]


def test_names_tell_how_files_are_compressed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, (ending, codec) in enumerate(
        {"gz": "gzip", "zst": "zstd", "bz2": "bz2", "br": "brotli"}.items()
    ):
        data = pa.compress(b'{"a":%d}\n' % number, codec=codec, asbytes=True) if codec != "bz2" else None
        packed = bz2.compress(b'{"a":%d}\n' % number) if data is None else data
        (tmp_path / "in" / f"{number}.json.{ending}").write_bytes(packed)
    (tmp_path / "in" / "9.json").write_bytes(b'{"a":9}')
    rows = everything(FileSystemSource(path=str(tmp_path / "in")))
    assert [row["a"] for row in rows] == [0, 1, 2, 3, 9]


def test_a_bad_line_goes_to_the_dead_letters_with_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, {"x/1.json": '{"a":1}\nnope\n{"a":3}\n'})
    source = FileSystemSource(path=path, schema={"a": "int64"}, bad_data="dead_letter")
    start, end = plan(source, [10**9], start=100.0, now=101.0)
    (split,) = source.splits(start, end, parallelism=1)
    ctx, collector = SourceContext(task(), split), ListCollector()
    source.run(ctx, collector)
    letters = [row for row in collector.rows if "record" in row]
    assert [(row["record"], row["position"]) for row in letters] == [(b"nope", "line 2")]
    assert letters[0]["source"].endswith("in/x/1.json")
    assert len(collector.rows) == 3


CSV = 'a,b\r\n1,x\r\n2,"y,z"\r\n3,\r\n'


def test_csv_files_are_read_by_their_first_line_wherever_they_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem_content, "WORTH_SPLITTING", 4)
    path = write(
        tmp_path, {"k=1/1.csv": CSV, "k=2/2.csv": "b,a\nq,4\n", "3.csv": "a,k\n5,9\n", "k=7/empty.csv": "a\n"}
    )
    source = FileSystemSource(path=path, format="csv", schema={"k": "int64", "b": "string", "a": "int64"})
    expected = [(9, None, 5), (1, "x", 1), (1, "y,z", 2), (1, None, 3), (2, "q", 4)]
    for sizes in ([1], [2, 1], [10**9]):
        offsets = plan(source, sizes, start=100.0, now=101.0)
        rows = [row for two in pairwise(offsets) for row in read_range(source, *two, parallelism=3)]
        assert [(row["k"], row["b"], row["a"]) for row in rows] == expected
        assert all(len(read_range(source, *two)) <= max(sizes) for two in pairwise(offsets))
    (tmp_path / "in" / "3.csv").unlink()
    found = everything(FileSystemSource(path=path, format="csv"))
    assert found[0] == {"k": "1", "a": 1, "b": "x", "_timestamp": 100 * 10**9}


def test_csv_without_a_first_line_has_its_columns_by_order(tmp_path: Path) -> None:
    path = write(tmp_path, {"k=1/1.csv": "1;x\n2;y\n"})
    options: dict[str, Any] = {"csv.header": False, "csv.delimiter": ";"}
    schema = {"k": "int64", "a": "int64", "b": "string"}
    rows = everything(FileSystemSource(path=path, format="csv", schema=schema, **options))
    assert [(row["k"], row["a"], row["b"]) for row in rows] == [(1, 1, "x"), (1, 2, "y")]
    assert list(rows[0])[:3] == ["k", "a", "b"]


def test_a_bad_line_of_csv_is_told_with_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, {"1.csv": "a\n1\nx\n3\n"})
    with pytest.raises(BadLineError, match="line 3 ") as caught:
        everything(FileSystemSource(path=path, format="csv", schema={"a": "int64"}))
    assert "1.csv" in str(caught.value)
    source = FileSystemSource(path=path, format="csv", schema={"a": "int64"}, bad_data="drop")
    assert [row["a"] for row in everything(source)] == [1, 3]


def test_avro_files_are_read_whole_in_their_own_schema(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}
    for number in range(3):
        with (tmp_path / "in" / f"{number}.avro").open("wb") as file:
            records = [{"a": number * 10 + i} for i in range(10 if number != 1 else 0)]
            fastavro.writer(file, schema, records, codec="deflate" if number else "null", sync_interval=8)
    path = str(tmp_path / "in")
    source = FileSystemSource(path=path, format="avro")
    offsets = plan(source, [3], start=100.0, now=101.0)
    assert [source.count(*two) for two in pairwise(offsets)] == [10, 10]
    found = [row["a"] for two in pairwise(offsets) for row in read_range(source, *two, parallelism=2)]
    assert found == [*range(10), *range(20, 30)]
    declared = FileSystemSource(path=path, format="avro", schema={"a": "double", "b": "string"})
    assert everything(declared)[0] == {"a": 0.0, "b": None, "_timestamp": 100 * 10**9}
    data = (tmp_path / "in" / "0.avro").read_bytes()
    (tmp_path / "in" / "0.avro").write_bytes(data[:-5])
    with pytest.raises(ConfigurationError, match=r"0\.avro.*cut off"):
        source.initial_offset(time=1.0)
    lenient = FileSystemSource(path=path, format="avro", bad_data="drop", schema={"a": "int64"})
    rows = everything(lenient)
    assert 10 < len(rows) < 20


# ------------------------------------------------------------------------------------- watched directories


def watching(path: str, **options: Any) -> FileSystemSource:
    return FileSystemSource(
        path=path, **{"source.watch_interval": "10s", "schema": {"a": "int64"}, **options}
    )


def test_new_files_of_a_watched_directory_are_read_once_each(tmp_path: Path) -> None:
    path = str(tmp_path / "in")
    source = watching(path)
    offset = source.initial_offset(time=100.0)  # the directory is not there yet
    seen: list[list[int]] = []

    def look(now: float, source: Any = source) -> None:
        nonlocal offset
        end = source.latest_offset(offset, Limit(10**9, now), parallelism=2)
        seen.append([row["a"] for row in read_range(source, offset, end, parallelism=2)])
        offset = json.loads(json.dumps(end))
        assert not source.is_finished(offset)

    write(tmp_path, {"2.json": '{"a":2}\n'})
    look(101.0)
    write(tmp_path, {"1.json": '{"a":1}\n', ".3.json": '{"a":3}\n'})
    look(102.0)  # too early to look again
    look(111.0)
    (tmp_path / "in" / ".3.json").rename(tmp_path / "in" / "3.json")
    os.utime(tmp_path / "in" / "3.json", (1.0, 1.0))  # older than all others: it counts all the same
    look(112.0, watching(path))  # another run looks at once
    look(130.0)
    assert seen == [[2], [], [1], [3], []]


def test_a_long_listing_is_kept_beside_the_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem_listing, "PAGE", 10)
    path = write(tmp_path, {f"{n:03}.json": f'{{"a":{n}}}\n' for n in range(95)})
    storage = open_storage(str(tmp_path / "state"))
    for watch in ("10s", None):
        source = watching(path, **{"source.watch_interval": watch})
        source.open(storage, job_id="job", node="files")
        offsets = plan(source, [7], start=100.0, now=101.0)
        sizes = [len(json.dumps(offset)) for offset in offsets]
        assert max(sizes) < 1500
        assert (sizes[-1] < sizes[0]) is (
            watch is None
        )  # what is read is forgotten, unless it is compared with
        again = watching(path, **{"source.watch_interval": watch})
        again.open(storage, job_id="job", node="files")
        rows = [row["a"] for two in pairwise(offsets) for row in read_range(again, *two, parallelism=3)]
        assert rows == list(range(95))
    write(tmp_path, {"new.json": '{"a":95}\n'})
    source = watching(path)
    source.open(storage, job_id="job", node="files")
    start = plan(watching(path), [10**9], start=100.0, now=100.0)[0]
    assert len(start[LANE]["pages"]) == 10  # without a storage all are in the offset


def test_event_time_of_watched_files_is_that_of_their_modification(tmp_path: Path) -> None:
    path = write(tmp_path, {"1.json": '{"a":1}\n'})
    os.utime(tmp_path / "in" / "1.json", (5.0, 5.0))
    (row,) = everything(watching(path))
    assert row["_timestamp"] == 5 * 10**9


def test_a_pipeline_watches_a_directory_over_restarts(tmp_path: Path) -> None:
    path = write(tmp_path, {"1.json": '{"a":1}\n{"a":2}\n'})

    def run() -> list[int]:
        made = hr.Pipeline("watch")
        options: dict[str, Any] = {"source.watch_interval": "1s", "schema": {"a": "int64"}}
        made.source("filesystem", path=path, id="in", **options).sink("memory", name="out", id="out")
        result = run_in_process(made, tmp_path / "state", epoch_rows=1, idle_epochs=150)
        rows = result.rows.get("out")
        return sorted(rows.column("a").to_pylist()) if rows is not None and rows.num_rows else []

    assert run() == [1, 2]
    assert run() == []
    write(tmp_path, {"0.json": '{"a":3}\n'})
    assert run() == [3]


# -------------------------------------------------------------------------------------------- object stores


def test_settings_of_a_store_are_never_displayed() -> None:
    options: dict[str, Any] = {
        "path": "s3://bucket/data",
        "storage.aws_access_key_id": "key",
        "storage.aws_secret_access_key": "hush",
        "storage.aws_endpoint": "http://127.0.0.1:1",
        "storage.allow_http": "true",
        "schema": {"a": "int64"},
    }
    source = FileSystemSource(**options)
    assert "hush" not in source.display()
    assert "aws_secret_access_key" in source.display()
    copy = cloudpickle.loads(cloudpickle.dumps(source))
    assert copy.options.storage["aws_secret_access_key"] == "hush"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "s3://bucket/data", "storage.nonsense": "1"}, "nonsense"),
        ({"path": "in", "storage.aws_region": "x"}, "`storage.aws_region` is for object stores"),
        ({"path": "r2://bucket/data"}, "r2://ACCOUNT@BUCKET"),
        ({"path": "ftp://x/y"}, "cannot be opened"),
    ],
)
def test_a_store_that_cannot_be_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FileSystemSource(**options)
    assert message in str(caught.value)


def test_a_store_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_base, "FILES_RETRY", RequestRetry(0, timedelta(seconds=1)))
    options: dict[str, Any] = {
        "path": "s3://bucket/data",
        "storage.aws_endpoint": "http://127.0.0.1:1",
        "storage.aws_access_key_id": "k",
        "storage.aws_secret_access_key": "hush",
        "storage.allow_http": "true",
    }
    with pytest.raises(ExternalError, match="cannot be listed") as caught:
        FileSystemSource(**options).reach()
    assert "hush" not in str(caught.value)


def test_small_pieces_of_a_file_become_few_batches_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem_files, "_GATHERED_ROWS", 10)
    pieces = [
        pa.table({"n": list(range(begin, begin + size))}) for begin, size in [(0, 3), (3, 0), (3, 4), (7, 9)]
    ]
    other = pa.table({"m": [1]})
    found = list(filesystem_files.gathered([*pieces, other, *pieces[:1]]))
    assert [table.num_rows for table in found] == [7, 9, 1, 3]
    assert [n for table in found[:2] for n in table["n"].to_pylist()] == list(range(16))
    assert list(filesystem_files.gathered([pieces[1]])) == []


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_a_file_that_is_replaced_by_one_of_its_size_while_it_is_read_is_an_error(
    tmp_path: Path, compression: str
) -> None:
    def content(first: int) -> bytes:
        lines = "".join(f'{{"a":{n}}}\n' for n in range(first, first + 5)).encode()
        return gzip.compress(lines, 0, mtime=0) if compression else lines

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "0.json").write_text('{"a":0}\n')
    file = tmp_path / "data" / f"1.json{compression}"
    file.write_bytes(content(1))
    source = FileSystemSource(path=str(tmp_path / "data"))
    start, middle, later, end = plan(source, [3, 2, 10**9], start=100.0, now=101.0)
    splits = source.splits(middle, later, parallelism=1)
    file.write_bytes(content(5))
    for attempt in (
        lambda: source.latest_offset(middle, Limit(rows=10, time=102.0), parallelism=1),
        lambda: source.latest_offset(later, Limit(rows=10, time=102.0), parallelism=1),
        lambda: source.run(SourceContext(task(), splits[0]), ListCollector()),
    ):
        with pytest.raises(RefusedError, match=r"1\.json.*` is another file") as caught:
            attempt()
        assert "put the file back" in str(caught.value.hint)
    file.write_bytes(content(1))
    rows = read_range(source, start, middle) + read_range(source, middle, later)
    assert [row["a"] for row in rows + read_range(source, later, end)] == [0, 1, 2, 3, 4, 5]
    assert "identity" not in end[LANE]


def test_a_position_of_an_earlier_version_is_continued_and_knows_the_file_from_then_on(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, {"1.json": "".join(f'{{"a":{n}}}\n' for n in range(9))})
    source = FileSystemSource(path=path)
    _, middle, _ = plan(source, [3, 10**9], start=100.0, now=101.0)
    old = {LANE: {name: value for name, value in middle[LANE].items() if name != "identity"}}
    later = source.latest_offset(old, Limit(rows=3, time=102.0), parallelism=1)
    assert [row["a"] for row in read_range(source, old, later)] == [3, 4, 5]
    assert later[LANE]["identity"] == middle[LANE]["identity"]
