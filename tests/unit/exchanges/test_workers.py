"""What a worker has loaded is kept from the collector of garbage, and memory from the system."""

import ctypes
import gc
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace.exchanges.spark import workers


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(workers, "_tasks_to_freeze", 2)
    yield
    gc.unfreeze()


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number]})


@pytest.mark.usefixtures("fresh")
def test_after_its_first_tasks_a_worker_looks_at_nothing_that_it_keeps() -> None:
    before = gc.get_freeze_count()
    given = [batch(1), batch(2)]
    assert list(workers.freeze_loaded(iter(given))) == given
    first = gc.get_freeze_count()
    assert first > before
    list(workers.freeze_loaded(iter(given)))
    frozen = gc.get_freeze_count()
    loaded_later: list[list[int]] = [[] for _ in range(10_000)]
    list(workers.freeze_loaded(iter(given)))
    assert gc.get_freeze_count() <= frozen  # what other threads let go of is not counted any more
    assert len(loaded_later) == 10_000


@pytest.mark.usefixtures("fresh")
def test_a_task_that_is_left_early_settles_nothing() -> None:
    before = gc.get_freeze_count()
    batches = workers.freeze_loaded(iter([batch(1), batch(2)]))
    next(batches)
    del batches
    assert gc.get_freeze_count() == before


FAULTS = """
import resource
from headrace.exchanges.spark.workers import keep_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

keep_memory()
b"x" * (8 << 20)
before = faults()
for _ in range(50):
    b"x" * (8 << 20)
print((faults() - before) * resource.getpagesize())
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="not the GNU C library"
)
@pytest.mark.parametrize("chosen", [False, True])
def test_memory_that_a_worker_has_freed_is_used_again(chosen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        if chosen:
            monkeypatch.setenv(name, "100000")
        else:
            monkeypatch.delenv(name, raising=False)
    asked = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert (int(asked.stdout) < 8 << 20) is not chosen  # of 50 times that
