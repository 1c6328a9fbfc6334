"""`headrace submit`: hand a pipeline to a cluster by `spark-submit`."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from headrace.base.errors import ConfigurationError
from headrace.cli.entry_script import PID_VARIABLE, PROGRAM, entry_script
from headrace.cli.program import program_arguments, read_program
from headrace.cli.run import F, job_options
from headrace.cli.terminal import stderr, verbose_option

if TYPE_CHECKING:
    from headrace.api.loading import Program
    from headrace.api.pipeline import Pipeline
    from headrace.exchanges.spark.submission import Submission
    from headrace.jobs.settings import Settings

SUBMIT_OPTIONS: tuple[Callable[[F], F], ...] = (
    click.option(
        "--deploy-mode",
        type=click.Choice(["client", "cluster"]),
        default="client",
        show_default=True,
        help="Where the driver runs: on this machine, or on the cluster (YARN, Kubernetes).",
    ),
    click.option("--name", metavar="NAME", help="The application name on the cluster."),
    click.option(
        "--env",
        "environment",
        metavar="FILE",
        help="An archive of `headrace ship-env` with the packages for driver and workers.",
    ),
    click.option(
        "--entry",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Write the driver's script here and keep it.",
    ),
    click.option("--dry-run", is_flag=True, help="Check everything, print the command, and do not run it."),
)


def submit_options(function: F) -> F:
    """Give a command the options that only `headrace submit` has."""
    for option in reversed(SUBMIT_OPTIONS):
        function = option(function)
    return function


@click.command
@program_arguments
@submit_options
@job_options
@verbose_option
def submit(
    files: tuple[str, ...],
    texts: tuple[str, ...],
    udfs: tuple[str, ...],
    deploy_mode: str,
    name: str | None,
    environment: str | None,
    entry: Path | None,
    dry_run: bool,
    **options: Any,
) -> int:
    """Run a pipeline on a cluster by spark-submit.

    FILE is SQL or a Python file, as for `headrace run`. It is checked here; then the program, the modules
    beside it and its settings become one script, which spark-submit (of SPARK_HOME, or of PySpark) runs as
    the driver. A driver that the cluster starts again goes on from the state directory.

    Exits as spark-submit does.
    """
    from headrace.exchanges.spark.java import check_java
    from headrace.exchanges.spark.masters import check_master
    from headrace.exchanges.spark.submission import Submission, find_spark_submit

    del options["verbose"]
    allow_drop = options.pop("allow_drop")
    py_files = [file for names in options.pop("py_files") for file in names.split(",") if file]
    settings = _load_settings(options)
    program = read_program(files, texts)
    if program.dataflow is not None:
        raise ConfigurationError(
            "a dataflow runs its operators in the directory of its file, which a cluster does not have",
            hint="use `headrace run`, with --master for a cluster that shares that directory",
        )
    pipeline = program.load(udfs=udfs)
    submission = Submission(
        name=name or pipeline.name,
        master=settings.spark.master,
        deploy_mode="cluster" if deploy_mode == "cluster" else "client",
        memory=settings.spark.memory,
        state_dir=settings.state.dir,
        environment=environment,
        py_files=py_files,
        conf=settings.spark.conf,
    )
    submission.check(script_only=dry_run and entry is not None)
    spark_submit = find_spark_submit(os.environ)
    if not dry_run:
        check_master(settings.spark.master, environ=os.environ)
        check_java()
    script = _script(program, pipeline, udfs, settings, allow_drop=allow_drop)
    if settings.log.dir is not None:
        stderr().print("note: --log-dir is not used: the cluster decides where Spark's log goes")
    return _submit(submission, script, spark_submit=spark_submit, entry=entry, dry_run=dry_run)


def _submit(
    submission: Submission, script: str, *, spark_submit: str, entry: Path | None, dry_run: bool
) -> int:
    from headrace.base.private import process_directory

    if entry is not None:
        _write(entry, script)
    if dry_run:
        shown = entry or Path(f"{submission.name}.py")
        click.echo(shlex.join(submission.command(spark_submit, str(shown))))
        if entry is None:
            click.echo("--entry FILE writes the driver's script, which the command ends with", err=True)
        return 0
    path = entry or process_directory() / f"{submission.name}.py"
    if entry is None:
        _write(path, script)
    return _run(submission.command(spark_submit, str(path)), follow=submission.deploy_mode == "client")


def _load_settings(options: Mapping[str, Any]) -> Settings:
    from headrace.jobs.settings import load_settings

    sections = {
        "run": (
            "parallelism",
            "max_epochs",
            "available_now",
            "epoch_rows",
            "epoch_target",
            "execution",
            "start_timeout",
        ),
        "spark": ("master",),
    }
    flags = {section: {key: options[key] for key in keys} for section, keys in sections.items()}
    flags["state"] = {"dir": options["state_dir"]}
    flags["spark"]["conf"] = options["conf"] or None
    return load_settings(flags=flags, config=options["config"])


def _script(
    program: Program,
    pipeline: Pipeline,
    udfs: tuple[str, ...],
    settings: Settings,
    *,
    allow_drop: bool,
) -> str:
    files, arguments = _program_files(program, pipeline)
    for number, udf in enumerate(udfs):
        if Path(udf).is_file():
            files[f"udf/{number}/{Path(udf).name}"] = Path(udf)
            udf = f"{PROGRAM}/udf/{number}/{Path(udf).name}"  # noqa: PLW2901 - where it is on the driver
        arguments += ["--udf", udf]
    arguments += ["--allow-drop"] if allow_drop else []
    return entry_script(
        pipeline.name,
        ["run", *arguments, "--no-progress", "--submitted"],
        settings=_as_variables(settings),
        files=files,
    )


def _program_files(program: Program, pipeline: Pipeline) -> tuple[dict[str, Path | str], list[str]]:
    """The files of a program by where they are unpacked, and the arguments that name them there."""
    files: dict[str, Path | str] = {}
    arguments: list[str] = []
    if program.python is not None:
        from headrace.exchanges.spark.shipping import modules_from

        pipeline.plan()  # imports what the operators need
        name, _, attribute = program.python.partition(":")
        file = Path(name).resolve()
        files |= dict(modules_from({file.parent}))
        files[file.name] = file
        return files, [f"{PROGRAM}/{file.name}" + (f":{attribute}" if attribute else "")]
    for number, source in enumerate(program.sql):
        if source.name == "-e":
            arguments += ["-e", source.text]
            continue
        stem = "query.sql" if source.name == "-" else Path(source.name).name
        files[f"sql/{number}/{stem}"] = source.text
        arguments.append(f"{PROGRAM}/sql/{number}/{stem}")
    return files, arguments


def _as_variables(settings: Settings) -> dict[str, str]:
    """The settings of a run that were given, as the variables that another process reads them from."""
    from headrace.jobs.settings import PREFIX

    variables = {}
    for section in ("run", "state"):
        options = getattr(settings, section)
        for key in sorted(options.model_fields_set):
            value = getattr(options, key)
            if isinstance(value, timedelta):
                value = f"{value.total_seconds()}s"
            if value is not None:
                variables[f"{PREFIX}{section}__{key}".upper()] = str(value)
    return variables


def _write(path: Path, script: str) -> None:
    try:
        path.write_text(script, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None


def _run(command: list[str], *, follow: bool) -> int:
    """Run spark-submit, and pass signals on to a driver on this machine: Java would end it at once."""
    from headrace.base.private import process_directory

    pid_file = process_directory() / "driver.pid"
    pid_file.unlink(missing_ok=True)
    process = subprocess.Popen(command, env={**os.environ, PID_VARIABLE: str(pid_file)}, process_group=0)

    def pass_on(signum: int, _: FrameType | None) -> None:
        try:
            os.kill(int(pid_file.read_text()), signum)
        except (OSError, ValueError):  # there is no driver yet, or it is on the cluster
            process.send_signal(signum)

    previous = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if not follow and code < 0:
        stderr().print("spark-submit has ended; the application may still run on the cluster")
    return code if code >= 0 else 128 - code
