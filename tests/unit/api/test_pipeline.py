"""Composing pipelines: names, ids, errors that say what to do."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.base import errors
from headrace.engine.stages import cut_stages
from tests import flows


class Keep(hr.ArrowOperator):
    """Passes batches on."""

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        collector.collect(batch)


class Scale(hr.ArrowOperator):
    """An operator that can be built by name."""

    class Options(hr.Options):
        """By how much."""

        factor: int

    def __init__(self, options: Options) -> None:
        self.options = options

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        collector.collect(batch)


def test_every_public_name_can_be_imported() -> None:
    for name in hr.__all__:
        assert getattr(hr, name) is not None
    assert sorted(set(hr.__all__)) == sorted(hr.__all__)
    with pytest.raises(AttributeError):
        hr.Pipline  # type: ignore[attr-defined]  # noqa: B018


def test_an_operator_is_built_by_name_with_checked_options() -> None:
    registry = hr.Registry()
    registry.register("scale", Scale)
    built = registry.build("operator", "scale", {"factor": "3"})
    assert isinstance(built, Scale)
    assert built.options.factor == 3
    with pytest.raises(hr.ConfigurationError, match="option `factor`"):
        registry.build("operator", "scale", {"factor": "three"})
    with pytest.raises(hr.ConfigurationError, match="unknown option `facto`: did you mean `factor`"):
        registry.build("operator", "scale", {"facto": 3})
    with pytest.raises(hr.ConfigurationError, match="already"):
        registry.register("watermark", Scale)
    with pytest.raises(hr.ConfigurationError, match="inner `class Options"):
        registry.register("keep", Keep)


def test_an_installed_package_registers_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tides-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: tides\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[headrace.operators]\noperator.tides = {__name__}:Scale\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = hr.Registry()
    assert "tides" in registry.names("operator")
    assert isinstance(registry.build("operator", "tides", {"factor": 2}), Scale)
    with pytest.raises(hr.ConfigurationError, match="did you mean `tides`"):
        registry.build("operator", "tide", {})


def bad_pipelines() -> dict[str, tuple[Callable[[hr.Pipeline], object], str]]:
    def two_of_one_id(p: hr.Pipeline) -> None:
        p.source(flows.impulse(1), id="a").apply(Keep(), id="a")

    def other_pipeline(p: hr.Pipeline) -> None:
        p.apply(Keep(), hr.Pipeline("b").source(flows.impulse(1)))

    def unpicklable(p: hr.Pipeline) -> None:
        operator = Keep()
        operator.lock = threading.Lock()  # type: ignore[attr-defined]
        p.source(flows.impulse(1)).apply(operator)

    return {
        "unknown source": (lambda p: p.source("impuls"), "no source called `impuls`.*\n.*`impulse`"),
        "a sink as a source": (lambda p: p.source("stdout"), "`stdout` is a sink, not a source"),
        "wrong option": (lambda p: p.source("impulse", event_rat=1), "unknown option `event_rat`"),
        "wrong value": (lambda p: p.source("impulse", event_rate="fast"), "option `event_rate`"),
        "options with an object": (
            lambda p: p.source(flows.impulse(1), event_rate=3),
            "were given with an object",
        ),
        "class": (lambda p: p.source(flows.impulse(1)).apply(Keep), r"write `Keep\(...\)`"),
        "not an operator": (lambda p: p.source(flows.impulse(1)).apply(3), "got int"),
        "two of one id": (two_of_one_id, "already an operator with the id `a`"),
        "another pipeline's stream": (other_pipeline, "cannot be used in"),
        "unpicklable": (unpicklable, r"its attribute `lock` \(lock\) cannot be pickled"),
        "empty": (lambda p: p.plan(), "is empty"),
        "no sink": (lambda p: (p.source(flows.impulse(1)).apply(Keep()), p.plan()), "has no sink"),
        "unread source": (
            lambda p: (p.source(flows.impulse(1)).sink("blackhole"), p.source("impulse"), p.plan()),
            "nothing reads the source",
        ),
        "bad id": (lambda p: p.source(flows.impulse(1), id="a/b"), "cannot be an id"),
        "bad lateness": (lambda p: p.source(flows.impulse(1)).watermark(lateness="soon"), "not a duration"),
    }


@pytest.mark.parametrize("case", bad_pipelines())
def test_a_bad_pipeline_is_refused_with_words(case: str) -> None:
    make, expected = bad_pipelines()[case]
    with pytest.raises(hr.UserError, match=expected):
        make(hr.Pipeline("bad"))


def test_a_pipeline_cannot_have_a_name_that_is_no_name() -> None:
    with pytest.raises(hr.PlanError):
        hr.Pipeline("a b")


@pytest.mark.parametrize("cls", [c for c in vars(errors).values() if isinstance(c, type)])
def test_every_error_survives_pickling(cls: type) -> None:
    if not issubclass(cls, hr.HeadraceError):
        return
    error = cls.__new__(cls)
    hr.HeadraceError.__init__(error, "what", hint="do", where="here")
    if isinstance(error, hr.OperatorError):
        error = hr.OperatorError("what", operator_id="a", subtask=1, epoch=2, traceback_text="tb", hint="do")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.args == error.args


def test_forward_edges_make_chains_and_shuffles_make_stages() -> None:
    stages = cut_stages(flows.two_levels(hr.MemorySink).plan(), parallelism=2)
    assert [(chain.stage, len(chain.nodes)) for chain in stages.chains] == [(0, 3), (1, 2), (2, 2)]
    fan = cut_stages(flows.fan_out(hr.MemorySink).plan(), parallelism=2)
    assert fan.depth == 1
    assert "MemorySink_1" in fan.at(0)[0].nodes


def test_a_sink_for_one_subtask_gets_a_stage_of_its_own(tmp_path: Path) -> None:
    def file(name: str) -> hr.ArrowOperator:
        return hr.SingleFileSink(path=str(tmp_path / name))

    plan = flows.tumbling(file).plan()
    assert cut_stages(plan, parallelism=2).depth == 2
    assert cut_stages(plan, parallelism=1).depth == 1


@pytest.mark.parametrize("format", ["text", "mermaid", "json"])
def test_explain_names_every_operator_and_table(format: str) -> None:  # noqa: A002
    text = flows.tumbling(hr.MemorySink).explain(format, parallelism=2)  # type: ignore[arg-type]
    for name in ("ImpulseSource_1", "watermark_1", "TumblingCount_1", "MemorySink_1"):
        assert name in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\n", "defines no pipeline"),
        (
            "import headrace\na = headrace.Pipeline('a')\nb = headrace.Pipeline('b')\n",
            "several pipelines: a, b",
        ),
        ("def f(:\n", "line 1"),
        ("import headrace\nheadrace.Pipeline('a').source('impuls')\n", "line 2: headrace.Pipeline"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("import headrace as hr\nhr.sources.kafak()\n", "did you mean `kafka`?"),
        ("orders = 1\nordesr + 1\n", "did you mean `orders`"),
        ("def pipeline():\n    return 3\n", "returned int"),
    ],
)
def test_a_file_without_one_good_pipeline_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / f"flow_{abs(hash(text))}.py"
    file.write_text(text)
    with pytest.raises(hr.UserError) as caught:
        hr.load_pipeline(str(file))
    assert expected in str(caught.value)


def test_a_file_is_loaded_by_name(tmp_path: Path) -> None:
    file = tmp_path / "flow_named.py"
    file.write_text("import headrace\na = headrace.Pipeline('a')\nb = headrace.Pipeline('b')\n")
    assert hr.load_pipeline(f"{file}:b").name == "b"
    with pytest.raises(hr.UserError, match="no pipeline called `c`"):
        hr.load_pipeline(f"{file}:c")
    with pytest.raises(hr.UserError, match="there is no file") as caught:
        hr.load_pipeline(str(tmp_path / "flow_name.py"))
    assert "`flow_named.py`" in str(caught.value)


def test_two_sinks_of_one_file_are_refused(tmp_path: Path) -> None:
    pipeline = hr.Pipeline()
    rows = pipeline.source(flows.impulse(1)).sink("single_file", path=str(tmp_path / "out.jsonl"), id="a")
    with pytest.raises(hr.PlanError, match="`a` and `b` both write the file"):
        rows.sink("single_file", path=f"{tmp_path}/../{tmp_path.name}/out.jsonl", id="b")


def test_state_by_key_without_rows_by_key_is_refused() -> None:
    pipeline = hr.Pipeline()
    pipeline.source(flows.impulse(1)).map(flows.keyed(2)).apply(flows.RunningCount(), id="n").sink(
        "blackhole"
    )
    with pytest.raises(hr.PlanError, match="keeps table `counts` by key") as caught:
        pipeline.plan()
    assert '.key_by("k")' in str(caught.value)


def test_keys_last_along_forward_edges() -> None:
    pipeline = hr.Pipeline()
    keyed = pipeline.source(flows.impulse(1)).map(flows.keyed(2)).key_by("k").apply(Keep())
    keyed.apply(flows.RunningCount()).sink("blackhole")
    assert cut_stages(pipeline.plan(), parallelism=2).depth == 1


@pytest.mark.parametrize("declared", [None, ["t"], hr.global_table_config("t")])
def test_tables_that_are_no_list_of_tables_are_refused(declared: object) -> None:
    class Odd(Keep):
        def tables(self) -> list[hr.TableConfig]:
            return declared  # type: ignore[return-value]

    with pytest.raises(hr.PlanError, match="must return a list of tables"):
        hr.Pipeline().source(flows.impulse(1)).apply(Odd())
