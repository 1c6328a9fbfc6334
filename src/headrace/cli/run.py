"""`headrace run`: run a pipeline until it ends or is stopped."""

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

from headrace.base.execution import EngineName, ExecutionMode
from headrace.cli.interrupts import end_at_once
from headrace.cli.program import expiries, program_arguments, read_program
from headrace.cli.terminal import Invocation, verbose_option

if TYPE_CHECKING:
    from headrace.api.loading import Program
    from headrace.api.pipeline import Pipeline
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


def _read_parallelism(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value.startswith("auto"):
        return value  # the settings say what is wrong with the bounds
    try:
        return int(value)
    except ValueError:
        message = f"{value!r} is not a valid integer, nor bounds such as `auto:2-64`"
        raise click.BadParameter(message, ctx, param) from None


JOB_OPTIONS: tuple[Callable[[F], F], ...] = (
    click.option(
        "-s",
        "--state-dir",
        metavar="DIR",
        help="Save checkpoints here (a path or URL), and resume from them.",
    ),
    click.option(
        "-p",
        "--parallelism",
        callback=_read_parallelism,
        metavar="N",
        help="Subtasks of each operator; auto:2-64 scales with the load within these bounds.",
    ),
    click.option("--master", metavar="URL", help="The Spark master; local[*] unless set."),
    click.option("--max-epochs", type=int, metavar="N", help="Stop after this many epochs."),
    click.option(
        "--available-now",
        is_flag=True,
        default=None,
        help="Process all data that is available at the start, then stop, as Spark's trigger of that name.",
    ),
    click.option("--epoch-rows", type=int, metavar="N", help="The maximum number of rows in an epoch."),
    click.option("--epoch-target", metavar="TIME", help="How long an epoch should take, such as 500ms."),
    click.option(
        "--execution",
        type=click.Choice(["auto", "resident", "epochs"]),
        help="`resident`: a long-running task handles each message of a dataflow as it arrives.",
    ),
    click.option(
        "--start-timeout",
        metavar="TIME",
        help="How long to wait for servers that do not answer yet, such as 60s.",
    ),
    click.option(
        "--allow-drop",
        is_flag=True,
        help="Drop saved state that the changed pipeline does not use.",
    ),
    click.option(
        "--py-files",
        multiple=True,
        metavar="FILE",
        help="A module, package or zip that the workers import; repeatable, or separated by commas.",
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
        help="Settings in TOML; ./headrace.toml if it exists.",
    ),
)
"""The options that say what a job does, in the order of the help."""

OPTIONS: tuple[Callable[[F], F], ...] = (
    *JOB_OPTIONS,
    click.option(
        "--from-epoch",
        type=click.IntRange(min=0),
        metavar="N",
        help="Resume from the checkpoint of this epoch instead of the last.",
    ),
    click.option(
        "--spark-ui",
        is_flag=True,
        help="Serve Spark's web UI at the address of the driver: the loopback address in local mode.",
    ),
    click.option("--log-dir", metavar="DIR", help="The directory of log files, including Spark's."),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        help="The format of stderr; json writes one object per event, with its epoch and operator.",
    ),
    click.option(
        "--log-level",
        metavar="LEVELS",
        help="The log level: debug, info, warning or error, also by area, such as info,kafka=debug.",
    ),
    click.option(
        "--metrics-port",
        type=click.IntRange(min=0, max=65535),
        metavar="PORT",
        help="Serve /metrics for Prometheus, /healthz and /readyz at this port.",
    ),
    click.option(
        "--metrics-host", metavar="HOST", help="The address to serve them at; 127.0.0.1 unless set."
    ),
    click.option(
        "--engine",
        type=click.Choice(["spark", "local"]),
        help="`local`: run in this process, without Spark and Java; for development.",
    ),
    click.option(
        "--ui", is_flag=True, help="Serve a live page of this run on this machine, and print its address."
    ),
    click.option("--stop-after", metavar="TIME", help="Stop this long after the first epoch, such as 10s."),
    click.option("--watch", is_flag=True, help="Reload operators of a dataflow when their files change."),
    verbose_option,
    click.option("-q", "--quiet", is_flag=True, help="Show only rows and errors."),
    click.option(
        "--progress/--no-progress", default=True, help="Show a progress line about the last epoch, or not."
    ),
    click.option("--submitted", is_flag=True, hidden=True, help="The driver of `headrace submit`."),
)
"""The options of `headrace run`, in the order of its help."""


