"""`headrace up`, `ps` and `restart`, and `logs`, `stop` and `rescale` for the pipelines of a server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.base.errors import ExternalError, UserError
from headrace.cli.program import program_arguments, read_program
from headrace.cli.server_client import DEFAULT, TOKEN, ServerClient, read_token
from headrace.cli.terminal import print_json, print_table, stderr

if TYPE_CHECKING:
    from headrace.api.loading import Program

F = TypeVar("F", bound=Callable[..., Any])

_LOOK = 0.3
_ON_THE_WAY = {"Created", "Compiling", "Scheduling", "Restarting", "Rescaling", "Recovering"}
_AT_REST = {"Stopped", "Finished", "Failed"}


def server_options(default: str | None) -> Callable[[F], F]:
    """Give a command `--server` and `--token-file`, as `server` and `token_file`."""

    def decorate(function: F) -> F:
        address = click.option(
            "--server",
            metavar="URL",
            envvar="HEADRACE_SERVER",
            default=default,
            help=f"The server; from HEADRACE_SERVER unless given{f', else {default}' if default else ''}.",
        )
        token = click.option(
            "--token-file",
            type=click.Path(path_type=Path, dir_okay=False),
            help=f"A file with the token; from {TOKEN} unless given.",
        )
        return address(token(function))

    return decorate


def client_of(server: str, token_file: Path | None) -> ServerClient:
    """The server of the options and the environment."""
    return ServerClient(server, read_token(token_file, os.environ.get(TOKEN)))


# ------------------------------------------------------------------------------------------------- up


@click.command
@program_arguments
@click.option("--name", help="The name of the pipeline; that of its file unless given.")
@click.option(
    "--file",
    "extra",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="An additional file that the dataflow or Python pipeline needs; repeatable.",
)
@click.option("-p", "--parallelism", type=click.IntRange(1, 1024), help="The number of subtasks.")
@click.option(
    "--dry-run", is_flag=True, help="Show what would happen to the state, without changing anything."
)
@click.option("--allow-drop", is_flag=True, help="Drop state that the new program cannot use.")
@click.option("--ignore-state", is_flag=True, help="Start without state.")
@click.option("--wait/--no-wait", default=True, help="Whether to wait until it runs.")
@server_options(DEFAULT)
def up(
    files: tuple[str, ...],
    texts: tuple[str, ...],
    udfs: tuple[str, ...],
    name: str | None,
    extra: tuple[Path, ...],
    parallelism: int | None,
    dry_run: bool,
    allow_drop: bool,
    ignore_state: bool,
    wait: bool,
    server: str,
    token_file: Path | None,
) -> None:
    """Run a program on a server.

    If the server has a pipeline of this name, it is updated: it continues with the new program and its state.
    The effect on the state is printed first. A program that cannot use all of the state is refused, unless
    --allow-drop or --ignore-state discards the rest.
    """
    client = client_of(server, token_file)
    body = _body(read_program(files, texts), udfs, extra)
    name = name or body.pop("name")
    body = {**body, "name": name}
    if parallelism is not None:
        body["parallelism"] = parallelism
    before = client.find(name)
    if before is None:
        _create(client, body, dry_run=dry_run, wait=wait)
        return
    body |= {"allow_drop": allow_drop, "ignore_state": ignore_state, "name": before["name"]}
    path = f"/pipelines/{before['id']}"
    plan = client.post(f"{path}/plan", body)
    _tell_plan(plan, before["name"])
    lost = plan["refused"] or (plan["dropped"] and not allow_drop)
    if plan["errors"] or lost:
        choice = (
            "--ignore-state begins without state" if plan["refused"] else "--allow-drop goes on without it"
        )
        hint = None if plan["errors"] else f"change the program; or {choice}"
        raise UserError(f"`{before['name']}` cannot go on with this program; nothing was changed", hint=hint)
    if dry_run:
        return
    run, rests = client.job(before["id"])["run_id"], before["state"] in _AT_REST
    is_same = plan["outcome"] == "unchanged"
    if not is_same:
        changed = client.put(path, {**body, "version": plan["version"]})
        click.echo(f"{before['name']} has version {changed['version']}")
    if rests:
        client.patch(path, {"stop": "none"})
    if wait:
        _await_run(client, before["id"], run if is_same and not rests else run + 1)


def _create(client: ServerClient, body: dict[str, Any], *, dry_run: bool, wait: bool) -> None:
    if dry_run:
        checked = {key: value for key, value in body.items() if key not in ("name", "parallelism")}
        validated = client.post("/pipelines/validate_query", checked)
        _tell_errors(validated["errors"])
        if validated["errors"]:
            raise UserError(f"`{body['name']}` cannot be created; nothing was changed")
        click.echo(f"{body['name']} would be created, with {len(validated['graph']['nodes'])} operators")
        return
    pipeline = client.post("/pipelines", body)
    click.echo(f"{pipeline['name']} ({pipeline['id']}) is created")
    if wait:
        _await_running(client, pipeline["id"])


def _body(program: Program, udfs: tuple[str, ...], extra: tuple[Path, ...]) -> dict[str, Any]:
    """The program as the server takes it."""
    body: dict[str, Any] = {"name": program.name}
    folder: Path | None = None
    if program.python is not None:
        file = Path(program.python)
        if file.suffix != ".py":
            raise UserError(
                f"the server takes a Python file with one pipeline, and `{program.python}` names one in it",
                hint="put it into a file of its own",
            )
        body |= {"kind": "python", "query": _read(file), "name": file.stem}
        folder = file.parent
    elif program.dataflow is not None:
        body |= {"kind": "dataflow", "query": _read(Path(program.dataflow))}
        folder = Path(program.dataflow).parent
    else:
        body |= {"kind": "sql", "query": "\n".join(source.text for source in program.sql)}
    if extra and folder is None:
        raise UserError("files are for dataflows and Python, and this is SQL", hint="--udf takes functions")
    body["files"] = {_relative(file, folder or Path()): _read(file) for file in extra}
    body["udfs"] = [_udf(file) for file in udfs]
    return body


def _udf(name: str) -> dict[str, str]:
    languages = {".py": "python", ".rs": "rust"}
    file = Path(name)
    if file.suffix not in languages:
        raise UserError(
            f"the server takes functions as files, and `{name}` is none", hint="name a FILE.py or a FILE.rs"
        )
    return {"definition": _read(file), "language": languages[file.suffix]}


def _relative(file: Path, folder: Path) -> str:
    try:
        return file.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        raise UserError(f"{file} is not in the folder of the pipeline, {folder.resolve()}") from None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None


def _tell_errors(errors: list[dict[str, Any]]) -> None:
    for error in errors:
        start = (error["span"] or {}).get("start")
        position = "" if start is None else f" (line {start['line']}, column {start['column']})"
        stderr().print(f"error{position}: {error['message']}", markup=False)


def _tell_plan(plan: Mapping[str, Any], name: str) -> None:
    """Print what a change would do with the state."""
    _tell_errors(plan["errors"])
    if plan["outcome"] == "unchanged":
        click.echo(f"{name} has this program already")
        return
    if plan["epoch"] is None and not plan["errors"]:
        click.echo(f"{name} has no state to go on with")
    for state in plan["kept"]:
        size = "" if state["kind"] == "position" else f": {state['rows']:,} rows, {state['bytes']:,} bytes"
        click.echo(f"  keeps    the {state['kind']} of {state['operator_id']}{size}")
    for node in plan["fresh"] if plan["epoch"] is not None else ():
        click.echo(f"  begins   {node}, without state")
    for what in plan["dropped"]:
        click.echo(f"  drops    {what}")
    for what in plan["refused"]:
        click.echo(f"  refuses  {what}")


def _await_running(client: ServerClient, pipeline_id: str) -> None:
    """Wait until a pipeline runs, or is over; raises what made it fail."""
    wanted = client.get(f"/pipelines/{pipeline_id}")
    told = ""
    while True:
        job = client.job(pipeline_id)
        if job["state"] != told and job["state"] != "Created":
            told = job["state"]
            click.echo(f"{wanted['name']}: {told}")
        if job["state"] == "Failed":
            reason = job["failure_reason"] or {"error": "nothing is known", "domain": "internal"}
            kind = UserError if reason["domain"] == "user" else ExternalError
            raise kind(
                reason["error"],
                hint=f"`headrace logs {wanted['name']} --server {client.address}` shows what it wrote",
            )
        if job["state"] not in _ON_THE_WAY:
            return
        time.sleep(_LOOK)


# ------------------------------------------------------------------------------------------- ps, restart


@click.command
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per pipeline, with all fields.")
@server_options(DEFAULT)
def ps(as_json: bool, server: str, token_file: Path | None) -> None:
    """List the pipelines of a server.

    `headrace list` shows what runs on this machine, with a server or without.
    """
    client = client_of(server, token_file)
    pipelines = client.pipelines()
    progress = client.get("/progress")
    if as_json:
        for each in pipelines:
            print_json({**each, "progress": progress.get(each["id"])})
        return
    if not pipelines:
        click.echo("the server has no pipelines")
        return
    rows = []
    for each in pipelines:
        far = progress.get(each["id"]) or {}
        counts = [far.get(key) for key in ("epoch", "rows_in", "rows_out")]
        shown = ["-" if count is None else f"{count:,}" for count in counts]
        error = (far.get("last_error") or "").partition("\n")[0] if each["state"] == "Failed" else ""
        rows.append((each["name"], each["id"], each["state"], each["parallelism"], *shown, error))
    columns = ("name", "id", "state", "subtasks", "epoch", "rows in", "rows out", "error")
    print_table(columns, rows, right=("subtasks", "epoch", "rows in", "rows out"))


@click.command
@click.argument("name", metavar="NAME")
@click.option("--force", is_flag=True, help="Do not finish the current epoch.")
@click.option("--ignore-state", is_flag=True, help="Start without state.")
@click.option("--wait/--no-wait", default=True, help="Whether to wait until it runs.")
@server_options(DEFAULT)
def restart(
    name: str, force: bool, ignore_state: bool, wait: bool, server: str, token_file: Path | None
) -> None:
    """Restart a pipeline of a server, or start it if it is stopped. NAME is its name or its id."""
    client = client_of(server, token_file)
    pipeline = client.pipeline(name)
    before = client.job(pipeline["id"])["run_id"]
    client.post(f"/pipelines/{pipeline['id']}/restart", {"force": force, "ignore_state": ignore_state})
    if wait:
        _await_run(client, pipeline["id"], before + 1)


def _await_run(client: ServerClient, pipeline_id: str, run: int) -> None:
    """Wait until a later run of a pipeline is running, or over."""
    while True:
        job = client.job(pipeline_id)
        if job["run_id"] >= run or job["state"] in _AT_REST:
            break
        time.sleep(_LOOK)
    _await_running(client, pipeline_id)


def logs_of_server(client: ServerClient, name: str, *, run: int | None, errors: bool) -> None:
    """Print the log of a pipeline's process, or the messages about its job."""
    pipeline = client.pipeline(name)
    path = f"/pipelines/{pipeline['id']}/jobs/{pipeline['job_id']}"
    if not errors:
        click.echo(client.text(f"{path}/logs{'' if run is None else f'?run={run}'}"), nl=False)
        return
    for message in client.get(f"{path}/errors?limit=1000")["data"][::-1]:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(message["created_at"] / 1e6))
        operator = f" {message['operator_id']}:" if message["operator_id"] else ""
        click.echo(f"{at} {message['level']}:{operator} {message['message']}")


