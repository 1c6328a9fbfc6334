"""`headrace list`, `top`, `stop` and `rescale`: the pipelines that run, seen from another terminal."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import click

from headrace.cli.server_client import DEFAULT
from headrace.cli.serving import client_of, rescale_on_server, server_options, stop_on_server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headrace.jobs.control import RunningPipeline

_REFRESH = 1.0
_ONCE = 5.0
_LOOK = 0.2
_COUNTERS = ("rows_in", "rows_out", "events", "dropped", "discarded", "late_rows")
"""The counters of an operator that `top` shows, in the order of its columns."""


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per run, with all fields.")
def list_runs(as_json: bool) -> None:
    """List the pipelines of this user that run on this machine."""
    from headrace.jobs.control import running_pipelines

    running = running_pipelines()
    if as_json:
        for pipeline in running:
            click.echo(json.dumps(pipeline.status))
        return
    if not running:
        click.echo("nothing runs")
        return
    rows: list[tuple[str, ...]] = [("NAME", "JOB", "PID", "STATE", "EPOCH", "ROWS IN", "ROWS OUT", "UP")]
    for pipeline in running:
        status = pipeline.status
        progress = status["progress"] or {}
        rows.append(
            (
                status["name"],
                status["job"] or "-",
                str(status["pid"]),
                status["state"],
                str(progress.get("epoch", "-")),
                f"{progress.get('total_in', 0):,}",
                f"{progress.get('total_out', 0):,}",
                _span(time.time() - status["started"]),
            )
        )
    echo_table(rows)


@click.command
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--once", is_flag=True, help="Print once and exit.")
def top(name: str | None, once: bool) -> None:
    """Show what a running pipeline does, every second.

    NAME is its name, its job or its process; it may be left out while only one runs. `EVENTS` are messages
    that units of a dataflow handled, `DROPPED` those that a queue with `drop_oldest` dropped.

    Of a dataflow on this machine each input is shown too, over the last second: how many messages its unit
    handled, the most that waited at once, those dropped, and how old messages were when they were handled,
    on average and at most. A message's age counts from its timestamp, which may be that of an earlier one.
    """
    selected = find_running(name)
    pipeline: RunningPipeline | None = selected
    before: Mapping[str, Any] = {}
    at = time.monotonic()
    with ExitStack() as stack:
        inputs = _Inputs(selected.status["job"]) if _is_dataflow(selected) else None
        if inputs is not None:
            stack.enter_context(inputs)
            if once:
                inputs.wait(_ONCE)
        while pipeline is not None:
            now = time.monotonic()
            _show(pipeline.status, before, now - at)
            if inputs is not None:
                inputs.show()
            if once:
                return
            before, at = pipeline.status["metrics"], now
            time.sleep(_REFRESH)
            pipeline = pipeline.ask_again()
    click.echo("it is over")


@click.command
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--all", "every", is_flag=True, help="Stop all running pipelines.")
@click.option("--wait/--no-wait", default=True, help="Whether to wait until they have stopped.")
@server_options(None)
def stop(name: str | None, every: bool, wait: bool, server: str | None, token_file: Path | None) -> None:
    """Stop a running pipeline, as Ctrl-C does.

    Its epoch is finished and committed. NAME is its name, its job or its process; it may be left out while
    only one runs. With --server, or where HEADRACE_SERVER is set, it is a pipeline of that server, and stays
    stopped until it is started there.
    """
    from headrace.jobs.control import running_pipelines

    if every and name is not None:
        raise click.UsageError("NAME and --all are one too many")
    if server is not None:
        stop_on_server(client_of(server, token_file), name, every=every, wait=wait)
        return
    stopping = [_not_of_a_server(find_running(name))] if not every else []
    for pipeline in running_pipelines() if every else ():
        if _is_of_a_server(pipeline):
            click.echo(f"{pipeline.status['name']} belongs to a server, which is asked with --server URL")
        else:
            stopping.append(pipeline)
    for pipeline in stopping:
        pipeline.stop()
        click.echo(f"{pipeline.status['name']} (process {pipeline.status['pid']}) stops")
    for pipeline in stopping if wait else ():
        while pipeline.ask_again() is not None:
            time.sleep(_LOOK)


@click.command
@click.argument("name", metavar="NAME")
@click.argument("parallelism", metavar="N", type=click.IntRange(min=1))
@click.option("--wait/--no-wait", default=True, help="Whether to wait until it is in effect.")
@server_options(None)
def rescale(name: str, parallelism: int, wait: bool, server: str | None, token_file: Path | None) -> None:
    """Change the number of subtasks of a running pipeline.

    Every operator has N from its next epoch on, and no row is lost or processed twice.
    NAME is its name, its job or its process. With --server, or where HEADRACE_SERVER is set, it is a pipeline
    of that server.
    """
    if server is not None:
        rescale_on_server(client_of(server, token_file), name, parallelism, wait=wait)
        return
    selected = _not_of_a_server(find_running(name))
    before = selected.status.get("parallelism")
    selected.rescale(parallelism)
    shown = f"{selected.status['name']} (process {selected.status['pid']})"
    if not wait:
        click.echo(f"{shown} is told to go from {before} subtasks to {parallelism}")
        return
    pipeline = selected.ask_again()
    while pipeline is not None:
        if pipeline.status["parallelism"] == parallelism:
            click.echo(f"{shown} has gone from {before} subtasks to {parallelism}")
            return
        time.sleep(_LOOK)
        pipeline = pipeline.ask_again()
    raise click.ClickException(f"{shown} ended before it had {parallelism} subtasks")


def find_running(name: str | None) -> RunningPipeline:
    """The one run of this user that is called so, or the only one."""
    from headrace.base.errors import UserError, suggest
    from headrace.jobs.control import running_pipelines

    running = running_pipelines()
    matching = [pipeline for pipeline in running if name is None or name in _names(pipeline)]
    if len(matching) == 1:
        return matching[0]
    if not running:
        raise UserError(
            "no pipeline of this user runs on this machine", hint="start one: `headrace run FILE`"
        )
    if not matching:
        names = [each for pipeline in running for each in _names(pipeline)]
        raise UserError(f"no pipeline `{name}` runs", hint=suggest(name or "", names, listing="there are"))
    pids = ", ".join(str(pipeline.status["pid"]) for pipeline in matching)
    which = (
        f"{len(matching)} pipelines run" if name is None else f"{len(matching)} pipelines are called `{name}`"
    )
    raise UserError(which, hint=f"name one by its process ({pids}); `headrace list` shows them")


def _is_of_a_server(pipeline: RunningPipeline) -> bool:
    """Whether a server has started it, and would start it again."""
    from headrace.base.errors import ExternalError

    try:
        return bool(pipeline.ask("served"))
    except (ExternalError, OSError):
        return False


def _not_of_a_server(pipeline: RunningPipeline) -> RunningPipeline:
    from headrace.base.errors import UserError

    if _is_of_a_server(pipeline):
        name = pipeline.status["name"]
        raise UserError(
            f"`{name}` belongs to a server, which decides what it does",
            hint=f"ask the server: --server URL, or HEADRACE_SERVER; that of `headrace serve` is {DEFAULT}",
        )
    return pipeline


def _names(pipeline: RunningPipeline) -> list[str]:
    status = pipeline.status
    return [status["name"], str(status["pid"]), *([status["job"]] if status["job"] else [])]


def _show(status: Mapping[str, Any], before: Mapping[str, Any], seconds: float) -> None:
    click.echo(f"{status['name']} (process {status['pid']}): {status['state']}, {status['message']}")
    counters = [name for name in _COUNTERS if any(name in values for values in status["metrics"].values())]
    rows = [("OPERATOR", *(name.replace("_", " ").upper() for name in counters), "PER SECOND")]
    for node, values in status["metrics"].items():
        moved = [name for name in ("events", "rows_in", "rows_out") if values.get(name)]
        rate = "-"
        if node in before and moved and seconds > 0:
            rate = f"{(values[moved[0]] - before[node].get(moved[0], 0)) / seconds:,.0f}"
        rows.append((node, *(f"{values.get(name, 0):,.0f}" for name in counters), rate))
    echo_table(rows)


def _is_dataflow(pipeline: RunningPipeline) -> bool:
    from headrace.base.errors import ExternalError

    try:
        pipeline.ask("dataflow")
    except (OSError, ExternalError):
        return False
    return True


class _Inputs:
    """Counters of the inputs of a dataflow's units, which every epoch reports."""

    def __init__(self, job: str) -> None:
        from headrace.dataflow.runtime.topics import TopicReader

        self._reader = TopicReader(job, ports=True)
        self._since = time.monotonic()
        self._told: list[Mapping[str, Mapping[str, float]]] = []

    def __enter__(self) -> Self:
        self._reader.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.__exit__()

    def wait(self, seconds: float) -> None:
        """Wait for the first epoch that was looked at, but not longer."""
        message = self._reader.receive(seconds)
        self._told += [] if message is None else [message["ports"]]

    def show(self) -> None:
        """Show what they have done since the last call."""
        while (message := self._reader.receive(0.0)) is not None:
            self._told.append(message["ports"])
        told, self._told = self._told, []
        seconds, self._since = time.monotonic() - self._since, time.monotonic()
        if not told:
            return
        rows = [("INPUT", "EVENTS", "PER SECOND", "QUEUE", "DROPPED", "AGE", "AT MOST")]
        for name in dict.fromkeys(name for ports in told for name in ports):
            parts = [ports[name] for ports in told if name in ports]
            events = sum(part["events"] for part in parts)
            age = sum(part["latency"] * part["events"] for part in parts) / events if events else 0.0
            rows.append(
                (
                    name,
                    f"{events:,.0f}",
                    f"{events / seconds:,.1f}",
                    f"{max(part['queue'] for part in parts):,.0f}",
                    f"{sum(part['dropped'] for part in parts):,.0f}",
                    f"{age * 1000:,.2f} ms",
                    f"{max(part['oldest'] for part in parts) * 1000:,.2f} ms",
                )
            )
        echo_table(rows)


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def echo_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows with their columns below each other."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
