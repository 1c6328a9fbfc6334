"""One run of the two operators: the load, and what the operators measured."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

OPERATORS = Path(__file__).parent / "operators"
RESIDENT, EPOCHS = "headrace", "headrace (epochs)"
"""Headrace as it runs a dataflow by itself on one machine, and with `--execution epochs`."""
ENGINES = (RESIDENT, EPOCHS, "dora", "dora (default policy)")
"""dora is asked not to drop, by `queue_policy: backpressure`; its default policy is measured besides."""

_DATAFLOW = """\
nodes:
  - id: produce
    env: {{BYTES: {bytes}, BURST: {burst}, SECONDS: {seconds}}}
    operator:
      python: operators/produce.py
      inputs:
        tick: dora/timer/millis/{period}
      outputs: [n]
  - id: consume
    operator:
      python: operators/consume.py
      inputs:
        n:
          source: produce/n
          queue_size: {queue}
{policy}"""


@dataclass(frozen=True)
class Load:
    """What the producer sends: arrays of `bytes`, `burst` of them every `period` milliseconds."""

    name: str
    bytes: int
    burst: int
    period: int
    queue: int
    """`queue_size` at the consumer: as much as dora needs not to drop, within the memory there is."""
    longer: float = 1.0
    """A factor for the duration; latencies need some time after the start."""


LOADS = (
    Load("8 bytes, as fast as it goes", 8, 2_000, 5, 10_000),
    Load("1 MB, as fast as it goes", 1 << 20, 10, 5, 100),
    Load("8 bytes, 100 per second", 8, 1, 10, 1_000, longer=2),
    Load("1 MB, 20 per second", 1 << 20, 1, 50, 100, longer=2),
)


@dataclass(frozen=True)
class Run:
    """What the operators counted and measured in one run."""

    engine: str
    load: str
    sent: int
    got: int
    late: int
    seconds: float
    from_send: tuple[float, ...]
    """Milliseconds from send_output to on_event: the median, the 95th and the 99th percentile."""
    from_tick: tuple[float | None, ...]
    """Milliseconds from the tick that a message was sent at to on_event; of ticks after the first message."""

    @property
    def rate(self) -> float:
        """Messages per second between the first and the last that arrived."""
        return (self.got - 1) / self.seconds if self.seconds else 0.0

    @property
    def lost(self) -> float:
        """The share of the messages that did not arrive."""
        return 1 - self.got / self.sent


class RunFailedError(Exception):
    """An engine did not run the dataflow to its end."""


def run(engine: str, load: Load, *, seconds: float, dora: Path | None) -> Run:
    """Run the load once; raises a RunFailedError with the end of what the engine wrote."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        shutil.copytree(OPERATORS, directory / "operators", ignore=shutil.ignore_patterns("__pycache__"))
        policy = "          queue_policy: backpressure\n" if engine == "dora" else ""
        text = _DATAFLOW.format(
            bytes=load.bytes,
            burst=load.burst,
            period=load.period,
            queue=load.queue,
            seconds=load.longer * seconds,
            policy=policy,
        )
        (directory / "dataflow.yml").write_text(text, encoding="utf-8")
        written = _execute(engine, directory, dora, limit=load.longer * seconds + 120)
    figures: dict[str, object] = {}
    for line in written.splitlines():
        at = line.find('{"')
        if at >= 0:
            figures |= _read(line[at:])
    if "sent" not in figures or "got" not in figures:
        raise RunFailedError(f"{engine}, {load.name}: no result; it wrote\n{written[-3000:]}")
    return Run(engine=engine, load=load.name, **figures)  # type: ignore[arg-type]


def _read(text: str) -> dict[str, object]:
    try:
        value = json.JSONDecoder().raw_decode(text)[0]
    except json.JSONDecodeError:
        return {}
    return {name: each for name, each in value.items() if name in Run.__dataclass_fields__}


def _execute(engine: str, directory: Path, dora: Path | None, *, limit: float) -> str:
    """The output of the engine; its children are ended afterwards."""
    env = dict(os.environ)
    if engine in {RESIDENT, EPOCHS}:
        command = [str(Path(sys.executable).parent / "headrace"), "run", "dataflow.yml"]
        command += ["--execution", "resident" if engine == RESIDENT else "epochs"]
    else:
        assert dora is not None
        env["PATH"] = f"{dora / 'bin'}{os.pathsep}{env['PATH']}"
        command = [str(dora / "bin" / "dora"), "run", "dataflow.yml", "--stop-after", f"{limit - 60:.0f}s"]
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]
