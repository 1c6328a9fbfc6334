"""The server's parts together, and what several endpoints do with them."""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headrace.base.errors import UserError
from headrace.base.private import make_private
from headrace.exchanges.spark.masters import check_form
from headrace.jobs.settings import LogSettings
from headrace.server.apart import run_apart
from headrace.server.changes import compare_program
from headrace.server.children import Children
from headrace.server.connections import Connections, tables_in
from headrace.server.database import Row, ServerDatabase
from headrace.server.errors import RequestError
from headrace.server.functions import SavedFunctions
from headrace.server.history import History
from headrace.server.monitor import Monitor
from headrace.server.pipelines import Pipelines
from headrace.server.planning import plan_program
from headrace.server.program import StoredFunction, StoredProgram
from headrace.server.supervisor import Supervisor
from headrace.storage.urls import HADOOP, OBJECT_STORES, SCHEMES, scheme_of

_log = logging.getLogger("headrace.server")


@dataclass(frozen=True)
class ServiceOptions:
    """Where the server keeps what is its own, the Spark of pipelines that name no other, and how they log."""

    data_dir: Path
    master: str | None = None
    log: LogSettings = field(default_factory=LogSettings)


class Service:
    """The database, the processes and their supervisor."""

    def __init__(self, options: ServiceOptions) -> None:
        self.options = options
        self.database = ServerDatabase(options.data_dir / "headrace.db")
        self.pipelines = Pipelines(self.database)
        self.connections = Connections(self.database)
        self.functions = SavedFunctions(self.database)
        self.children = Children(options.data_dir / "jobs")
        self.monitor = Monitor(self.children, History(self.database), self.pipelines.add_messages)
        self.supervisor = Supervisor(self.pipelines, self.children, self.monitor, self._request)

    def start(self) -> None:
        """Begin to supervise the pipelines."""
        self.supervisor.start()

    def close(self) -> None:
        """Close everything; pipelines go on."""
        self.supervisor.close()
        self.monitor.close()
        self.database.close()

    def is_ready(self) -> bool:
        """Whether the supervisor is running."""
        return self.supervisor.is_alive

    # ------------------------------------------------------------------------------------- programs

    def program(self, values: Mapping[str, Any], *, shows_sinks: bool = False) -> StoredProgram:
        """A pipeline's text with the connections and functions of the server that it names."""
        is_sql = values["kind"] == "sql"
        own = tuple(StoredFunction(**udf) for udf in values["udfs"])
        program = StoredProgram(
            name=values["name"],
            kind=values["kind"],
            query=values["query"],
            files=values["files"],
            udfs=own,
            tables=self.connections.tables_sql(values["query"]) if is_sql else "",
            profiles=self.connections.saved_profiles(),
            shows_sinks=shows_sinks,
        )
        if not is_sql:
            return program
        defined = {name for udf in own for name in names_in(udf)}
        return replace(program, udfs=(*own, *self.functions.named_in(values["query"], without=defined)))

    def environ(self, env_vars: Mapping[str, str]) -> dict[str, str]:
        """What a process has in its environment beyond the server's: variables and secrets."""
        return {**env_vars, **self.connections.environ()}

    def plan(self, program: StoredProgram, parallelism: int, env_vars: Mapping[str, str]) -> dict[str, Any]:
        """The graph of a program, or its errors."""
        planned: dict[str, Any] = run_apart(
            plan_program, program, parallelism, environ=self.environ(env_vars)
        )
        return planned

    def graph(self, program: StoredProgram, parallelism: int, env_vars: Mapping[str, str]) -> dict[str, Any]:
        """The graph of a program; raises a RequestError with all of its errors."""
        return graph_in(self.plan(program, parallelism, env_vars))

    def compare(
        self, program: StoredProgram, parallelism: int, env_vars: Mapping[str, str], state_dir: str | None
    ) -> dict[str, Any]:
        """What a changed program would do with the state of its pipeline, or its errors."""
        compared: dict[str, Any] = run_apart(
            compare_program, program, parallelism, state_dir, environ=self.environ(env_vars)
        )
        return compared

    def consumers(self) -> dict[str, int]:
        """How many pipelines name a table, by its lower-cased name."""
        counts: Counter[str] = Counter()
        for pipeline in self.pipelines.queries():
            if pipeline["kind"] == "sql":
                counts.update(tables_in(pipeline["query"]))
        return counts

    # --------------------------------------------------------------------------------------- state

    def state_dir(self, pipeline: Row, job: Row) -> str | None:
        """Where a pipeline's checkpoints are; None for a preview."""
        if pipeline["preview"]:
            return None
        own = self.options.data_dir / "state" / pipeline["id"] / str(job["state_number"])
        return str(pipeline["state_url"] or own)

    def delete(self, pipeline_id: str) -> None:
        """Remove a pipeline that is stopped, with its state in the data directory."""
        job = self.pipelines.delete(pipeline_id)
        self.children.remove(job["id"])
        self.monitor.remove(job["id"])
        shutil.rmtree(self.options.data_dir / "state" / pipeline_id, ignore_errors=True)

    def _request(self, pipeline: Row, job: Row) -> tuple[dict[str, Any], dict[str, str]]:
        """What a process is asked to run, and its environment."""
        program = self.program(
            pipeline, shows_sinks=bool(pipeline["preview"] and not pipeline["enable_sinks"])
        )
        state_dir = self.state_dir(pipeline, job)
        if state_dir is not None and pipeline["state_url"] is None:
            make_private(Path(state_dir).parent.parent)
        scheduler = pipeline["scheduler_config"]
        request = {
            "program": program.to_json(),
            "folder": str(self.children.job_directory(job["id"]) / f"program-{pipeline['version']}"),
            "state_dir": state_dir,
            "parallelism": pipeline["parallelism"],
            "epoch_target": f"{pipeline['checkpoint_interval_micros'] / 1e6:g}s",
            "allow_drop": bool(job["allow_drop"]),
            "from_epoch": job["from_epoch"],
            "master": scheduler.get("master") or self.options.master,
            "conf": scheduler.get("conf"),
            "log": {"format": self.options.log.format, "level": dict(self.options.log.level)},
        }
        return request, {**os.environ, **self.environ(pipeline["env_vars"])}


