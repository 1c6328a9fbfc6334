"""`hr.sources` and `hr.sinks`: a function with real parameters for each connector."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import headrace as hr
from docs import typed_options
from headrace.model.registry import BUILT_IN, registry
from headrace.testing.in_process import run_in_process


def test_the_modules_are_what_the_connectors_declare() -> None:
    assert typed_options.stale() == [], "run: .venv/bin/python -m docs.generate"


@pytest.mark.parametrize("name", sorted(BUILT_IN["source"]))
def test_every_source_has_its_function(name: str) -> None:
    parameters = inspect.signature(getattr(hr.sources, name)).parameters
    assert len(parameters) == len(registry.options("source", name).model_fields)
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters.values())


@pytest.mark.parametrize("name", sorted(BUILT_IN["sink"]))
def test_every_sink_has_its_function(name: str) -> None:
    parameters = inspect.signature(getattr(hr.sinks, name)).parameters
    required = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    fields = registry.options("sink", name).model_fields
    assert required == {n for n, field in fields.items() if field.is_required()}


def test_typed_options_are_those_of_the_string_form() -> None:
    typed = hr.sources.kafka(
        topic="t",
        bootstrap_servers="localhost:9092",
        csv_delimiter=";",
        format="csv",
        schema="id BIGINT",
        idle_timeout="10s",
    )
    assert typed.connector == "kafka"
    assert typed.options["csv.delimiter"] == ";"
    assert registry.build("source", "kafka", typed.options) is not None
    assert hr.Pipeline().source(typed).schema == hr.Pipeline().source("kafka", **typed.options).schema


def test_a_wrong_value_is_refused_where_it_is_written() -> None:
    with pytest.raises(hr.ConfigurationError, match="option `event_rate`"):
        hr.sources.impulse(event_rate="fast")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="event_rat"):
        hr.sources.impulse(event_rat=1)  # type: ignore[call-arg]


def test_a_pipeline_of_typed_options_runs(tmp_path: Path) -> None:
    pipeline = hr.Pipeline("typed")
    numbers = pipeline.source(hr.sources.memory(rows=[{"n": 1}, {"n": 2}]))
    numbers.filter("n > 1").sink(hr.sinks.memory(name="large"))
    rows = run_in_process(pipeline, tmp_path).rows["large"]
    assert rows.column("n").to_pylist() == [2]


def test_completion_lists_connectors_alone() -> None:
    assert dir(hr.sources) == sorted(BUILT_IN["source"])
    assert dir(hr.sinks) == sorted(BUILT_IN["sink"])
