"""A task that stays in a process of its own, without Spark: what it does when it is killed.

`python -m tests.dataflow.resident_worker PORT`, with the secret on stdin, is the worker.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.api.pipeline import Pipeline
from headrace.base.errors import WorkerError
from headrace.base.retry import Backoff
from headrace.engine.context import EpochContext
from headrace.engine.driver import EpochDriver
from headrace.engine.envelope import Envelope
from headrace.engine.loop import EpochLoop
from headrace.engine.offsets import EpochSize
from headrace.engine.reports import EpochReport
from headrace.engine.resident import Extension, Onwards
from headrace.engine.stages import StagePlan, cut_stages
from headrace.engine.task import SplitTask
from headrace.exchanges.link import Listener, connect
from headrace.exchanges.resident import StayingExchange
from headrace.exchanges.serve import Conversation, serve
from headrace.model.ahead import Positions
from headrace.storage.open import open_storage

REPOSITORY = Path(__file__).parents[2]


class ProcessTask:
    """A `ResidentTask` in a process that can be killed."""

    def __init__(self) -> None:
        self._listener = Listener("127.0.0.1")
        self._stages: StagePlan | None = None
        self._task: Conversation | None = None
        self.workers: list[subprocess.Popen[bytes]] = []

    def use(self, stages: StagePlan) -> None:
        self._stages = stages

    def run(self, tasks: Sequence[SplitTask], context: EpochContext) -> list[Envelope]:
        if self._task is None:
            self._start()
        envelopes: list[Envelope] = self._ask("run", tasks, context)
        return envelopes

    def _start(self) -> None:
        command = [sys.executable, "-m", "tests.dataflow.resident_worker", str(self._listener.port)]
        worker = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE)
        self.workers.append(worker)
        assert worker.stdin is not None
        with worker.stdin as pipe:
            pipe.write(self._listener.secret)
        link = None
        while link is None:
            assert worker.poll() is None
            link = self._listener.accept(0.2)
        self._task = Conversation(link)
        self._ask("use", pickle.dumps(self._stages))

    def go_on(self, onwards: Onwards) -> bool:
        return bool(self._ask("go_on", onwards))

    def wants_cut(self) -> bool:
        return bool(self._guarded(lambda task: task.wants_cut()))

    def cut(self) -> Positions | None:
        positions: Positions | None = self._ask("cut")
        return positions

    def extend(self, extensions: Mapping[str, Extension]) -> bool:
        return bool(self._ask("extend", extensions))

    def _ask(self, what: str, *arguments: Any) -> Any:
        return self._guarded(lambda task: task.ask(what, *arguments))

    def _guarded(self, action: Callable[[Conversation], Any]) -> Any:
        task = self._task
        if task is None:
            raise WorkerError("the worker is not there")
        try:
            return action(task)
        except (EOFError, OSError) as error:
            task.hang_up()
            self._task = None
            raise WorkerError("the worker is lost") from error

    def check(self) -> None:
        """Nothing else can be lost."""

    def cancel(self) -> None:
        self.workers[-1].kill()

    def close(self) -> None:
        if self._task is not None:
            self._task.end()
        self._listener.close()
        for worker in self.workers:
            worker.wait(30)


def run_with_worker(
    file: Path,
    state: Path,
    task: ProcessTask,
    *,
    on_epoch: Callable[[EpochReport], None] = lambda _report: None,
    wait: Callable[[], None] = lambda: None,
    stop: threading.Event | None = None,
    epoch_rows: int | None = None,
) -> EpochDriver:
    """Run a dataflow in the task until it ends or is stopped; `wait` is called when nothing is due."""
    stop = stop or threading.Event()
    driver = EpochDriver(
        cut_stages(Pipeline.from_dataflow(file).plan(), parallelism=1), open_storage(str(state))
    )
    driver.open()
    exchange = StayingExchange(task, target=0.2, most=epoch_rows, stop=stop, now=time.time)

    def report(epoch: EpochReport) -> bool:
        on_epoch(epoch)
        return epoch.finished

    def pause(_idle: int) -> None:
        wait()
        stop.wait(0.005)

    try:
        EpochLoop(
            driver,
            exchange,
            size=EpochSize(target=0.2, most=epoch_rows),
            on_epoch=report,
            stop=stop,
            restarts=5,
            question_retries=5,
            backoff=Backoff(first=0.0, longest=0.0),
            wait=pause,
            resident=exchange,
        ).run()
    finally:
        exchange.close()
    return driver


if __name__ == "__main__":
    link = connect(("127.0.0.1", int(sys.argv[1])), sys.stdin.buffer.read())
    serve(link, pickle.loads)