def graph_in(planned: Mapping[str, Any]) -> dict[str, Any]:
    """The graph of what was planned; raises a RequestError with all of its errors."""
    if planned["graph"] is None:
        texts = [
            error["message"]
            if error["span"] is None
            else f"line {error['span']['start']['line']}, column {error['span']['start']['column']}: "
            f"{error['message']}"
            for error in planned["errors"]
        ]
        raise RequestError(400, "\n".join(texts))
    graph: dict[str, Any] = planned["graph"]
    return graph


def names_in(udf: StoredFunction) -> set[str]:
    """The names that a function's source may define, lower-cased: enough to see which it hides."""
    words = udf.definition.replace("(", " ( ").split()
    keyword = "def" if udf.language == "python" else "fn"
    return {name.lower() for before, name in pairwise(words) if before == keyword}


def check_env_vars(env_vars: Mapping[str, str]) -> None:
    """Refuse variables that no environment can have."""
    for name, value in env_vars.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise UserError(
                f"`{name}` cannot be an environment variable", hint="it is a name without `=` and a value"
            )


def check_scheduler(master: str | None, conf: Mapping[str, str] | None) -> None:
    """Refuse what no Spark is started with; whether a master answers is told when it is started."""
    if master is not None:
        check_form(master)
    for name, value in (conf or {}).items():
        if not name.startswith("spark.") or "\0" in name or "\0" in value:
            raise UserError(f"`{name}` is no setting of Spark", hint="their names begin with `spark.`")


def check_state_url(url: str | None) -> None:
    """Refuse what is the address of no state; whether it can be written is told when it is started."""
    if url is None:
        return
    scheme = scheme_of(url)
    if scheme and scheme not in SCHEMES:
        raise UserError(
            f"`{url}` cannot be a `state_url`", hint=f"it is a directory, or one of {', '.join(SCHEMES)}"
        )
    if "\0" in url or not url.strip() or (scheme in (*OBJECT_STORES, *HADOOP) and not urlsplit(url).netloc):
        raise UserError(
            f"the `state_url` {url!r} names no place", hint="write it as /directory or s3://bucket/directory"
        )
