"""What a worker has loaded is kept from the collector of garbage."""

import gc
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace.spark import workers


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(workers, "_settling", 2)
    yield
    gc.unfreeze()


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number]})


@pytest.mark.usefixtures("fresh")
def test_after_its_first_tasks_a_worker_looks_at_nothing_that_it_keeps() -> None:
    before = gc.get_freeze_count()
    given = [batch(1), batch(2)]
    assert list(workers.settled(iter(given))) == given
    first = gc.get_freeze_count()
    assert first > before
    list(workers.settled(iter(given)))
    settled = gc.get_freeze_count()
    list(workers.settled(iter(given)))
    assert gc.get_freeze_count() == settled


@pytest.mark.usefixtures("fresh")
def test_a_task_that_is_left_early_settles_nothing() -> None:
    before = gc.get_freeze_count()
    batches = workers.settled(iter([batch(1), batch(2)]))
    next(batches)
    del batches
    assert gc.get_freeze_count() == before
