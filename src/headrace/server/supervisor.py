"""The supervisor: starts and stops the processes of jobs until they match the database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.server.children import Children
from headrace.server.database import Row
from headrace.server.identifiers import now_micros
from headrace.server.monitor import Monitor
from headrace.server.pipelines import Pipelines
from headrace.server.states import AT_REST, STOPPING, STOPPING_STATE, STRENGTH

_log = logging.getLogger("headrace.server")

_TICK_SECONDS = 0.2
_MOST_FAILURES = 20
"""In a row, each without two healthy minutes before it; then a job is given up."""
_HEALTHY_MICROS = 120_000_000
_FIRST_BACKOFF, _LONGEST_BACKOFF = 1_000_000, 300_000_000
_STARTING_AT_ONCE = 4
"""Processes whose Spark is starting: it takes all that the machine has."""
_USER_EXIT_CODE = 2
_KEPT_STATES = ("Rescaling", "Restarting", "Recovering")
"""States that last until the new process is at work."""

MakeRequest = Callable[[Row, Row], tuple[dict[str, Any], dict[str, str]]]
"""What a process is asked to run, and its environment, for a pipeline and its job."""


class Supervisor:
    """A thread that starts and ends processes until every job is in its wanted state.

    What is meant is in the database, and so is how far a job has come. Nothing is lost when the server is
    killed: the next one finds the processes by their locks and goes on.
    """

    def __init__(
        self, pipelines: Pipelines, children: Children, monitor: Monitor, make_request: MakeRequest
    ) -> None:
        self._pipelines = pipelines
        self._children = children
        self._monitor = monitor
        self._make_request = make_request
        self._wanted = threading.Event()
        self._over = threading.Event()
        self._told: dict[str, tuple[int, str]] = {}
        """By job: the run that was told to end, and how."""
        self._thread = threading.Thread(target=self._run, name="headrace-supervisor", daemon=True)

    def start(self) -> None:
        """Begin to supervise."""
        self._thread.start()

    def close(self) -> None:
        """Stop supervising; the processes go on."""
        self._over.set()
        self._wanted.set()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether it supervises."""
        return self._thread.is_alive()

    def look(self) -> None:
        """Check at once, because something was changed."""
        self._wanted.set()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.tick()
            except Exception:  # noqa: BLE001 - it goes on, whatever it was
                _log.exception("the supervisor failed, and goes on")
            self._wanted.wait(_TICK_SECONDS)
            self._wanted.clear()

    def tick(self) -> None:
        """Bring every job a step further."""
        self._expire_previews()
        jobs = self._pipelines.active_jobs()
        self._monitor.watch({job["id"]: job["process_run"] for job in jobs if not job["process_over"]})
        starting = sum(job["state"] in ("Compiling", "Scheduling") for job in jobs)
        for job in jobs:
            pipeline = self._pipelines.pipeline(job["pipeline_id"])
            try:
                if self._advance(job, pipeline, may_start=starting < _STARTING_AT_ONCE):
                    starting += 1
            except Exception as error:  # noqa: BLE001 - one job must not keep the others from their step
                _log.exception("job %s cannot be supervised", job["id"])
                self._fail(job, {"error": str(error), "domain": "internal"})
        self._children.reap()

    def _advance(self, job: Row, pipeline: Row, *, may_start: bool) -> bool:
        """Bring a job a step further; returns whether a process was started."""
        if not job["process_over"]:
            if self._children.is_alive(job["id"], job["process_run"]):
                self._steer(job, pipeline)
            else:
                self._take_outcome(job, pipeline)
            return False
        if pipeline["stop"] != "none":
            self._rest(job, "Stopped")
            return False
        is_due = job["retry_at"] is None or job["retry_at"] <= now_micros()
        if may_start and is_due:
            self._start(job, pipeline)
            return True
        return False

    # ------------------------------------------------------------------------------------ at work

    def _steer(self, job: Row, pipeline: Row) -> None:
        """What a process that is alive has to be told."""
        stop, state = pipeline["stop"], job["state"]
        if stop != "none":
            if state not in STOPPING or state != STOPPING_STATE[stop]:
                self._change(job, {"state": STOPPING_STATE[stop]})
            self._tell(job, stop)
            return
        if job["restart"] is not None:
            target = "Rescaling" if job["restart"] == "rescale" else "Restarting"
            if state != target:
                self._change(job, {"state": target})
            self._tell(job, "force" if job["restart"] == "force" else "checkpoint")
            return
        if pipeline["version"] != job["running_version"]:
            self._change(job, {"state": "Restarting", "restart": "safe"})
            return
        status = self._monitor.status(job["id"])
        if pipeline["parallelism"] != job["running_parallelism"]:
            self._rescale(job, pipeline, status)
        elif job["id"] not in self._told:
            self._follow(job, status)

    def _follow(self, job: Row, status: Mapping[str, Any] | None) -> None:
        """Take over the state that a process tells."""
        told = (
            "Compiling"
            if status is None
            else {"running": "Running", "starting": "Scheduling"}.get(status["state"])
        )
        now, changes = now_micros(), {}
        if told == "Running":
            if job["state"] != "Running":
                # It has resumed: whatever it went back to, its next start goes on from here.
                changes = {"state": "Running", "healthy_since": now, "from_epoch": None}
                changes["start_time"] = job["start_time"] or now
            elif job["failures"] and now - (job["healthy_since"] or now) > _HEALTHY_MICROS:
                changes = {"failures": 0}
        elif told is not None and job["state"] not in (*_KEPT_STATES, told, "Running"):
            changes = {"state": told}
        self._change(job, changes)

    def _rescale(self, job: Row, pipeline: Row, status: Mapping[str, Any] | None) -> None:
        """Let a running job go on with another parallelism: while it runs, or else with a new process."""
        wanted = pipeline["parallelism"]
        if job["state"] != "Rescaling":
            self._change(job, {"state": "Rescaling"})
        if status is not None and status.get("parallelism") == wanted:
            tasks = _tasks(pipeline)
            self._change(job, {"running_parallelism": wanted, "run_id": job["run_id"] + 1, "tasks": tasks})
        elif status is None or status["state"] != "running":
            return
        elif not self._monitor.ask_to_rescale(job["id"], wanted):
            self._change(job, {"restart": "rescale", "state": "Rescaling"})
            self._tell(job, "checkpoint")

    def _tell(self, job: Row, mode: str) -> None:
        """Tell a process once to end; a stronger word may follow a weaker one."""
        run, before = self._told.get(job["id"], (0, "none"))
        if run == job["process_run"] and STRENGTH[before] >= STRENGTH[mode]:
            return
        if self._children.pid(job["id"], job["process_run"]) is None:
            return  # it has not begun
        self._told[job["id"]] = (job["process_run"], mode)
        if STRENGTH[mode] > STRENGTH["graceful"]:
            self._children.kill(job["id"], job["process_run"])
        else:
            self._children.finish(job["id"], job["process_run"])

    # --------------------------------------------------------------------------------------- over

    def _take_outcome(self, job: Row, pipeline: Row) -> None:
        """Update the job after its process has ended."""
        outcome = self._children.outcome(job["id"], job["process_run"])
        self._told.pop(job["id"], None)
        self._monitor.forget(job["id"])
        job = {**job, "process_over": 1}
        self._pipelines.change_job(job["id"], {"process_over": 1})
        if outcome is not None:
            self._pipelines.add_messages(job["id"], job["process_run"], outcome["messages"])
            if outcome.get("last_epoch") is not None:
                self._pipelines.change_job(job["id"], {"from_epoch": None})  # it has gone on from there
        if outcome is not None and outcome["state"] == "failed":
            self._take_failure(job, pipeline, outcome["error"])
        elif outcome is not None and outcome["state"] == "finished":
            self._rest(job, "Finished")
        elif pipeline["stop"] != "none":
            self._rest(job, "Stopped", None if outcome is None else outcome["last_epoch"])
        elif job["restart"] is not None:
            state = "Rescaling" if job["restart"] == "rescale" else "Restarting"
            self._change(job, {"state": state, "restart": None})
        elif outcome is not None:
            self._pipelines.add_message(
                job["id"], "info", "the process was stopped from outside; it is started again"
            )
            self._change(job, {"state": "Restarting"})
        else:
            self._take_death(job, pipeline)

    def _take_death(self, job: Row, pipeline: Row) -> None:
        """A process has ended without an outcome: it was killed, or has never begun."""
        if self._children.pid(job["id"], job["process_run"]) is None:
            self._change(job, {"state": "Recovering"})  # the server died while it started it
            return
        code = self._children.exit_code(job["id"], job["process_run"])
        log = f"its log is at /api/v1/pipelines/{job['pipeline_id']}/jobs/{job['id']}/logs"
        message = (
            "the process of the pipeline was killed"
            if code is None or code < 0
            else (f"the process of the pipeline ended with exit code {code}")
        )
        domain = "user" if code == _USER_EXIT_CODE else "internal"
        error = {"message": f"{message}; {log}", "details": "", "domain": domain, "retry": True}
        self._take_failure(job, pipeline, error)

    def _take_failure(self, job: Row, pipeline: Row, error: Mapping[str, Any]) -> None:
        """A process has failed: it is started again unless that is futile or not wanted."""
        self._pipelines.add_message(
            job["id"],
            "error",
            error["message"],
            details=error["details"],
            operator_id=error.get("operator_id"),
            task_index=error.get("task_index"),
            error_domain=error["domain"],
        )
        failure = {"error": error["message"], "domain": error["domain"]}
        is_transient = error["domain"] == "internal" or (error["domain"] == "external" and error["retry"])
        failures = job["failures"] + 1
        if not is_transient or pipeline["preview"] or failures > _MOST_FAILURES:
            self._fail(job, failure)
        elif pipeline["stop"] != "none":
            self._rest(job, "Stopped")
        else:
            wait = min(_FIRST_BACKOFF * 2 ** (failures - 1), _LONGEST_BACKOFF)
            again = {"state": "Recovering", "failures": failures, "retry_at": now_micros() + wait}
            self._change(job, {**again, "restart": None})

    def _fail(self, job: Row, failure: Mapping[str, Any]) -> None:
        changes = {"state": "Failed", "failure": failure, "finish_time": now_micros(), "restart": None}
        self._change(job, {**changes, "from_epoch": None})

    def _rest(self, job: Row, state: str, last_epoch: int | None = None) -> None:
        changes = {"state": state, "finish_time": now_micros(), "restart": None, "retry_at": None}
        self._change(job, {**changes, "stopping_epoch": last_epoch})

    # -------------------------------------------------------------------------------------- start

    def _start(self, job: Row, pipeline: Row) -> None:
        """Start a process for a job."""
        state = job["state"] if job["state"] in _KEPT_STATES else "Compiling"
        run = job["process_run"] + 1
        try:
            request, environ = self._make_request(pipeline, job)
        except HeadraceError as error:
            self._fail(job, {"error": error.message, "domain": error.domain})
            return
        # Before the process: a server that dies now finds no process of this run, and starts another.
        self._change(
            job,
            {
                "state": state,
                "process_run": run,
                "process_over": 0,
                "run_id": job["run_id"] + 1,
                "running_parallelism": pipeline["parallelism"],
                "running_version": pipeline["version"],
                "tasks": _tasks(pipeline),
                "retry_at": None,
                "restart": None,
                "healthy_since": None,
            },
        )
        self._children.start(job["id"], run, request, environ)

    def _expire_previews(self) -> None:
        for pipeline in self._pipelines.expired_previews(now_micros()):
            job = self._pipelines.job_of(pipeline["id"])
            if job["state"] not in AT_REST:
                if pipeline["stop"] != "force":
                    self._pipelines.change(pipeline["id"], {"stop": "force"})
            elif job["finish_time"] is None or now_micros() - job["finish_time"] > _HEALTHY_MICROS:
                self._pipelines.delete(pipeline["id"])
                self._children.remove(job["id"])

    def _change(self, job: Row, changes: Mapping[str, Any]) -> None:
        if changes.get("state", job["state"]) != job["state"]:
            _log.info("%s: %s -> %s", job["id"], job["state"], changes["state"])
        if changes:
            self._pipelines.change_job(job["id"], changes)


def _tasks(pipeline: Row) -> int:
    return sum(node["parallelism"] for node in pipeline["graph"]["nodes"])
