"""Commits in tasks: who publishes what, how often, and who must not."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import ExternalError, InternalError, ReplacedError
from headrace.connectors import base
from headrace.connectors.base import by_subtask, stage, unstage
from headrace.engine.commits import CommitTask, commit_seconds, run_commit
from headrace.engine.context import JobContext
from headrace.engine.driver import EpochDriver
from headrace.engine.envelope import Envelope, EnvelopeKind
from headrace.engine.offsets import EpochSize, OffsetPlanner
from headrace.engine.stages import StagePlan, cut_stages
from headrace.exchanges.local import LocalExchange
from headrace.model.operator import CommitData
from headrace.state.generation import Generation
from headrace.storage.open import open_storage
from headrace.testing.in_process import CrashError, run_in_process
from tests.support import SinkDriver

PUBLISHED: list[tuple[int, tuple[int, ...]]] = []
"""Epoch and subtasks of each call of a commit that went through."""
FAULTS: Counter[str] = Counter()
NUMBERS: Counter[int] = Counter()
MARKS: set[tuple[int, int, str]] = set()


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    PUBLISHED.clear()
    FAULTS.clear()
    NUMBERS.clear()
    MARKS.clear()
    yield
    FAULTS.clear()


class SharedSink(hr.ArrowOperator):
    """Publishes the numbers of each subtask once, by a mark for each epoch and subtask."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        self._numbers += batch.column("counter").to_pylist()

    def handle_checkpoint(
        self, barrier: hr.CheckpointBarrier, ctx: hr.OperatorContext, collector: hr.Collector
    ) -> None:
        if self._numbers:
            payload = json.dumps(self._numbers).encode()
            ctx.insert_committing_data("numbers", stage(ctx, "numbers", payload, apart=True))

    def commit_shares(self, data: CommitData) -> Sequence[CommitData]:
        return by_subtask(data, "numbers")

    def handle_commit(self, epoch: int, data: CommitData, ctx: hr.OperatorContext) -> None:
        for subtask, content in sorted(data["numbers"].items()):
            payload, described = unstage(ctx, content)
            for moment in ("before", "after"):
                if FAULTS[f"{moment} {subtask}"]:
                    FAULTS[f"{moment} {subtask}"] -= 1
                    raise ConnectionResetError(f"{moment} {subtask}")
                if moment == "before" and (mark := (epoch, subtask, described["id"])) not in MARKS:
                    MARKS.add(mark)
                    NUMBERS.update(json.loads(payload))
        PUBLISHED.append((epoch, tuple(sorted(data["numbers"]))))


def pipeline() -> hr.Pipeline:
    numbers = hr.Pipeline("numbers")
    source = numbers.source("impulse", message_count=60, event_time_interval="1s", id="source")
    source.key_by("counter").sink(SharedSink(), id="sink")
    return numbers


def test_each_subtask_commits_in_a_task_of_its_own(tmp_path: Path) -> None:
    run_in_process(pipeline(), tmp_path, parallelism=3, epoch_rows=20)
    assert sorted(PUBLISHED) == [(epoch, (subtask,)) for epoch in (1, 2, 3) for subtask in range(3)]
    assert Counter(range(60)) == NUMBERS


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("subtask", range(3))
def test_a_share_that_fails_is_committed_again_and_no_row_twice(
    tmp_path: Path, moment: str, subtask: int
) -> None:
    FAULTS[f"{moment} {subtask}"] = 1
    options = hr.RunOptions(restarts=1)
    run_in_process(pipeline(), tmp_path, parallelism=3, epoch_rows=20, options=options)
    assert not FAULTS[f"{moment} {subtask}"]
    assert Counter(range(60)) == NUMBERS


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_the_next_run_finishes_a_commit_of_another_number_of_subtasks(
    tmp_path: Path, moment: str, parallelism: int
) -> None:
    FAULTS[f"{moment} 1"] = 1
    with pytest.raises(hr.ExternalError, match=f"{moment} 1") as caught:
        run_in_process(pipeline(), tmp_path, parallelism=3, epoch_rows=20)
    assert caught.value.where == "operator sink, commit of epoch 1 in a task"
    assert "the next run commits it first" in str(caught.value.hint)
    run_in_process(pipeline(), tmp_path, parallelism=parallelism, epoch_rows=20)
    assert (1, (0, 1, 2)) in PUBLISHED  # before there is an exchange the driver does it
    assert Counter(range(60)) == NUMBERS


@pytest.mark.parametrize("step", ["metadata_written", "sink_committed:sink", "committed"])
def test_a_crash_beside_the_tasks_of_a_commit_costs_no_row(tmp_path: Path, step: str) -> None:
    def crash(name: str, epoch: int) -> None:
        if (name, epoch) == (step, 2):
            raise CrashError

    with pytest.raises(CrashError):
        run_in_process(pipeline(), tmp_path, parallelism=3, epoch_rows=20, on_step=crash)
    run_in_process(pipeline(), tmp_path, parallelism=2, epoch_rows=20)
    assert Counter(range(60)) == NUMBERS