def job_options(function: F) -> F:
    """Give a command the options that say what a job does."""
    for option in reversed(JOB_OPTIONS):
        function = option(function)
    return function


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
    parallelism: int | str | None
    master: str | None
    max_epochs: int | None
    available_now: bool | None
    epoch_rows: int | None
    epoch_target: str | None
    execution: ExecutionMode | None
    start_timeout: str | None
    from_epoch: int | None
    allow_drop: bool
    py_files: tuple[str, ...]
    conf: dict[str, str]
    spark_ui: bool
    config: Path | None
    log_dir: str | None
    log_format: str | None
    log_level: str | None
    metrics_port: int | None
    metrics_host: str | None
    engine: EngineName | None
    ui: bool
    stop_after: str | None
    watch: bool
    verbose: bool
    quiet: bool
    progress: bool
    submitted: bool

    @property
    def spark_conf(self) -> dict[str, str]:
        """The settings of Spark."""
        return {**self.conf, "spark.ui.enabled": "true"} if self.spark_ui else self.conf

    @property
    def shipped(self) -> list[str]:
        """The files that `--py-files` names."""
        return [name for names in self.py_files for name in names.split(",") if name]

    def limits(self) -> dict[str, Any]:
        """The settings of the section `run`."""
        return {
            "parallelism": self.parallelism,
            "max_epochs": self.max_epochs,
            "available_now": self.available_now,
            "epoch_rows": self.epoch_rows,
            "epoch_target": self.epoch_target,
            "execution": self.execution,
            "engine": self.engine,
            "start_timeout": self.start_timeout,
        }

    def sections(self) -> dict[str, dict[str, Any]]:
        """The settings that have a flag, by section and key."""
        return {
            "run": self.limits(),
            "state": {"dir": self.state_dir},
            "spark": {"master": self.master, "conf": self.spark_conf or None},
            "log": {"dir": self.log_dir, "format": self.log_format, "level": self.log_level},
            "metrics": {"port": self.metrics_port, "host": self.metrics_host},
        }

    def repeated(self) -> list[str]:
        """The arguments that the next run of the same job needs too, not those about this run only.

        A setting of Spark that holds a secret is named, and not shown.
        """
        from headrace.exchanges.spark.launch import is_secret
        from headrace.exchanges.spark.masters import shown_master

        named = {
            "--master": None if self.master is None else shown_master(self.master),
            "--parallelism": self.parallelism,
            "--epoch-rows": self.epoch_rows,
            "--epoch-target": self.epoch_target,
            "--execution": self.execution,
            "--start-timeout": self.start_timeout,
            "--config": self.config,
            "--log-dir": self.log_dir,
            "--log-format": self.log_format,
            "--log-level": self.log_level,
            "--metrics-port": self.metrics_port,
            "--metrics-host": self.metrics_host,
            "--engine": self.engine,
        }
        conf = {name: "***" if is_secret(name) else value for name, value in self.conf.items()}
        pairs = [
            *(("--udf", udf) for udf in self.udfs),
            *((name, str(value)) for name, value in named.items() if value is not None),
            *(("--py-files", names) for names in self.py_files),
            *(("--conf", f"{name}={value}") for name, value in conf.items()),
        ]
        switches = {"--spark-ui": self.spark_ui, "--ui": self.ui, "--watch": self.watch}
        return [argument for pair in pairs for argument in pair] + [
            name for name, is_set in switches.items() if is_set
        ]


