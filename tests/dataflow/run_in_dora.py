"""Runs the conformance cases in the released dora and compares what they print.

    make bench-peers
    python -m tests.dataflow.run_in_dora --dora build/peers/dora [CASE …]

A case that says `same` must give the same transcript in dora, in one of several tries: dora may lose the
last messages of a stream, the more so on a busy machine. One that says `differs` must not: an expectation
that became true is to be changed. dora has one exit code for every failure, and its own texts for documents
it refuses; of those only the refusal is compared.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.dataflow.conformance.cases import HERE, Case, differences, find_cases, transcript

TRIES = 5
LONGEST = 15.0
"""Seconds after which dora is told to stop a case that should have ended by itself."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class DoraResult:
    """What a run in dora left behind."""

    exit_code: int
    units: dict[str, list[Any]]
    output: str
    """Everything the command printed."""


def run_in_dora(case: Case, dora: Path) -> DoraResult:
    """Run the case with the dora installed in the virtualenv `dora`, in a copy of the cases."""
    with _alone(), tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "conformance"
        shutil.copytree(HERE, copy, ignore=shutil.ignore_patterns("__pycache__", "out"))
        file = copy / case.name / "dataflow.yml"
        exit_code, output = _run(file, dora, stop_after=case.stop_after or LONGEST, env=dict(case.env))
        logs = {
            _unit(log, case): [
                _printed(entry["msg"])
                for entry in map(json.loads, log.read_text(encoding="utf-8").splitlines())
                if entry["stream"] == "stdout"
            ]
            for log in sorted(file.parent.glob("out/*/log_*.jsonl"))
        }
    return DoraResult(exit_code, transcript(logs), output)


@contextmanager
def _alone() -> Iterator[None]:
    """One run after the other, whoever asks: runs on the same machine find and disturb each other."""
    with (Path(tempfile.gettempdir()) / "headrace-run-in-dora.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(file: Path, dora: Path, *, stop_after: float, env: dict[str, str]) -> tuple[int, str]:
    """The exit code and the output of `dora run`; everything it started has ended afterwards."""
    dora = dora.resolve()
    path = f"{dora / 'bin'}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        [dora / "bin" / "dora", "run", file.name, "--stop-after", f"{int(stop_after * 1000)}ms"],
        cwd=file.parent,
        env={**os.environ, **env, "PATH": path, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=stop_after + 30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        output += f"\nkilled {stop_after + 30:.0f} seconds after its start"
    return process.returncode, _COLOUR.sub("", output)


def _printed(line: str) -> str:
    """A line without what dora's own log wrote between its text and its end."""
    return line[: json.JSONDecoder().raw_decode(line)[1]] if line.startswith("{") else line


def _unit(log: Path, case: Case) -> str:
    """The unit whose log it is: dora writes one log per node, of which a runtime node has one operator."""
    node = log.name.removeprefix("log_").removesuffix(".jsonl")
    return next((unit for unit in case.units if unit.startswith(f"{node}/")), node)


def compare(case: Case, result: DoraResult) -> list[str]:
    """How dora's run differs from the expected one; empty when it does not."""
    found = differences(case.units, result.units)
    if (result.exit_code != 0) != (case.exit_code != 0):
        found.append(f"exit code {result.exit_code}, not {case.exit_code}")
    if case.exit_code == 1 and case.error not in result.output:
        found.append(f"no `{case.error}` in the output")
    return found


def judge(case: Case, dora: Path) -> tuple[list[str], str]:
    """What is not true of what the case says about dora, and what dora printed."""
    result = run_in_dora(case, dora)
    tries = 1
    while case.same_in_dora and compare(case, result) and tries < TRIES:
        result = run_in_dora(case, dora)
        tries += 1
    found = compare(case, result)
    if case.same_in_dora:
        return found, result.output
    if case.dora.startswith("differs: ") and not found:
        return [f"dora gives what is expected, but the case says {case.dora!r}"], result.output
    return [], result.output


def main() -> int:
    """Run the cases named on the command line, or all, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.dataflow.run_in_dora", description=__doc__)
    parser.add_argument("--dora", type=Path, required=True, help="the virtualenv with dora")
    parser.add_argument("--output", action="store_true", help="show all that dora printed")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    arguments = parser.parse_args()
    wrong = 0
    for case in find_cases(arguments.cases):
        problems, output = judge(case, arguments.dora)
        wrong += bool(problems)
        sys.stdout.write(f"{'WRONG' if problems else 'ok   '} {case.name}: {case.dora}\n")
        for line in problems:
            sys.stdout.write(f"        {line}\n")
        if arguments.output:
            sys.stdout.write(output + "\n")
        sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
