"""`headrace run`: run a pipeline on Spark until it ends or is stopped."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.interrupts import end_at_once
from headrace.cli.program import note_expiry, program_arguments, read_program
from headrace.cli.terminal import verbose_option

if TYPE_CHECKING:
    from headrace.api.loading import Program
    from headrace.base.secrets import Secrets
    from headrace.cli.progress import Display
    from headrace.cli.results import Results
    from headrace.jobs.progress import Progress, RunResult
    from headrace.jobs.settings import Settings

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

REFRESH = 0.2
"""Seconds between two updates of the display, and checks for signals."""


def _read_pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for value, (name, equals, _) in zip(values, pairs, strict=True):
        if not equals or not name.strip():
            raise click.BadParameter(f"`{value}` is not name=value", ctx, param)
    return {name.strip(): text for name, _, text in pairs}


OPTIONS: tuple[Callable[[F], F], ...] = (
    click.option(
        "-s",
        "--state-dir",
        metavar="DIR",
        help="Keep checkpoints here (a path or URL), and resume from them.",
    ),
    click.option("-p", "--parallelism", type=int, metavar="N", help="Subtasks of every operator."),
    click.option("--master", metavar="URL", help="Where Spark runs; local[*] unless set."),
    click.option("--max-epochs", type=int, metavar="N", help="Stop after this many epochs."),
    click.option(
        "--available-now",
        is_flag=True,
        default=None,
        help="Read what is there at the start, from where the last run stopped, and end.",
    ),
    click.option("--epoch-rows", type=int, metavar="N", help="The most rows an epoch takes."),
    click.option("--epoch-target", metavar="TIME", help="How long an epoch should take, such as 500ms."),
    click.option(
        "--start-timeout",
        metavar="TIME",
        help="How long to wait for servers that do not answer yet, such as 60s.",
    ),
    click.option(
        "--from-epoch",
        type=click.IntRange(min=0),
        metavar="N",
        help="Resume from this checkpoint, not the last.",
    ),
    click.option(
        "--allow-drop",
        is_flag=True,
        help="Drop saved state that the changed pipeline no longer has a place for.",
    ),
    click.option(
        "--py-files",
        multiple=True,
        metavar="FILE",
        help="A module, package or zip for the workers to import; repeatable, or separated by commas.",
    ),
    click.option(
        "--conf",
        multiple=True,
        callback=_read_pairs,
        metavar="NAME=VALUE",
        help="A setting of Spark; repeatable.",
    ),
    click.option(
        "-c",
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Settings in TOML; ./headrace.toml if it is there.",
    ),
    click.option("--log-dir", metavar="DIR", help="Where Spark's own log goes."),
    click.option("--stop-after", metavar="TIME", help="Stop this long after the first epoch, such as 10s."),
    click.option("--watch", is_flag=True, help="Reload operators of a dataflow when their files change."),
    verbose_option,
    click.option("-q", "--quiet", is_flag=True, help="Show rows and errors, nothing else."),
    click.option(
        "--progress/--no-progress", default=True, help="Whether to show a line about the last epoch."
    ),
)
"""The options of `headrace run`, in the order of its help."""


def run_options(function: F) -> F:
    """Give a command the options of `headrace run`, which are the fields of `RunFlags`."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


