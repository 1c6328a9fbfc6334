"""Tests of SQL files by their expected rows, run uninterrupted, stopped, killed and rescaled.

A case is `name.sql` with one of

- `name.expected.jsonl`: the rows of its only sink or bare SELECT, JSON objects, one a line, in any order;
- `name.<table>.expected.jsonl` for each of several; bare SELECTs are called `select`, `select_2`, …;
- `name.error.txt`: the error message if the SQL is refused.

User-defined functions of a case are in `name.udf.py` beside it.

Paths in the SQL are relative to its file. Nothing is written to its sinks: their rows are collected instead;
of an updating result, its final rows. Rows are compared as the JSON format writes them; numbers exactly,
unless one of the first lines of the SQL is a comment `-- approx: 1e-9`.
"""

from __future__ import annotations

import glob
import math
import re
import tempfile
import time as clock
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from headrace.api.pipeline import Pipeline
from headrace.api.run_options import RunOptions
from headrace.base.errors import HeadraceError, UserError, suggest
from headrace.base.spans import Source
from headrace.functions.user import load_udfs
from headrace.jobs.progress import RunResult
from headrace.model.fragments import Function
from headrace.sql.compile import Preview
from headrace.testing.in_process import CrashError, ManualClock, run_in_process
from headrace.testing.row_comparison import Rows, differences, read_rows, standing_rows

EXPECTED = ".expected.jsonl"
ERROR = ".error.txt"
FUNCTIONS = ".udf.py"
ONLY = ""
"""The key of the expected rows when a program has one result."""

EPOCHS = 8
"""The approximate number of epochs of a run that is to be stopped or killed."""
MOST_EPOCHS = 500
"""An uninterrupted run with more epochs does not seem to end."""
IDLE_SECONDS = 10.0
"""How far the clock moves when no source has anything new."""
STEPS = ("metadata_written", "begin", "sink_committed", "tasks_done", "committed", "operators_written")
"""The steps of an epoch at which runs are killed, in turn."""

_APPROX = re.compile(r"--\s*approx:\s*(\S+)\s*$")


@dataclass(frozen=True)
class Case:
    """One SQL file, and what is expected of it."""

    name: str
    sql: Path
    expected: Mapping[str, Path] = field(default_factory=dict)
    """The file with the rows of each result; of the only one under `ONLY`."""
    error: Path | None = None

    @cached_property
    def text(self) -> str:
        """The SQL."""
        return self.sql.read_text(encoding="utf-8")

    @property
    def tolerance(self) -> float | None:
        """The relative tolerance for numbers that are not integers; None if they must be equal."""
        for line in self.text.splitlines():
            if line.strip() and not line.startswith("--"):
                return None
            if match := _APPROX.fullmatch(line.rstrip()):
                try:
                    return float(match[1])
                except ValueError:
                    raise UserError(f"`{match[1]}` is not a number", where=str(self.sql)) from None
        return None

    def file_of(self, output: str) -> Path:
        """Where the expected rows of a result are, or would be."""
        middle = f".{output}" if output else ""
        return self.sql.with_name(f"{self.sql.stem}{middle}{EXPECTED}")


@dataclass(frozen=True)
class CaseFailure:
    """What went wrong with a case: in which run, and which rows differ."""

    title: str
    detail: str = ""
    missing: Sequence[str] = ()
    """Expected rows that are not in the result."""
    unexpected: Sequence[str] = ()
    """Rows of the result that are not expected."""

    def lines(self, most: int = 20) -> list[str]:
        """The differences, `− ` before expected rows and `+ ` before those of the result."""
        rows = [*((row, f"− {row}") for row in self.missing), *((row, f"+ {row}") for row in self.unexpected)]
        lines = [line for _, line in sorted(rows)[:most]]
        if len(rows) > most:
            lines.append(f"… and {len(rows) - most} others")
        return [*self.detail.splitlines(), *lines]

    def __str__(self) -> str:
        return "\n".join([self.title, *(f"  {line}" for line in self.lines())])


@dataclass(frozen=True)
class CaseResult:
    """The result of a case."""

    case: Case
    seconds: float
    failures: Sequence[CaseFailure] = ()
    written: Sequence[Path] = ()
    """The files that were updated."""

    @property
    def passed(self) -> bool:
        """Whether everything was as expected."""
        return not self.failures

    def __str__(self) -> str:
        return "\n".join([self.case.name, *map(str, self.failures)])


