"""A run that is suspended while another takes over its state directory publishes nothing when it wakes up."""

from __future__ import annotations

import functools
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.driver import EpochDriver
from headrace.engine.stages import cut_stages
from headrace.state import backend as state_backend
from headrace.state import inspect
from headrace.state.backend import ParquetBackend
from headrace.state.cache import cache_directory
from headrace.state.generation import Generation, Start, generations, start_of
from headrace.state.metadata import CheckpointMetadata
from headrace.storage.base import Paths, Storage
from headrace.storage.hdfs import HdfsStorage
from headrace.storage.open import open_storage
from headrace.testing import in_process

run_in_process = functools.partial(in_process.run_in_process, parallelism=1)

ROWS = 1_000
SEEN = pa.schema([("n", pa.int64())])
STEPS = (
    "begin",
    "tasks_done",
    "operators_written",
    "metadata_written",
    "sink_committed:numbers",
    "sink_committed:sums",
    "committed",
)


class Sum(hr.ArrowOperator):
    """The running sum of `n`, one row for each batch."""

    def tables(self) -> list[hr.TableConfig]:
        return [hr.global_table_config("sum", "the sum so far")]

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        numbers = batch["n"].to_pylist()
        table = ctx.global_table("sum")
        total = table.get("sum", 0) + sum(numbers)
        table.insert("sum", total)
        collector.collect(pa.record_batch({"last": [numbers[-1]], "sum": [total]}))


def pipeline(folder: Path) -> hr.Pipeline:
    flow = hr.Pipeline("numbers")
    rows = [{"n": n} for n in range(ROWS)]
    numbers = flow.source("memory", rows=rows, id="source")
    numbers.sink("single_file", path=str(folder / "numbers.json"), format="json", id="numbers")
    sums = numbers.apply(Sum(), id="sum")
    sums.sink("single_file", path=str(folder / "sums.json"), format="json", id="sums")
    return flow


