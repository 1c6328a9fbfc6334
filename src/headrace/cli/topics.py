"""`headrace topic`, `logs` and `graph`: what goes on inside a running dataflow, from another terminal."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.running import echo_table, find_running
from headrace.cli.serving import client_of, logs_of_server, server_options

if TYPE_CHECKING:
    from headrace.jobs.control import RunningPipeline

_LOOK = 0.2
_SAY = 1.0
_SILENT = 10.0

_dataflow_option = click.option(
    "-d",
    "--dataflow",
    "name",
    metavar="NAME",
    help="The name, job or process id of the dataflow, if several run.",
)


@click.group
def topic() -> None:
    """Show the messages of a running dataflow.

    It must run on this machine. A topic is an output: `node/output`, or `node/operator/output` for one of
    several operators. Messages are shown from the next epoch on, when they are sent; those of an epoch that
    is retried are shown again. The dataflow is never slowed down: messages that come too fast are skipped,
    and counted.
    """


@topic.command(name="list")
@_dataflow_option
def list_topics(name: str | None) -> None:
    """List the outputs of a running dataflow, and the inputs that read them."""
    described = _described(find_running(name))
    rows = [("TOPIC", "READ BY")]
    for output in _outputs(described):
        readers = [
            f"{unit['address']}/{unit_input}"
            for unit in described["units"]
            for unit_input, source in unit["inputs"].items()
            if source == output
        ]
        rows.append((output, ", ".join(readers) or "-"))
    echo_table(rows)


@topic.command
@click.argument("topics", nargs=-1, metavar="TOPIC...")
@_dataflow_option
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option("--duration", type=click.FloatRange(min=0), help="Stop after this many seconds.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def echo(
    topics: tuple[str, ...], name: str | None, count: int | None, duration: float | None, form: str
) -> None:
    """Print messages as they are sent: all topics, or those named.

    Of an array the first 32 items are shown; of a large message only its type and size.
    """
    seen = 0
    for message in _messages(name, topics, duration=duration):
        if message is None:
            continue
        click.echo(json.dumps(message) if form == "json" else _line(message))
        seen += 1
        if seen == count:
            return


@topic.command
@click.argument("topics", nargs=-1, metavar="TOPIC...")
@_dataflow_option
@click.option(
    "--window",
    type=click.IntRange(min=2),
    default=1000,
    show_default=True,
    help="The number of messages to measure.",
)
@click.option("--duration", type=click.FloatRange(min=0), help="Stop after this many seconds.")
def hz(topics: tuple[str, ...], name: str | None, window: int, duration: float | None) -> None:
    """Print every second how often messages are sent: all topics, or those named."""
    sent: dict[str, deque[float]] = {}
    due = time.monotonic() + _SAY
    for message in _messages(name, topics, duration=duration, values=False):
        if message is not None and "time" in message:
            sent.setdefault(message["output"], deque(maxlen=window)).append(message["at"])
        if time.monotonic() >= due:
            due = time.monotonic() + _SAY
            _say_rates(sent)
    _say_rates(sent)


@click.command
@click.argument("nodes", nargs=-1, metavar="[NODE or NAME]...")
@_dataflow_option
@click.option("-f", "--follow", is_flag=True, help="Follow: print new lines until the dataflow ends.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Start with the last N lines.")
@click.option(
    "--level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Print lines of this level and above only.",
)
@click.option("--run", type=click.IntRange(min=1), help="Show an earlier run of a server's pipeline.")
@click.option("--errors", is_flag=True, help="Print the messages about a server's pipeline.")
@server_options(None)
def logs(
    nodes: tuple[str, ...],
    name: str | None,
    follow: bool,
    tail: int | None,
    level: str | None,
    run: int | None,
    errors: bool,
    server: str | None,
    token_file: Path | None,
) -> None:
    """Print what the nodes of a running dataflow have printed.

    NODE is one of them: an operator, or a node with several. A run keeps its last 10,000 lines; with
    `--state-dir` or `--log-dir` all are in files. With --server, or where HEADRACE_SERVER is set, it prints
    what the process of that server's pipeline NAME has written.
    """
    if server is not None:
        if len(nodes) != 1:
            raise click.UsageError("name one pipeline of the server")
        if name is not None or follow or tail is not None or level is not None:
            raise click.UsageError("--dataflow, --follow, --tail and --level are for runs without a server")
        if run is not None and errors:
            raise click.UsageError("--run and --errors are one too many")
        logs_of_server(client_of(server, token_file), nodes[0], run=run, errors=errors)
        return
    if run is not None or errors:
        raise click.UsageError("--run and --errors are for a pipeline of a server, which --server names")
    _print_lines(nodes, name, follow=follow, tail=tail, level=level)


def _print_lines(
    nodes: tuple[str, ...], name: str | None, *, follow: bool, tail: int | None, level: str | None
) -> None:
    from headrace.dataflow.runtime.printed import LEVELS, Line

    pipeline = find_running(name)
    _check_nodes(_described(pipeline), nodes)
    least = LEVELS[level] if level else 0
    after, first = 0, True
    running: RunningPipeline | None = pipeline
    while running is not None:
        try:
            answer = running.ask("logs", after)
        except OSError:  # it is over
            return
        lines = [Line(*values) for values in answer["lines"]]
        lines = [line for line in lines if line.level >= least and _is_of(line.unit, nodes)]
        for line in lines[max(0, len(lines) - tail) :] if first and tail is not None else lines:
            at = time.strftime("%H:%M:%S", time.localtime(line.time))
            click.echo(f"{at} {'' if line.stream == 'stdout' else line.stream + ' '}{line.unit}: {line.text}")
        after, first = answer["last"], False
        if not follow:
            return
        time.sleep(_LOOK)
        running = running.ask_again()


@click.command
@click.argument("name", metavar="[NAME or FILE.yml]", required=False)
@click.option("--mermaid", is_flag=True, help="Print Mermaid; this is the default.")
def graph(name: str | None, mermaid: bool) -> None:  # noqa: ARG001 - dora's users type it
    """Draw the graph of a dataflow that runs, or of a file.

    The drawing is Mermaid; `headrace explain --html` makes a page of a file.
    """
    if name is not None and name.endswith((".yml", ".yaml")):
        from headrace.dataflow.document.load import load_dataflow
        from headrace.dataflow.plan.diagram import draw_dataflow, mermaid_text

        click.echo(mermaid_text(draw_dataflow(load_dataflow(Path(name), check_files=False))))
        return
    click.echo(_described(find_running(name))["mermaid"])


def _described(pipeline: RunningPipeline) -> dict[str, Any]:
    """The units of a running dataflow."""
    from headrace.base.errors import ExternalError, UserError

    try:
        described: dict[str, Any] = pipeline.ask("dataflow")
    except ExternalError as error:
        raise UserError(
            f"`{pipeline.status['name']}` is not a dataflow", hint="`headrace top` shows what it does"
        ) from error
    return described


def _outputs(described: dict[str, Any]) -> list[str]:
    return [f"{unit['address']}/{output}" for unit in described["units"] for output in unit["outputs"]]


def _check_nodes(described: dict[str, Any], nodes: tuple[str, ...]) -> None:
    from headrace.base.errors import UserError, suggest

    addresses = [unit["address"] for unit in described["units"]]
    for node in nodes:
        if not any(_is_of(address, (node,)) for address in addresses):
            raise UserError(f"there is no node `{node}`", hint=suggest(node, addresses, listing="there are"))


def _is_of(unit: str, nodes: tuple[str, ...]) -> bool:
    return not nodes or any(unit == node or unit.startswith(f"{node}/") for node in nodes)


def _messages(
    name: str | None, topics: tuple[str, ...], *, duration: float | None, values: bool = True
) -> Iterator[dict[str, Any] | None]:
    """Messages of a running dataflow until it is over; None now and then, when there is none."""
    from headrace.base.errors import UserError, suggest
    from headrace.dataflow.runtime.topics import TopicReader

    pipeline = find_running(name)
    outputs = _outputs(_described(pipeline))
    for wanted in topics:
        if wanted not in outputs:
            raise UserError(
                f"there is no topic `{wanted}`", hint=suggest(wanted, outputs, listing="the topics are")
            )
    until = math.inf if duration is None else time.monotonic() + duration
    heard, silent = False, time.monotonic() + _SILENT
    due = time.monotonic() + _SAY
    with TopicReader(pipeline.status["job"], topics or outputs, values=values) as reader:
        while time.monotonic() < until:
            message = reader.receive(min(_LOOK, max(0.0, until - time.monotonic())))
            heard = heard or message is not None
            yield message
            if time.monotonic() > due:
                due = time.monotonic() + _SAY
                if message is None and pipeline.ask_again() is None:
                    click.echo("it is over", err=True)
                    break
            if not heard and time.monotonic() > silent:
                silent = math.inf
                why = "nothing is sent, or the tasks of the run are on another machine, where nobody can look"
                click.echo(f"no message for {_SILENT:g} seconds: {why}", err=True)
    if reader.lost:
        click.echo(f"{reader.lost} messages came too fast and were left out", err=True)


def _line(message: dict[str, Any]) -> str:
    if message.get("closed"):
        return f"{message['output']}  closed"
    if "error" in message:
        return f"{message['output']}  {message['error']}"
    what = f"{message['type']}[{message['length']}]"
    if message.get("value") is None:
        return f"{message['output']}  {what}, {message['bytes']:,} bytes"
    more = ", …" if message["length"] > len(message["value"]) else ""
    shown = ", ".join(json.dumps(item) for item in message["value"])
    metadata = f"  {json.dumps(message['metadata'])}" if message["metadata"] else ""
    return f"{message['output']}  {what} [{shown}{more}]{metadata}"


def _say_rates(sent: dict[str, deque[float]]) -> None:
    for output, times in sent.items():
        moments = list(times)
        gaps = [later - earlier for earlier, later in pairwise(moments)]
        if not gaps or sum(gaps) <= 0:
            click.echo(f"{output}  {len(moments)} messages")
            continue
        mean = sum(gaps) / len(gaps)
        spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
        click.echo(
            f"{output}  {1 / mean:,.2f} Hz, every {mean * 1000:.2f} ms "
            f"(least {min(gaps) * 1000:.2f}, most {max(gaps) * 1000:.2f}, deviation {spread * 1000:.2f}), "
            f"{len(moments)} messages"
        )