@dataclass(frozen=True)
class RunFlags:
    """The options of `headrace run` as they were given; None and empty ones were not."""

    udfs: tuple[str, ...]
    state_dir: str | None
    parallelism: int | None
    master: str | None
    max_epochs: int | None
    available_now: bool | None
    epoch_rows: int | None
    epoch_target: str | None
    start_timeout: str | None
    from_epoch: int | None
    allow_drop: bool
    py_files: tuple[str, ...]
    conf: dict[str, str]
    config: Path | None
    log_dir: str | None
    stop_after: str | None
    watch: bool
    verbose: bool
    quiet: bool
    progress: bool

    def limits(self) -> dict[str, Any]:
        """The settings of the section `run`."""
        return {
            "parallelism": self.parallelism,
            "max_epochs": self.max_epochs,
            "available_now": self.available_now,
            "epoch_rows": self.epoch_rows,
            "epoch_target": self.epoch_target,
            "start_timeout": self.start_timeout,
        }

    def sections(self) -> dict[str, dict[str, Any]]:
        """The settings that have a flag, by section and key."""
        return {
            "run": self.limits(),
            "state": {"dir": self.state_dir},
            "spark": {"master": self.master, "conf": self.conf or None},
            "log": {"dir": self.log_dir},
        }

    def repeated(self) -> list[str]:
        """The arguments that the next run of the same job needs too, not those about this run only.

        A setting of Spark that holds a secret is named, and not shown.
        """
        from headrace.exchanges.spark.session import is_secret

        named = {
            "--master": self.master,
            "--parallelism": self.parallelism,
            "--epoch-rows": self.epoch_rows,
            "--epoch-target": self.epoch_target,
            "--start-timeout": self.start_timeout,
            "--config": self.config,
            "--log-dir": self.log_dir,
        }
        conf = {name: "***" if is_secret(name) else value for name, value in self.conf.items()}
        pairs = [
            *(("--udf", udf) for udf in self.udfs),
            *((name, str(value)) for name, value in named.items() if value is not None),
            *(("--py-files", names) for names in self.py_files),
            *(("--conf", f"{name}={value}") for name, value in conf.items()),
        ]
        return [argument for pair in pairs for argument in pair] + (["--watch"] if self.watch else [])


@click.command
@program_arguments
@run_options
def run(files: tuple[str, ...], texts: tuple[str, ...], **options: Any) -> None:
    """Run a pipeline on Spark until it ends or is stopped.

    FILE is SQL: several files are taken as one program, and - is the standard input. The rows of a bare
    SELECT are shown as a table on a terminal, and written as JSON lines elsewhere. Or FILE is a Python file
    with one pipeline in it, FILE.py, or FILE.py:NAME for one of several. Or FILE.yml is a dataflow: what its
    operators print is shown with their names.

    Ctrl-C and SIGTERM finish the epoch, commit it and stop; a second Ctrl-C ends at once.
    """
    from headrace.jobs.settings import load_settings

    flags = RunFlags(**options)
    settings = load_settings(flags=flags.sections(), config=flags.config)  # before the user's code runs
    if not flags.verbose:
        _start_spark_early(files, texts, settings)
    program = read_program(files, texts)
    result = _run_program(program, flags, master=settings.spark.master)
    if not flags.quiet:
        from headrace.base.spans import hide_written
        from headrace.cli.progress import summary
        from headrace.cli.terminal import stderr

        arguments = [
            *files,
            *(argument for text in texts for argument in ("-e", hide_written(text))),
            *flags.repeated(),
        ]
        text = summary(result, program=arguments, state_dir=settings.state.dir)
        stderr().print(program.secrets.hide(text), markup=False)


