import gzip
import json
import uuid
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.connectors import filesystem
from headrace.connectors.filesystem import LANE, FileSystemSink, FileSystemSource
from headrace.errors import BadLineError, ConfigurationError, ExternalError, PlanError
from headrace.operator import SourceContext
from headrace.testing.in_process import run_in_process
from tests.support import ListCollector, SinkDriver, plan, read_range, task


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
    assert [file["path"] for file in start[LANE]["files"]] == ["1.json", "3.json"]
    write(tmp_path, {"1.json": ""})
    with pytest.raises(ExternalError, match=r"1\.json` has changed"):
        read_range(source, start, end)


def test_large_files_are_shared_by_tasks_at_line_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "_WORTH_SPLITTING", 100)
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
    assert ctx.metrics.values == {"bad_rows": 2}


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


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"a": pa.int64()}, "column `a`"),
        ({"b": pa.struct({"x": pa.int64()})}, "column `b`"),
    ],
)
def test_a_column_that_cannot_be_what_it_is_declared_is_named(
    tmp_path: Path, schema: dict[str, pa.DataType], message: str
) -> None:
    path = parquet_file(tmp_path, "1.parquet", pa.table({"a": ["x"], "b": [1]}))
    with pytest.raises(ConfigurationError, match=message) as caught:
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


# ---------------------------------------------------------------------------------------------- the sink


def batch(*numbers: int, key: Sequence[str | None] = ("k",)) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "n": pa.array(numbers, pa.int64()),
            "k": [key[i % len(key)] for i in range(len(numbers))],
            "_timestamp": pa.array([n * 3600 * 10**9 for n in numbers]).cast(pa.timestamp("ns")),
        }
    )


def driver(folder: Path, **options: Any) -> SinkDriver:
    return SinkDriver(lambda: FileSystemSink(path=str(folder / "out"), **options), folder / "state")


def visible(folder: Path) -> list[Path]:
    out = folder / "out"
    return sorted(path for path in out.rglob("*") if path.is_file() and ".staged" not in path.parts)


def test_a_source_reads_what_the_sink_wrote(tmp_path: Path) -> None:
    schema = pa.schema(
        {"n": pa.int64(), "at": pa.timestamp("us"), "d": pa.decimal128(38, 10), "b": pa.binary()}
    )
    rows = {"n": [1], "at": [datetime(2026, 1, 2)], "d": [Decimal("1.1234567891")], "b": [b"\xff"]}  # noqa: DTZ001
    for name, options in {
        "parquet": {"format": "parquet"},
        "json": {"format": "json", "json.compression": "gzip"},
    }.items():
        folder = tmp_path / name
        driver(folder, schema=schema, **options).run(1, [pa.RecordBatch.from_pydict(rows, schema=schema)])
        compression = {"source.compression": "gzip"} if name == "json" else {}
        read: dict[str, Any] = {"path": str(folder / "out"), "schema": schema, "format": name, **compression}
        (row,) = everything(FileSystemSource(**read))
        assert {key: [row[key]] for key in ("n", "d", "b")} == {key: rows[key] for key in ("n", "d", "b")}
    assert visible(tmp_path / "json")[0].name.endswith(".json.gz")
    assert gzip.decompress(visible(tmp_path / "json")[0].read_bytes()).startswith(b'{"n":1,')


def test_half_a_commit_is_made_whole_when_it_is_repeated(tmp_path: Path) -> None:
    sink = driver(tmp_path)
    data = sink.prepare(1, [batch(1)], [batch(2)], [batch(3)])
    ((staged, name),) = json.loads(data["files"][0])["files"]
    (tmp_path / "out" / staged).rename(tmp_path / "out" / name)
    assert len(visible(tmp_path)) == 1
    sink.commit(1, data)
    names = visible(tmp_path)
    assert len(names) == 3
    sink.commit(1, data)
    assert visible(tmp_path) == names


def test_what_no_commit_took_is_removed_by_the_next(tmp_path: Path) -> None:
    sink = driver(tmp_path)
    sink.prepare(1, [batch(1)])
    sink.run(1, [batch(2)])
    later = sink.prepare(3, [batch(3)])
    sink.run(2, [batch(4)])
    sink.commit(3, later)
    assert [path for path in (tmp_path / "out" / ".staged").rglob("*") if path.is_file()] == []
    assert len(visible(tmp_path)) == 3


