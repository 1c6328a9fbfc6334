"""Pipelines: check, preview, create, change, start, stop, restart, delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from headrace.server.checkpoints import checkpoint_epochs
from headrace.server.database import Row
from headrace.server.errors import RequestError
from headrace.server.identifiers import now_micros
from headrace.server.models import (
    ChangeView,
    Listed,
    Paged,
    PipelinePatch,
    PipelinePost,
    PipelinePut,
    PipelineView,
    PreviewPost,
    QueryPost,
    RestartPost,
    SchedulerConfig,
    ValidationView,
    VersionView,
)
from headrace.server.pipelines import DEFAULT_INTERVAL, PREVIEW_SECONDS
from headrace.server.program import check_file_name
from headrace.server.routes.dependencies import Limit, StartingAfter, UseAccount, UseService, check_code
from headrace.server.service import (
    Service,
    check_env_vars,
    check_scheduler,
    check_state_url,
    graph_in,
)
from headrace.server.states import AT_REST
from headrace.server.users import Account
from headrace.server.views import show_pipeline, show_version, unhidden

router = APIRouter(prefix="/pipelines", tags=["pipelines"])


def program_values(body: QueryPost, name: str) -> dict[str, Any]:
    """The program of a request as it is stored."""
    files = body.files or {}
    for file in files:
        check_file_name(file)
    return {
        "name": name,
        "kind": body.kind,
        "query": body.query,
        "files": files,
        "udfs": [udf.model_dump() for udf in body.udfs or ()],
    }


@router.post("/validate_query")
def validate_query(body: QueryPost, service: UseService, account: UseAccount) -> ValidationView:
    """Check a program: its graph, or every mistake in it."""
    values = program_values(body, "query")
    check_code(account, values)
    planned = service.plan(service.program(values), 1, {})
    return ValidationView.model_validate(planned)


@router.post("/preview")
def preview(body: PreviewPost, service: UseService, account: UseAccount) -> PipelineView:
    """Run a program for a minute; its rows are shown, and written only with `enable_sinks`."""
    values = program_values(body, "preview")
    check_code(account, values)
    program = service.program(values, shows_sinks=not body.enable_sinks)
    graph = service.graph(program, 1, {})
    expires = now_micros() + PREVIEW_SECONDS * 1_000_000
    more = {"preview": 1, "enable_sinks": int(body.enable_sinks), "expires_at": expires}
    return _create(service, account, {**values, **_defaults(), **more, "graph": graph})


@router.get("")
def list_pipelines(
    service: UseService, account: UseAccount, limit: Limit = 10, starting_after: StartingAfter = None
) -> Paged[PipelineView]:
    """Pipelines, the newest first."""
    rows, more = service.pipelines.page(limit, starting_after)
    jobs = service.pipelines.jobs_of([row["id"] for row in rows])
    return Paged(data=[show_pipeline(row, jobs[row["id"]], account) for row in rows], has_more=more)


@router.post("")
def create_pipeline(body: PipelinePost, service: UseService, account: UseAccount) -> PipelineView:
    """Create a pipeline and start it."""
    values = program_values(body, body.name)
    scheduler = {} if body.scheduler_config is None else _scheduler(body.scheduler_config)
    check_state_url(body.state_url)
    env_vars = body.env_vars or {}
    check_env_vars(env_vars)
    check_code(account, {**values, "env_vars": env_vars, "scheduler_config": scheduler})
    graph = service.graph(service.program(values), body.parallelism, env_vars)
    return _create(
        service,
        account,
        {
            **values,
            **_defaults(),
            "parallelism": body.parallelism,
            "checkpoint_interval_micros": body.checkpoint_interval_micros or DEFAULT_INTERVAL,
            "state_url": body.state_url,
            "tags": body.tags or {},
            "env_vars": env_vars,
            "scheduler_config": scheduler,
            "graph": graph,
        },
    )


def _defaults() -> dict[str, Any]:
    return {
        "parallelism": 1,
        "checkpoint_interval_micros": DEFAULT_INTERVAL,
        "state_url": None,
        "tags": {},
        "env_vars": {},
        "scheduler_config": {},
        "preview": 0,
        "enable_sinks": 1,
        "expires_at": None,
    }


def _create(service: Service, account: Account, values: dict[str, Any]) -> PipelineView:
    pipeline = service.pipelines.create(values, user=account.name)
    service.supervisor.look()
    return _show(service, pipeline["id"], account)


def _show(service: Service, pipeline_id: str, account: Account) -> PipelineView:
    pipeline = service.pipelines.pipeline(pipeline_id)
    return show_pipeline(pipeline, service.pipelines.job_of(pipeline_id), account)


@router.get("/{pipeline_id}")
def get_pipeline(pipeline_id: str, service: UseService, account: UseAccount) -> PipelineView:
    """One pipeline."""
    return _show(service, pipeline_id, account)


@router.get("/{pipeline_id}/versions")
def list_versions(pipeline_id: str, service: UseService, account: UseAccount) -> Listed[VersionView]:
    """The programs that a pipeline has had, the newest first."""
    service.pipelines.pipeline(pipeline_id)
    return Listed(data=[show_version(row, account) for row in service.pipelines.versions(pipeline_id)])


@router.post("/{pipeline_id}/plan")
def plan_change(pipeline_id: str, body: PipelinePut, service: UseService, account: UseAccount) -> ChangeView:
    """Tell what PUT with this body would do with the state of a pipeline, without doing it."""
    change = _read_change(service, account, pipeline_id, body)
    return ChangeView.model_validate(
        {**change.compared, "outcome": change.outcome, "version": change.pipeline["version"]}
    )


@router.put("/{pipeline_id}")
def put_pipeline(
    pipeline_id: str, body: PipelinePut, service: UseService, account: UseAccount
) -> PipelineView:
    """Give a pipeline another program; it goes on with its state, and is refused where it cannot."""
    change = _read_change(service, account, pipeline_id, body)
    graph = graph_in(change.compared)
    change.check()
    before = change.pipeline
    with service.database.transaction():
        pipeline, job = service.pipelines.pipeline(pipeline_id), service.pipelines.job_of(pipeline_id)
        if pipeline["version"] != before["version"]:
            raise RequestError(409, "the pipeline was changed by somebody else meanwhile; look at it again")
        values = {name: value for name, value in change.values.items() if pipeline[name] != value}
        if values.keys() == {"tags"} and not body.ignore_state:
            service.pipelines.change(pipeline_id, values)  # nothing that a process reads
        elif values or body.ignore_state:
            service.pipelines.change_settings(pipeline_id, {**values, "graph": graph}, user=account.name)
            more: dict[str, Any] = {}
            if body.ignore_state:
                more = {"state_number": job["state_number"] + 1, "from_epoch": None}
            service.pipelines.change_job(
                job["id"], {"allow_drop": int(body.allow_drop), "failures": 0, "retry_at": None, **more}
            )
    service.supervisor.look()
    return _show(service, pipeline_id, account)


@dataclass(frozen=True)
class _Change:
    """A request for another program, read and compared with the state."""

    pipeline: Row
    body: PipelinePut
    values: dict[str, Any]
    compared: dict[str, Any]

    @property
    def outcome(self) -> str:
        """One word for what would happen."""
        if self.compared["graph"] is None:
            return "invalid"
        if self.compared["refused"]:
            return "refused"
        if self.compared["dropped"]:
            return "drops_state"
        is_same = all(self.pipeline[name] == value for name, value in self.values.items())
        return "unchanged" if is_same and not self.body.ignore_state else "applies"

    def check(self) -> None:
        """Refuse what would lose state that the request does not give up."""
        lost = [*self.compared["refused"], *self.compared["dropped"]]
        if not lost or (self.outcome == "drops_state" and self.body.allow_drop):
            return
        listed = "\n".join(f"  - {what}" for what in lost)
        choices = ["change the program", "begin without state (`ignore_state`)", "create another pipeline"]
        if self.outcome == "drops_state":
            choices.insert(1, "go on without that state (`allow_drop`)")
        epoch = self.compared["epoch"]
        raise RequestError(
            409, f"the program does not fit the state of epoch {epoch}:\n{listed}\n{'; or '.join(choices)}"
        )


def _read_change(service: Service, account: Account, pipeline_id: str, body: PipelinePut) -> _Change:
    pipeline, job = service.pipelines.pipeline(pipeline_id), service.pipelines.job_of(pipeline_id)
    if pipeline["preview"]:
        raise RequestError(400, "a preview cannot be changed")
    for name in ("name", "kind", "state_url"):
        if getattr(body, name) not in (None, pipeline[name]):
            raise RequestError(
                400, f"the {name} of a pipeline stays, and it is {pipeline[name]!r}; create another pipeline"
            )
    if body.version not in (None, pipeline["version"]):
        raise RequestError(
            409, f"the pipeline has version {pipeline['version']} by now, and the change is of {body.version}"
        )
    if body.ignore_state and pipeline["state_url"] is not None:
        raise _own_place()
    for file in body.files or {}:
        check_file_name(file)
    if body.env_vars is not None:
        check_env_vars(body.env_vars)
    values = {"query": body.query, **body.model_dump(exclude_none=True, include=_CHANGEABLE)}
    if body.env_vars is not None:
        values["env_vars"] = unhidden(body.env_vars, pipeline["env_vars"])
    if body.scheduler_config is not None:
        values["scheduler_config"] = _scheduler(body.scheduler_config, pipeline)
    sent = {name: value for name, value in values.items() if pipeline[name] != value}
    check_code(account, {"kind": pipeline["kind"], "query": body.query, **sent})
    changed = {**pipeline, **values}
    compared = service.compare(
        service.program(changed),
        changed["parallelism"],
        changed["env_vars"],
        None if body.ignore_state else service.state_dir(pipeline, job),
    )
    return _Change(pipeline, body, values, compared)


def _scheduler(config: SchedulerConfig, pipeline: Row | None = None) -> dict[str, Any]:
    """A scheduler configuration as it is stored: `***` is the value that the pipeline has."""
    check_scheduler(config.master, config.conf)
    values = config.model_dump(exclude_none=True)
    if config.conf is not None and pipeline is not None:
        values["conf"] = unhidden(config.conf, pipeline["scheduler_config"].get("conf") or {})
    return values


_CHANGEABLE = {
    "udfs",
    "files",
    "parallelism",
    "checkpoint_interval_micros",
    "tags",
    "env_vars",
    "scheduler_config",
}


def _own_place() -> RequestError:
    return RequestError(
        400, "the state is in a `state_url` of the pipeline's own; empty that place, then restart"
    )


@router.patch("/{pipeline_id}")
def patch_pipeline(
    pipeline_id: str, body: PipelinePatch, service: UseService, account: UseAccount
) -> PipelineView:
    """Start or stop a pipeline, or change how it runs; a running one goes on with the change."""
    pipeline = service.pipelines.pipeline(pipeline_id)
    settings: dict[str, Any] = {}
    if body.checkpoint_interval_micros is not None:
        settings["checkpoint_interval_micros"] = body.checkpoint_interval_micros
    if body.env_vars is not None:
        check_env_vars(body.env_vars)
        settings["env_vars"] = unhidden(body.env_vars, pipeline["env_vars"])
    if body.scheduler_config is not None:
        settings["scheduler_config"] = _scheduler(body.scheduler_config, pipeline)
    check_code(account, settings)
    with service.database.transaction():
        if body.parallelism is not None:
            _change_parallelism(service, pipeline, body.parallelism)
        settings = {name: value for name, value in settings.items() if pipeline[name] != value}
        if settings:
            service.pipelines.change_settings(pipeline_id, settings, user=account.name)
        if body.stop is not None:
            service.pipelines.stop(pipeline_id, body.stop)
    service.supervisor.look()
    return _show(service, pipeline_id, account)


def _change_parallelism(service: Service, pipeline: Row, parallelism: int) -> None:
    if pipeline["parallelism"] == parallelism:
        return
    if pipeline["preview"]:
        raise RequestError(400, "a preview cannot be rescaled")
    before = pipeline["parallelism"]
    nodes = [
        {**node, "parallelism": parallelism if node["parallelism"] == before else node["parallelism"]}
        for node in pipeline["graph"]["nodes"]
    ]
    graph = {**pipeline["graph"], "nodes": nodes}
    service.pipelines.change(pipeline["id"], {"parallelism": parallelism, "graph": graph})


@router.delete("/{pipeline_id}")
def delete_pipeline(pipeline_id: str, service: UseService) -> None:
    """Delete a pipeline that is stopped, with the state that the server keeps of it."""
    service.delete(pipeline_id)


def _check_checkpoint(service: Service, pipeline: Row, job: Row, body: RestartPost) -> None:
    if body.ignore_state:
        raise RequestError(400, "`from_epoch` goes back to a state and `ignore_state` to none: choose one")
    epochs = checkpoint_epochs(service.state_dir(pipeline, job))
    if body.from_epoch not in epochs:
        there = ", ".join(map(str, epochs)) or "none"
        raise RequestError(404, f"there is no checkpoint of epoch {body.from_epoch}; there are: {there}")


@router.post("/{pipeline_id}/restart")
def restart_pipeline(
    pipeline_id: str, body: RestartPost, service: UseService, account: UseAccount
) -> PipelineView:
    """Restart a pipeline, or start it if it is stopped."""
    with service.database.transaction():
        pipeline, job = service.pipelines.pipeline(pipeline_id), service.pipelines.job_of(pipeline_id)
        if pipeline["preview"]:
            raise RequestError(400, "a preview cannot be restarted")
        more: dict[str, Any] = {}
        if body.ignore_state:
            if pipeline["state_url"] is not None:
                raise _own_place()
            more = {"state_number": job["state_number"] + 1, "from_epoch": None}
        if body.from_epoch is not None:
            _check_checkpoint(service, pipeline, job, body)
            more["from_epoch"] = body.from_epoch
        if job["state"] in AT_REST:
            service.pipelines.start(pipeline_id, **more)
        elif pipeline["stop"] != "none":
            raise RequestError(409, f"the pipeline is stopping ({job['state']}); start it when it is stopped")
        else:
            service.pipelines.change_job(
                job["id"], {"restart": "force" if body.force else "safe", "failures": 0, **more}
            )
    service.supervisor.look()
    return _show(service, pipeline_id, account)
