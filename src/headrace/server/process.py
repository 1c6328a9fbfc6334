"""`python -m headrace.server.process RUN_DIRECTORY LOCK`: the process of one run of a pipeline.

The server starts it in a session of its own, so it outlives the server. It keeps the lock, an open file,
until it ends: whoever can take the lock knows that it is over. It answers questions through its control
socket, ends after the current epoch when it is sent SIGTERM, and leaves `outcome.json`. The exit code is 0 if
it finished or was stopped, 2 if the user has to change something, 1 if it failed.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import HeadraceError
from headrace.base.log_lines import ROOT, ContextFormatter, JsonFormatter, error_lines
from headrace.base.secrets import Secrets, hidden_in_logs
from headrace.connectors.preview import PreviewSink, shown_by
from headrace.engine.chain import load_operator
from headrace.formats.json.format import encode_json_lines
from headrace.jobs.handle import start_job
from headrace.jobs.progress import Progress, RunResult
from headrace.jobs.settings import load_settings
from headrace.model.plan import Plan
from headrace.server.program import StoredProgram, describe_error

OUTCOME = "outcome.json"
REQUEST = "run.json"
_MOST_MESSAGES = 1000
_MOST_BATCHES = 200
_MOST_ROWS = 1000
"""Of one epoch: an output is looked at by people."""
_BATCHES_IN_ANSWER = 50


class RunMessages:
    """The last thousand warnings and errors of a run, numbered."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._lock = threading.Lock()
        self._messages: deque[dict[str, Any]] = deque(maxlen=_MOST_MESSAGES)
        self._next = 1

    def add(self, level: str, message: str, **more: Any) -> None:
        """Keep a message; `more` are its details, operator, subtask and domain."""
        with self._lock:
            entry = {"number": self._next, "time": time.time_ns() // 1000, "level": level}
            texts = {"message": self._secrets.hide(message)}
            self._messages.append(entry | texts | more)
            self._next += 1

    def after(self, number: int) -> list[dict[str, Any]]:
        """The messages behind a number."""
        with self._lock:
            return [message for message in self._messages if message["number"] > number]


class RecentRows:
    """The last rows that the previews of a run have shown, as JSON."""

    def __init__(self, operators: Mapping[str, str]) -> None:
        self._operators = operators
        self._lock = threading.Lock()
        self._batches: deque[dict[str, Any]] = deque(maxlen=_MOST_BATCHES)
        self._next = 1
        self._rows: dict[str, int] = {}

    def show(self, name: str, rows: pa.Table) -> None:
        """Keep the rows of an epoch."""
        operator = self._operators.get(name, name)
        times = (
            rows.column(TIMESTAMP).cast(pa.int64()).to_pylist()[:_MOST_ROWS]
            if TIMESTAMP in rows.column_names
            else []
        )
        shown = rows.slice(0, _MOST_ROWS)
        columns = [column for column in shown.column_names if column != TIMESTAMP]
        lines = encode_json_lines(shown.select(columns)).decode().splitlines()
        with self._lock:
            start = self._rows.get(operator, 0)
            self._rows[operator] = start + rows.num_rows
            self._batches.append(
                {
                    "number": self._next,
                    "operator_id": operator,
                    "subtask_idx": 0,
                    "timestamps": [value // 1000 for value in times],
                    "start_id": start,
                    "batch": f"[{','.join(lines)}]",
                }
            )
            self._next += 1

    def after(self, number: int) -> list[dict[str, Any]]:
        """The batches behind a number, not all of them at once."""
        with self._lock:
            return [batch for batch in self._batches if batch["number"] > number][:_BATCHES_IN_ANSWER]


class _WarningsAsMessages(logging.Handler):
    def __init__(self, messages: RunMessages) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warn"
        self._messages.add(level, record.getMessage())


def main(arguments: Sequence[str]) -> int:
    """Run the pipeline that a run directory asks for, and leave its outcome there."""
    directory, lock = Path(arguments[0]), int(arguments[1])
    os.set_inheritable(lock, False)  # Java and the workers must not keep it
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    request = json.loads((directory / REQUEST).read_text(encoding="utf-8"))
    program = StoredProgram.from_json(request["program"])
    messages = RunMessages(program.secrets)
    outcome: dict[str, Any] = {}
    _log_as(request["log"], program)
    handler = _WarningsAsMessages(messages)
    logging.getLogger("headrace").addHandler(handler)
    with hidden_in_logs(program.secrets):
        try:
            result = _run(program, request, directory, stop=stop, messages=messages)
            outcome = {
                "state": "finished" if result.reason == "finished" else "stopped",
                "reason": result.reason,
                "last_epoch": result.last_epoch if result.epochs else None,
                "exit_code": 0,
            }
        except BaseException as error:
            described = describe_error(error, program.secrets)
            outcome = {"state": "failed", "error": described, "exit_code": described["exit_code"]}
            if request["log"]["format"] == "json":
                lines = error_lines(error, pipeline=program.name, secrets=program.secrets)
                sys.stderr.write("".join(f"{line}\n" for line in lines))
            elif isinstance(error, HeadraceError):
                sys.stderr.write(f"{described['details']}\n")
            else:
                logging.getLogger("headrace.server").exception("the run failed")
    outcome["messages"] = messages.after(0)
    staged = directory / f".{OUTCOME}"
    staged.write_text(json.dumps(outcome), encoding="utf-8")
    staged.rename(directory / OUTCOME)
    return int(outcome["exit_code"])


def _log_as(log: Mapping[str, Any], program: StoredProgram) -> None:
    """Write what Headrace logs to stderr, as the server was told."""
    handler = logging.StreamHandler(sys.stderr)
    if log["format"] == "json":
        handler.setFormatter(JsonFormatter(program.secrets, pipeline=program.name))
    else:
        handler.setFormatter(ContextFormatter(program.secrets))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for area, level in log["level"].items():
        logging.getLogger(f"{ROOT}.{area}" if area else ROOT).setLevel(level.upper())


def _run(
    program: StoredProgram,
    request: Mapping[str, Any],
    directory: Path,
    *,
    stop: threading.Event,
    messages: RunMessages,
) -> RunResult:
    folder = Path(request["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    pipeline = program.load(folder)
    plan = pipeline.plan()
    output = RecentRows(_previews(plan))
    settings = load_settings(
        flags={
            "run": {
                "parallelism": request["parallelism"],
                "epoch_target": request["epoch_target"],
            },
            "state": {"dir": request["state_dir"]},
            "spark": {"master": request.get("master"), "conf": request.get("conf")},
            "log": {"dir": str(directory / "spark")},
        },
        flags_at="the settings of the pipeline",
    )

    def on_progress(progress: Progress) -> None:
        for error in progress.errors:
            messages.add("warn", error)

    with shown_by(output.show, with_times=True):
        run = start_job(
            plan,
            settings,
            from_epoch=request["from_epoch"],
            allow_drop=request["allow_drop"],
            on_progress=on_progress,
            stop=stop,
            questions={"messages": messages.after, "output": output.after, "served": lambda: True},
        )
        result = None
        while result is None:
            result = run.await_termination(0.5)  # returns to Python, so that signals are handled
    return result


def _previews(plan: Plan) -> dict[str, str]:
    """The operator of each preview, by the name that its rows are shown under."""
    operators = {node.id: load_operator(node) for node in plan.nodes if node.role == "sink"}
    return {sink.options.name: node for node, sink in operators.items() if isinstance(sink, PreviewSink)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
