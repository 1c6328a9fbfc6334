"""Rows wait for the calls of an asynchronous function, and leave once, whatever happens."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import ConfigurationError, ExpressionError, ExternalError, PlanError
from headrace.functions.asynchronous import AsyncFunction
from headrace.jobs.progress import RunResult
from headrace.operators import pending_calls
from headrace.operators.async_call import AsyncCall
from headrace.testing.in_process import CrashError, run_in_process

ROWS = [{"n": n, "text": None if n == 5 else f"t{n}"} for n in range(20)]
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("_timestamp", pa.timestamp("ns"))])


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_calls, "FIRST_PAUSE", 0.005)
    monkeypatch.setattr(pending_calls, "LONGEST_PAUSE", 0.02)


def pipeline(function: Any, *columns: str, rows: Any = ROWS) -> hr.Pipeline:
    made = hr.Pipeline("calls")
    stream = (
        made.source("memory", rows=rows)
        .watermark()
        .call(function, *columns, into="r", schema=SCHEMA, id="call")
    )
    stream.sink("memory", name="out")
    return made


def run(function: Any, *columns: str, state: Path, **settings: Any) -> RunResult:
    return run_in_process(pipeline(function, *columns), state, **settings)


def rows_of(result: RunResult) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = result.rows["out"].to_pylist()
    return rows


def write_down(file: Path, what: object) -> None:
    with file.open("a") as log:
        log.write(f"{what}\n")


def slow_first() -> AsyncFunction:
    @hr.async_udf(ordered=True, max_in_flight=7)
    async def answer(n: int, text: str | None) -> str:
        await asyncio.sleep(0.02 if n % 7 == 0 else 0)
        return f"{n}/{text}"

    return answer


def test_ordered_rows_leave_as_they_came_and_others_as_they_are_answered(tmp_path: Path) -> None:
    found = rows_of(run(slow_first(), "n", "text", state=tmp_path, parallelism=1))
    assert [row["n"] for row in found] == list(range(20))
    assert [row["r"] for row in found] == [f"{row['n']}/{row['text']}" for row in ROWS]

    @hr.async_udf
    async def answer(n: int) -> int:
        await asyncio.sleep(0.05 if n == 0 else 0)
        return n * 10

    batches = [ROWS[:10], ROWS[10:]]
    made = hr.Pipeline("calls")
    streams = [made.source("memory", rows=one, id=f"s{i}") for i, one in enumerate(batches)]
    streams[0].union(streams[1]).call(answer, "n", into="r", schema=SCHEMA).sink("memory", name="out")
    found = rows_of(run_in_process(made, tmp_path / "b", parallelism=1))
    assert sorted(row["r"] for row in found) == [n * 10 for n in range(20)]


def test_a_null_is_not_asked_about(tmp_path: Path) -> None:
    @hr.async_udf
    async def length(text: str) -> int:
        return len(text)

    found = rows_of(run(length, "text", state=tmp_path))
    assert {row["n"]: row["r"] for row in found}[5] is None
    assert sum(row["r"] is None for row in found) == 1


def test_only_so_many_calls_are_on_their_way_at_a_time(tmp_path: Path) -> None:
    @hr.async_udf(max_in_flight=3)
    async def answer(n: int) -> int:
        write_down(tmp_path / "log", 1)
        await asyncio.sleep(0.01)
        write_down(tmp_path / "log", -1)
        return n

    assert len(rows_of(run(answer, "n", state=tmp_path / "state", parallelism=1))) == 20
    changes = [int(line) for line in (tmp_path / "log").read_text().split()]
    assert max(itertools.accumulate(changes)) == 3
    assert len(changes) == 40


def test_a_raise_shows_the_row_and_the_users_line(tmp_path: Path) -> None:
    @hr.udf(retries=0)
    async def broken(n: int, text: str | None) -> int:
        await asyncio.sleep(len(text or "") / 10000)
        return n // (n - 3)

    with pytest.raises(ExpressionError) as caught:
        run(broken, "n", "text", state=tmp_path)
    assert caught.value.message.startswith("udf `broken` raised ZeroDivisionError")
    assert "for the row n=3, text='t3'" in caught.value.message
    assert "return n // (n - 3)" in caught.value.traceback_text
    assert "headrace/operators" not in caught.value.traceback_text


def test_what_takes_too_long_is_an_error_that_a_restart_may_mend(tmp_path: Path) -> None:
    @hr.udf(timeout="20ms", retries=1)
    async def stuck(n: int) -> int:
        if n == 2:
            await asyncio.sleep(3600)
        return n

    with pytest.raises(ExternalError) as caught:
        run(stuck, "n", state=tmp_path)
    assert caught.value.message == "udf `stuck` did not answer within 20ms for the row n=2, called 2 times"
    assert caught.value.retry

    @hr.udf(retries=0)
    async def refused(n: int) -> int:
        raise ConnectionRefusedError(f"nobody is at {n % 1}")

    with pytest.raises(ExternalError, match=r"raised ConnectionRefusedError: nobody is at 0 for the row n="):
        run(refused, "n", state=tmp_path / "b")


def test_a_failure_may_be_a_null_that_is_counted(tmp_path: Path) -> None:
    @hr.udf(timeout="50ms", retries=2, on_error="null")
    async def picky(n: int) -> int:
        if n % 2:
            raise ValueError(f"{n} is odd")
        if n == 4:
            await asyncio.sleep(3600)
        return n

    result = run(picky, "n", state=tmp_path)
    assert {row["n"]: row["r"] for row in rows_of(result)} == {
        n: None if n % 2 or n == 4 else n for n in range(20)
    }
    assert result.metrics["call"]["failed_calls"] == 11
    assert any("raised ValueError: 1 is odd for the row n=1, called 3 times" in one for one in result.errors)


def test_a_result_of_another_type_is_an_error_that_shows_the_row(tmp_path: Path) -> None:
    @hr.udf
    async def wrong(n: int) -> int:
        return "many" if n == 7 else n  # type: ignore[return-value]

    with pytest.raises(
        ExpressionError, match=r"returned 'many' \(str\), which is not int64, for the row n=7"
    ):
        run(wrong, "n", state=tmp_path)


# ----------------------------------------------------------------------------------- rows that stay


def while_down(folder: Path, **options: Any) -> AsyncFunction:
    """A function whose server is away as long as there is a file `down`, and which logs its calls."""

    @hr.async_udf(timeout="200ms", retries=1000, **options)
    async def ask(n: int) -> int:
        write_down(folder / "calls", n)
        if (folder / "down").exists() and n % 3 == 0:
            raise ConnectionError("down")
        return n * 2

    return ask


def collected(lives: list[RunResult]) -> list[int]:
    return sorted(row["r"] for life in lives for row in rows_of(life))


@pytest.mark.parametrize("ordered", [False, True])
def test_rows_that_wait_are_in_the_checkpoint_and_leave_once_in_a_later_run(
    tmp_path: Path, ordered: bool
) -> None:
    ask = while_down(tmp_path, ordered=ordered)
    state = tmp_path / "state"
    (tmp_path / "down").touch()
    first = run(ask, "n", state=state, parallelism=2, epoch_rows=8, max_epochs=1)
    assert first.metrics["call"]["pending_rows"] >= 2
    answered = {row["n"] for row in rows_of(first)}
    assert not any(n % 3 == 0 for n in answered)
    (tmp_path / "down").unlink()
    second = run(ask, "n", state=state, parallelism=3)
    assert second.reason == "finished"
    assert collected([first, second]) == [n * 2 for n in range(20)]


def test_rows_that_wait_survive_crashes_at_every_step(tmp_path: Path) -> None:
    ask = while_down(tmp_path)
    state = tmp_path / "state"
    (tmp_path / "down").touch()
    steps = ["begin", "tasks_done", "operators_written", "metadata_written", "sink_committed", "committed"]

    def killer(step: str) -> Callable[[str, int], None]:
        def on_step(name: str, epoch: int) -> None:
            if name.partition(":")[0] == step and epoch > steps.index(step) // 2:
                raise CrashError(name)

        return on_step

    for turn, step in enumerate(steps):
        if turn == 3:
            (tmp_path / "down").unlink()
        with pytest.raises(CrashError):
            run(ask, "n", state=state, parallelism=1 + turn % 3, epoch_rows=4, on_step=killer(step))
    last = run(ask, "n", state=state, parallelism=2)
    assert collected([last]) == [n * 2 for n in range(20)]


def test_rows_that_wait_hold_the_watermark_back(tmp_path: Path) -> None:
    ask = while_down(tmp_path)
    state = tmp_path / "state"
    (tmp_path / "down").touch()

    def counted() -> hr.Pipeline:
        sql = """
        CREATE TABLE t WITH (
              connector = 'impulse', message_count = 40, event_rate = 1000, event_time_interval = '1 second',
              start_time = '2026-01-01');
        SELECT tumble('10 seconds') AS w, count(*) AS n, sum(r) AS r
        FROM (SELECT ask(counter) AS r, row_time() AS at FROM t) GROUP BY 1;
        """
        return hr.Pipeline.from_sql(sql, udfs=[ask], preview=lambda _: ("memory", {"name": "out"}))

    first = run_in_process(counted(), state, epoch_rows=20, max_epochs=1, parallelism=1)
    assert rows_of(first) == []  # row 0 waits, so no window is over
    (tmp_path / "down").unlink()
    second = run_in_process(counted(), state, parallelism=2)
    assert sorted((row["n"], row["r"]) for row in rows_of(second)) == [
        (10, sum(range(start, start + 10)) * 2) for start in (0, 10, 20, 30)
    ]
    assert not second.late_rows


def test_the_end_of_the_input_waits_for_all_calls(tmp_path: Path) -> None:
    @hr.async_udf(timeout="20ms", retries=20)
    async def later(n: int) -> int:
        write_down(tmp_path / "calls", n)
        if (tmp_path / "calls").read_text().split().count(str(n)) < 5:
            raise ConnectionError("not yet")
        return n

    result = run(later, "n", state=tmp_path / "state")
    assert result.reason == "finished"
    assert sorted(row["r"] for row in rows_of(result)) == list(range(20))
    assert result.metrics["call"]["retried_calls"] == 80


# ------------------------------------------------------------------------------------- declarations


def test_options_that_cannot_work_are_errors() -> None:
    async def answer(n: int) -> int:
        return n

    def plain(n: int) -> int:
        return n

    with pytest.raises(ConfigurationError, match="max_in_flight"):
        hr.async_udf(max_in_flight=0)(answer)
    with pytest.raises(ConfigurationError, match="timeout"):
        hr.udf(timeout="never")(answer)
    with pytest.raises(ConfigurationError, match="on_error"):
        hr.udf(on_error="ignore")(answer)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="there is no option `tries`"):
        hr.udf(tries=1)(answer)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="ordered: only for asynchronous functions"):
        hr.udf(ordered=True)(plain)
    with pytest.raises(ConfigurationError, match="it is not asynchronous"):
        hr.async_udf(plain)
    assert hr.async_udf(max_in_flight=5)(answer).options.max_in_flight == 5
    arroyo = hr.udf(allowed_in_flight=6)(answer)
    assert isinstance(arroyo, AsyncFunction)
    assert arroyo.options.max_in_flight == 6


def test_a_plan_that_cannot_work_is_refused() -> None:
    made = slow_first()
    with pytest.raises(PlanError, match="takes 2 arguments, not 1"):
        AsyncCall(made, {"r": ["n"]}, schema=SCHEMA)
    with pytest.raises(PlanError, match="there is no column `m`"):
        AsyncCall(made, {"r": ["m", "text"]}, schema=SCHEMA)
    with pytest.raises(PlanError, match="there is a column `n` already"):
        AsyncCall(made, {"n": ["n", "text"]}, schema=SCHEMA)
    unknown = hr.Pipeline("p").source("memory", rows=ROWS).map(lambda batch: batch)
    with pytest.raises(PlanError, match="is asynchronous, and rows that wait for it are kept"):
        unknown.call(made, "n", "text", into="r")