class Recording(LocalExchange):
    """Keeps the tasks of commits, as if attempts of them went on by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[CommitTask] = []

    def commit(self, tasks: Sequence[CommitTask], job: JobContext) -> list[Envelope]:
        self.commits += tasks
        return super().commit(tasks, job)


def one_epoch(tmp_path: Path) -> tuple[EpochDriver, Recording, StagePlan]:
    """A driver whose first epoch is sealed, and not committed yet."""
    stages = cut_stages(pipeline().plan(), parallelism=2)
    driver, exchange = EpochDriver(stages, open_storage(str(tmp_path))), Recording()
    driver.open()
    exchange.use(stages)
    planner = OffsetPlanner(
        stages, driver.sources, size=EpochSize(0.5, 20), restored=None, epoch=0, now=driver.now
    )
    start = planner.initial()
    context = driver.begin()
    driver.seal(context, exchange.run(planner.tasks(start, planner.latest(start)), context))
    return driver, exchange, stages


def attempt(stages: StagePlan, driver: EpochDriver, task: CommitTask) -> list[Envelope]:
    assert driver.job is not None
    return list(run_commit(stages, driver.job, task))


def test_an_attempt_that_comes_late_publishes_nothing(tmp_path: Path) -> None:
    driver, exchange, stages = one_epoch(tmp_path)
    driver.commit(exchange)
    task = exchange.commits[0]
    before = list(PUBLISHED)
    with pytest.raises(ReplacedError, match="another attempt of this task has committed epoch 1"):
        commit_seconds([task], attempt(stages, driver, task))
    # Long after, when the checkpoint has been removed.
    for path in driver.storage.list("checkpoints/checkpoint-0000001"):
        driver.storage.delete(path)
    with pytest.raises(ReplacedError, match="another attempt"):
        commit_seconds([task], attempt(stages, driver, task))
    assert before == PUBLISHED


def test_a_task_of_a_run_that_was_replaced_publishes_nothing(tmp_path: Path) -> None:
    driver, exchange, _ = one_epoch(tmp_path)
    Generation.claim(driver.storage, "another")
    with pytest.raises(ReplacedError, match="has taken over"):
        driver.commit(exchange)
    assert PUBLISHED == []


def test_a_run_that_is_replaced_while_its_tasks_commit_ends_as_replaced(tmp_path: Path) -> None:
    driver, exchange, _ = one_epoch(tmp_path)

    class Slow(Recording):
        def commit(self, tasks: Sequence[CommitTask], job: JobContext) -> list[Envelope]:
            Generation.claim(driver.storage, "another")
            return super().commit(tasks, job)

    slow = Slow()
    slow.use(driver.stages)
    with pytest.raises(ReplacedError, match="has taken over"):
        driver.commit(slow)
    assert PUBLISHED == []
    assert not exchange.commits


def test_a_commit_that_is_done_is_not_done_again_for_what_follows_it(tmp_path: Path) -> None:
    driver, exchange, _ = one_epoch(tmp_path)
    driver.commit(exchange)
    assert driver.commits.keys() == {"sink"}
    driver.commit(exchange)
    assert len(exchange.commits) == len(PUBLISHED) == 2


def test_a_mark_whose_answer_was_lost_is_written_again_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, exchange, _ = one_epoch(tmp_path)
    mark, lost = driver.backend.mark_committed, list[int]()

    def unheard(epoch: int, generation: int) -> None:
        mark(epoch, generation)
        if not lost:
            lost.append(epoch)
            raise ExternalError("the answer was lost")

    monkeypatch.setattr(driver.backend, "mark_committed", unheard)
    with pytest.raises(ExternalError, match="the answer was lost"):
        driver.commit(exchange)
    driver.commit(exchange)
    assert len(exchange.commits) == len(PUBLISHED) == 2


def test_a_commit_of_which_a_task_says_nothing_is_an_error(tmp_path: Path) -> None:
    driver, exchange, stages = one_epoch(tmp_path)
    driver.commit(exchange)
    with pytest.raises(InternalError, match="came back incomplete: 0 of 2 tasks reported"):
        commit_seconds(exchange.commits, [])
    assert pickle.loads(pickle.dumps(exchange.commits)) == exchange.commits
    assert [e.kind for e in attempt(stages, driver, exchange.commits[0])] == [EnvelopeKind.ERROR]


def staged(tmp_path: Path, sizes: Sequence[int], **extra: Any) -> CommitData:
    ctx = SinkDriver(SharedSink, tmp_path)._context(None, 1, 0, 1)  # type: ignore[arg-type]
    parts = (stage(ctx, f"part-{n}", bytes(size), **extra) for n, size in enumerate(sizes))
    return {"rows": dict(enumerate(parts))}


def test_tasks_commit_what_is_large_or_in_many_parts(tmp_path: Path) -> None:
    def shares(*sizes: int) -> int:
        parts = by_subtask(staged(tmp_path, sizes, apart=True), "rows")
        return len(base.shares_for_tasks(parts, "rows"))

    assert shares() == shares(10) == shares(10, 10) == shares(base._DRIVER_BYTES) == 0
    assert shares(*[10] * (base._DRIVER_PARTS + 1)) == base._DRIVER_PARTS + 1
    assert shares(base._DRIVER_BYTES, 10) == 2
    assert shares(base._DRIVER_BYTES + 1) == 1
    whole = staged(tmp_path, [10] * 100)
    assert base.shares_for_tasks([whole], "rows") == ()  # a single part, and small


def test_what_an_earlier_version_has_staged_is_committed_as_a_whole(tmp_path: Path) -> None:
    whole = staged(tmp_path, [10, 10])
    assert by_subtask(whole, "rows") == [whole]
    apart = staged(tmp_path, [10, 10], apart=True)
    assert by_subtask(apart, "rows") == [{"rows": {n: apart["rows"][n]}} for n in (0, 1)]