@click.command
@program_arguments
@run_options
def run(files: tuple[str, ...], texts: tuple[str, ...], **options: Any) -> None:
    """Run a pipeline on Spark until it ends or is stopped.

    FILE is SQL: several files form one program, and - is the standard input. The rows of a bare SELECT are
    shown as a table on a terminal, and written as JSON lines elsewhere. Or FILE is a Python file with one
    pipeline in it, FILE.py, or FILE.py:NAME for one of several. Or FILE.yml is a dataflow: the output of its
    operators is shown with their names.

    With --engine local it runs in this process, one task after the other, without Spark and Java: it starts
    at once, for small inputs during development. Either engine can continue in the state directory of the
    other.

    Ctrl-C and SIGTERM finish the epoch, commit it and stop; a second Ctrl-C ends at once.
    """
    run_program(files, texts, options)


def run_program(
    files: tuple[str, ...], texts: tuple[str, ...], options: dict[str, Any], *, out: Path | None = None
) -> None:
    """Run the program that the arguments name, and record it to `out`, if that is given."""
    from headrace.exchanges.py_files import find_py_files
    from headrace.jobs.settings import load_settings

    flags = RunFlags(**options)
    settings = load_settings(flags=flags.sections(), config=flags.config)  # before the user's code runs
    find_py_files(flags.shipped)
    invocation = click.get_current_context().ensure_object(Invocation)
    invocation.logs_json = settings.log.format == "json"
    if not flags.verbose and settings.run.engine == "spark":
        _start_spark_early(files, texts, settings)
    program = read_program(files, texts)
    result = _run_program(
        program, flags, settings, invocation, recording=_recording(files, texts, flags, out)
    )
    if not flags.quiet and not invocation.logs_json:
        from headrace.base.spans import hide_written
        from headrace.cli.progress import summary
        from headrace.cli.terminal import stderr

        arguments = [
            *files,
            *(argument for text in texts for argument in ("-e", hide_written(text))),
            *flags.repeated(),
        ]
        text = summary(result, program=None if flags.submitted else arguments, state_dir=settings.state.dir)
        stderr().print(program.secrets.hide(text), markup=False)


def _recording(
    files: tuple[str, ...], texts: tuple[str, ...], flags: RunFlags, out: Path | None
) -> tuple[Path, dict[str, Any]] | None:
    """Where a run is recorded, and what the recording says of its program; files have absolute names."""
    if out is None:
        return None
    names = [name if name == "-" else str(Path(name).absolute()) for name in files]
    udfs = [str(Path(name).absolute()) if Path(name).exists() else name for name in flags.udfs]
    return out, {"files": names, "texts": list(texts), "udfs": udfs}


def _run_program(
    program: Program,
    flags: RunFlags,
    settings: Settings,
    invocation: Invocation,
    *,
    recording: tuple[Path, dict[str, Any]] | None = None,
) -> RunResult:
    """Load and run a program, with the display that its results and stderr need."""
    from headrace.api.run_options import RunOptions
    from headrace.base.durations import parse_duration
    from headrace.cli.logs import logging_for, note_result
    from headrace.cli.results import Results
    from headrace.cli.unit_lines import unit_lines
    from headrace.sql.compile import print_rows

    results = Results()
    # Logs and a table that is redrawn do not mix.
    live = sys.stdout.isatty() and not flags.verbose and not invocation.logs_json
    pipeline = program.load(udfs=flags.udfs, preview=results.sink if live else print_rows)
    if recording is not None:
        pipeline.record(recording[0], program=recording[1])
    if flags.watch and pipeline.dataflow is None:
        raise click.UsageError("--watch is for dataflows: FILE.yml", click.get_current_context())
    invocation.pipeline = pipeline.name
    stop = threading.Event()
    limit = None if flags.stop_after is None else parse_duration(flags.stop_after).total_seconds()
    with (
        logging_for(settings.log, pipeline=pipeline.name, secrets=program.secrets),
        unit_lines(flags.log_dir or flags.state_dir, program.secrets),
        _display(results, flags, logs_json=invocation.logs_json) as display,
        stop_on_signals(stop, display),
        _page(pipeline, flags, logs_json=invocation.logs_json),
    ):
        if not flags.quiet:
            _say_before(pipeline, program.secrets, logs_json=invocation.logs_json)
        is_local = settings.run.engine == "local"
        display.say(f"starting {'' if is_local else 'Spark and '}the first epoch …")
        result = in_background(
            lambda: pipeline.run(
                flags.state_dir,
                parallelism=flags.parallelism,
                master=None if is_local else _master_of(settings),
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
                    execution=flags.execution,
                    engine=flags.engine,
                    start_timeout=flags.start_timeout,
                    spark_conf=flags.spark_conf or None,
                    log_dir=flags.log_dir,
                    metrics_port=flags.metrics_port,
                    metrics_host=flags.metrics_host,
                    config=flags.config,
                    py_files=flags.shipped,
                    verbose=flags.verbose,
                ),
            ),
            tick=display.tick,
        )
        if invocation.logs_json and not flags.quiet:
            note_result(result)
        return result


