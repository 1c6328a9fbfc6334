"""Which batches the benchmark counts of several streams of Structured Streaming."""

from __future__ import annotations

from typing import Any

import pytest

from bench.nexmark.structured_streaming import batches


def progress(second: int, took: int) -> dict[str, Any]:
    return {
        "timestamp": f"2026-01-01T00:00:{second:02}.000Z",
        "numInputRows": 10,
        "durationMs": {"triggerExecution": took * 1000},
    }


def test_a_batch_is_done_when_all_streams_have_it() -> None:
    fast = [progress(0, 2), progress(2, 2), progress(4, 1)]
    slow = [progress(1, 3), progress(4, 4)]
    found = batches([fast, slow])
    assert [rows for rows, _ in found] == [10, 10]
    assert [seconds for _, seconds in found] == pytest.approx([4, 4])


def test_streams_that_have_done_nothing_have_no_batches() -> None:
    assert batches([[progress(0, 2)], []]) == []