def stop_on_server(client: ServerClient, name: str | None, *, every: bool, wait: bool) -> None:
    """Stop a pipeline of a server, or all of them, each after its current epoch."""
    if name is None and not every:
        raise click.UsageError("missing argument NAME, or --all")
    if every:
        stopping = [each for each in client.pipelines() if each["state"] not in _AT_REST]
    else:
        stopping = [client.pipeline(name or "")]
    for pipeline in stopping:
        if pipeline["state"] in _AT_REST:
            click.echo(f"{pipeline['name']} is {pipeline['state']}")
        else:
            client.patch(f"/pipelines/{pipeline['id']}", {"stop": "checkpoint"})
            click.echo(f"{pipeline['name']} ({pipeline['id']}) stops")
    for pipeline in stopping if wait else ():
        while client.job(pipeline["id"])["state"] not in _AT_REST:
            time.sleep(_LOOK)


def rescale_on_server(client: ServerClient, name: str, parallelism: int, *, wait: bool) -> None:
    """Give a pipeline of a server another parallelism."""
    pipeline = client.pipeline(name)
    before, job = pipeline["parallelism"], client.job(pipeline["id"])
    shown = f"{pipeline['name']} ({pipeline['id']})"
    client.patch(f"/pipelines/{pipeline['id']}", {"parallelism": parallelism})
    if job["state"] in _AT_REST:
        click.echo(f"{shown} is {job['state']}; it has {parallelism} subtasks when it starts")
    elif not wait:
        click.echo(f"{shown} is told to go from {before} subtasks to {parallelism}")
    else:
        if before != parallelism:
            _await_run(client, pipeline["id"], job["run_id"] + 1)
        click.echo(f"{shown} has gone from {before} subtasks to {parallelism}")
