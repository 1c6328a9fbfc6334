"""Runs a dataflow in this process, without Spark, and gives what its units printed."""

from __future__ import annotations

import logging
import tempfile
import time as clock
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.api.pipeline import Pipeline
from headrace.api.run_options import RunOptions
from headrace.base.errors import HeadraceError
from headrace.base.execution import ExecutionMode
from headrace.dataflow.document.load import load_dataflow
from headrace.dataflow.runtime.printed import LOGGER, Line, publish
from headrace.engine.driver import Step
from headrace.jobs.progress import RunResult
from headrace.model.fragments import Function
from headrace.testing.in_process import ManualClock, run_in_process


@dataclass
class DataflowResult:
    """What a run of a dataflow did."""

    exit_code: int = 0
    error: HeadraceError | None = None
    reason: str | None = None
    lines: list[Line] = field(default_factory=list)
    """What was printed and logged, in the order it was committed."""
    result: RunResult | None = None

    @property
    def logs(self) -> dict[str, list[str]]:
        """What each unit printed to stdout, line by line."""
        logs: dict[str, list[str]] = {}
        for line in self.lines:
            if line.stream == "stdout":
                logs.setdefault(line.unit, []).append(line.text)
        return logs


def run_dataflow(
    file: str | Path,
    *,
    state_dir: str | Path | None = None,
    stop_after: float | None = None,
    max_epochs: int | None = None,
    parallelism: int = 2,
    epoch_rows: int | None = None,
    real_time: bool | None = None,
    on_step: Step | None = None,
    clock_start: float = 1_700_000_000.0,
    seed: int = 0,
    udfs: Iterable[Function] = (),
    record: str | Path | None = None,
    execution: ExecutionMode | None = None,
    rescale: Callable[[int], int | None] | None = None,
) -> DataflowResult:
    """Run a dataflow until it ends, for `stop_after` seconds, or for `max_epochs` epochs.

    Time passes as fast as the dataflow can handle it, unless it has processes, which live in real time.
    `record` is a directory for a recording of the run. `rescale` is asked after each epoch for another
    parallelism. `execution` is that of `headrace run`.
    """
    outcome = DataflowResult()
    with collected_lines(outcome.lines):
        try:
            pipeline = Pipeline.from_dataflow(file, udfs=udfs)
            if record is not None:
                pipeline.record(record, program={"files": [str(Path(file).absolute())]})
            pipeline.plan()
            live = _has_processes(file) if real_time is None else real_time
            now: Callable[[], float] = clock.time if live else ManualClock(clock_start)
            begun = now()
            with tempfile.TemporaryDirectory() as scratch:
                outcome.result = run_in_process(
                    pipeline,
                    state_dir or scratch,
                    parallelism=parallelism,
                    max_epochs=max_epochs,
                    epoch_rows=epoch_rows,
                    clock=now,
                    seed=seed,
                    idle_epochs=100_000,
                    options=RunOptions(execution=execution),
                    on_step=on_step,
                    rescale=rescale,
                    stop=None if stop_after is None else lambda: now() - begun >= stop_after,
                )
                outcome.reason = outcome.result.reason
        except HeadraceError as error:
            publish([line for line in error.printed if isinstance(line, Line)])
            outcome.error, outcome.exit_code = error, error.exit_code
    return outcome


def _has_processes(file: str | Path) -> bool:
    return any(unit.kind == "process" for unit in load_dataflow(Path(file)).units)


@contextmanager
def collected_lines(lines: list[Line]) -> Iterator[None]:
    """Collect the lines of units within the context."""

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.printed)  # type: ignore[attr-defined]

    logger, handler = logging.getLogger(LOGGER), Collect()
    level, logger.propagate = logger.level, False
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = True
