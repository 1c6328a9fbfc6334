"""Jobs: their messages, checkpoints, metrics, outputs, logs and state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.sse import format_sse_event
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse

from headrace.base.errors import HeadraceError
from headrace.server.apart import run_apart
from headrace.server.checkpoints import (
    compare_table,
    describe_state,
    list_checkpoints,
    operator_checkpoints,
    query_state,
)
from headrace.server.children import LOG
from headrace.server.database import Row
from headrace.server.errors import RequestError, sentence
from headrace.server.events import EventAnswer
from headrace.server.history import KEPT_SECONDS
from headrace.server.metrics import SHOWN_SECONDS, operator_metrics, operators_of, progress_of
from headrace.server.models import (
    CheckpointView,
    JobMessageView,
    JobView,
    Listed,
    OperatorCheckpointView,
    OperatorMetricsView,
    OperatorView,
    OutputView,
    Paged,
    ProgressView,
    RowsView,
    StateComparisonView,
    StateQuery,
    StateTableView,
    TapView,
)
from headrace.server.routes.dependencies import Limit, StartingAfter, UseService, get_service
from headrace.server.states import AT_REST
from headrace.server.views import show_job, show_message

router = APIRouter(tags=["jobs"])
_JOB = "/pipelines/{pipeline_id}/jobs/{job_id}"
_LOOK_SECONDS = 0.25
_PING_SECONDS = 15.0
_LONGEST_LOG = 1_000_000
_NOTHING_YET = 2**62


def get_job(pipeline_id: str, job_id: str, request: Request) -> Row:
    """The job of the path."""
    return get_service(request).pipelines.job(pipeline_id, job_id)


UseJob = Annotated[Row, Depends(get_job)]


@router.get("/jobs")
def list_jobs(service: UseService) -> Listed[JobView]:
    """Every job, the newest first."""
    jobs = service.pipelines.jobs()
    return Listed(data=[show_job(job, service.pipelines.pipeline(job["pipeline_id"])) for job in jobs])


@router.get("/pipelines/{pipeline_id}/jobs")
def list_pipeline_jobs(pipeline_id: str, service: UseService) -> Listed[JobView]:
    """The job of a pipeline."""
    pipeline = service.pipelines.pipeline(pipeline_id)
    return Listed(data=[show_job(service.pipelines.job_of(pipeline_id), pipeline)])


@router.get("/progress")
def list_progress(service: UseService) -> dict[str, ProgressView]:
    """How far every job is, by the id of its pipeline."""
    return {job["pipeline_id"]: _progress(service, job) for job in service.pipelines.jobs()}


@router.get(f"{_JOB}/progress")
def get_progress(job: UseJob, service: UseService) -> ProgressView:
    """How far a job is."""
    return _progress(service, job)


def _progress(service: UseService, job: Row) -> ProgressView:
    failure = None if job["failure"] is None else job["failure"]["error"]
    status, samples = service.monitor.status(job["id"]), service.monitor.samples(job["id"], 30.0)
    return progress_of(job, status, samples, failure)


@router.get(f"{_JOB}/errors")
def list_messages(
    job: UseJob, service: UseService, limit: Limit = 10, starting_after: StartingAfter = None
) -> Paged[JobMessageView]:
    """Errors and warnings of a job, the newest first."""
    rows, more = service.pipelines.messages(job["id"], limit, starting_after)
    return Paged(data=[show_message(row) for row in rows], has_more=more)


@router.get(f"{_JOB}/checkpoints")
def get_checkpoints(job: UseJob, service: UseService) -> Listed[CheckpointView]:
    """The checkpoints that can be resumed from, the oldest first."""
    return Listed(data=list_checkpoints(_state_dir(service, job), stopping_epoch=job["stopping_epoch"]))


@router.get(f"{_JOB}/checkpoints/{{epoch}}/operator_checkpoint_groups")
def get_operator_checkpoints(job: UseJob, epoch: int, service: UseService) -> Listed[OperatorCheckpointView]:
    """What each operator holds in a checkpoint."""
    return Listed(data=operator_checkpoints(_state_dir(service, job), epoch))


@router.get(f"{_JOB}/operator_metric_groups")
def get_metrics(
    job: UseJob,
    service: UseService,
    seconds: Annotated[int, Query(ge=10, le=KEPT_SECONDS)] = SHOWN_SECONDS,
) -> Listed[OperatorMetricsView]:
    """The metrics of every operator, of the last five minutes or as many seconds as told, an hour at most."""
    graph = service.pipelines.pipeline(job["pipeline_id"])["graph"]
    samples = service.monitor.samples(job["id"], seconds)
    snapshot = service.monitor.ask(job["id"], "metrics")
    return Listed(data=operator_metrics(graph, samples, snapshot, seconds))


@router.get(f"{_JOB}/operators")
def list_operators(job: UseJob, service: UseService) -> Listed[OperatorView]:
    """What every operator of a running job does and holds."""
    samples = service.monitor.samples(job["id"], KEPT_SECONDS)
    return Listed(data=operators_of(samples, service.monitor.ask(job["id"], "metrics", False)))


@router.get(f"{_JOB}/state")
def get_state(
    job: UseJob, service: UseService, epoch: Annotated[int | None, Query(ge=0)] = None
) -> Listed[StateTableView]:
    """The tables of a checkpoint; the latest unless told."""
    tables = describe_state(_state_dir(service, job), epoch)
    return Listed(data=[StateTableView(**table) for table in tables])


@router.post(f"{_JOB}/state/query")
def post_state_query(job: UseJob, body: StateQuery, service: UseService) -> RowsView:
    """SQL over the tables of a checkpoint."""
    state_dir = _state_dir(service, job)
    result: dict[str, Any] = run_apart(_query_state, state_dir, body.query, body.epoch, body.limit)
    rows = [json.loads(line) for line in result["lines"].splitlines()]
    return RowsView(columns=result["columns"], rows=rows, has_more=result["has_more"])


def _query_state(state_dir: str | None, sql: str, epoch: int | None, limit: int) -> dict[str, Any]:
    return query_state(state_dir, sql, epoch=epoch, limit=limit)


@router.get(f"{_JOB}/state/compare")
def get_state_comparison(
    job: UseJob,
    service: UseService,
    operator_id: Annotated[str, Query(max_length=1000)],
    table: Annotated[str, Query(max_length=1000)],
    before: Annotated[int | None, Query(ge=0)] = None,
    after: Annotated[int | None, Query(ge=0)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> StateComparisonView:
    """The rows of a table that are not the same in the checkpoints of two epochs.

    Unless told, they are the oldest that is kept and the latest: a running pipeline soon removes others.
    """
    compared = run_apart(_compare_table, _state_dir(service, job), operator_id, table, before, after, limit)
    return StateComparisonView(**compared)


def _compare_table(
    state_dir: str | None, operator_id: str, table: str, before: int | None, after: int | None, limit: int
) -> dict[str, Any]:
    return compare_table(state_dir, operator_id, table, before=before, after=after, limit=limit)


def _state_dir(service: UseService, job: Row) -> str | None:
    return service.state_dir(service.pipelines.pipeline(job["pipeline_id"]), job)


@router.get(f"{_JOB}/logs", response_class=PlainTextResponse)
def get_logs(
    job: UseJob, service: UseService, run: Annotated[int | None, Query(ge=1)] = None
) -> PlainTextResponse:
    """The end of what a run's process has written; of the last run unless told."""
    directory = service.children.run_directory(job["id"], run or job["process_run"])
    try:
        with (directory / LOG).open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - _LONGEST_LOG))
            text = log.read().decode("utf-8", "replace")
    except FileNotFoundError:
        if run is not None:
            last = job["process_run"]
            raise RequestError(404, f"there is no log of run {run}; the last run is {last}") from None
        text = ""  # it has not begun
    return PlainTextResponse(text)


