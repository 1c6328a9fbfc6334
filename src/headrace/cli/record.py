"""`headrace record` and `headrace replay`: keep what a pipeline reads, and feed it again."""

from __future__ import annotations

import contextlib
import datetime as dt
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.program import program_arguments, read_program, udf_option
from headrace.cli.run import run_options, run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from headrace.connectors.recording.files import RecordedEpoch, RecordingReader
    from headrace.model.plan import Plan

_MOST_SHOWN = 20


@click.command
@program_arguments
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The directory of the recording.",
)
@run_options
def record(files: tuple[str, ...], texts: tuple[str, ...], out: Path, **options: Any) -> None:
    """Run a pipeline and record its input and output.

    The recording holds the rows that the sources read, the messages between operators and the rows that go to
    the sinks. The options are those of `headrace run`. After a crash, run the same command again with the
    same --state-dir: each epoch is recorded once.
    """
    from headrace.base.errors import ConfigurationError
    from headrace.connectors.recording.files import HEADER

    if options["watch"]:
        raise click.UsageError("--watch changes operators, and a recording is of one program")
    if "://" in str(out):
        raise click.UsageError(f"--out is a directory of this machine, not a URL: {out}")
    if (out / HEADER).exists() and options["state_dir"] is None:
        raise ConfigurationError(
            f"{out} holds a recording already",
            hint="record into another directory, or go on with the --state-dir of the run that began it",
        )
    if out.exists() and not (out / HEADER).exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} is not empty", hint="record into a directory of its own")
    run_program(files, texts, options, out=out)


@click.command
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("files", metavar="[FILE]…", nargs=-1)
@udf_option
@click.option(
    "--speed",
    default="max",
    metavar="2x|max",
    help="The speed: 1x is the recorded pace; max, the default, does not wait.",
)
@click.option(
    "--from", "start", metavar="TIME", help="Start here: a time, or a duration since the start, such as 90s."
)
@click.option("--to", "end", metavar="TIME", help="Stop here: a time, or a duration since the start.")
@click.option(
    "--only",
    metavar="NODE",
    help="Run only this node of a dataflow; its inputs come from the recording.",
)
@click.option(
    "--compare", is_flag=True, help="Compare the output with the recording; exit with 1 if it differs."
)
@click.option("--write-sinks", is_flag=True, help="Write to the sinks; by default nothing is written.")
@click.option("-q", "--quiet", is_flag=True, help="Show the output of operators and differences only.")
def replay(
    directory: Path,
    files: tuple[str, ...],
    udfs: tuple[str, ...],
    speed: str,
    start: str | None,
    end: str | None,
    only: str | None,
    compare: bool,
    write_sinks: bool,
    quiet: bool,
) -> int:
    """Run a pipeline on recorded input.

    The pipeline is the recorded one, unless FILE names another. It runs in this process, without Spark, and
    starts without state. Its sources are not read.
    """
    from headrace.api.recording import only_plan, recording_plan, replay_plan
    from headrace.base.errors import UserError
    from headrace.cli.unit_lines import unit_lines
    from headrace.connectors.recording.files import RecordingReader
    from headrace.testing.in_process import run_in_process

    factor = _factor(speed)
    reader = RecordingReader(directory.absolute())
    epochs = _selected(reader, start, end)
    if not epochs:
        raise UserError(f"there is no epoch to replay in {directory}", hint=_extent(reader))
    names = files or tuple(reader.header.get("files") or ())
    texts = () if files else tuple(reader.header.get("texts") or ())
    if not names and not texts:
        raise UserError("the recording does not say of which program it is", hint="name it: FILE")
    program = read_program(names, texts)
    pipeline = program.load(udfs=udfs or (() if files else tuple(reader.header.get("udfs") or ())))
    first, last = epochs[0].epoch, epochs[-1].epoch
    plan, unwritten, units = pipeline.plan(), list[str](), None
    if only is None:
        plan, unwritten = replay_plan(plan, reader, first=first, last=last, write_sinks=write_sinks)
    else:
        plan, units = only_plan(plan, reader, only, first=first, last=last)
    _note(epochs, unwritten, quiet=quiet)
    with tempfile.TemporaryDirectory(prefix="headrace-replay-") as scratch:
        again = Path(scratch) / "recording"
        played: Plan = recording_plan(plan, again, program={}) if compare else plan
        pace = _Pace(epochs, factor)
        with unit_lines(None, program.secrets):
            run_in_process(
                played,
                Path(scratch) / "state",
                parallelism=1,
                clock=pace,
                stop=lambda: pace.is_over,
                on_progress=lambda _: pace.advance(),
            )
        if not compare:
            return 0
        return _say_differences(reader, epochs, RecordingReader(again), units=units, quiet=quiet)