def find_cases(path: str | Path) -> list[Case]:
    """The case of a SQL file, or the cases of all SQL files below a directory, by name."""
    root = Path(path)
    if root.is_file():
        if root.suffix != ".sql":
            raise UserError(f"{root} is not a .sql file", hint="name a .sql file or a directory of them")
        return [_case(root, root.stem)]
    if not root.is_dir():
        siblings = [sibling.name for sibling in root.parent.glob("*")] if root.parent.is_dir() else []
        raise UserError(f"there is no file or directory {root}", hint=suggest(root.name, siblings))
    cases = [_case(sql, str(sql.relative_to(root).with_suffix(""))) for sql in sorted(root.rglob("*.sql"))]
    if not cases:
        raise UserError(f"there is no .sql file in {root}")
    used = {file for case in cases for file in (*case.expected.values(), case.error)}
    for file in sorted([*root.rglob(f"*{EXPECTED}"), *root.rglob(f"*{ERROR}")]):
        if file not in used:
            stem = file.name.removesuffix(EXPECTED).removesuffix(ERROR)
            raise UserError(
                f"{file} belongs to no test: there is no {stem}.sql beside it",
                hint=suggest(
                    f"{stem}.sql", [case.sql.name for case in cases if case.sql.parent == file.parent]
                ),
            )
    return cases


def _case(sql: Path, name: str) -> Case:
    prefixes = {f"{sibling.stem}." for sibling in sql.parent.glob(f"{glob.escape(sql.stem)}.*.sql")}
    expected = {}
    for file in sorted(sql.parent.glob(f"{glob.escape(sql.stem)}.*")):
        stem = file.name.removesuffix(EXPECTED) + "."
        if file.name.endswith(EXPECTED) and not any(stem.startswith(other) for other in prefixes):
            expected[stem.removeprefix(f"{sql.stem}.").removesuffix(".")] = file
    error = sql.with_name(f"{sql.stem}{ERROR}")
    error_file = error if error.exists() else None
    if error_file is not None and expected:
        raise UserError(
            f"{sql} cannot both be refused and have rows",
            hint=f"remove {error_file.name} or {', '.join(file.name for file in expected.values())}",
        )
    return Case(name, sql, expected, error_file)


def run_case(
    case: Case, *, functions: Iterable[Function] = (), spark: bool = False, update: bool = False
) -> CaseResult:
    """Run a case in several ways and compare its rows with the expected ones.

    In this process: uninterrupted; in small epochs, stopped in the middle and resumed with more subtasks;
    killed at several steps of its epochs and resumed at other parallelisms. With `spark` on Spark:
    uninterrupted; stopped and resumed. With `update` the expected rows are updated, if all runs agree.
    """
    began = clock.monotonic()
    with chdir(case.sql.parent):
        here = Case(case.name, Path(case.sql.name), _names(case.expected), _name(case.error))
        failures, written = _Run(here, (*functions, *own_functions(here)), spark=spark, update=update).all()
    folder = case.sql.parent
    return CaseResult(case, clock.monotonic() - began, failures, [folder / file for file in written])


def own_functions(case: Case) -> list[Function]:
    """The functions in the Python file beside a case."""
    file = case.sql.with_name(f"{case.sql.stem}{FUNCTIONS}")
    return list(load_udfs(file)) if file.exists() else []


def compile_case(
    case: Case, *, functions: Iterable[Function] = (), prefix: str = ""
) -> tuple[Pipeline, dict[str, Preview]]:
    """The pipeline of a case with its rows collected in memory, and the schema of each result.

    Results are named `prefix` and their table; paths in the SQL are relative to the working directory.
    """
    outputs: dict[str, Preview] = {}

    def collect(output: str, preview: Preview) -> tuple[str, dict[str, Any]]:
        outputs[output] = preview
        return "memory", {"name": f"{prefix}{output}"}

    def show(preview: Preview) -> tuple[str, dict[str, Any]]:
        selects = sum(output.split("_")[0] == "select" for output in outputs)
        return collect(f"select_{selects + 1}" if selects else "select", preview)

    source = Source(case.sql.name, case.text)
    pipeline = Pipeline.from_sql([source], udfs=functions, name="test", preview=show, sinks=collect)
    return pipeline, outputs


