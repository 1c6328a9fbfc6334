"""The pipelines, jobs and messages of the database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.server.database import Row, ServerDatabase
from headrace.server.errors import RequestError, not_found
from headrace.server.identifiers import new_id, now_micros
from headrace.server.states import AT_REST, STRENGTH, StopMode

DEFAULT_INTERVAL = 1_000_000
PREVIEW_SECONDS = 60
_KEPT_MESSAGES = 1000
_JSON = ("files", "udfs", "tags", "env_vars", "scheduler_config", "graph", "failure")


def _read(row: Row) -> Row:
    return {
        name: json.loads(value) if name in _JSON and value is not None else value
        for name, value in row.items()
    }


def _write(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: json.dumps(value) if name in _JSON and value is not None else value
        for name, value in values.items()
    }


class Pipelines:
    """Reads and changes pipelines and their jobs; each pipeline has one job."""

    def __init__(self, database: ServerDatabase) -> None:
        self.database = database

    # ----------------------------------------------------------------------------------- pipelines

    def page(self, limit: int, starting_after: str | None) -> tuple[list[Row], bool]:
        """Some pipelines, the newest first, and whether there are more behind them."""
        before = 2**62
        if starting_after is not None:
            before = self.pipeline(starting_after)["number"]
        rows = self.database.all(
            "SELECT * FROM pipelines WHERE number < ? AND NOT preview ORDER BY number DESC LIMIT ?",
            before,
            limit + 1,
        )
        return [_read(row) for row in rows[:limit]], len(rows) > limit

    def pipeline(self, pipeline_id: str) -> Row:
        """One pipeline; raises a RequestError if there is none."""
        row = self.database.one("SELECT * FROM pipelines WHERE id = ?", pipeline_id)
        if row is None:
            raise not_found("pipeline", pipeline_id)
        return _read(row)

    def queries(self) -> list[Row]:
        """The text of every pipeline that is not a preview."""
        return self.database.all("SELECT id, kind, query FROM pipelines WHERE NOT preview")

    def names(self) -> dict[str, str]:
        """The name of every pipeline that is not a preview, by its id."""
        rows = self.database.all("SELECT id, name FROM pipelines WHERE NOT preview")
        return {row["id"]: row["name"] for row in rows}

    def create(self, values: Mapping[str, Any], *, user: str) -> Row:
        """Store a pipeline and its job, which is to be started."""
        now = now_micros()
        pipeline = {
            **values,
            "id": new_id("pl"),
            "version": 1,
            "stop": "none",
            "created_at": now,
            "created_by": user,
        }
        job = {
            "id": new_id("job"),
            "pipeline_id": pipeline["id"],
            "state": "Created",
            "run_id": 0,
            "created_at": now,
            "process_run": 0,
            "process_over": 1,
            "state_number": 1,
            "allow_drop": 0,
            "failures": 0,
        }
        with self.database.transaction():
            self.database.insert("pipelines", _write(pipeline))
            self._keep_version(pipeline, user)
            self.database.insert("jobs", job)
        return self.pipeline(pipeline["id"])

    def _keep_version(self, pipeline: Mapping[str, Any], user: str) -> None:
        names = ("version", "query", "files", "udfs")
        version = {name: pipeline[name] for name in names} | {"pipeline_id": pipeline["id"]}
        version |= {"created_at": now_micros(), "created_by": user}
        self.database.insert("pipeline_versions", _write(version))

    def versions(self, pipeline_id: str) -> list[Row]:
        """The programs that a pipeline has had, the newest first."""
        rows = self.database.all(
            "SELECT * FROM pipeline_versions WHERE pipeline_id = ? ORDER BY version DESC", pipeline_id
        )
        return [_read(row) for row in rows]

    def change(self, pipeline_id: str, values: Mapping[str, Any]) -> None:
        """Set columns of a pipeline; what needs a new process makes a new `version`."""
        self.database.update("pipelines", pipeline_id, _write(values))

    def change_settings(self, pipeline_id: str, values: Mapping[str, Any], *, user: str) -> None:
        """Set columns that only a new process reads; a running job is restarted for them."""
        with self.database.transaction():
            version = self.pipeline(pipeline_id)["version"] + 1
            self.change(pipeline_id, {**values, "version": version})
            self._keep_version(self.pipeline(pipeline_id), user)

    def stop(self, pipeline_id: str, mode: StopMode) -> None:
        """Say how a pipeline is to stop, or with `none` that it is to run."""
        with self.database.transaction():
            pipeline, job = self.pipeline(pipeline_id), self.job_of(pipeline_id)
            if mode == "none":
                if job["state"] in AT_REST:
                    self.start(pipeline_id)
                elif pipeline["stop"] != "none":
                    raise RequestError(
                        409, f"the pipeline is stopping ({job['state']}); start it when it is stopped"
                    )
            elif (job["state"] not in AT_REST and STRENGTH[mode] >= STRENGTH[pipeline["stop"]]) or (
                job["state"] in AT_REST and pipeline["stop"] == "none"
            ):
                self.change(pipeline_id, {"stop": mode})

    def start(self, pipeline_id: str, **more: Any) -> None:
        """Let a pipeline that is at rest run."""
        job = self.job_of(pipeline_id)
        self.change(pipeline_id, {"stop": "none"})
        fresh = {"state": "Created", "failure": None, "failures": 0, "finish_time": None, "retry_at": None}
        self.change_job(job["id"], {**fresh, "restart": None, "stopping_epoch": None, **more})

    def delete(self, pipeline_id: str) -> Row:
        """Remove a pipeline that is at rest; returns its job as it was."""
        with self.database.transaction():
            self.pipeline(pipeline_id)
            job = self.job_of(pipeline_id)
            if job["state"] not in AT_REST:
                raise RequestError(
                    400, f"the pipeline is not stopped: it is {job['state']}; stop it first, then delete it"
                )
            self.database.change("DELETE FROM pipelines WHERE id = ?", pipeline_id)
        return job

    # ---------------------------------------------------------------------------------------- jobs

    def jobs(self) -> list[Row]:
        """Every job but those of previews, the newest first."""
        rows = self.database.all(
            "SELECT jobs.* FROM jobs JOIN pipelines ON pipelines.id = pipeline_id "
            "WHERE NOT preview ORDER BY jobs.number DESC"
        )
        return [_read(row) for row in rows]

    def active_jobs(self) -> list[Row]:
        """The jobs that are not at rest, and those of previews that have had their time, the oldest first."""
        marks = ", ".join("?" * len(AT_REST))
        sql = f"SELECT * FROM jobs WHERE state NOT IN ({marks}) ORDER BY number"
        rows = self.database.all(sql, *AT_REST)
        return [_read(row) for row in rows]

    def expired_previews(self, now: int) -> list[Row]:
        """The previews whose time is over."""
        rows = self.database.all("SELECT * FROM pipelines WHERE preview AND expires_at <= ?", now)
        return [_read(row) for row in rows]

    def job_of(self, pipeline_id: str) -> Row:
        """The job of a pipeline."""
        row = self.database.one("SELECT * FROM jobs WHERE pipeline_id = ?", pipeline_id)
        if row is None:
            raise not_found("pipeline", pipeline_id)
        return _read(row)

    def jobs_of(self, pipeline_ids: Sequence[str]) -> dict[str, Row]:
        """The jobs of some pipelines, by pipeline."""
        marks = ", ".join("?" * len(pipeline_ids))
        rows = self.database.all(f"SELECT * FROM jobs WHERE pipeline_id IN ({marks})", *pipeline_ids)
        return {row["pipeline_id"]: _read(row) for row in rows}

    def job(self, pipeline_id: str, job_id: str) -> Row:
        """A job of a pipeline; raises a RequestError if there is none."""
        job = self.job_of(pipeline_id)
        if job["id"] != job_id:
            raise not_found("job", job_id)
        return job

    def change_job(self, job_id: str, values: Mapping[str, Any]) -> None:
        """Set columns of a job."""
        self.database.update("jobs", job_id, _write(values))

    # ------------------------------------------------------------------------------------ messages

    def add_message(self, job_id: str, level: str, message: str, **more: Any) -> None:
        """Keep a message of the server about a job."""
        self.add_messages(job_id, None, [{"level": level, "message": message, "time": now_micros(), **more}])

    def add_messages(self, job_id: str, run: int | None, messages: Sequence[Mapping[str, Any]]) -> None:
        """Keep messages of a job's run; those that are kept already are left out."""
        if not messages:
            return
        with self.database.transaction():
            for message in messages:
                self.database.change(
                    "INSERT OR IGNORE INTO messages (id, job_id, process_run, process_number, created_at, "
                    "operator_id, task_index, level, message, details, error_domain) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    new_id("msg"),
                    job_id,
                    run,
                    message.get("number"),
                    message["time"],
                    message.get("operator_id"),
                    message.get("task_index"),
                    message["level"],
                    message["message"],
                    message.get("details") or "",
                    message.get("error_domain"),
                )
            self.database.change(
                "DELETE FROM messages WHERE job_id = ? AND number <= (SELECT number FROM messages "
                "WHERE job_id = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
                job_id,
                job_id,
                _KEPT_MESSAGES,
            )

    def messages(self, job_id: str, limit: int, starting_after: str | None) -> tuple[list[Row], bool]:
        """Some messages of a job, the newest first, and whether there are more behind them."""
        before = 2**62
        if starting_after is not None:
            row = self.database.one(
                "SELECT number FROM messages WHERE id = ? AND job_id = ?", starting_after, job_id
            )
            if row is None:
                raise not_found("message", starting_after)
            before = row["number"]
        rows = self.database.all(
            "SELECT * FROM messages WHERE job_id = ? AND number < ? ORDER BY number DESC LIMIT ?",
            job_id,
            before,
            limit + 1,
        )
        return rows[:limit], len(rows) > limit
