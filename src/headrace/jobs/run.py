"""One life of a job: take up the state, run epochs on Spark, say what was done."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.base.errors import HeadraceError, UserError
from headrace.engine.chain import load_operator
from headrace.engine.driver import EpochDriver, Step
from headrace.engine.offsets import EpochSize
from headrace.engine.reports import EpochReport
from headrace.engine.stages import cut_stages
from headrace.exchanges.spark.loop import EpochLoop
from headrace.exchanges.spark.session import Session, Wanted, cores_of, is_lost, open_session
from headrace.exchanges.spark.shipping import ship_code
from headrace.jobs.progress import Progress, Reason, RunResult, Tally, collected_rows
from headrace.jobs.settings import Settings
from headrace.model.plan import Plan
from headrace.state.cache import cache_directory
from headrace.state.lock import StateLock
from headrace.storage.open import open_storage

_log = logging.getLogger("headrace")

_LAST_WORDS = 5.0
"""Seconds that Spark's Java may need to end."""


def run_job(
    plan: Plan,
    settings: Settings,
    *,
    from_epoch: int | None = None,
    allow_drop: bool = False,
    py_files: Sequence[str] = (),
    verbose: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    on_step: Step | None = None,
    stop: threading.Event | None = None,
    refresh: Callable[[], Plan | None] | None = None,
) -> RunResult:
    """Run a plan on Spark until its sources end, a limit is reached or `stop` is set.

    `refresh` is asked before each epoch for a plan of the same shape whose operators have changed.

    Without a state directory the state lives in a temporary one for as long as the run.
    """
    for node in plan.nodes:
        load_operator(node).validate()
    temporary = None if settings.state.dir else tempfile.mkdtemp(prefix="headrace-state-")
    state_dir = settings.state.dir or temporary or ""
    try:
        return _run(
            plan,
            settings,
            state_dir=state_dir,
            kept=temporary is None,
            from_epoch=from_epoch,
            allow_drop=allow_drop,
            py_files=py_files,
            verbose=verbose,
            on_progress=on_progress or (lambda _progress: None),
            on_step=on_step,
            stop=stop or threading.Event(),
            refresh=refresh,
        )
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(cache_directory(temporary), ignore_errors=True)


def _run(
    plan: Plan,
    settings: Settings,
    *,
    state_dir: str,
    kept: bool,
    from_epoch: int | None,
    allow_drop: bool,
    py_files: Sequence[str],
    verbose: bool,
    on_progress: Callable[[Progress], None],
    on_step: Step | None,
    stop: threading.Event,
    refresh: Callable[[], Plan | None] | None,
) -> RunResult:
    storage = open_storage(state_dir)
    storage.check_writable()
    logs = settings.log.dir or (_local_log_dir(storage.local_path("")) if kept else None)

    # A master that nobody asked for must not keep a run from a session that is there.
    master = settings.spark.master if "master" in settings.spark.model_fields_set else None

    def open_spark() -> Session:
        return open_session(Wanted(master, settings.spark.memory, settings.spark.conf, logs, verbose))

    with StateLock(storage):
        # Whatever can be refused is refused before Spark starts, which takes seconds; only a cluster has
        # to be asked how many cores it has.
        parallelism = parallelism_of(settings) or open_spark().cores
        stages = cut_stages(plan, parallelism=parallelism)
        driver = EpochDriver(
            stages,
            storage,
            keep_checkpoints=settings.state.keep_checkpoints,
            compact_after=settings.state.compact_after,
            step=on_step,
        )
        driver.open(from_epoch=from_epoch, allow_drop=allow_drop)
        job_id = "" if driver.job is None else driver.job.job_id
        tally = Tally(job_id, first_epoch=driver.epoch + 1, max_epochs=settings.run.max_epochs)
        shown = state_dir if kept else None
        if driver.finished:
            size = sum(file.bytes for file in driver.live_files())
            rows = collected_rows(plan, job_id)
            return tally.result("finished", rows=rows, state_bytes=size, state_dir=shown)

        ended: list[Reason] = []

        def on_epoch(report: EpochReport) -> bool:
            on_progress(tally.add(report))
            reason = tally.reason_to_end()
            if reason is not None:
                ended.append(reason)
            return reason is not None

        def on_retry(error: HeadraceError, attempt: int) -> None:
            _log.warning("epoch %d, try %d failed: %s", driver.epoch + 1, attempt, error)

        def run_epochs() -> str | None:
            """Until there is a reason to end; returns where Spark's log is."""
            session = open_spark()
            if stop.is_set():
                return session.log_file
            ship_code(session.spark, plan, py_files)
            size = EpochSize(target=settings.run.epoch_target.total_seconds(), most=settings.run.epoch_rows)
            EpochLoop(
                session.spark,
                driver,
                size=size,
                restarts=settings.run.restarts,
                log_file=session.log_file,
                on_epoch=on_epoch,
                on_retry=on_retry,
                stop=stop,
                refresh=refresh,
            ).run()
            return session.log_file

        log_file = None if stop.is_set() else _unless_told_to_end(run_epochs, stop)
        return tally.result(
            ended[0] if ended else "stopped",
            rows=collected_rows(plan, job_id),
            state_dir=shown,
            log_file=log_file,
        )


def _unless_told_to_end(work: Callable[[], str | None], stop: threading.Event) -> str | None:
    """Do the work. Whoever asks for a stop may end Spark's Java too: then what fails is no error.

    An epoch that was cut off in this way is not committed, and the next run begins with it.
    """
    try:
        return work()
    except Exception as error:
        if not stop.is_set() or isinstance(error, UserError) or not is_lost(within=_LAST_WORDS):
            raise
        return None


def parallelism_of(settings: Settings) -> int | None:
    """How many subtasks an operator has: as set, or as many as the master says it has cores."""
    return settings.run.parallelism or cores_of(settings.spark.master)


def _local_log_dir(state_dir: str | None) -> str | None:
    return None if state_dir is None else str(Path(state_dir) / "logs")