def read(path: Path) -> list[dict[str, int]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_rows(folder: Path) -> None:
    assert sorted(row["n"] for row in read(folder / "numbers.json")) == list(range(ROWS))
    for row in read(folder / "sums.json"):
        assert row["sum"] == sum(range(row["last"] + 1))
    assert read(folder / "sums.json")[-1]["last"] == ROWS - 1


def suspended_at(step: str, epoch: int, while_asleep: Callable[[], object]) -> Callable[[str, int], None]:
    """Let something else happen once, when a run has come past a step of an epoch."""
    asleep = True

    def on_step(name: str, at: int) -> None:
        nonlocal asleep
        if asleep and (name, at) == (step, epoch):
            asleep = False
            while_asleep()

    return on_step


@pytest.mark.parametrize("epochs", [1, 2, None], ids=["one epoch", "two epochs", "the rest"])
@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_wakes_up_after_a_takeover_ends_and_every_row_is_there_once(
    step: str, epochs: int | None, tmp_path: Path
) -> None:
    def take_over() -> None:
        # Fewer checkpoints are kept than the other run writes: nothing of the sleeper's epoch is left.
        run_in_process(
            pipeline(tmp_path),
            state,
            epoch_rows=50,
            max_epochs=epochs,
            options=hr.RunOptions(keep_checkpoints=2),
        )

    state = tmp_path / "state"
    with pytest.raises(hr.ReplacedError, match="another run, process"):
        run_in_process(
            pipeline(tmp_path),
            state,
            epoch_rows=50,
            options=hr.RunOptions(keep_checkpoints=2),
            on_step=suspended_at(step, 4, take_over),
        )
    run_in_process(pipeline(tmp_path), state, epoch_rows=50)
    check_rows(tmp_path)
    assert all(not result.problems for result in inspect.verify(open_storage(str(state))))


def test_a_run_that_is_replaced_while_it_has_nothing_to_read_ends(tmp_path: Path) -> None:
    def flow() -> hr.Pipeline:
        idle = hr.Pipeline("idle")
        source = idle.source("impulse", event_rate=0.000001, id="source")
        source.sink("blackhole", id="sink")
        return idle

    def take_over() -> None:
        run_in_process(flow(), tmp_path, max_epochs=1)

    with pytest.raises(hr.ReplacedError):
        run_in_process(flow(), tmp_path, on_step=suspended_at("committed", 1, take_over), idle_epochs=3_000)


def test_a_checkpoint_that_a_replaced_run_still_writes_does_not_count(tmp_path: Path) -> None:
    def take_over() -> None:
        other = run_in_process(pipeline(tmp_path), state, epoch_rows=10, max_epochs=1)
        assert other.first_epoch == 4

    state = tmp_path / "state"
    # It has checked its generation already, and writes its metadata of epoch 4.
    with pytest.raises(hr.ReplacedError):
        run_in_process(
            pipeline(tmp_path),
            state,
            epoch_rows=100,
            on_step=suspended_at("operators_written", 4, take_over),
        )
    written = {path.name for path in (state / "checkpoints/checkpoint-0000004").glob("metadata*")}
    assert written == {"metadata-0000001.json", "metadata-0000002.json"}
    backend = ParquetBackend(open_storage(str(state)))
    assert backend.load_checkpoint_metadata("", 4).generation == 2
    run_in_process(pipeline(tmp_path), state, epoch_rows=100)
    check_rows(tmp_path)


def test_a_late_checkpoint_behind_a_resumed_older_one_does_not_count(tmp_path: Path) -> None:
    def rewind() -> None:
        run_in_process(pipeline(tmp_path), state, epoch_rows=10, max_epochs=1, from_epoch=2)

    state = tmp_path / "state"
    with pytest.raises(hr.ReplacedError):
        run_in_process(
            pipeline(tmp_path),
            state,
            epoch_rows=100,
            on_step=suspended_at("operators_written", 6, rewind),
        )
    assert (state / "checkpoints/checkpoint-0000006/metadata-0000001.json").exists()
    backend = ParquetBackend(open_storage(str(state)))
    assert backend.epochs() == [1, 2, 3]
    run_in_process(pipeline(tmp_path), state, epoch_rows=100)
    check_rows(tmp_path)


def test_a_run_suspended_while_it_discards_checkpoints_keeps_those_of_its_successor(tmp_path: Path) -> None:
    def take_over() -> None:
        # The rewound run has recorded where it starts: checkpoints that it has not removed yet do not count.
        other = run_in_process(pipeline(tmp_path), state, epoch_rows=100, max_epochs=2)
        assert (other.first_epoch, other.last_epoch) == (3, 4)

    state = tmp_path / "state"
    run_in_process(pipeline(tmp_path), state, epoch_rows=100, max_epochs=5)
    storage = open_storage(str(state))
    claim = Generation.claim(storage, "rewound")
    claim.start_from(Start(2, 1))

    def check() -> None:
        claim.check()
        take_over()  # right after the check

    ParquetBackend(storage).discard_after(2, check=check)
    backend = ParquetBackend(storage)
    assert backend.epochs() == [1, 2, 3, 4]
    assert [backend.load_checkpoint_metadata("", epoch).generation for epoch in (3, 4)] == [3, 3]
    assert all(not result.problems for result in inspect.verify(storage))
    run_in_process(pipeline(tmp_path), state, epoch_rows=100)
    check_rows(tmp_path)


def test_a_run_that_misses_files_which_its_successor_removed_says_that_it_was_replaced(
    tmp_path: Path,
) -> None:
    class Reads(hr.ArrowOperator):
        """Lets another run take over in the middle of an epoch, and then wants to read its state."""

        def tables(self) -> list[hr.TableConfig]:
            return [hr.keyed_table_config("seen", "rows so far", SEEN, key=["n"])]

        def process_batch(
            self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector
        ) -> None:
            if ctx.task_info.epoch == 4 and not asleep:
                asleep.append(True)
                other = run_in_process(
                    flow(),
                    tmp_path,
                    epoch_rows=50,
                    options=hr.RunOptions(keep_checkpoints=1, compact_after=2),
                )
                assert other.reason == "finished"
                for path in open_storage(str(tmp_path)).list("checkpoints/checkpoint-0000003"):
                    open_storage(str(tmp_path)).delete(path)
                shutil.rmtree(cache_directory(str(tmp_path)), ignore_errors=True)
            ctx.keyed_table("seen").get(batch.select(["n"]))
            ctx.keyed_table("seen").put(batch.select(["n"]))

    def flow() -> hr.Pipeline:
        numbers = hr.Pipeline("numbers")
        source = numbers.source("memory", rows=[{"n": n} for n in range(ROWS)], id="source")
        source.key_by("n").apply(Reads(), id="reads").sink("blackhole", id="sink")
        return numbers

    asleep: list[bool] = []
    with pytest.raises(hr.ReplacedError):
        run_in_process(flow(), tmp_path, epoch_rows=50, options=hr.RunOptions(keep_checkpoints=1))


def test_a_pipeline_that_does_not_fit_the_state_replaces_nobody(tmp_path: Path) -> None:
    state = tmp_path / "state"
    run_in_process(pipeline(tmp_path), state, epoch_rows=100, max_epochs=1)
    other = hr.Pipeline("another")
    other.source("memory", rows=[{"n": 1}]).sink("blackhole")
    with pytest.raises(hr.IncompatibleStateError):
        run_in_process(other, state)
    assert generations(open_storage(str(state))) == [1]


def test_every_run_claims_a_generation_and_old_ones_are_forgotten(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    claims = [Generation.claim(storage, str(number)) for number in range(30)]
    assert [claim.number for claim in claims] == list(range(1, 31))
    assert generations(storage)[-1] == 30
    assert len(generations(storage)) < 30
    claims[-1].check()
    for claim in claims[:-1]:
        with pytest.raises(hr.ReplacedError):
            claim.check()
    assert start_of(storage, 30) is None
    claims[-1].start_from(Start(7, 4))
    assert start_of(storage, 30) == Start(7, 4)
    claims[-1].check()


def test_repair_removes_what_replaced_runs_have_left(tmp_path: Path) -> None:
    def take_over() -> None:
        run_in_process(pipeline(tmp_path), state, epoch_rows=10, max_epochs=1)

    state = tmp_path / "state"
    with pytest.raises(hr.ReplacedError):
        run_in_process(
            pipeline(tmp_path), state, epoch_rows=100, on_step=suspended_at("operators_written", 4, take_over)
        )
    storage = open_storage(str(state))
    assert [summary.epoch for summary in inspect.list_checkpoints(storage)] == [1, 2, 3, 4]
    removed = inspect.repair(storage).removed
    folder = "checkpoints/checkpoint-0000004"
    assert f"{folder}/metadata-0000001.json" in removed
    assert f"{folder}/operator-sum/metadata-0000001.json" in removed
    assert not [path for path in removed if path.endswith("-0000002.json")]
    assert not [path for path in removed if path.startswith("generations/")]
    assert all(not result.problems for result in inspect.verify(storage))
    run_in_process(pipeline(tmp_path), state, epoch_rows=100)
    check_rows(tmp_path)


class Careless(type(open_storage("/"))):  # type: ignore[misc]
    """A store that takes no notice of the condition of a conditional write."""

    is_local = False

    def create(self, path: str, data: bytes) -> bool:
        self.write(path, data)
        return True


class InTwoSteps(type(open_storage("/"))):  # type: ignore[misc]
    """A store that looks whether a name is free, and then takes it."""

    creates_atomically = False


def test_a_store_that_creates_in_two_steps_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "headrace"):
        Generation.claim(InTwoSteps(str(tmp_path)), "run")
    assert "does not support conditional writes" in caplog.text
    assert not HdfsStorage.creates_atomically


def test_a_store_without_conditional_writes_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage: Storage = Careless(str(tmp_path))
    with caplog.at_level(logging.WARNING, "headrace"):
        Generation.claim(storage, "run")
    assert "does not support conditional writes" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "headrace"):
        Generation.claim(open_storage(str(tmp_path)), "run")
    assert caplog.text == ""


