"""Every public method refuses arguments of a wrong type with an error that names the user's line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.api import pipeline as pipeline_module
from headrace.testing.in_process import run_in_process

WRONG: tuple[Any, ...] = (3, 3.5, True, "", [], [3], {3: 4}, {"a": 3}, object(), b"x")


class Forward(hr.ArrowOperator):
    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        collector.collect(batch)


@hr.udf
def double(x: int) -> int:
    return x * 2


def stream() -> hr.Stream:
    rows = [{"id": 1, "shop": "mill", "at": datetime(2026, 1, 1, tzinfo=UTC)}]
    return hr.Pipeline("wrong").source("memory", rows=rows)


STREAM: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "filter": (("id > 1",), {}),
    "select": (("id",), {}),
    "with_columns": ((), {"x": "id + 1"}),
    "drop": (("id",), {}),
    "rename": (({"id": "number"},), {}),
    "distinct": ((), {}),
    "group_by": (("id",), {}),
    "tumble": (("1s",), {}),
    "hop": (("1s", "2s"), {}),
    "session": (("1s",), {}),
    "sql": (("SELECT * FROM input",), {}),
    "as_table": (("t",), {}),
    "apply": ((Forward(),), {}),
    "map": ((lambda batch: batch,), {}),
    "flat_map": ((lambda row: [row],), {}),
    "call": ((double, "id"), {"into": "y"}),
    "watermark": (("at",), {}),
    "key_by": (("id",), {}),
    "output": (("late",), {}),
    "sink": (("blackhole",), {}),
    "show": ((), {}),
}
"""A good call of each method; `join`, `union` and `broadcast` are below or take nothing."""


def _method(name: str, index: int | None, key: str | None, value: Any) -> object:
    """A good call of a method of a stream, but for one argument."""
    args, named = STREAM[name]
    if index is not None:
        args = (*args[:index], value, *args[index + 1 :])
    return getattr(stream(), name)(*args, **(named if key is None else {**named, key: value}))


def calls() -> Iterator[tuple[str, Callable[[Any], object]]]:
    """Calls of public methods in which one argument is left open."""
    for name, (args, _) in STREAM.items():
        for index in range(len(args)):
            yield f"{name}, argument {index}", partial(_method, name, index, None)
        for parameter in inspect.signature(getattr(hr.Stream, name)).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and name != "show":
                yield f"{name}({parameter.name}=…)", partial(_method, name, None, parameter.name)
    for key in ("on", "how", "within", "id"):
        yield f"join({key}=…)", partial(_with, _join, key)
    yield "join of", lambda value: stream().join(value, on="id")
    yield "union of", lambda value: stream().union(value)
    yield "aggregate", lambda value: stream().group_by("id").aggregate(value)
    yield "aggregate by name", lambda value: stream().group_by("id").aggregate(n=value)
    yield "groups.tumble", lambda value: stream().group_by("id").tumble(value)
    yield "groups.session", lambda value: stream().group_by("id").session(value)
    for name in ("alias", "cast", "field", "like", "is_in"):
        yield f"column.{name}", getattr(hr.col("id"), name)
    yield "col", hr.col
    yield "col(table=…)", lambda value: hr.col("id", table=value)
    yield "expr", hr.expr
    yield "fn", lambda value: stream().select(hr.fn.sum(value))
    yield "Pipeline", hr.Pipeline
    yield "Pipeline(udfs=…)", lambda value: hr.Pipeline(udfs=value)
    for key in ("name", "udfs", "preview", "sinks"):
        yield f"from_sql({key}=…)", partial(_with, partial(hr.Pipeline.from_sql, "SELECT 1 AS a"), key)
    yield "from_dataflow", hr.Pipeline.from_dataflow
    yield "load_pipeline", hr.load_pipeline
    yield "load_udfs", hr.load_udfs
    yield "source", hr.Pipeline().source
    yield "source(id=…)", lambda value: hr.Pipeline().source("impulse", id=value)
    yield "source(schema=…)", lambda value: hr.Pipeline().source("impulse", schema=value)
    yield "source(rows=…)", lambda value: hr.Pipeline().source("memory", rows=value)
    yield "hr.sources.memory", lambda value: hr.sources.memory(rows=value)
    yield "execute", hr.Pipeline().execute
    yield "table", hr.Pipeline().table
    yield "pipeline.sql", hr.Pipeline().sql
    explain = stream().sink("blackhole").pipeline.explain
    yield "explain", explain
    yield "explain(parallelism=…)", partial(_with, explain, "parallelism")
    for key in inspect.signature(hr.Pipeline.start).parameters:
        if key != "self":
            yield f"start({key}=…)", partial(_with, _start, key)
    for key in inspect.signature(hr.RunOptions).parameters:
        yield f"RunOptions({key}=…)", partial(_start_with_option, key)
    yield "register", lambda value: hr.Registry().register(value, hr.MemorySource)
    yield "register what", lambda value: hr.Registry().register("x", value)
    yield "register(role=…)", lambda value: hr.Registry().register("x", hr.MemorySource, role=value)
    for decorator in (hr.udf, hr.udaf, hr.udtf, hr.async_udf):
        yield decorator.__name__, decorator


def _with(call: Callable[..., object], key: str, value: Any) -> object:
    return call(**{key: value})


def _start_with_option(key: str, value: Any) -> None:
    _start(options=hr.RunOptions(**{key: value}))


def _join(**arguments: Any) -> hr.Stream:
    left = stream().select("id")
    right = left.pipeline.source("memory", rows=[{"id": 1, "paid": 2}])
    return left.join(right, **{"on": "id", **arguments})


def _start(**arguments: Any) -> None:
    stream().sink("blackhole").pipeline.start(**arguments)


class _SparkWouldStartError(Exception):
    pass


@pytest.mark.parametrize("case", [name for name, _ in calls()])
def test_a_wrong_argument_is_accepted_for_a_reason_or_refused_with_the_line(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def start_job(*_args: Any, **_options: Any) -> None:
        raise _SparkWouldStartError

    monkeypatch.setattr(pipeline_module, "start_job", start_job)
    monkeypatch.chdir(tmp_path)
    call = dict(calls())[case]
    for value in WRONG:
        error = _refusal(call, value)
        if error is not None and not (case == "RunOptions(config=…)" and error.where == "."):
            assert error.message
            assert Path(__file__).name in str(error.where), f"{value!r}: {error}"


def _refusal(call: Callable[[Any], object], value: Any) -> hr.UserError | None:
    try:
        call(value)
    except hr.UserError as error:
        return error
    except _SparkWouldStartError:
        pass
    return None


WRONG_RUNS: Mapping[tuple[str, ...], tuple[Any, ...]] = {
    ("state_dir",): (3, [], {}),
    ("clock",): (3, "", []),
    ("on_step", "on_progress", "stop"): (3, "now", []),
    ("parallelism", "seed", "idle_epochs"): ("3", None, 2.5, True),
    ("max_epochs", "epoch_rows"): ("many", 0, 2.5),
    ("allow_drop", "watch"): (1, "yes", None),
    ("from_epoch",): ("last", True, 1.5),
    ("options",): ("", [], {"restarts": 1}),
}


@pytest.mark.parametrize(
    ("key", "wrong"),
    [(key, wrong) for keys, values in WRONG_RUNS.items() for key in keys for wrong in values],
)
def test_a_wrong_argument_of_run_in_process_is_refused(key: str, wrong: Any, tmp_path: Path) -> None:
    pipeline = stream().sink("blackhole").pipeline
    with pytest.raises(hr.UserError, match=key) as caught:
        run_in_process(pipeline, **{"state_dir": tmp_path / "state", key: wrong})
    assert Path(__file__).name in str(caught.value.where)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("length", [5, 2.5, True])
@pytest.mark.parametrize(
    "case", ["tumble, argument 0", "session, argument 0", "watermark(lateness=…)", "join(within=…)"]
)
def test_a_duration_is_not_a_number_without_a_unit(case: str, length: Any) -> None:
    with pytest.raises(hr.ConfigurationError, match=f"takes a duration, got {length}"):
        dict(calls())[case](length)
