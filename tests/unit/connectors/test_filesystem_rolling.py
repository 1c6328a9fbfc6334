"""Files that span epochs: when they appear, and that every row is in one of them whatever happens."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.base.errors import CorruptStateError
from headrace.base.watermarks import Watermark
from headrace.connectors.base import to_ipc
from headrace.connectors.filesystem import parts as filesystem_parts
from headrace.connectors.filesystem import rolling as filesystem_rolling
from headrace.connectors.filesystem.sink import FileSystemSink
from headrace.model.operator import OperatorContext
from headrace.state.references import FileReference
from headrace.storage.local import LocalStorage
from headrace.testing.in_process import CrashError, ManualClock, run_in_process
from tests.support import EpochTables, SinkDriver
from tests.unit.connectors import rolling
from tests.unit.connectors.rolling import ROWS, STEPS, CrashAfter, run, run_into_crash, ticking


def pipeline(folder: Path, **options: Any) -> hr.Pipeline:
    return rolling.pipeline("filesystem", path=str(folder / "out"), **options)


def visible(folder: Path) -> list[Path]:
    out = folder / "out"
    return sorted(path for path in out.rglob("*") if path.is_file() and ".staged" not in path.parts)


def numbers(folder: Path) -> list[int]:
    found: list[int] = []
    for path in visible(folder):
        if path.suffix == ".parquet":
            found += pq.read_table(path).column("n").to_pylist()
        else:
            found += [json.loads(line)["n"] for line in path.read_text().splitlines()]
    return sorted(found)


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_files_span_epochs_and_every_row_is_in_one(tmp_path: Path, form: str) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"rolling_policy.interval": "4s", "format": form}
    seen: list[int] = []
    step = ticking(
        clock, 1.0, lambda name, _: seen.append(len(visible(tmp_path))) if name == "begin" else None
    )
    result = run_in_process(
        pipeline(tmp_path, **options), tmp_path / "state", epoch_rows=10, clock=clock, on_step=step
    )
    assert result.last_epoch == 12
    assert numbers(tmp_path) == list(range(ROWS))
    assert 6 <= len(visible(tmp_path)) <= 8  # of two subtasks, every four epochs, not one for each epoch
    assert sorted(set(seen))[:3] == [0, 2, 4]


def test_rows_of_a_run_that_stops_do_not_wait_for_the_next(tmp_path: Path) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"rolling_policy.interval": "1h"}
    stopped = run_in_process(
        pipeline(tmp_path, **options), tmp_path / "state", epoch_rows=10, max_epochs=3, clock=clock
    )
    assert stopped.reason == "max_epochs"
    assert numbers(tmp_path) == list(range(30))
    run_in_process(
        pipeline(tmp_path, **options), tmp_path / "state", parallelism=3, epoch_rows=50, clock=clock
    )
    assert numbers(tmp_path) == list(range(ROWS))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("at", [3, 4])
def test_a_crash_at_any_step_costs_no_row_and_doubles_none(tmp_path: Path, step: str, at: int) -> None:
    clock = ManualClock(1_700_000_000.0)
    options: dict[str, Any] = {
        "rolling_policy.interval": "4s",
        "partitioning.fields": "k",
        "format": "parquet",
        "shuffle_by_partition.enabled": at % 2 == 0,
    }

    state = tmp_path / "state"
    if not run_into_crash(pipeline(tmp_path, **options), state, clock, step, at):
        assert step.startswith("sink_committed")  # an epoch that ends no file has nothing to commit
    before = Counter(numbers(tmp_path))
    assert not before or max(before.values()) == 1
    run(pipeline(tmp_path, **options), state, clock, parallelism=1 + at % 2 * 2, epoch_rows=30)
    assert numbers(tmp_path) == list(range(ROWS))
    assert list((tmp_path / "out" / ".staged").rglob("*.parquet")) == []


@pytest.mark.parametrize("calls", [1, 1.5, 2, 5.5, 6, 7, 7.5, 8, 8.5])
@pytest.mark.parametrize("strategy", ["uuid_v7", "serial"])
def test_a_crash_inside_a_commit_is_made_good_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: float, strategy: str
) -> None:
    """At each call that changes something outside: a move, a removal, a part that is forgotten."""
    clock, crash = ManualClock(), CrashAfter(calls)
    options: dict[str, Any] = {
        "rolling_policy.interval": "3s",
        "partitioning.fields": "k",
        "filename.strategy": strategy,
    }
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "move", crash.wrap(LocalStorage.move))
        patch.setattr(LocalStorage, "delete_directory", crash.wrap(LocalStorage.delete_directory))
        patch.setattr(filesystem_rolling, "forget", crash.wrap(filesystem_parts.forget))
        with pytest.raises(CrashError):
            run(pipeline(tmp_path, **options), tmp_path / "state", clock)
    run(pipeline(tmp_path, **options), tmp_path / "state", clock, epoch_rows=20)
    assert numbers(tmp_path) == list(range(ROWS))


def test_many_crashes_in_a_row_cost_no_row(tmp_path: Path) -> None:
    clock, chance = ManualClock(), random.Random(5)
    options: dict[str, Any] = {"rolling_policy.interval": "5s", "rolling_policy.file_size": "1kB"}

    def crash(_name: str, _epoch: int) -> None:
        if chance.random() < 0.05:
            raise CrashError

    for life in range(200):
        try:
            run_in_process(
                pipeline(tmp_path, **options),
                tmp_path / "state",
                parallelism=1 + life % 3,
                epoch_rows=5 + life % 7,
                clock=clock,
                on_step=ticking(clock, 0.9, crash),
            )
        except CrashError:
            continue
        break
    assert life > 3
    assert numbers(tmp_path) == list(range(ROWS))


def test_what_no_checkpoint_needs_is_removed_from_the_state(tmp_path: Path) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"rolling_policy.interval": "2s"}
    kept: list[int] = []

    def look(name: str, _epoch: int) -> None:
        staged = tmp_path / "state" / "staged" / "out"
        if name == "committed" and staged.exists():
            kept.append(len(list(staged.iterdir())))

    run_in_process(
        pipeline(tmp_path, **options),
        tmp_path / "state",
        epoch_rows=5,
        options=hr.RunOptions(keep_checkpoints=3),
        clock=clock,
        on_step=ticking(clock, 1.0, look),
    )
    assert 3 <= max(kept) <= 8  # of 24 epochs


def test_going_back_to_an_epoch_finds_what_was_open_then(tmp_path: Path) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {"rolling_policy.interval": "4s"}
    run_in_process(
        pipeline(tmp_path, **options),
        tmp_path / "state",
        epoch_rows=10,
        max_epochs=9,
        options=hr.RunOptions(keep_checkpoints=5),
        clock=clock,
        on_step=ticking(clock, 1.0),
    )
    back = 7
    shown = Counter(numbers(tmp_path))
    run_in_process(
        pipeline(tmp_path, **options),
        tmp_path / "state",
        from_epoch=back,
        epoch_rows=10,
        clock=clock,
        on_step=ticking(clock, 1.0),
    )
    again = Counter(numbers(tmp_path))
    assert set(again) == set(range(ROWS))  # nothing is lost
    assert max(again.values()) == 2  # files of later epochs stay
    assert {n for n, count in again.items() if count == 2} <= set(shown)


def test_small_parts_are_merged_while_they_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem_rolling, "MERGED_PARTS", 3)
    clock, most = ManualClock(), [0]
    options: dict[str, Any] = {"rolling_policy.interval": "1h", "format": "debezium_json"}
    real = filesystem_parts.OpenFiles.save

    def save(self: filesystem_parts.OpenFiles) -> Any:
        most[0] = max(most[0], len(self.all))
        return real(self)

    monkeypatch.setattr(filesystem_parts.OpenFiles, "save", save)
    run_in_process(
        pipeline(tmp_path, **options), tmp_path / "state", parallelism=1, epoch_rows=3, clock=clock
    )
    (file,) = visible(tmp_path)
    order = [json.loads(line)["after"]["n"] for line in file.read_text().splitlines()]
    assert order == list(range(ROWS))  # 40 epochs, in the order in which they came
    assert most[0] <= 9


@pytest.mark.parametrize("shuffle", [True, False])
def test_with_a_shuffle_a_directory_has_fewer_files(tmp_path: Path, shuffle: bool) -> None:
    clock = ManualClock()
    options: dict[str, Any] = {
        "rolling_policy.interval": "50s",
        "partitioning.fields": "k",
        "shuffle_by_partition.enabled": shuffle,
    }
    run_in_process(
        pipeline(tmp_path, **options),
        tmp_path / "state",
        parallelism=4,
        epoch_rows=20,
        max_epochs=5,
        clock=clock,
        on_step=ticking(clock, 1.0),
    )
    assert numbers(tmp_path) == list(range(100))
    directories = Counter(path.parent.name for path in visible(tmp_path))
    assert set(directories.values()) == ({1} if shuffle else {4})


# ------------------------------------------------------------------------------------------ the policy


class Timed(SinkDriver):
    """A driver with a clock and a watermark."""

    time = 1000.0
    watermark: int | None = None

    def _context(self, tables: EpochTables, epoch: int, subtask: int, parallelism: int) -> OperatorContext:
        ctx = super()._context(tables, epoch, subtask, parallelism)
        ctx.time = self.time
        ctx.watermark = None if self.watermark is None else Watermark(self.watermark)
        return ctx


def timed(folder: Path, **options: Any) -> Timed:
    return Timed(lambda: FileSystemSink(path=str(folder / "out"), **options), folder / "state")


def batch(*values: int) -> pa.RecordBatch:
    times = pa.array([value * 10**9 for value in values]).cast(pa.timestamp("ns"))
    return pa.record_batch({"n": pa.array(values, pa.int64()), "_timestamp": times})


def test_by_default_rows_are_seen_after_half_a_minute_at_most(tmp_path: Path) -> None:
    sink = timed(tmp_path)
    sink.time = 1000.0
    sink.run(1, [batch(1)])
    sink.time = 1019.9
    sink.run(2, [batch(2)])
    assert numbers(tmp_path) == []
    sink.time = 1020.0  # the clock passes a multiple of 30 s
    sink.run(3, [])
    assert numbers(tmp_path) == [1, 2]
    assert len(visible(tmp_path)) == 1
    assert FileSystemSink(path="x").tick_interval is not None


def test_a_file_without_new_rows_is_ended(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "rolling_policy.interval": "1000s",
        "rolling_policy.inactivity_interval": "5s",
        "partitioning.fields": "n",
    }
    sink = timed(tmp_path, **options)
    sink.time = 1001.0
    sink.run(1, [batch(1, 2)])
    sink.time = 1004.0
    sink.run(2, [batch(2)])
    sink.time = 1006.0
    sink.run(3, [])
    assert numbers(tmp_path) == [1]
    sink.time = 1009.0
    sink.run(4, [])
    assert numbers(tmp_path) == [1, 2, 2]


def test_a_file_that_event_time_has_passed_is_ended(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "rolling_policy.interval": "1000s",
        "rolling_policy.watermark_expiration": "10s",
        "partitioning.time_pattern": "%M",
    }
    sink = timed(tmp_path, **options)
    sink.run(1, [batch(1, 2)], [batch(70)])
    sink.watermark = 11 * 10**9
    sink.run(2, [], [])
    assert numbers(tmp_path) == []
    sink.watermark = 12 * 10**9
    sink.run(3, [], [])
    assert numbers(tmp_path) == [1, 2]
    sink.watermark = 80 * 10**9
    sink.run(4, [], [])
    assert numbers(tmp_path) == [1, 2, 70]


@pytest.mark.parametrize(
    "options",
    [
        {"format": "json"},
        {"format": "parquet", "parquet.compression": "uncompressed"},
        {"format": "avro"},
        {"format": "csv"},
        {"json.compression": "gzip"},
    ],
)
def test_files_of_a_size_are_filled_over_epochs(tmp_path: Path, options: dict[str, Any]) -> None:
    sink = timed(tmp_path, **{"rolling_policy.file_size": "4kB", **options})
    chance = random.Random(3)
    sizes: set[int] = set()
    for epoch in range(1, 41):
        sink.run(epoch, [batch(*(chance.getrandbits(33) for _ in range(60)))])
        sizes |= {path.stat().st_size for path in visible(tmp_path)}
    assert len(visible(tmp_path)) >= 3
    assert min(sizes) > 2500
    assert max(sizes) < 9000
    sink.time = 10**6
    sink.run(41, [])
    if options.get("format") in {"json", "parquet"}:
        assert len(numbers(tmp_path)) == 2400


def test_an_epoch_that_ends_no_file_has_nothing_to_commit(tmp_path: Path) -> None:
    sink = timed(tmp_path)
    assert sink.prepare(1, [batch(1)], [batch(2)]) == {}
    assert not (tmp_path / "out").exists()


def test_rows_that_wait_and_are_missing_are_told(tmp_path: Path) -> None:
    sink = timed(tmp_path)
    sink.run(1, [batch(1)])
    (part,) = (path for path in (tmp_path / "state" / "staged").rglob("*") if path.is_file())
    part.unlink()
    sink.time = 10**6
    with pytest.raises(CorruptStateError, match=r"rows that wait to be written .* is missing"):
        sink.run(2, [])


@pytest.mark.parametrize("field", ["path", "checksum"])
def test_waiting_rows_of_an_earlier_version_are_read(tmp_path: Path, field: str) -> None:
    reference = FileReference.of("staged/op/1", to_ipc([batch(1, 2)]), begin=0)
    LocalStorage(str(tmp_path)).write(reference.path, to_ipc([batch(1, 2)]))
    value: dict[str, Any] = {"rows": 2, "bytes": 16, "opened": 0.0, "last": 0.0, "latest": None, "level": 0}
    old: dict[str, Any] = {"path": reference.path, "range": [0, reference.size]}
    value |= old if field == "path" else {"file": reference.to_json()}
    part = filesystem_parts.StoredPart.from_json(("part", "d", 1, 0, 0), value)
    (rows,) = filesystem_parts.PartReader(LocalStorage(str(tmp_path))).read(part.file)
    assert rows.column("n").to_pylist() == [1, 2]


def test_parts_elsewhere_are_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = to_ipc([batch(1, 2)])
    asked: list[str] = []

    class Elsewhere:
        url = "s3://bucket"

        def local_path(self, _path: str) -> None:
            return None

        def read(self, path: str) -> bytes:
            asked.append(path)
            return b"..." + data + data

    reader = filesystem_parts.PartReader(Elsewhere())
    for begin in (3, 3 + len(data)):
        for path in ("a", "b"):
            (found,) = reader.read(FileReference.of(path, data, begin=begin))
            assert found.column("n").to_pylist() == [1, 2]
    assert asked == ["a", "b"]
    monkeypatch.setattr(filesystem_parts, "KEPT_BYTES", len(data))
    reader.read(FileReference.of("c", data, begin=3))
    reader.read(FileReference.of("a", data, begin=3))
    assert asked == ["a", "b", "c", "a"]
