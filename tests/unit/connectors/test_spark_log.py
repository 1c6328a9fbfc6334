"""The log of the micro-batches that Spark has read."""

from __future__ import annotations

from pathlib import Path

from headrace.connectors.spark import BatchLog
from headrace.storage.open import open_storage


def test_what_a_crash_left_beside_a_micro_batch_is_forgotten_with_it(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    log = BatchLog(storage, "numbers")
    for number in (1, 2, 3):
        named, orphaned = (f"{log.files(number)}/{name}.arrow" for name in ("named", "orphaned"))
        storage.write(named, b"")
        storage.write(orphaned, b"")
        log.write(number, [named], rows=1, ended=False)
    assert log.forget(0, 2) == 2
    assert log.find(1) is log.find(2) is None
    assert storage.list(log.files(1)) == storage.list(log.files(2)) == []
    assert len(storage.list(log.files(3))) == 2
    assert log.find(3) is not None
    assert log.forget(2, -5) == 2