def test_files_lie_in_directories_by_time_and_by_values(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "partitioning.time_pattern": "%Y/%m/%d/%H",
        "partitioning.fields": "k",
        "filename.prefix": "part",
        "filename.suffix": "jsonl",
        "filename.strategy": "serial",
    }
    sink = driver(tmp_path, **options)
    sink.run(1, [batch(-1, 0, 0, 1, 1, key=["a/b", "c=d", None, "", "c=d"])])
    found = {
        str(path.relative_to(tmp_path / "out").parent): [
            json.loads(line)["n"] for line in path.read_text().splitlines()
        ]
        for path in visible(tmp_path)
    }
    nothing = "__HIVE_DEFAULT_PARTITION__"
    assert found == {
        "1969/12/31/23/k=a%2Fb": [-1],
        "1970/01/01/00/k=c%3Dd": [0],
        f"1970/01/01/00/k={nothing}": [0],
        f"1970/01/01/01/k={nothing}": [1],
        "1970/01/01/01/k=c%3Dd": [1],
    }
    assert visible(tmp_path)[0].name == "part-00001-000-000.jsonl"


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_the_rows_of_an_epoch_are_cut_into_files_of_a_size(tmp_path: Path, form: str) -> None:
    options: dict[str, Any] = {
        "format": form,
        "rolling_policy.file_size": "2kB",
        "parquet.compression": "uncompressed",
    }
    driver(tmp_path, **options).run(1, [batch(*range(1000))])
    files = visible(tmp_path)
    assert len(files) > 3
    sizes = sorted(path.stat().st_size for path in files)
    assert 2000 <= sizes[1] <= sizes[-1] < 6000
    rows = everything(FileSystemSource(path=str(tmp_path / "out"), format=form))
    assert sorted(row["n"] for row in rows) == list(range(1000))


@pytest.mark.parametrize(("strategy", "length"), [("uuid", 36), ("uuid_v7", 36), ("ulid", 26)])
def test_names_are_ids_of_their_own(tmp_path: Path, strategy: str, length: int) -> None:
    sink = driver(tmp_path, **{"filename.strategy": strategy})
    for epoch in (1, 2, 3):
        sink.run(epoch, [batch(epoch)])
    names = [path.stem for path in visible(tmp_path)]
    assert len(set(names)) == 3
    assert {len(name) for name in names} == {length}
    if strategy == "uuid_v7":
        assert {uuid.UUID(name).version for name in names} == {7}


def test_serial_names_of_another_run_are_not_overwritten(tmp_path: Path) -> None:
    options = {"filename.strategy": "serial"}
    driver(tmp_path, **options).run(1, [batch(1)])
    with pytest.raises(ConfigurationError, match="another run"):
        driver(tmp_path, **options).run(1, [batch(2)])
    assert FileSystemSink(path="x", **options).claims()
    assert not FileSystemSink(path="x").claims()


def test_row_groups_have_about_the_bytes_that_were_asked_for(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "format": "parquet",
        "parquet.row_group_size": 4000,
        "parquet.compression": "lz4_raw",
    }
    driver(tmp_path, **options).run(1, [batch(*range(1000))])
    (file,) = visible(tmp_path)
    groups = pq.ParquetFile(file).metadata.num_row_groups
    assert groups > 2


def test_options_of_other_engines_are_accepted(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "rolling_policy.interval": "30 seconds",
        "rolling_policy.inactivity_interval": "10 seconds",
        "rolling_policy.watermark_expiration": "1 minute",
        "shuffle_by_partition.enabled": "true",
        "multipart.target_part_size": "8MB",
        "multipart.max_parts": "100",
        "multipart.minimum_multipart_size": "5MB",
        "sink.version": "v2",
    }
    driver(tmp_path, **options).run(1, [batch(1)])
    assert len(visible(tmp_path)) == 1


def test_rows_that_change_others_need_a_format_that_can_say_so(tmp_path: Path) -> None:
    changed = batch(1).append_column("_retract", pa.array([True]))
    with pytest.raises(PlanError, match="debezium_json"):
        driver(tmp_path, format="parquet").run(1, [changed])
    driver(tmp_path, format="debezium_json").run(1, [changed])
    assert json.loads(visible(tmp_path)[0].read_text())["op"] == "d"
    assert FileSystemSink(path="x", format="debezium_json").accepts_updates


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "file"}, "is a file"),
        ({"path": "file/below"}, "is a file"),
        ({"path": "out", "format": "parquet", "schema": {"i": "interval"}}, "column `i`"),
        ({"path": "out", "partitioning.fields": "kk", "schema": {"k": "string"}}, "did you mean `k`"),
        ({"path": "out", "multipart.target_part_size": "1MB"}, "multipart.target_part_size"),
        ({"path": "out", "filename.prefix": "a/b"}, "filename.prefix"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError) as caught:
        FileSystemSink(**options).validate()
    assert message in str(caught.value)


def test_a_pipeline_stopped_and_rescaled_writes_every_row_once(tmp_path: Path) -> None:
    path = write(
        tmp_path, {f"{n}.json": "".join(f'{{"a":{n * 100 + i}}}\n' for i in range(100)) for n in range(5)}
    )

    def pipeline() -> hr.Pipeline:
        made = hr.Pipeline("files")
        made.source("filesystem", path=path).sink("filesystem", path=str(tmp_path / "out"), format="parquet")
        return made

    stopped = run_in_process(pipeline(), tmp_path / "state", parallelism=2, epoch_rows=70, max_epochs=3)
    assert stopped.reason == "max_epochs"
    run_in_process(pipeline(), tmp_path / "state", parallelism=3, epoch_rows=90)
    rows = everything(FileSystemSource(path=str(tmp_path / "out"), format="parquet"))
    assert sorted(row["a"] for row in rows) == list(range(500))
