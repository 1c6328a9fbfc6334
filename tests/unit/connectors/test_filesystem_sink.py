import gzip
import json
import uuid
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.base.errors import ConfigurationError, PlanError, RefusedError
from headrace.connectors.filesystem.layout import NameOptions, directory_problem
from headrace.connectors.filesystem.sink import FileSystemSink
from headrace.connectors.filesystem.source import FileSystemSource
from headrace.storage.local import LocalStorage
from tests.support import SinkDriver, plan, read_range

EACH_EPOCH = {"rolling_policy.interval": 0}


def everything(source: Any) -> Any:
    offsets = plan(source, [10**9], start=100.0, now=101.0)
    return read_range(source, offsets[0], offsets[-1])


def batch(*numbers: int, key: Sequence[str | None] = ("k",)) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "n": pa.array(numbers, pa.int64()),
            "k": [key[i % len(key)] for i in range(len(numbers))],
            "_timestamp": pa.array([n * 3600 * 10**9 for n in numbers]).cast(pa.timestamp("ns")),
        }
    )


def driver(folder: Path, **options: Any) -> SinkDriver:
    """A sink that ends its files with every epoch."""
    given = {"path": str(folder / "out"), **EACH_EPOCH, **options}
    return SinkDriver(lambda: FileSystemSink(**given), folder / "state")


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
        "csv": {"format": "csv", "json.compression": "gzip"},
        "avro": {"format": "avro", "avro.compression": "deflate"},
    }.items():
        folder = tmp_path / name
        driver(folder, schema=schema, **options).run(1, [pa.RecordBatch.from_pydict(rows, schema=schema)])
        read: dict[str, Any] = {"path": str(folder / "out"), "schema": schema, "format": name}
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


def test_a_file_that_another_commit_moves_in_the_same_moment_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = driver(tmp_path)
    data = sink.prepare(1, [batch(1)])
    ((staged, name),) = json.loads(data["files"][0])["files"]

    def exists(_storage: LocalStorage, path: str) -> bool:
        found = (tmp_path / "out" / path).exists()
        if path == name:
            (tmp_path / "out" / staged).rename(tmp_path / "out" / name)
        return found

    monkeypatch.setattr(LocalStorage, "exists", exists)
    sink.commit(1, data)
    assert [path.name for path in visible(tmp_path)] == [name]


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


@pytest.mark.parametrize("form", ["json", "parquet", "csv", "avro"])
def test_the_rows_of_an_epoch_are_cut_into_files_of_a_size(tmp_path: Path, form: str) -> None:
    options: dict[str, Any] = {
        "format": form,
        "rolling_policy.file_size": "2kB",
        **({"parquet.compression": "uncompressed"} if form == "parquet" else {}),
    }
    driver(tmp_path, **options).run(1, [batch(*range(1000))])
    files = visible(tmp_path)
    assert len(files) >= 3
    sizes = sorted(path.stat().st_size for path in files)
    assert 1900 <= sizes[1] <= sizes[-1] < 6000
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


def long_values(*, count: int = 2) -> pa.RecordBatch:
    """Rows of which the second has a partition value that no directory can be named after."""
    return batch(*range(1, count + 1), key=("k", "é" * 50))


@pytest.mark.parametrize("interval", [0, 30])
def test_a_partition_value_longer_than_a_name_may_be_fails_in_the_task(tmp_path: Path, interval: int) -> None:
    sink = driver(tmp_path, **{"partitioning.fields": "k", "rolling_policy.interval": interval})
    with pytest.raises(RefusedError, match=r"column `k`: the value `é+` makes a directory name of 302 bytes"):
        sink.prepare(1, [long_values()])


def test_rows_with_partition_values_that_are_too_long_are_dropped_and_counted(tmp_path: Path) -> None:
    sink = driver(tmp_path, **{"partitioning.fields": "k", "bad_data": "drop"})
    sink.run(1, [long_values()])
    assert [path.parent.name for path in visible(tmp_path)] == ["k=k"]
    assert sink.metrics["bad_rows"] == 1


def test_partition_values_that_together_make_too_long_a_path_fail_in_the_task(tmp_path: Path) -> None:
    names = [f"c{index}" for index in range(20)]
    rows = pa.record_batch({**{name: ["v" * 240] for name in names}, "n": [1]})
    sink = driver(tmp_path, **{"partitioning.fields": ", ".join(names)})
    with pytest.raises(RefusedError, match="make a path of"):
        sink.prepare(1, [rows])


def test_the_key_of_an_object_has_at_most_1024_bytes() -> None:
    names = NameOptions()
    assert directory_problem("k=" + "v" * 600, "s3://bucket/out", names=names) is None
    assert "of at most 1024" in str(directory_problem("k=" + "v" * 950, "s3://bucket/out", names=names))


def test_a_file_name_that_is_too_long_fails_in_the_task(tmp_path: Path) -> None:
    sink = driver(tmp_path, **{"filename.prefix": "p" * 250})
    with pytest.raises(ConfigurationError, match="more than 255 bytes"):
        sink.prepare(1, [batch(1)])


@pytest.mark.parametrize("compression", ["uncompressed", "gzip"])
def test_a_row_with_line_breaks_in_a_value_is_never_cut_into_two_files(
    tmp_path: Path, compression: str
) -> None:
    texts = [f"{number}\nof\nmany" for number in range(50)]
    rows = pa.record_batch({"n": list(range(50)), "k": texts})
    given = {"format": "csv", "json.compression": compression, "rolling_policy.file_size": 60}
    driver(tmp_path, **given).run(1, [rows])
    assert len(visible(tmp_path)) > 2
    schema = pa.schema({"n": pa.int64(), "k": pa.string()})
    read = everything(FileSystemSource(path=str(tmp_path / "out"), schema=schema, format="csv"))
    assert sorted(row["k"] for row in read) == sorted(texts)


def test_any_value_names_a_directory_from_which_it_is_read_again(tmp_path: Path) -> None:
    values = ["a/b", "nul\0", ".", "..", "../up", "", " ", "é", "x=y", "%2F", None]
    driver(tmp_path, **{"partitioning.fields": "k"}).run(1, [batch(*range(1, 12), key=values)])
    assert all(path.parent.parent == tmp_path / "out" for path in visible(tmp_path))
    schema = pa.schema({"n": pa.int64(), "k": pa.string()})
    read = everything(FileSystemSource(path=str(tmp_path / "out"), schema=schema, format="json"))
    expected = dict(enumerate(values, 1))
    assert {row["n"]: row["k"] for row in read} == expected
