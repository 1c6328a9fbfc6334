"""A real `headrace serve` for tests: started, asked, killed, started again on the same data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

PATIENCE = 300.0


class AnswerError(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


class Server:
    """A server process with a data directory."""

    def __init__(self, directory: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
        self.data = directory / "data"
        self._log = directory / "server.log"
        self._arguments = arguments
        self._environ = {**os.environ, "SPARK_TESTING": "1", **(environ or {})}
        self.token: str | None = None
        self.address = ""
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("ab") as log:
            at = log.tell()
            own = ["--port=0", f"--data-dir={self.data}"]
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "serve", *own, *self._arguments],
                stdout=log,
                stderr=log,
                env=self._environ,
            )
        ends, text = time.monotonic() + PATIENCE, ""
        while time.monotonic() < ends:
            text = self._log.read_text(encoding="utf-8")[at:]
            assert self.process.poll() is None, text
            if "serves at " in text and "Application startup complete" in text:
                self.address = text.partition("serves at ")[2].split()[0]
                return
            time.sleep(0.1)
        raise AssertionError(text)

    def kill(self) -> None:
        """Kill it as the machine would: nothing of it can say goodbye."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Stop all pipelines, then the server."""
        try:
            for job in self.get("/jobs")["data"]:
                self.patch(f"/pipelines/{job['pipeline_id']}", {"stop": "force"})
            for job in self.get("/jobs")["data"]:
                self.await_state(job["pipeline_id"], "Stopped", "Failed", "Finished")
        finally:
            self.process.terminate()
            self.process.wait(60)

    @property
    def log(self) -> str:
        """What it has written."""
        return self._log.read_text(encoding="utf-8")

    # ----------------------------------------------------------------------------------- requests

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The answer to a request as JSON; raises an AnswerError."""
        data = None if body is None else json.dumps(body).encode()
        address = f"{self.address}{path[3:]}" if path.startswith("/../") else f"{self.address}/api/v1{path}"
        request = Request(address, data, method=method, headers=headers)
        if body is not None:
            request.add_header("content-type", "application/json")
        if self.token is not None:
            request.add_header("authorization", f"Bearer {self.token}")
        try:
            with urlopen(request, timeout=PATIENCE) as answer:
                text = answer.read().decode()
        except HTTPError as error:
            with error:
                text = error.read().decode()
            raise AnswerError(error.code, json.loads(text) if text.startswith("{") else text) from None
        return json.loads(text) if text[:1] in '{["n' and text else text

    def get(self, path: str) -> Any:
        """GET."""
        return self.ask("GET", path)

    def post(self, path: str, body: Any) -> Any:
        """POST."""
        return self.ask("POST", path, body)

    def patch(self, path: str, body: Any) -> Any:
        """PATCH."""
        return self.ask("PATCH", path, body)

    def delete(self, path: str) -> Any:
        """DELETE."""
        return self.ask("DELETE", path)

    def events(self, path: str, body: Any = None) -> Iterator[Any]:
        """The server-sent events of a request, one after the other."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"accept": "text/event-stream", "content-type": "application/json"}
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        with urlopen(Request(f"{self.address}/api/v1{path}", data, headers), timeout=PATIENCE) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

    # ---------------------------------------------------------------------------------- pipelines

    def create(self, name: str, query: str, **more: Any) -> str:
        """Create a pipeline; returns its id."""
        return str(self.post("/pipelines", {"name": name, "query": query, **more})["id"])

    def job(self, pipeline: str) -> Any:
        """The job of a pipeline."""
        (job,) = self.get(f"/pipelines/{pipeline}/jobs")["data"]
        return job

    def await_state(self, pipeline: str, *states: str, run: int = 0) -> Any:
        """Wait until the job is in one of the states, at this run or a later one; returns the job."""
        ends = time.monotonic() + PATIENCE
        while True:
            job = self.job(pipeline)
            if job["state"] in states and job["run_id"] >= run:
                return job
            if time.monotonic() > ends or (job["state"] == "Failed" and "Failed" not in states):
                raise AssertionError(f"{job}\n{self.logs(pipeline)[-5000:]}\n{self.log[-3000:]}")
            time.sleep(0.1)

    def path(self, pipeline: str) -> str:
        """The path of the pipeline's job."""
        return f"/pipelines/{pipeline}/jobs/{self.job(pipeline)['id']}"

    def logs(self, pipeline: str) -> str:
        """What the pipeline's process has written."""
        return str(self.ask("GET", f"{self.path(pipeline)}/logs"))

    def await_checkpoint(self, pipeline: str, *, after: int = 0) -> Any:
        """Wait for a checkpoint behind an epoch; returns it."""
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            checkpoints = self.get(f"{self.path(pipeline)}/checkpoints")["data"]
            later = [checkpoint for checkpoint in checkpoints if checkpoint["epoch"] > after]
            if later:
                return later[0]
            time.sleep(0.1)
        raise AssertionError(self.log)


class Numbers:
    """A pipeline from a folder into another, with the numbers that were put into the first."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self._source, self._sink = folder / "in", folder / "out"
        self._source.mkdir()
        self._given = 0
        self.give()
        self.pipeline = server.create(
            "numbers",
            f"""CREATE TABLE numbers (n BIGINT) WITH (connector = 'filesystem', type = 'source',
                  format = 'json', path = '{self._source}', 'source.watch_interval' = '1s');
                CREATE TABLE written (n BIGINT) WITH (connector = 'filesystem', type = 'sink',
                  format = 'json', path = '{self._sink}');
                INSERT INTO written SELECT n FROM numbers""",
        )

    def give(self) -> None:
        """Put the next thousand numbers into the source, all at once."""
        rows = "".join(f'{{"n": {n}}}\n' for n in range(self._given, self._given + 1000))
        staged = self._source.parent / "staged.json"
        staged.write_text(rows)
        staged.rename(self._source / f"{self._given:06}.json")
        self._given += 1000

    @property
    def process(self) -> int:
        """The process that runs it now."""
        job = self.server.job(self.pipeline)
        runs = self.server.data / "jobs" / job["id"] / "runs"
        return int((max(runs.iterdir()) / "lock").read_text())

    def written(self) -> list[int]:
        """The numbers in the sink."""
        lines = [line for file in self._sink.rglob("*.json") for line in file.read_text().splitlines()]
        return sorted(json.loads(line)["n"] for line in lines)

    def await_all(self) -> None:
        """Wait until every number is in the sink, and see that each is there once."""
        ends = time.monotonic() + PATIENCE
        while len(written := self.written()) < self._given and time.monotonic() < ends:
            time.sleep(0.2)
        assert written == list(range(self._given)), self.server.logs(self.pipeline)[-5000:]
