"""Rows of the database as the REST API shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.base.spans import hide_written
from headrace.server.connections import HIDDEN
from headrace.server.database import Row
from headrace.server.models import JobMessageView, JobView, PipelineView, VersionView
from headrace.server.states import AT_REST, action_of
from headrace.server.users import Account


def show_pipeline(pipeline: Row, job: Row, account: Account) -> PipelineView:
    """A pipeline with its job's state; passwords in its text are masked for who may not change it."""
    action = action_of(job["state"])
    return PipelineView(
        **{name: pipeline[name] for name in _SAME},
        **_program(pipeline, account),
        preview=bool(pipeline["preview"]),
        action=action.stop,
        action_text=action.text,
        action_in_progress=action.in_progress,
        env_vars=_hidden(pipeline["env_vars"]),
        scheduler_config=_scheduler(pipeline["scheduler_config"]),
        job_id=job["id"],
        state=job["state"],
    )


_SAME = (
    "id",
    "name",
    "kind",
    "parallelism",
    "checkpoint_interval_micros",
    "stop",
    "created_at",
    "created_by",
    "graph",
    "state_url",
    "tags",
    "version",
)


def show_version(version: Row, account: Account) -> VersionView:
    """An earlier program of a pipeline."""
    names = ("version", "created_at", "created_by")
    return VersionView(**{name: version[name] for name in names}, **_program(version, account))


def _program(row: Row, account: Account) -> dict[str, Any]:
    hide = (lambda text: text) if account.may("operator") else hide_written
    return {
        "query": hide(row["query"]),
        "files": {name: hide(text) for name, text in row["files"].items()},
        "udfs": [{**udf, "definition": hide(udf["definition"])} for udf in row["udfs"]],
    }


def show_job(job: Row, pipeline: Row) -> JobView:
    """The job of a pipeline."""
    names = ("id", "pipeline_id", "state", "run_id", "start_time", "finish_time", "tasks", "created_at")
    return JobView(
        **{name: job[name] for name in names},
        running_desired=pipeline["stop"] == "none" and job["state"] not in AT_REST,
        failure_reason=job["failure"],
        scheduler_config=_scheduler(pipeline["scheduler_config"]),
        env_vars=_hidden(pipeline["env_vars"]),
    )


def show_message(message: Row) -> JobMessageView:
    """A message of a job."""
    return JobMessageView(**{name: message[name] for name in JobMessageView.model_fields})


def unhidden(values: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Values that a client has sent; one that it was shown as `***` and sends back is the one before."""
    return {name: before.get(name, value) if value == HIDDEN else value for name, value in values.items()}


def _hidden(values: Mapping[str, str]) -> dict[str, str]:
    return dict.fromkeys(values, HIDDEN)


def _scheduler(config: Mapping[str, Any]) -> dict[str, Any]:
    conf = config.get("conf")
    return {**config, "conf": None if conf is None else _hidden(conf)}
