"""Simulations keep the laws, find faults that are planted, and can be repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.planted import PLANTED
from tests.simulation.simulation import simulate

SEEDS_PER_TEST = 50
TESTS = 40
MOST_SEEDS = 2000
"""How many seeds a planted fault may stay unfound for."""


@pytest.mark.parametrize("part", range(TESTS))
def test_whatever_fails_every_guarantee_holds(part: int) -> None:
    for seed in range(part * SEEDS_PER_TEST, (part + 1) * SEEDS_PER_TEST):
        outcome = simulate(seed)
        assert not outcome.problems, outcome.report()


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    with PLANTED[name]():
        assert any(simulate(seed).problems for seed in range(MOST_SEEDS)), f"{name} was not found"


@pytest.mark.parametrize("seed", [3, 10])
def test_a_seed_can_be_repeated_in_another_process(seed: int) -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed)]
    traces = [
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout.splitlines()
        for hash_seed in ("1", "2")
    ]
    assert traces[0] == traces[1]
