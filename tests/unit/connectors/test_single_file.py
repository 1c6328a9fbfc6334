import fcntl
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import (
    BadLineError,
    ConfigurationError,
    ExternalError,
    PlanError,
    RefusedError,
    ReplacedError,
)
from headrace.connectors._shared import file_lock
from headrace.connectors.filesystem import lines as lines_module
from headrace.connectors.single_file import source as single_file
from headrace.connectors.single_file.sink import SingleFileSink
from headrace.connectors.single_file.source import LANE, SingleFileSource
from headrace.model.operator import Limit, SourceContext
from tests.support import ListCollector, SinkDriver, plan, read_range, task


def write(folder: Path, text: str, name: str = "in.json") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def everything(source: Any, *, parallelism: int = 1) -> Any:
    offsets = plan(source, [10**9], start=100.0, now=101.0)
    return read_range(source, offsets[0], offsets[-1], parallelism=parallelism)


def test_the_last_line_needs_no_newline(tmp_path: Path) -> None:
    for text in ('{"a":1}\n{"a":2}', '{"a":1}\n{"a":2}\n', '\n{"a":1}\n\n\n{"a":2}\n\n'):
        rows = everything(SingleFileSource(path=write(tmp_path, text)))
        assert [row["a"] for row in rows] == [1, 2]


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_file_without_rows_ends_at_once(tmp_path: Path, text: Any) -> None:
    source = SingleFileSource(path=write(tmp_path, text))
    offsets = plan(source, [10**9], start=100.0, now=101.0)
    assert read_range(source, offsets[0], offsets[-1]) == []
    assert source.is_finished(offsets[-1])


def test_event_time_comes_from_a_column_or_from_the_plan(tmp_path: Path) -> None:
    path = write(tmp_path, '{"at":"1970-01-01T00:00:01","n":2}\n{"at":"1970-01-01T00:00:01.5Z","n":3}\n')
    rows = everything(SingleFileSource(path=path, timestamp_column="n", timestamp_unit="ms"))
    assert [row["_timestamp"] for row in rows] == [2_000_000, 3_000_000]
    assert {row["_timestamp"] for row in everything(SingleFileSource(path=path))} == {101 * 10**9}
    path = write(tmp_path, '{"at":"1970-01-01T00:00:01"}\n{"at":"1970-01-01T00:00:01.5"}\n')
    rows = everything(SingleFileSource(path=path, timestamp_column="at"))
    assert [row["_timestamp"] for row in rows] == [10**9, 1_500_000_000]
    source = SingleFileSource(path=path, timestamp_column="at", schema={"at": "timestamp"})
    assert [row["_timestamp"] for row in everything(source)] == [10**9, 1_500_000_000]


def test_a_declared_schema_decides_types_and_columns(tmp_path: Path) -> None:
    path = write(tmp_path, '{"a":1,"b":"x","c":[1]}\n')
    schema = {"a": "double", "d": "string", "c": "list<int64>"}
    (row,) = everything(SingleFileSource(path=path, schema=schema))
    assert row == {"a": 1.0, "d": None, "c": [1], "_timestamp": 101 * 10**9}
    (row,) = everything(SingleFileSource(path=path, schema=pa.schema({"b": pa.string()})))
    assert row["b"] == "x"


def test_inferred_columns_are_those_of_the_beginning_for_all_epochs(tmp_path: Path) -> None:
    lines = [json.dumps({"a": i}) for i in range(1500)] + ['{"a":1,"late":true}']
    source = SingleFileSource(path=write(tmp_path, "\n".join(lines)))
    offsets = plan(source, [700], start=100.0, now=101.0)
    assert {offset[LANE]["schema"]["a"] for offset in offsets} == {"int64"}
    assert set(read_range(source, offsets[-2], offsets[-1])[-1]) == {"a", "_timestamp"}


def test_large_files_are_shared_by_tasks_at_line_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_file, "_WORTH_SPLITTING", 100)
    monkeypatch.setattr(lines_module, "BLOCK", 64)
    lines = [json.dumps({"a": i, "pad": "x" * (i * 37 % 200)}) for i in range(300)]
    source = SingleFileSource(path=write(tmp_path, "\n".join(lines) + "\n"))
    start, *_, end = plan(source, [10**9], start=100.0, now=101.0)
    for parallelism, replayed in itertools.product((1, 2, 7, 64), (False, True)):
        if not replayed:  # then the lines are not counted again
            assert source.latest_offset(start, Limit(10**9, 101.0), parallelism=parallelism) == end
        splits = source.splits(start, end, parallelism=parallelism)
        assert len(splits) <= parallelism
        rows = read_range(source, start, end, parallelism=parallelism)
        assert [row["a"] for row in rows] == list(range(300))
        text = Path(source.options.path).read_text()
        for split in splits:
            assert split.detail["line"] == text[: split.detail["byte"]].count("\n") + 1