class _Pace:
    """The clock of a replay: each epoch has the time that it had when it was recorded."""

    def __init__(self, epochs: Sequence[RecordedEpoch], factor: float | None) -> None:
        self._times = [epoch.time for epoch in epochs]
        self._factor = factor
        self._began = time.monotonic()
        self._done = 0

    def __call__(self) -> float:
        return self._times[min(self._done, len(self._times) - 1)]

    @property
    def is_over(self) -> bool:
        return self._done >= len(self._times)

    def advance(self) -> None:
        """An epoch is done; wait until the next is due."""
        self._done += 1
        if self._factor is not None and not self.is_over:
            due = self._began + (self() - self._times[0]) / self._factor
            time.sleep(max(0.0, due - time.monotonic()))


def _factor(speed: str) -> float | None:
    from headrace.base.errors import UserError

    if speed == "max":
        return None
    with contextlib.suppress(ValueError):
        factor = float(speed.removesuffix("x"))
        if 0 < factor < float("inf"):
            return factor
    raise UserError(f"`{speed}` is not a speed", hint="write --speed 2x, --speed 0.5x or --speed max")


def _selected(reader: RecordingReader, start: str | None, end: str | None) -> list[RecordedEpoch]:
    if not reader.epochs:
        return []
    began = reader.epochs[0].time
    first = began if start is None else _moment(start, began, "--from")
    last = reader.epochs[-1].time if end is None else _moment(end, began, "--to")
    return [epoch for epoch in reader.epochs if first <= epoch.time <= last]


def _moment(text: str, began: float, option: str) -> float:
    """A time, in seconds since 1970; a duration counts from the start of the recording."""
    from headrace.base.durations import parse_duration
    from headrace.base.errors import HeadraceError, UserError

    with contextlib.suppress(ValueError):
        moment = dt.datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()
    try:
        return began + parse_duration(text).total_seconds()
    except HeadraceError:
        raise UserError(
            f"{option}: `{text}` is neither a time nor a duration",
            hint="write 2026-01-01T09:00:00 (UTC), or 90s after the start",
        ) from None


def _extent(reader: RecordingReader) -> str:
    if not reader.epochs:
        return "the run was ended before its first epoch"
    first, last = (dt.datetime.fromtimestamp(e.time, dt.UTC) for e in (reader.epochs[0], reader.epochs[-1]))
    return f"it has {len(reader.epochs)} epochs from {first:%Y-%m-%dT%H:%M:%S} to {last:%Y-%m-%dT%H:%M:%S}"


def _note(epochs: Sequence[RecordedEpoch], unwritten: Sequence[str], *, quiet: bool) -> None:
    from headrace.cli.terminal import stderr

    if quiet:
        return
    say: Callable[[str], None] = lambda text: stderr().print(text, markup=False, soft_wrap=True)  # noqa: E731
    if unwritten:
        names = ", ".join(f"`{name}`" for name in unwritten)
        say(f"note: nothing is written to {names}; --write-sinks does that")
    if epochs[0].epoch > 1:
        say(f"note: the replay begins with epoch {epochs[0].epoch} and without the state that there was then")


def _say_differences(
    reader: RecordingReader,
    epochs: Sequence[RecordedEpoch],
    again: RecordingReader,
    *,
    units: Collection[str] | None,
    quiet: bool,
) -> int:
    from headrace.api.comparing import compare_recordings
    from headrace.cli.terminal import stderr

    count, by_port = 0, dict[str, int]()
    for difference in compare_recordings(reader, epochs, again, units=units):
        count += 1
        by_port[difference.port] = by_port.get(difference.port, 0) + 1
        if count <= _MOST_SHOWN:
            click.echo(str(difference))
    if count > _MOST_SHOWN:
        click.echo(
            f"… and {count - _MOST_SHOWN} more: " + ", ".join(f"`{p}` {n}" for p, n in by_port.items())
        )
    if not quiet:
        text = f"{count:,} differences" if count else "equal: every message and row is as it was recorded"
        stderr().print(f"{text} ({len(epochs)} epochs)", markup=False)
    return 1 if count else 0