class Behind(type(open_storage("/"))):  # type: ignore[misc]
    """A store whose listings do not show new files yet."""

    def children(self, prefix: str) -> list[str]:
        return []


def test_a_listing_that_is_behind_neither_ends_a_run_nor_hides_its_successor(tmp_path: Path) -> None:
    behind: Storage = Behind(str(tmp_path))
    first = Generation.claim(behind, "first")
    first.check()
    Generation.claim(open_storage(str(tmp_path)), "second")
    with pytest.raises(hr.ReplacedError):
        first.check()


def test_a_run_that_starts_while_another_goes_back_to_an_earlier_checkpoint_takes_up_what_that_one_has_left(
    tmp_path: Path,
) -> None:
    def rewind() -> None:
        # Other epochs than before, and the same number of them.
        other = run_in_process(pipeline(tmp_path), state, epoch_rows=10, from_epoch=2, max_epochs=2)
        assert other.last_epoch == 4

    state = tmp_path / "state"
    run_in_process(pipeline(tmp_path), state, epoch_rows=100, max_epochs=4)
    driver = EpochDriver(cut_stages(pipeline(tmp_path).plan(), parallelism=1), open_storage(str(state)))
    driver.open(before_claim=rewind)
    assert driver.checkpoint is not None
    assert (driver.checkpoint.epoch, driver.checkpoint.generation) == (4, 2)
    assert driver.checkpoint.rows_in == 10
    assert start_of(driver.storage, 3) == Start(4, 2)


