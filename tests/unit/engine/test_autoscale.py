"""A parallelism that follows the load: what moves it, and what does not."""

from __future__ import annotations

import pytest

from headrace.engine.autoscale import AutoParallelism, Autoscaler


class Run:
    """A run whose rate is what its cores allow; time passes with its epochs."""

    def __init__(self, bounds: str, *, cores: int, grows: bool = False, useful: int = 64) -> None:
        parsed = AutoParallelism.parse(bounds)
        assert parsed is not None
        self.time, self.cores, self.useful = 0.0, cores, useful
        self.parallelism = parsed.clamp(2)
        self.changes: list[tuple[int, str]] = []
        self.scaler = Autoscaler(parsed, lambda: self.cores, grows=grows, now=lambda: self.time)

    def epochs(self, count: int, *, load: float, seconds: float = 0.5) -> None:
        for _ in range(count):
            self.time += seconds
            if self.scaler.grows:
                self.cores = max(self.cores, self.parallelism)
            rows = int(load * 1000 * min(self.parallelism, self.useful, self.cores))
            decision = self.scaler.observe(self.parallelism, load=load, rows=rows, seconds=seconds)
            if decision is not None:
                self.parallelism = decision.parallelism
                self.changes.append((decision.parallelism, decision.reason))


@pytest.mark.parametrize("wrong", ["auto", "auto:", "auto:0-4", "auto:8-2", "auto:2", "2-64", "auto:2-64x"])
def test_bounds_that_are_none_are_not_read(wrong: str) -> None:
    assert AutoParallelism.parse(wrong) is None


def test_a_backlog_doubles_it_up_to_the_cores_and_the_bounds() -> None:
    run = Run("auto:2-64", cores=12)
    run.epochs(200, load=1.0)
    assert [parallelism for parallelism, _ in run.changes] == [4, 8, 12]
    run = Run("auto:2-6", cores=12)
    run.epochs(200, load=1.0)
    assert [parallelism for parallelism, _ in run.changes] == [4, 6]


def test_a_peak_of_some_epochs_changes_nothing() -> None:
    run = Run("auto:2-64", cores=12)
    for _ in range(50):
        run.epochs(8, load=1.0)
        run.epochs(1, load=0.5)
    assert run.changes == []


def test_two_changes_are_seconds_apart() -> None:
    run = Run("auto:2-64", cores=64)
    run.epochs(9, load=1.0)
    assert run.changes == []
    run.epochs(10, load=1.0)
    assert len(run.changes) == 1


def test_little_load_that_lasts_halves_it_and_a_pause_does_not() -> None:
    run = Run("auto:2-64", cores=16)
    run.epochs(100, load=1.0)
    assert run.parallelism == 16
    run.epochs(100, load=0.1)
    assert run.parallelism == 16
    run.epochs(1, load=0.5)
    run.epochs(100, load=0.1)
    assert run.parallelism == 16
    run.epochs(1000, load=0.1)
    assert run.parallelism == 2


def test_load_in_between_leaves_it_as_it_is() -> None:
    run = Run("auto:2-64", cores=16)
    run.epochs(1000, load=0.5)
    assert run.changes == []


def test_what_was_no_gain_is_taken_back_and_tried_again_only_after_some_time() -> None:
    run = Run("auto:2-64", cores=64, useful=4)
    run.epochs(500, load=1.0)  # 250 seconds
    assert [parallelism for parallelism, _ in run.changes] == [4, 8, 4]
    assert run.changes[-1][1] == "8 read 8,000 rows/s, 4 8,000"
    run.epochs(2000, load=1.0)  # 1000 seconds
    assert [parallelism for parallelism, _ in run.changes][3:5] == [8, 4]
    assert len(run.changes) <= 7


def test_executors_that_are_gone_are_not_waited_for() -> None:
    run = Run("auto:2-64", cores=16)
    run.epochs(100, load=1.0)
    assert run.parallelism == 16
    run.cores = 4
    run.epochs(30, load=1.0)
    assert run.parallelism == 4
    assert "4 cores" in run.changes[-1][1]


def test_with_dynamic_allocation_it_asks_for_more_than_there_is() -> None:
    run = Run("auto:2-16", cores=2, grows=True)
    run.epochs(200, load=1.0)
    assert run.parallelism == 16


def test_a_parallelism_outside_of_the_bounds_is_brought_back() -> None:
    run = Run("auto:2-8", cores=8)
    run.parallelism = 20
    run.epochs(1, load=0.5)
    assert run.changes == [(8, "auto:2-8 are the bounds")]
