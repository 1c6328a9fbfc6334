"""The delta source: the rows of a table, then those that its versions add."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import headrace as hr
from headrace.base.errors import ConfigurationError, ExternalError
from headrace.connectors.delta.source import DeltaSource
from headrace.connectors.filesystem.files import LANE
from headrace.model.operator import Limit, Offset
from headrace.testing.in_process import CrashError, run_in_process
from tests.support import plan, read_range


def write(folder: Path, *values: int, mode: Any = "append") -> str:
    path = str(folder / "table")
    write_deltalake(path, pa.table({"a": pa.array(values, pa.int64())}), mode=mode)
    return path


def everything(source: DeltaSource) -> list[int]:
    offsets = plan(source, [2], start=100.0, now=101.0)
    return [row["a"] for row in read_range(source, offsets[0], offsets[-1], parallelism=2)]


class Follower:
    """Reads on from where it is, as runs do."""

    def __init__(self, path: str, **options: Any) -> None:
        self.options = {"path": path, "source.watch_interval": "10s", **options}
        self.source = DeltaSource(**self.options)
        self.offset: Offset = self.source.initial_offset(time=100.0)
        self.now = 100.0

    def look(self) -> list[int]:
        self.now += 10.0
        end = self.source.latest_offset(self.offset, Limit(10**9, self.now), parallelism=2)
        rows = read_range(self.source, self.offset, end, parallelism=2)
        self.offset = json.loads(json.dumps(end))
        return [row["a"] for row in rows]


def test_a_table_is_read_once_as_it_is_at_the_start(tmp_path: Path) -> None:
    write(tmp_path, 1, 2, 3)
    path = write(tmp_path, 4)
    source = DeltaSource(path=path)
    start = source.initial_offset(time=100.0)
    write(tmp_path, 5)
    end = source.latest_offset(start, Limit(10**9, 101.0), parallelism=1)
    assert source.is_finished(end)
    assert [row["a"] for row in read_range(source, start, end)] == [1, 2, 3, 4]
    assert source.count(start, end) == 4
    assert "version 2 with 1 columns" in source.reach()


def test_versions_of_a_watched_table_are_read_once_each(tmp_path: Path) -> None:
    follower = Follower(write(tmp_path, 1))
    assert follower.look() == [1]
    assert follower.look() == []
    write(tmp_path, 2, 3)
    write(tmp_path, 4)
    assert follower.look() == [2, 3, 4]
    follower.source = DeltaSource(**follower.options)  # another run
    write(tmp_path, 5)
    assert follower.look() == [5]
    assert not follower.source.is_finished(follower.offset)
    assert follower.offset[LANE]["more"] == {"version": 3}
    assert len(json.dumps(follower.offset)) < 600  # what was read is forgotten


@pytest.mark.parametrize(("start", "first"), [(0, [1, 2, 3]), (1, [2, 3]), (2, [3]), ("latest", [])])
def test_reading_may_begin_with_a_version(tmp_path: Path, start: Any, first: list[int]) -> None:
    path = write(tmp_path, 1)
    for value in (2, 3):
        write(tmp_path, value)
    follower = Follower(path, **{"source.starting_version": start})
    assert follower.look() == first
    write(tmp_path, 4)
    assert follower.look() == [4]
    with pytest.raises(ConfigurationError, match="the table is at version 3"):
        DeltaSource(path=path, **{"source.starting_version": 9}).initial_offset(time=1.0)


def test_a_version_that_changes_rows_ends_the_run_or_is_left_out(tmp_path: Path) -> None:
    strict, lenient = (
        Follower(write(tmp_path, 1, 2, mode="overwrite"), **{"source.skip_change_commits": skip})
        for skip in (False, True)
    )
    DeltaTable(str(tmp_path / "table")).delete("a = 1")
    write(tmp_path, 3)
    assert strict.offset[LANE]["more"]["version"] < 2
    with pytest.raises(ConfigurationError, match="deletes or changes rows") as caught:
        strict.look()
    assert "source.skip_change_commits" in str(caught.value)
    assert lenient.look() == [1, 2, 3]
    assert everything(DeltaSource(path=str(tmp_path / "table"))) == [2, 3]


def test_files_that_are_only_rearranged_are_passed_over(tmp_path: Path) -> None:
    follower = Follower(write(tmp_path, 1))
    write(tmp_path, 2)
    assert follower.look() == [1, 2]
    DeltaTable(str(tmp_path / "table")).optimize.compact()
    assert follower.look() == []
    write(tmp_path, 3)
    assert follower.look() == [3]


def test_a_log_that_was_cleaned_up_is_told(tmp_path: Path) -> None:
    follower = Follower(write(tmp_path, 1))
    follower.look()
    for value in (2, 3):
        write(tmp_path, value)
    DeltaTable(str(tmp_path / "table")).create_checkpoint()
    (tmp_path / "table" / "_delta_log" / f"{1:020}.json").unlink()
    follower.source = DeltaSource(**follower.options)
    with pytest.raises(ExternalError, match=r"version 1 of the table .* no longer in its log"):
        follower.look()


def test_columns_come_as_they_are_declared(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    rows = {
        "a": pa.array([1, 2], pa.int32()),
        "k": ["x y", None],
        "at": pa.array([1, 2], pa.timestamp("us", "UTC")),
        "flag": [True, False],
    }
    write_deltalake(path, pa.table(rows), partition_by=["k", "flag"])

    def read(**options: Any) -> list[dict[str, Any]]:
        source = DeltaSource(path=path, **options)
        offsets = plan(source, [10**9], start=100.0, now=101.0)
        found = read_range(source, offsets[0], offsets[-1])
        return sorted(
            ({k: v for k, v in row.items() if k != "_timestamp"} for row in found), key=lambda r: r["a"]
        )

    assert read() == [
        {"a": 1, "k": "x y", "at": 1, "flag": True},
        {"a": 2, "k": None, "at": 2, "flag": False},
    ]
    assert read(schema={"flag": "bool", "a": "int64"}) == [{"flag": True, "a": 1}, {"flag": False, "a": 2}]
    with pytest.raises(ConfigurationError, match="has no column `kk`"):
        read(schema={"kk": "string"})
    with pytest.raises(ConfigurationError, match="no column `att`"):
        read(timestamp_column="att")
    assert [row["a"] for row in read(timestamp_column="at")] == [1, 2]


def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no Delta table"):
        DeltaSource(path=str(tmp_path / "nowhere")).validate()
    path = write(tmp_path, 1)
    log = tmp_path / "table" / "_delta_log" / f"{0:020}.json"
    text = log.read_text().replace(
        '{"minReaderVersion":1,"minWriterVersion":2}',
        '{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["columnMapping"],'
        '"writerFeatures":["columnMapping"]}',
    )
    log.write_text(text)
    with pytest.raises(ConfigurationError, match="columnMapping"):
        DeltaSource(path=path).validate()


@pytest.mark.parametrize("step", ["tasks_done", "metadata_written", "committed"])
def test_a_pipeline_from_table_to_table_reads_each_row_once(tmp_path: Path, step: str) -> None:
    for first in (0, 40, 80):
        path = write(tmp_path, *range(first, first + 40))

    def made() -> hr.Pipeline:
        pipeline = hr.Pipeline("copy")
        options: dict[str, Any] = {"path": str(tmp_path / "copy"), "rolling_policy.interval": 0}
        pipeline.source("delta", path=path, id="in").sink("delta", id="out", **options)
        return pipeline

    def crash(name: str, epoch: int) -> None:
        if (name, epoch) == (step, 3):
            raise CrashError

    with pytest.raises(CrashError):
        run_in_process(made(), tmp_path / "state", epoch_rows=25, on_step=crash)
    run_in_process(made(), tmp_path / "state", epoch_rows=30, parallelism=3)
    copied = DeltaTable(str(tmp_path / "copy")).to_pyarrow_table().column("a").to_pylist()
    assert sorted(copied) == list(range(120))


def test_rows_that_are_marked_as_deleted_are_refused_and_told_if_the_marks_cannot_be_read(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, *range(30))
    (log,) = Path(path, "_delta_log").glob("*.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    (add,) = (action["add"] for action in actions if "add" in action)
    marks = {"sizeInBytes": 36, "cardinality": 2}
    inline = {"storageType": "i", "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000315c8Xg0@@D7"}
    gone = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4}
    for kind, message, error in (
        (inline, "version 0 of the table .* deletes or changes rows", ConfigurationError),
        (gone, f"the table `{path}` cannot be read: ", ExternalError),
    ):
        add["deletionVector"] = kind | marks
        log.write_text("".join(json.dumps(action) + "\n" for action in actions))
        with pytest.raises(error, match=message):
            everything(DeltaSource(path=path))