class StaleStorage(type(open_storage("/"))):  # type: ignore[misc]
    """A store whose listings show what was there when it was opened."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._listed = super().list("")

    def list(self, prefix: str) -> Paths:
        return [path for path in self._listed if path.startswith(prefix.rstrip("/") + "/")]

    def children(self, prefix: str) -> Paths:
        start = len(prefix.rstrip("/")) + 1
        return sorted({path[start:].partition("/")[0] for path in self.list(prefix)})


@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_a_run_goes_on_from_the_last_checkpoint_whatever_a_listing_shows(epochs: int, tmp_path: Path) -> None:
    state = tmp_path / "state"
    if epochs:
        run_in_process(pipeline(tmp_path), state, epoch_rows=100, max_epochs=epochs)
    behind: Storage = StaleStorage(str(state))
    run_in_process(pipeline(tmp_path), state, epoch_rows=100, max_epochs=2)
    for more in (1, 2):
        driver = EpochDriver(cut_stages(pipeline(tmp_path).plan(), parallelism=1), behind)
        driver.open()
        assert driver.epoch == epochs + 2
        assert ParquetBackend(behind).epochs() == list(range(1, epochs + 3))
        assert driver.generation is not None
        assert driver.generation.number == bool(epochs) + 1 + more


def test_a_checkpoint_that_a_listing_does_not_show_can_be_resumed_from(tmp_path: Path) -> None:
    state = tmp_path / "state"
    behind: Storage = StaleStorage(str(state))
    run_in_process(pipeline(tmp_path), state, epoch_rows=100, max_epochs=4)
    driver = EpochDriver(cut_stages(pipeline(tmp_path).plan(), parallelism=1), behind)
    driver.open(from_epoch=2)
    assert driver.epoch == 2
    # The later checkpoints are still there: they were not listed. They do not count any more.
    assert ParquetBackend(open_storage(str(state))).latest_epoch() == 2


def test_cleanup_leaves_no_checkpoint_without_its_files_when_a_listing_is_behind(tmp_path: Path) -> None:
    state = tmp_path / "state"
    run_in_process(pipeline(tmp_path), state, epoch_rows=100, max_epochs=2)
    behind: Storage = StaleStorage(str(state))
    metadata = "checkpoints/checkpoint-0000001/metadata-0000001.json"
    behind._listed.remove(metadata)  # type: ignore[attr-defined]
    assert ParquetBackend(behind).cleanup(1, 2) == [1]
    backend = ParquetBackend(open_storage(str(state)))
    assert (backend.epochs(), backend.verify(2)) == ([2], [])


class SuspendedInListing(type(open_storage("/"))):  # type: ignore[misc]
    """A store in whose first listing of files something else happens."""

    while_asleep: Callable[[], None] | None = None

    def list(self, prefix: str) -> Paths:
        asleep, self.while_asleep = self.while_asleep, None
        if asleep is not None:
            asleep()
        paths: Paths = super().list(prefix)
        return paths


def test_the_cleanup_of_a_replaced_run_keeps_the_earlier_checkpoint_that_its_successor_goes_back_to(
    tmp_path: Path,
) -> None:
    def go_back() -> None:
        driver = EpochDriver(cut_stages(pipeline(tmp_path).plan(), parallelism=1), open_storage(str(state)))
        driver.open(from_epoch=3)

    state = tmp_path / "state"
    run_in_process(pipeline(tmp_path), state, epoch_rows=100, max_epochs=4)
    storage = SuspendedInListing(str(state))
    claim = Generation.claim(storage, "cleans up")
    storage.while_asleep = go_back
    with pytest.raises(hr.ReplacedError):
        ParquetBackend(storage).cleanup(1, 4, check=claim.check)
    backend = ParquetBackend(open_storage(str(state)))
    assert (backend.latest_epoch(), backend.verify(3)) == (3, [])
    run_in_process(pipeline(tmp_path), state, epoch_rows=100)
    check_rows(tmp_path)


def test_a_run_that_is_suspended_in_its_deletions_removes_nothing_that_another_goes_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, storage_type = tmp_path / "state", type(open_storage("/"))
    run_in_process(pipeline(tmp_path), state, epoch_rows=100, max_epochs=4)
    delete, offered = storage_type.delete, list[int]()

    def go_back_once(self: Storage, path: str) -> None:
        if path.startswith("checkpoints/") and not offered:
            storage = open_storage(str(state))
            offered.extend(ParquetBackend(storage).epochs())
            driver = EpochDriver(cut_stages(pipeline(tmp_path).plan(), parallelism=1), storage)
            driver.open(from_epoch=offered[0])
            # Nor does one that goes back later, though the files of epoch 3 are still there.
            assert ParquetBackend(storage).epochs() == [offered[0]]
            with pytest.raises(hr.ConfigurationError, match="no checkpoint of epoch 3"):
                driver.open(from_epoch=3)
        delete(self, path)

    monkeypatch.setattr(storage_type, "delete", go_back_once)
    with pytest.raises(hr.ReplacedError):
        run_in_process(pipeline(tmp_path), state, epoch_rows=100, options=hr.RunOptions(keep_checkpoints=2))
    assert offered == [4, 5]
    backend = ParquetBackend(open_storage(str(state)))
    assert (backend.epochs(), backend.verify(4)) == ([4], [])
    run_in_process(pipeline(tmp_path), state, epoch_rows=100)
    check_rows(tmp_path)


def test_more_checkpoints_are_kept_from_the_next_epoch_on_if_more_are_asked_for(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for keep, epochs in ((2, [3, 4]), (4, [3, 4, 5, 6]), (1, [8]), (3, [8, 9, 10])):
        most, options = 4 if keep == 2 else 2, hr.RunOptions(keep_checkpoints=keep)
        run_in_process(pipeline(tmp_path), state, epoch_rows=100, max_epochs=most, options=options)
        backend = ParquetBackend(open_storage(str(state)))
        assert backend.epochs() == epochs
        assert [backend.verify(epoch) for epoch in epochs] == [[]] * len(epochs)


def test_a_directory_whose_checkpoints_are_gone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_backend, "_LISTING_PAUSES", (0.0,))
    state = tmp_path / "state"
    run_in_process(pipeline(tmp_path), state, epoch_rows=100, max_epochs=2)
    run_in_process(pipeline(tmp_path), state, epoch_rows=100, max_epochs=2)
    shutil.rmtree(state / "checkpoints")
    with pytest.raises(hr.CorruptStateError, match="the last run started from that of epoch 2"):
        run_in_process(pipeline(tmp_path), state)


def test_a_run_that_starts_while_another_goes_on_takes_up_what_that_one_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, prepare = tmp_path / "state", ParquetBackend.prepare_checkpoint_load
    run_in_process(
        pipeline(tmp_path), state, epoch_rows=50, max_epochs=2, options=hr.RunOptions(keep_checkpoints=1)
    )

    def go_on(self: ParquetBackend, metadata: CheckpointMetadata) -> None:
        monkeypatch.setattr(ParquetBackend, "prepare_checkpoint_load", prepare)
        run_in_process(
            pipeline(tmp_path), state, epoch_rows=50, max_epochs=3, options=hr.RunOptions(keep_checkpoints=1)
        )
        prepare(self, metadata)

    monkeypatch.setattr(ParquetBackend, "prepare_checkpoint_load", go_on)
    result = run_in_process(
        pipeline(tmp_path), state, epoch_rows=50, options=hr.RunOptions(keep_checkpoints=1)
    )
    assert result.first_epoch == 6
    check_rows(tmp_path)


def test_a_run_whose_state_its_successor_has_removed_says_that_it_was_replaced(tmp_path: Path) -> None:
    state = tmp_path / "state"
    driver = EpochDriver(cut_stages(pipeline(tmp_path).plan(), parallelism=1), open_storage(str(state)))
    driver.open()
    run_in_process(pipeline(tmp_path), state, epoch_rows=50)
    with pytest.raises(hr.ReplacedError):
        driver.offer_last_good(hr.CorruptStateError("a file is missing"), 1)