def test_a_bad_line_is_found_in_any_epoch_and_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_file, "_WORTH_SPLITTING", 100)
    monkeypatch.setattr(lines_module, "BLOCK", 64)
    lines = [json.dumps({"a": i}) for i in range(2000)]
    lines[1499] = '{"a":"many"}'
    source = SingleFileSource(path=write(tmp_path, "\n".join(lines)))
    start, _, end = plan(source, [1200], start=100.0, now=101.0)[-3:]
    with pytest.raises(BadLineError, match=r'line 1500 .*column `a`.*{"a":"many"}') as caught:
        read_range(source, start, end, parallelism=3)
    assert "in.json" in str(caught.value)
    assert caught.value.column == "a"


def test_a_line_without_event_time_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, '{"at":1}\n\n{"at":null}\n')
    with pytest.raises(BadLineError, match=r"line 3 .*`at`"):
        everything(SingleFileSource(path=path, timestamp_column="at"))
    path = write(tmp_path, '{"at":"1970-01-01"}\n{"at":"noon"}\n')
    with pytest.raises(BadLineError, match=r"line 2 .*`at`"):
        everything(SingleFileSource(path=path, timestamp_column="at"))


def test_what_is_appended_later_is_not_read_and_what_is_cut_off_is_missed(tmp_path: Path) -> None:
    path = write(tmp_path, '{"a":1}\n{"a":2}\n')
    source = SingleFileSource(path=path)
    start = source.initial_offset(time=0.0)
    with Path(path).open("a") as file:
        file.write('{"a":3}\n')
    end = source.latest_offset(start, Limit(100, 0.0), parallelism=1)
    assert [row["a"] for row in read_range(source, start, end)] == [1, 2]
    os.truncate(path, 8)
    with pytest.raises(ExternalError, match="shorter"):
        read_range(source, start, end)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "in.jsn"}, "did you mean `in.json`"),
        ({"path": "nowhere/in.json"}, "there is no directory"),
        ({"path": "."}, "is a directory"),
        ({"path": "in.json", "schema": {"a": "int46"}}, "did you mean `int64`"),
        ({"path": "in.json", "timestamp_column": "att"}, "did you mean `at`"),
        ({"path": "in.json", "timestamp_column": "b", "schema": {"a": "int64"}}, "no column `b`"),
    ],
)
def test_what_cannot_be_read_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any, message: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, '{"at":1}\n')
    with pytest.raises(ConfigurationError) as caught:
        SingleFileSource(**options).initial_offset(time=0.0)
    assert message in str(caught.value)


def test_a_relative_path_means_the_same_file_in_every_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, '{"a":1}\n')
    source = SingleFileSource(path="in.json", wait_for_control=True)
    monkeypatch.chdir("/")
    assert len(everything(source)) == 1


def test_the_columns_of_sql_come_in_their_types_and_bad_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path, '{"n":18446744073709551615,"at":5,"x":1}\noops\n{"at":"1970-01-01T00:00:01Z"}\n')
    schema = pa.schema(
        [
            pa.field("n", pa.uint64()),
            pa.field("at", pa.timestamp("ns"), nullable=False),
            pa.field("j", pa.string(), metadata={b"headrace.json": b"true"}),
        ]
    )
    source = SingleFileSource(path=path, schema=schema, bad_data="drop", wait_for_control="false")
    start, end = plan(source, [10**9], start=100.0, now=101.0)
    (split,) = source.splits(start, end, parallelism=1)
    ctx, collector = SourceContext(task(), split), ListCollector()
    source.run(ctx, collector)
    assert [(row["n"], row["at"]) for row in collector.rows] == [(2**64 - 1, 5), (None, 10**9)]
    assert ctx.metrics.values == {"bad_rows": 1, "bad_rows.malformed": 1}
    assert "line 2" in ctx.errors[0]


def test_changes_of_debezium_are_unrolled(tmp_path: Path) -> None:
    path = write(tmp_path, '{"before":{"id":1},"after":{"id":2},"op":"u"}\n')
    options: dict[str, Any] = {"path": path, "format": "debezium_json", "schema": {"id": "int64"}}
    rows = everything(SingleFileSource(**options, primary_key=["id"]))
    assert [(row["id"], row["_retract"]) for row in rows] == [(1, True), (2, False)]
    with pytest.raises(ConfigurationError, match="primary key"):
        SingleFileSource(**options).validate()
    with pytest.raises(ConfigurationError, match="primary key"):
        SingleFileSource(path=path, format="debezium_json").initial_offset(time=0.0)
    found = everything(SingleFileSource(path=path, format="debezium_json", primary_key=["id"]))
    assert [(row["id"], row["_retract"]) for row in found] == [(1, True), (2, False)]


