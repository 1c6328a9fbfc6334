"""Runs on Spark that are told at each step of an epoch, for tests that kill or count there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import headrace as hr
from headrace.jobs.run import run_job
from headrace.jobs.settings import load_settings


def run_with_steps(
    pipeline: hr.Pipeline,
    state_dir: str | Path,
    on_step: Callable[[str, int], None],
    *,
    parallelism: int,
    epoch_rows: int,
    master: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    epoch_target: str | None = None,
) -> hr.RunResult:
    """Run a pipeline as `pipeline.run` does; `on_step(name, epoch)` is called at each step of an epoch."""
    settings = load_settings(
        flags={
            "run": {"parallelism": parallelism, "epoch_rows": epoch_rows, "epoch_target": epoch_target},
            "state": {"dir": str(state_dir)},
            "spark": {"master": master, "conf": spark_conf},
        }
    )
    return run_job(pipeline.plan(), settings, on_step=on_step)