@contextmanager
def _page(pipeline: Pipeline, flags: RunFlags, *, logs_json: bool) -> Iterator[None]:
    """Serve the live page of the run if it is asked for, and say where."""
    if not flags.ui:
        yield
        return
    from headrace.cli.live_page import live_page
    from headrace.cli.logs import note
    from headrace.cli.terminal import stderr

    with live_page(pipeline.plan()) as address:
        text = f"live page: {address}"
        if logs_json:
            note(text)
        else:
            stderr().print(text, markup=False, soft_wrap=True)
        yield


def _say_before(pipeline: Pipeline, secrets: Secrets, *, logs_json: bool) -> None:
    """Say what the user should know of a pipeline before it runs."""
    from headrace.cli.logs import note
    from headrace.cli.terminal import stderr

    warnings = (
        [] if pipeline.dataflow is None else [secrets.hide(text) for text in pipeline.dataflow.warnings]
    )
    notes = expiries(pipeline.plan()) if pipeline.dataflow is None else []
    if logs_json:
        for text in warnings:
            note(text, level=logging.WARNING)
        for text in notes:
            note(text)
    else:
        for text in [*(f"warning: {text}" for text in warnings), *(f"note: {text}" for text in notes)]:
            stderr().print(text, markup=False, soft_wrap=True)


def _start_spark_early(files: tuple[str, ...], texts: tuple[str, ...], settings: Settings) -> None:
    """Start Spark while the pipeline is read, unless code of the user might need another session.

    Nothing is written into the run's own directories before the pipeline is valid: the log comes there later.
    """
    written = all(name.endswith((".sql", ".yml", ".yaml")) and Path(name).is_file() for name in files)
    if not written or not (files or texts):
        return
    from headrace.exchanges.spark.masters import is_connect
    from headrace.exchanges.spark.session import SparkRequest, open_early

    if is_connect(settings.spark.master):
        return
    open_early(SparkRequest(_master_of(settings), settings.spark.memory, settings.spark.conf))


def _master_of(settings: Settings) -> str | None:
    """The master that was asked for; None for that of spark-submit, if it has started this process."""
    from headrace.exchanges.spark.session import is_submitted

    is_chosen = "master" in settings.spark.model_fields_set
    return settings.spark.master if is_chosen or not is_submitted() else None


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
def _display(results: Results, flags: RunFlags, *, logs_json: bool) -> Iterator[Display]:
    from headrace.cli.logs import LogDisplay
    from headrace.cli.progress import display
    from headrace.cli.results import live_results

    progress, verbose = flags.progress and not flags.quiet, flags.verbose
    if logs_json and progress:
        yield LogDisplay()
    elif results.shown:
        with live_results(results, progress=progress) as results_display:
            yield results_display
    else:
        with display(progress=progress, verbose=verbose) as line:
            yield line


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
            if (connect := sys.modules.get("headrace.exchanges.spark.connect")) is not None:
                connect.interrupt_all()  # a server would go on with the epoch
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