@router.get(f"{_JOB}/tap", response_class=EventAnswer, responses={200: {"model": TapView}})
async def get_tap(
    job: UseJob,
    request: Request,
    operator_id: Annotated[str, Query(max_length=1000)],
    target_id: Annotated[str | None, Query(max_length=1000)] = None,
    where: Annotated[str, Query(max_length=10_000)] = "",
) -> EventAnswer:
    """Rows that an operator sends, to `target_id` or wherever its main output goes, while the job runs.

    They are a sample of each epoch: server-sent events of TapView. `where` is a SQL condition on the rows.
    """
    question = "tap", operator_id, target_id, where
    # What is wrong with the request is an error, not an event.
    await run_in_threadpool(get_service(request).monitor.ask, job["id"], *question, _NOTHING_YET)
    return EventAnswer(_told(request, job, *question))


@router.get(f"{_JOB}/output", response_class=EventAnswer, responses={200: {"model": OutputView}})
async def get_output(job: UseJob, request: Request) -> EventAnswer:
    """Rows of bare SELECTs, and of a preview's sinks, as they come: server-sent events of OutputView."""
    return EventAnswer(_told(request, job, "output"))


async def _told(request: Request, job: Row, question: str, *arguments: Any) -> AsyncIterator[bytes]:
    """What a job's process tells, over restarts of it, until the job is at rest and all is sent."""
    service = get_service(request)
    run, last, silent = 0, 0, 0.0
    yield format_sse_event(comment="rows follow")
    while not await request.is_disconnected():
        now = await run_in_threadpool(service.pipelines.job_of, job["pipeline_id"])
        if now["process_run"] != run:
            run, last = now["process_run"], 0
        ask = partial(service.monitor.ask, job["id"], question, *arguments, last)
        try:
            told = await run_in_threadpool(ask) or []
        except HeadraceError as error:
            yield format_sse_event(event="end", data_str=json.dumps({"error": sentence(error)}))
            return
        for item in told:
            last = item.pop("number")
            yield format_sse_event(data_str=json.dumps(item))
        if not told and now["state"] in AT_REST:
            yield format_sse_event(event="end", data_str="{}")
            return
        silent = 0.0 if told else silent + _LOOK_SECONDS
        if silent >= _PING_SECONDS:
            silent = 0.0
            yield format_sse_event(comment="ping")
        await asyncio.sleep(_LOOK_SECONDS)
