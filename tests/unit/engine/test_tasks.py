"""How many tasks run the subtasks of an epoch, and that it makes no difference to what they do."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import headrace as hr
from headrace.engine.context import EpochContext
from headrace.engine.driver import EpochDriver
from headrace.engine.envelope import Envelope, EnvelopeKind
from headrace.engine.loop import EpochLoop
from headrace.engine.offsets import EpochSize
from headrace.engine.parts import EpochParts
from headrace.engine.stages import StagePlan, cut_stages
from headrace.engine.task import SplitTask, run_split, run_subtasks, widths
from headrace.exchanges.local import LocalExchange
from headrace.storage.open import open_storage
from headrace.testing.in_process import ManualClock
from tests.flows import FLOWS

SUBTASKS = 6


def split(index: int, rows: int | None) -> SplitTask:
    return SplitTask(index=index, epoch=1, time=0.0, source="s", split=None, signals=None, rows=rows)


@pytest.mark.parametrize(
    ("parallelism", "rows", "cores", "tasks"),
    [
        (128, [1_000, 1_000], 2, 4),  # some for every core
        (128, [0], 2, 4),
        (128, [100_000], 2, 50),  # and not too many rows in one
        (128, [1_000_000], 2, 128),
        (3, [10], 2, 3),  # never more than there are subtasks
        (128, [10, None], 2, 128),  # nobody knows how many rows
        (128, [10], None, 128),  # or cores
    ],
)
def test_few_rows_are_worth_some_tasks_for_every_core(
    parallelism: int, rows: list[int | None], cores: int | None, tasks: int
) -> None:
    stages = cut_stages(FLOWS["two_levels"](hr.MemorySink).plan(), parallelism=parallelism)
    splits = [split(index, each) for index, each in enumerate(rows)]
    assert stages.depth > 1
    assert widths(stages, splits, lambda: cores) == [
        min(tasks, stages.width(stage)) for stage in range(1, stages.depth + 1)
    ]


def test_two_subtasks_have_a_task_each_and_nobody_is_asked_for_cores() -> None:
    def unknown() -> int:
        raise AssertionError("it costs a call of Java")

    stages = cut_stages(FLOWS["running"](hr.MemorySink).plan(), parallelism=2)
    assert widths(stages, [split(0, 10)], unknown) == [stages.width(1)]


@dataclass
class RecordingExchange(LocalExchange):
    """Keeps what it was given."""

    epochs: list[tuple[Sequence[SplitTask], EpochContext]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        self.epochs.append((tasks, context))
        return super().run(tasks, context)


def recorded(flow: str, state: Path) -> tuple[StagePlan, list[tuple[Sequence[SplitTask], EpochContext]]]:
    """Some epochs of a flow, as an exchange gets them."""
    stages = cut_stages(FLOWS[flow](hr.MemorySink).plan(), parallelism=SUBTASKS)
    driver = EpochDriver(stages, open_storage(str(state)), now=ManualClock())
    driver.open()
    exchange = RecordingExchange()
    EpochLoop(
        driver,
        exchange,
        size=EpochSize(target=0.5, most=40),
        on_epoch=lambda report: report.finished,
        stop=threading.Event(),
        restarts=0,
    ).run()
    return stages, exchange.epochs


def sent(envelopes: Sequence[Envelope]) -> Counter[tuple[object, ...]]:
    """What tasks send, without the manifests: these name files of their own."""
    return Counter(
        (e.to, e.edge, e.sender, e.seq, e.kind, bytes(e.payload))
        for e in envelopes
        if e.kind is not EnvelopeKind.MANIFEST
    )


@pytest.mark.parametrize("flow", ["two_levels", "join", "totals"])
@pytest.mark.parametrize("tasks", [1, 2, 4, 5])
def test_subtasks_that_share_a_task_send_what_they_send_from_tasks_of_their_own(
    flow: str, tasks: int, tmp_path: Path
) -> None:
    stages, epochs = recorded(flow, tmp_path)
    assert len(epochs) > 1
    for splits, context in epochs[-2:]:
        parts = EpochParts(stages, context)
        arrived = [e for task in splits for e in run_split(stages, context.job, task)]
        for stage in range(1, stages.depth + 1):
            own, shared = (
                [
                    envelope
                    for number in range(count)
                    for envelope in run_subtasks(
                        stages,
                        stage,
                        range(number, stages.width(stage), count),
                        parts.context,
                        [e for e in arrived if e.to % count == number],
                    )
                ]
                for count in (stages.width(stage), min(tasks, stages.width(stage)))
            )
            assert sent(shared) == sent(own)
            arrived = own


def test_the_planner_says_how_many_rows_a_split_has(tmp_path: Path) -> None:
    _, epochs = recorded("two_levels", tmp_path)
    assert all(split.rows is not None for splits, _ in epochs for split in splits)
    assert sum(split.rows or 0 for split in epochs[0][0]) >= 40