def _run_program(program: Program, flags: RunFlags, *, master: str | None) -> RunResult:
    """Load and run a program, with the display that its results and stderr need."""
    from headrace.api.run_options import RunOptions
    from headrace.base.durations import parse_duration
    from headrace.cli.results import Results
    from headrace.cli.terminal import stderr
    from headrace.cli.unit_lines import unit_lines
    from headrace.sql.compile import print_rows

    results = Results()
    live = sys.stdout.isatty() and not flags.verbose  # Spark's log and a table that is redrawn do not mix
    pipeline = program.load(udfs=flags.udfs, preview=results.sink if live else print_rows)
    if flags.watch and pipeline.dataflow is None:
        raise click.UsageError("--watch is for dataflows: FILE.yml", click.get_current_context())
    if pipeline.dataflow is not None and not flags.quiet:
        for warning in pipeline.dataflow.warnings:
            stderr().print(f"warning: {program.secrets.hide(warning)}", markup=False)
    if pipeline.dataflow is None and not flags.quiet:
        note_expiry(pipeline.plan())
    stop = threading.Event()
    limit = None if flags.stop_after is None else parse_duration(flags.stop_after).total_seconds()
    with (
        hidden_in_logs(program.secrets),
        unit_lines(flags.log_dir or flags.state_dir, program.secrets),
        _display(results, progress=flags.progress and not flags.quiet, verbose=flags.verbose) as display,
        stop_on_signals(stop, display),
    ):
        display.say("starting Spark and the first epoch …")
        return in_background(
            lambda: pipeline.run(
                flags.state_dir,
                parallelism=flags.parallelism,
                master=master,
                max_epochs=flags.max_epochs,
                epoch_rows=flags.epoch_rows,
                from_epoch=flags.from_epoch,
                allow_drop=flags.allow_drop,
                on_progress=stopping_after(limit, stop, display.update),
                stop=stop,
                watch=flags.watch,
                options=RunOptions(
                    available_now=flags.available_now,
                    epoch_target=flags.epoch_target,
                    start_timeout=flags.start_timeout,
                    spark_conf=flags.conf or None,
                    log_dir=flags.log_dir,
                    config=flags.config,
                    py_files=[name for names in flags.py_files for name in names.split(",") if name],
                    verbose=flags.verbose,
                ),
            ),
            tick=display.tick,
        )


def _start_spark_early(files: tuple[str, ...], texts: tuple[str, ...], settings: Settings) -> None:
    """Start Spark while the pipeline is read, unless code of the user might need another session.

    With a state directory it is started only once the pipeline is valid: its log is written there.
    """
    written = all(name.endswith((".sql", ".yml", ".yaml")) and Path(name).is_file() for name in files)
    if not written or not (files or texts) or settings.state.dir or settings.log.dir:
        return
    from headrace.exchanges.spark.session import SparkRequest, open_early

    open_early(SparkRequest(settings.spark.master, settings.spark.memory, settings.spark.conf))


def stopping_after(
    seconds: float | None, stop: threading.Event, show: Callable[[Progress], None]
) -> Callable[[Progress], None]:
    """A callback that shows progress, and stops the run this long after the first call."""
    timers: list[threading.Timer] = []

    def update(progress: Progress) -> None:
        show(progress)
        if seconds is not None and not timers:
            timers.append(threading.Timer(seconds, stop.set))
            timers[0].daemon = True
            timers[0].start()

    return update


@contextmanager
def _display(results: Results, *, progress: bool, verbose: bool) -> Iterator[Display]:
    from headrace.cli.progress import display
    from headrace.cli.results import live_results

    if results.shown:
        with live_results(results, progress=progress) as results_display:
            yield results_display
    else:
        with display(progress=progress, verbose=verbose) as line:
            yield line


@contextmanager
def hidden_in_logs(secrets: Secrets) -> Iterator[None]:
    """Within the context, hide secrets in what Headrace logs."""

    def hide(record: logging.LogRecord) -> bool:
        record.msg, record.args = secrets.hide(record.getMessage()), ()
        return True

    log = logging.getLogger("headrace")
    log.addFilter(hide)
    try:
        yield
    finally:
        log.removeFilter(hide)


def in_background(work: Callable[[], T], *, tick: Callable[[], None]) -> T:
    """Run the work in another thread, so that the main thread is free for signals and the display.

    Spark handles SIGINT itself when it is started in the main thread, and cancels the running epoch.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def target() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001  raised again by the main thread
            failures.append(error)

    thread = threading.Thread(target=target, name="headrace-run", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(REFRESH)
        tick()
    if failures:
        raise failures[0]
    return results[0]


@contextmanager
def stop_on_signals(stop: threading.Event, display: Display) -> Iterator[None]:
    """SIGINT and SIGTERM ask the run to stop after this epoch; a second SIGINT ends the process at once."""

    def ask(signum: int, _: FrameType | None) -> None:
        if stop.is_set() and signum == signal.SIGINT:
            end_at_once(signum, None)
        if not stop.is_set():
            stop.set()
            display.say("stopping after this epoch (Ctrl-C again ends at once) …")

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