def _names(files: Mapping[str, Path]) -> dict[str, Path]:
    return {output: Path(file.name) for output, file in files.items()}


def _name(file: Path | None) -> Path | None:
    return None if file is None else Path(file.name)


class _Run:
    """The runs of one case, in the directory of its file."""

    def __init__(self, case: Case, functions: tuple[Function, ...], *, spark: bool, update: bool) -> None:
        self.case = case
        self.functions = functions
        self.spark = spark
        self.update = update
        self.outputs: dict[str, Preview] = {}
        self.failures: list[CaseFailure] = []
        self.written: list[Path] = []

    def all(self) -> tuple[list[CaseFailure], list[Path]]:
        try:
            if self.case.error is not None:
                self._check_refused(self.case.error)
            else:
                self._check_rows()
        except HeadraceError as error:
            self.failures.append(CaseFailure("it failed", str(error)))
        except Exception:  # noqa: BLE001 - a bug must not keep the other cases from being run
            self.failures.append(
                CaseFailure("it failed because of a bug in Headrace", traceback.format_exc())
            )
        return self.failures, self.written

    def _pipeline(self) -> Pipeline:
        pipeline, self.outputs = compile_case(self.case, functions=self.functions)
        return pipeline

    # ---------------------------------------------------------------------------------------- refusal

    def _check_refused(self, file: Path) -> None:
        expected = file.read_text(encoding="utf-8").strip()
        try:
            self._pipeline().plan()
        except UserError as error:
            message = str(error)
        else:
            self.failures.append(CaseFailure(f"it is accepted, and {file.name} says that it is refused"))
            return
        if message.strip() == expected:
            return
        if self.update:
            self._write(file, f"{message.strip()}\n")
        else:
            missing, unexpected = expected.splitlines(), message.strip().splitlines()
            detail = "\n".join([*(f"− {line}" for line in missing), *(f"+ {line}" for line in unexpected)])
            self.failures.append(CaseFailure("it is refused with other words", detail))

    # ------------------------------------------------------------------------------------------- rows

    def _check_rows(self) -> None:
        try:
            pipeline = self._pipeline()
            pipeline.plan()
        except UserError as error:
            hint = f"if it should be refused, say so in {self.case.sql.stem}{ERROR}"
            self.failures.append(CaseFailure("it is refused", f"{error}\n({hint})"))
            return
        expected = self._expected()
        if not expected and not self.update:
            return
        passes = self._passes_on_spark(pipeline) if self.spark else self._passes(pipeline)
        first: dict[str, Rows] | None = None
        for name, run in passes:
            with tempfile.TemporaryDirectory(prefix="headrace-test-") as state:
                lives = run(state)
            if lives[-1].reason != "finished":
                why = f"it does not come to an end: {lives[-1].last_epoch} epochs, {lives[-1].rows_in} rows"
                hint = "sources of tests must have an end, such as `message_count`"
                self.failures.append(CaseFailure(f"{name}: {why}", f"({hint})"))
                return
            actual = {
                output: standing_rows(lives, output, preview) for output, preview in self.outputs.items()
            }
            late = sum(life.late_rows for life in lives)
            if first is not None and self.update:
                self._compare(f"{name}, compared with the whole run", first, actual, late)
            elif not self.update:
                self._compare(name, expected, actual, late)
            first = first or actual
        if self.update and not self.failures and first is not None:
            self._write_rows(expected, first)

    def _expected(self) -> dict[str, Rows]:
        """The expected rows of each result that has a file."""
        only = next(iter(self.outputs)) if len(self.outputs) == 1 else None
        expected: dict[str, Rows] = {}
        for output, file in self.case.expected.items():
            name = only if output == ONLY and only is not None else output
            if name in self.outputs:
                expected[name] = read_rows(file)
            else:
                results = ", ".join(self.outputs)
                why = f"there is no result `{name}`" if name else "there are several results"
                self.failures.append(CaseFailure(f"{file.name}: {why}", f"the results are {results}"))
        if not self.update:
            for output in self.outputs.keys() - expected.keys():
                file = self._file(output)
                self.failures.append(CaseFailure(f"there is no {file.name}", "(--update writes it)"))
        return expected

    def _file(self, output: str) -> Path:
        only = len(self.outputs) == 1 and output not in self.case.expected
        return self.case.file_of(ONLY if only else output)

    def _compare(
        self, name: str, expected: Mapping[str, Rows], actual: Mapping[str, Rows], late: int
    ) -> None:
        for output in self.outputs:
            if output not in expected:
                continue
            missing, unexpected = differences(expected[output], actual[output], self.case.tolerance)
            if missing or unexpected:
                result = f", {output}" if len(self.outputs) > 1 else ""
                counts = f": rows missing {len(missing)}, unexpected {len(unexpected)}"
                detail = f"({late} rows came too late)" if late else ""
                self.failures.append(CaseFailure(f"{name}{result}{counts}", detail, missing, unexpected))

    def _write_rows(self, expected: Mapping[str, Rows], actual: Mapping[str, Rows]) -> None:
        for output, rows in actual.items():
            same = output in expected and not any(differences(expected[output], rows, self.case.tolerance))
            if not same:
                self._write(self._file(output), "".join(f"{row}\n" for row in sorted(rows.elements())))

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text, encoding="utf-8")
        self.written.append(file)

    # ------------------------------------------------------------------------------------------ passes

    def _passes(self, pipeline: Pipeline) -> Iterable[tuple[str, Callable[[str], list[RunResult]]]]:
        read = 0

        def uninterrupted(state: str) -> list[RunResult]:
            nonlocal read
            now = ManualClock(idle_seconds=IDLE_SECONDS)
            result = run_in_process(pipeline, state, parallelism=1, max_epochs=MOST_EPOCHS, clock=now)
            read = result.rows_in
            return [result]

        yield "whole", uninterrupted
        rows = max(1, math.ceil(read / EPOCHS))
        yield "stopped and resumed", lambda state: _stopped(pipeline, state, rows)
        yield "killed and resumed", lambda state: _killed(pipeline, state, rows)

    def _passes_on_spark(self, pipeline: Pipeline) -> Iterable[tuple[str, Callable[[str], list[RunResult]]]]:
        read = 0

        def uninterrupted(state: str) -> list[RunResult]:
            nonlocal read
            result = pipeline.run(state, parallelism=1, max_epochs=MOST_EPOCHS)
            read = result.rows_in
            return [result]

        yield "whole on Spark", uninterrupted
        rows = max(1, math.ceil(read / EPOCHS))
        yield (
            "stopped and resumed on Spark",
            lambda state: [
                pipeline.run(state, parallelism=2, epoch_rows=rows, max_epochs=EPOCHS // 2),
                pipeline.run(state, parallelism=3, epoch_rows=rows),
            ],
        )


def _stopped(pipeline: Pipeline, state: str, rows: int) -> list[RunResult]:
    now = ManualClock(idle_seconds=IDLE_SECONDS)
    return [
        run_in_process(
            pipeline,
            state,
            parallelism=parallelism,
            epoch_rows=rows,
            max_epochs=epochs,
            clock=now,
            seed=parallelism,
        )
        for parallelism, epochs in ((2, EPOCHS // 2), (3, None))
    ]


def _killed(pipeline: Pipeline, state: str, rows: int) -> list[RunResult]:
    """Kill a run repeatedly, each time one epoch later and at another step; the last attempt finishes it.

    The rows that the killed attempts had collected are still in this process, and an epoch that is committed
    again replaces itself: the last attempt has all rows.
    """
    now = ManualClock(idle_seconds=IDLE_SECONDS)
    for turn in range(len(STEPS) + 1):
        try:
            result = run_in_process(
                pipeline,
                state,
                parallelism=1 + turn % 3,
                epoch_rows=rows,
                clock=now,
                seed=turn,
                on_step=_killer(turn),
                options=RunOptions(compact_after=2),
            )
        except CrashError:
            continue
        return [result]
    raise AssertionError("the last life is not killed")


def _killer(turn: int) -> Callable[[str, int], None]:
    def step(name: str, epoch: int) -> None:
        if turn < len(STEPS) and epoch > turn and name.partition(":")[0] == STEPS[turn]:
            raise CrashError(f"{name} of epoch {epoch}")

    return step