def test_raw_lines_are_values_even_when_they_are_empty(tmp_path: Path) -> None:
    path = write(tmp_path, "a\n\nb")
    rows = everything(SingleFileSource(path=path, format="raw_string"))
    assert [row["value"] for row in rows] == ["a", "", "b"]


# ---------------------------------------------------------------------------------------------- the sink


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(numbers), "_timestamp": list(numbers)})


def driver(folder: Path) -> SinkDriver:
    return SinkDriver(lambda: SingleFileSink(path=str(folder / "out.json")), folder / "state")


def test_a_new_pipeline_starts_the_file_anew_and_a_resumed_one_goes_on(tmp_path: Path) -> None:
    out = Path(write(tmp_path, "what was there before, and longer than what comes\n", "out.json"))
    first = driver(tmp_path)
    first.run(1, [batch(1, 2)])
    assert out.read_text() == '{"n":1}\n{"n":2}\n'
    resumed = driver(tmp_path)
    resumed.saved = first.saved
    resumed.run(2, [batch(3)])
    assert out.read_text() == '{"n":1}\n{"n":2}\n{"n":3}\n'


def test_an_epoch_without_rows_still_empties_an_old_file(tmp_path: Path) -> None:
    out = Path(write(tmp_path, "old\n", "out.json"))
    driver(tmp_path).run(1, [])
    assert out.read_text() == ""


@pytest.mark.parametrize("cut", range(0, 17, 4))
def test_half_a_commit_is_made_whole_when_it_is_repeated(tmp_path: Path, cut: Any) -> None:
    out = tmp_path / "out.json"
    sink = driver(tmp_path)
    sink.run(1, [batch(1)])
    whole = out.stat().st_size
    data = sink.prepare(2, [batch(2, 3)])
    sink.commit(2, data)
    os.truncate(out, whole + min(cut, 16))
    sink.commit(2, data)
    assert out.read_text() == '{"n":1}\n{"n":2}\n{"n":3}\n'


def test_a_file_cut_from_outside_is_not_papered_over(tmp_path: Path) -> None:
    sink = driver(tmp_path)
    sink.run(1, [batch(1, 2)])
    os.truncate(tmp_path / "out.json", 3)
    with pytest.raises(ConfigurationError, match="changed from outside"):
        sink.run(2, [batch(3)])


@pytest.mark.parametrize(
    ("path", "message"),
    [("nowhere/out.json", "there is no directory"), (".", "is a directory"), ("pipe", "not a regular file")],
)
def test_a_path_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, path: Any, message: Any
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match=message):
        SingleFileSink(path=str(tmp_path / path)).validate()


@pytest.mark.skipif(os.geteuid() == 0, reason="everything may be written by root")
def test_a_directory_without_permission_is_refused_before_anything_runs(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="may not be written"):
        SingleFileSink(path=str(tmp_path / "out.json")).validate()


def updates(*rows: tuple[int, bool]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "n": [n for n, _ in rows],
            "k": ["k"] * len(rows),
            "_timestamp": [0] * len(rows),
            "_retract": [retract for _, retract in rows],
        }
    )


def test_only_declared_columns_are_written_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    schema = pa.schema([("b", pa.timestamp("ns")), ("n", pa.int64())])
    rows = pa.record_batch({"n": [1], "c": [2], "b": [3], "_timestamp": [4]}).cast(
        pa.schema(
            {"n": pa.int64(), "c": pa.int64(), "b": pa.timestamp("ns"), "_timestamp": pa.timestamp("ns")}
        )
    )
    options: dict[str, Any] = {"path": str(path), "schema": schema, "json.timestamp_format": "unix_millis"}
    SinkDriver(lambda: SingleFileSink(**options), tmp_path / "state").run(1, [rows])
    assert path.read_text() == '{"b":0,"n":1}\n'


def test_the_changes_of_an_epoch_to_one_row_are_written_as_one(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    options: dict[str, Any] = {"path": str(path), "format": "debezium_json", "primary_key": "k"}
    options["schema"] = {"k": "string", "n": "int64"}
    assert SingleFileSink(**options).accepts_updates
    sink = SinkDriver(lambda: SingleFileSink(**options), tmp_path / "state")
    sink.run(1, [updates((1, False)), updates((1, True), (2, False))])
    sink.run(2, [updates((2, True), (3, False))])
    sink.run(3, [updates((3, True))])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["op"], line["before"], line["after"]) for line in lines] == [
        ("c", None, {"k": "k", "n": 2}),
        ("u", {"k": "k", "n": 2}, {"k": "k", "n": 3}),
        ("d", {"k": "k", "n": 3}, None),
    ]


