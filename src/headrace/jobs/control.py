"""The socket of a running pipeline: another process of the same user asks how it is, or tells it what to do.

The socket is in the user's private directory, so nobody else can reach it; the kernel's word on who asks is
checked all the same. A question is a line of JSON, its name and arguments, and so is its answer.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from headrace.base.errors import ConfigurationError, ExternalError, UserError
from headrace.base.private import socket_address, socket_addresses, user_at

_log = logging.getLogger("headrace.run")

_SUFFIX = "-control"
_ANSWER_SECONDS = 5.0
_LONGEST = 64 * 1024 * 1024


class ControlSocket:
    """Answers requests about one run in a separate thread while the block runs.

    `status` says how the run is, as plain values, and `metrics` what it has measured; `stop` asks it to stop,
    and `rescale` to go on with another parallelism. Neither waits until that is done. `questions` are others,
    by their names; a UserError is told to the asker.
    """

    def __init__(
        self,
        status: Callable[[], Mapping[str, Any]],
        stop: Callable[[], None],
        metrics: Callable[[], Mapping[str, Any]] = dict,
        rescale: Callable[[int], None] | None = None,
        *,
        questions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        own = {"status": status, "stop": stop, "metrics": metrics}
        self._questions: dict[str, Callable[..., Any]] = {**own, **questions}
        if rescale is not None:
            self._questions["rescale"] = rescale
        self._listener: socket.socket | None = None
        self._address: Path | None = None

    def __enter__(self) -> Self:
        try:
            self._address = socket_address(os.getpid(), f"{secrets.token_hex(4)}{_SUFFIX}")
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(self._address))
            self._address.chmod(0o600)
            listener.listen()
        except (OSError, ConfigurationError) as error:
            _log.warning("`headrace list` and `headrace stop` will not find this run: %s", error)
            return self
        self._listener = listener
        threading.Thread(target=self._serve, args=(listener,), name="headrace-control", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        if self._address is not None:
            self._address.unlink(missing_ok=True)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                asker, _ = listener.accept()
            except OSError:
                return  # the run is over
            with asker, contextlib.suppress(OSError, ValueError):
                asker.settimeout(_ANSWER_SECONDS)
                if user_at(asker) == os.geteuid():
                    self._answer(asker)

    def _answer(self, asker: socket.socket) -> None:
        with asker.makefile("rwb") as lines:
            question = json.loads(lines.readline(_LONGEST))
            function, arguments = self._questions.get(question["ask"]), question.get("with", [])
            try:
                answer = (
                    {"unknown": question["ask"]} if function is None else {"answer": function(*arguments)}
                )
            except UserError as error:
                answer = {"refused": error.message, "hint": error.hint}
            lines.write(json.dumps(answer, default=str).encode() + b"\n")


@dataclass(frozen=True)
class RunningPipeline:
    """A run of this user on this machine, as it answers through its socket."""

    address: Path
    status: Mapping[str, Any]

    def stop(self) -> None:
        """Ask it to finish its epoch, commit it and stop; returns at once."""
        _ask(self.address, "stop")

    def rescale(self, parallelism: int) -> None:
        """Ask it to go on with another parallelism; returns at once."""
        _ask(self.address, "rescale", parallelism)

    def ask(self, question: str, *arguments: Any) -> Any:
        """Send a request to a run; raises an ExternalError if it does not support it."""
        return _ask(self.address, question, *arguments)

    def metrics(self) -> Mapping[str, Any]:
        """What it has measured, as `PipelineRun.metrics_snapshot` returns it."""
        measured: Mapping[str, Any] = _ask(self.address, "metrics")
        return measured

    def ask_again(self) -> RunningPipeline | None:
        """How it is now; None once it is over."""
        try:
            return RunningPipeline(self.address, _ask(self.address, "status"))
        except OSError:
            return None


def running_pipelines() -> list[RunningPipeline]:
    """The runs of this user on this machine; sockets that nobody answers any more are removed."""
    return sorted(_running(_SUFFIX), key=lambda pipeline: str(pipeline.status.get("started")))


def running_in(pid: int) -> RunningPipeline | None:
    """The run of a process, once it answers."""
    return next(iter(_running(_SUFFIX, owner=pid)), None)


def _running(suffix: str, *, owner: int | None = None) -> list[RunningPipeline]:
    running = []
    for address in socket_addresses(suffix, owner=owner):
        try:
            running.append(RunningPipeline(address, _ask(address, "status")))
        except ConnectionRefusedError:
            address.unlink(missing_ok=True)  # its process was killed
        except OSError:
            continue  # it ends, or does not answer
    return running


def _ask(address: Path, question: str, *arguments: Any) -> Any:
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(_ANSWER_SECONDS)
        asked.connect(str(address))
        with asked.makefile("rwb") as lines:
            asking: dict[str, Any] = {"ask": question}
            if arguments:
                asking["with"] = arguments
            lines.write(json.dumps(asking).encode() + b"\n")
            lines.flush()
            line = lines.readline(_LONGEST)
    if not line:
        raise ConnectionResetError("it has closed the connection")
    answer = json.loads(line)
    if "refused" in answer:
        raise UserError(answer["refused"], hint=answer.get("hint"))
    if "answer" not in answer:
        raise ExternalError(
            f"the run has no answer for the question `{question}`",
            hint="it is of another version of Headrace; Ctrl-C and SIGTERM stop it",
        )
    return answer["answer"]