def test_rows_that_change_others_are_refused_by_formats_that_only_add(tmp_path: Path) -> None:
    sink = driver(tmp_path)
    with pytest.raises(PlanError, match="debezium_json"):
        sink.run(1, [updates((1, True))])
    assert not SingleFileSink(path="x").accepts_updates


def test_a_run_that_was_replaced_leaves_the_file_as_its_successor_wrote_it(tmp_path: Path) -> None:
    sink = driver(tmp_path)
    sink.take_over()
    data = sink.prepare(1, [pa.record_batch({"n": [1]})])
    replaced = sink.take_over()
    sink.commit(1, data)
    sink.run(2, [pa.record_batch({"n": [2]})])
    before = (tmp_path / "out.json").read_bytes()
    sink.claim = replaced
    with pytest.raises(ReplacedError):
        sink.commit(1, data)
    assert (tmp_path / "out.json").read_bytes() == before


def test_a_commit_does_not_touch_the_file_while_another_one_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lock, "LOCK_SECONDS", 0.01)
    sink = driver(tmp_path)
    sink.run(1, [pa.record_batch({"n": [1]})])
    data = sink.prepare(2, [pa.record_batch({"n": [2]})])
    with (tmp_path / "out.json").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ExternalError, match="is being written by another run"):
            sink.commit(2, data)
        assert file.read() == b'{"n":1}\n'
    sink.commit(2, data)
    assert (tmp_path / "out.json").read_text() == '{"n":1}\n{"n":2}\n'


def in_parts(source: Any) -> Any:
    """Offsets before, inside and at the end of the file, and a copy of the source as a restart makes it."""
    return plan(source, [2, 10**9], start=100.0, now=101.0)


def test_a_file_that_is_replaced_by_one_of_its_size_is_not_mixed_in(tmp_path: Path) -> None:
    before, after = ("".join(f'{{"a":{n}}}\n' for n in range(start, start + 5)) for start in (1, 5))
    path = write(tmp_path, before)
    source = SingleFileSource(path=path)
    start, middle, end = in_parts(source)
    (tmp_path / "new").write_text(after)
    (tmp_path / "new").rename(path)
    for attempt in (
        lambda: source.latest_offset(middle, Limit(rows=10, time=102.0), parallelism=1),
        lambda: source.splits(middle, end, parallelism=1),
    ):
        with pytest.raises(RefusedError, match=r"in\.json` is another file") as caught:
            attempt()
        assert "put the file back" in str(caught.value.hint)
    write(tmp_path, before)  # another inode and another time, and the same content
    assert [row["a"] for row in read_range(source, start, end)] == [1, 2, 3, 4, 5]


def test_a_file_that_is_replaced_while_a_task_waits_is_not_read(tmp_path: Path) -> None:
    source = SingleFileSource(path=write(tmp_path, '{"a":1}\n{"a":2}\n{"a":3}\n'))
    _, middle, end = in_parts(source)
    (split,) = source.splits(middle, end, parallelism=1)
    write(tmp_path, '{"a":7}\n{"a":8}\n{"a":9}\n')
    with pytest.raises(RefusedError, match="is another file"):
        source.run(SourceContext(task(), split), ListCollector())


def test_a_change_of_a_large_file_is_noticed_at_either_end_and_growth_is_none(tmp_path: Path) -> None:
    lines = [f'{{"a":{10**6 + n}}}\n' for n in range(60_000)]
    path = Path(write(tmp_path, "".join(lines)))
    source = SingleFileSource(path=str(path))
    _, middle, end = in_parts(source)
    with path.open("a") as file:
        file.write('{"a":7}\n')
    assert len(read_range(source, middle, end)) == 59_998
    for changed in (0, 59_999):
        other = lines.copy()
        other[changed] = '{"a":9999999}\n'
        path.write_text("".join(other))
        with pytest.raises(RefusedError, match="is another file"):
            source.latest_offset(middle, Limit(rows=10, time=102.0), parallelism=1)


def test_positions_of_earlier_versions_are_continued(tmp_path: Path) -> None:
    source = SingleFileSource(path=write(tmp_path, '{"a":1}\n{"a":2}\n{"a":3}\n'))
    _, middle, end = in_parts(source)
    old = [
        {LANE: {name: value for name, value in offset[LANE].items() if name != "identity"}}
        for offset in (middle, end)
    ]
    assert source.latest_offset(old[0], Limit(rows=10, time=101.0), parallelism=1) == old[1]
    assert [row["a"] for row in read_range(source, *old)] == [3]
