"""The Python API: compose sources, operators and sinks into a pipeline and run it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from headrace.base.errors import PlanError
from headrace.base.spans import Source
from headrace.dataflow.document.load import load_dataflow
from headrace.dataflow.document.model import Dataflow
from headrace.dataflow.plan.lower import lower_dataflow
from headrace.dataflow.plan.reload import Reload
from headrace.engine.driver import Step
from headrace.engine.explain import explain_json, explain_mermaid, explain_text
from headrace.engine.stages import StagePlan, cut_stages
from headrace.functions.asynchronous import AsyncFunction
from headrace.functions.native import NativeFunction
from headrace.functions.scalar import ScalarFunction
from headrace.functions.table import TableFunction
from headrace.functions.user import load_udfs
from headrace.jobs.progress import Progress, RunResult
from headrace.jobs.run import parallelism_of, run_job
from headrace.jobs.settings import Settings, load_settings
from headrace.model.builder import PlanBuilder, Port
from headrace.model.fragments import Function
from headrace.model.operator import ArrowOperator, Collector, OperatorContext, SourceOperator
from headrace.model.plan import EdgeKind, Plan, Role
from headrace.operators.async_call import AsyncCall
from headrace.operators.function_call import FunctionCall
from headrace.operators.table_function import TableFunctionCall
from headrace.sql.compile import MakeSink, ReplaceSink, compile_sql, print_rows

ExplainFormat = Literal["text", "mermaid", "json"]


class MapBatches(ArrowOperator):
    """Applies a function to every batch: `stream.map(function)`."""

    def __init__(self, function: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self.function = function

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "map").replace("<lambda>", "map")

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """Collect what the function makes of the batch."""
        made = self.function(batch)
        if isinstance(made, pa.Table):
            for part in made.combine_chunks().to_batches():
                collector.collect(part)
        elif isinstance(made, pa.RecordBatch):
            collector.collect(made)
        else:
            raise TypeError(f"{self.name}() must return a pyarrow.RecordBatch, got {type(made).__name__}")


class Stream:
    """Rows on their way from one operator to the next."""

    def __init__(self, pipeline: Pipeline, ports: tuple[Port, ...]) -> None:
        self.pipeline = pipeline
        self.ports = ports

    def apply(
        self,
        operator: str | ArrowOperator,
        *others: Stream,
        id: str | None = None,  # noqa: A002 - the word the whole product uses
        **options: Any,
    ) -> Stream:
        """Send the rows through an operator, given as an object or by its registered name.

        `others` are further inputs: the operator sees this stream as input 0, the first of the others as
        input 1, and so on. `id` names the operator and its state; keep it when the pipeline changes.
        """
        return self.pipeline.apply(operator, self, *others, id=id, **options)

    def map(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        id: str | None = None,  # noqa: A002
    ) -> Stream:
        """Apply a function from batch to batch; a batch without rows is dropped."""
        return self.apply(MapBatches(function), id=id)

    def call(
        self,
        function: Function,
        *columns: str,
        into: str | Sequence[str],
        schema: pa.Schema | None = None,
        id: str | None = None,  # noqa: A002
    ) -> Stream:
        """Add the column `into`: what a function made with `@udf` gives for some columns of each row.

        A function made with `@udtf` gives rows for each row; `into` names their columns. An asynchronous one
        needs the `schema` of the rows of this stream, since those that wait are part of the checkpoint.
        """
        names = [into] if isinstance(into, str) else list(into)
        return self.apply(_calling(function, columns, names, schema), id=id)

    def watermark(
        self,
        column: str = "_timestamp",
        *,
        lateness: str | timedelta = timedelta(0),
        id: str | None = None,  # noqa: A002
    ) -> Stream:
        """Take event time from `column`; rows may come `lateness` behind the latest one."""
        return self.apply("watermark", id=id, column=column, lateness=lateness)

    def key_by(self, *columns: str) -> Stream:
        """Bring rows with equal values in these columns to the same subtask of the next operator.

        Without columns all rows go to one subtask.
        """
        return self._routed("shuffle", columns)

    def broadcast(self) -> Stream:
        """Bring every row to every subtask of the next operator."""
        return self._routed("broadcast", ())

    def output(self, name: str) -> Stream:
        """What the operator before sends to one of its named outputs, such as `dead_letter` of a source."""
        return Stream(self.pipeline, tuple(replace(port, output=name) for port in self.ports))

    def _routed(self, kind: EdgeKind, keys: tuple[str, ...]) -> Stream:
        ports = tuple(replace(port, kind=kind, keys=keys) for port in self.ports)
        return Stream(self.pipeline, ports)

    def union(self, *others: Stream) -> Stream:
        """The rows of this stream and the others as one stream; its watermark is the minimum."""
        for other in others:
            self.pipeline.check_own(other)
        return Stream(self.pipeline, self.ports + tuple(p for o in others for p in o.ports))

    def sink(
        self,
        sink: str | ArrowOperator,
        *,
        id: str | None = None,  # noqa: A002
        **options: Any,
    ) -> Stream:
        """Send the rows to a sink, given as an object or by its name; returns this stream."""
        self.pipeline.add("sink", sink, (self,), id=id, options=options)
        return self


class Pipeline:
    """What a user composes: sources, operators and sinks under one name.

    The name is also the identity of the pipeline's state.
    """

    def __init__(self, name: str = "pipeline") -> None:
        self.name = name
        self.dataflow: Dataflow | None = None
        """The document that it was made from, if it was one."""
        self._functions: tuple[Function, ...] = ()
        self._builder = PlanBuilder(name)

    @classmethod
    def from_sql(
        cls,
        text: str | Sequence[Source],
        *,
        udfs: Iterable[Function | str | Path] = (),
        name: str = "pipeline",
        preview: MakeSink = print_rows,
        sinks: ReplaceSink | None = None,
    ) -> Pipeline:
        """The pipeline that SQL describes; mistakes raise a SqlError with their places.

        `udfs` are functions made with `@headrace.udf` and its like, or files and modules of them. `preview`
        chooses the sink for the rows of a bare SELECT; they go to stdout unless told otherwise. `sinks`
        chooses one in the place of each table that is written, for tests.
        """
        sources = [Source("<sql>", text)] if isinstance(text, str) else list(text)
        pipeline = cls(name)
        pipeline._builder = compile_sql(
            sources, name=name, udfs=_functions(udfs), preview=preview, sinks=sinks
        )
        return pipeline

    @classmethod
    def from_dataflow(
        cls, file: str | Path, *, name: str | None = None, udfs: Iterable[Function | str | Path] = ()
    ) -> Pipeline:
        """The pipeline that a YAML dataflow describes; mistakes raise a DataflowError with their places.

        `udfs` are functions that its SQL may call.
        """
        dataflow = load_dataflow(Path(file), name=name)
        pipeline = cls(dataflow.name)
        pipeline.dataflow = dataflow
        pipeline._functions = _functions(udfs)
        pipeline._builder = lower_dataflow(dataflow, functions=pipeline._functions)
        return pipeline

    def source(
        self,
        source: str | SourceOperator,
        *,
        id: str | None = None,  # noqa: A002
        **options: Any,
    ) -> Stream:
        """A stream of the rows of a source, given as an object or by its name and options."""
        return self.add("source", source, (), id=id, options=options)

    def apply(
        self,
        operator: str | ArrowOperator,
        *inputs: Stream,
        id: str | None = None,  # noqa: A002
        **options: Any,
    ) -> Stream:
        """Send several streams through one operator, which tells them apart by their index."""
        if not inputs:
            raise PlanError("apply needs at least one stream", hint="stream.apply(operator)")
        return self.add("operator", operator, inputs, id=id, options=options)

    def add(
        self,
        role: Role,
        what: str | ArrowOperator | SourceOperator,
        inputs: Sequence[Stream],
        *,
        id: str | None,  # noqa: A002
        options: Mapping[str, Any],
    ) -> Stream:
        """Add a node of any role; `source`, `apply` and `sink` are the usual ways."""
        for stream in inputs:
            self.check_own(stream)
        port = self._builder.add(role, what, [stream.ports for stream in inputs], id=id, options=options)
        return Stream(self, (port,))

    def check_own(self, stream: Stream) -> None:
        """Refuse a stream of another pipeline."""
        if not isinstance(stream, Stream):
            raise PlanError(f"expected a stream, got {type(stream).__name__}")
        if stream.pipeline is not self:
            raise PlanError(
                f"a stream of pipeline `{stream.pipeline.name}` cannot be used in `{self.name}`",
                hint="build both parts with one Pipeline object",
            )

    def plan(self) -> Plan:
        """The pipeline as data; raises a PlanError for one that cannot run."""
        return self._builder.plan()

    def explain(
        self,
        format: ExplainFormat = "text",  # noqa: A002
        *,
        spark: bool = False,
        parallelism: int | None = None,
    ) -> str:
        """The plan with its chains, stages and state tables; `spark` adds Spark's own plan."""
        settings = load_settings(flags={"run": {"parallelism": parallelism}})
        stages = cut_stages(self.plan(), parallelism=parallelism_of(settings) or 1)
        shown = _spark_plan(stages, settings) if spark else None
        if format == "json":
            return explain_json(stages, spark=shown)
        if format == "mermaid":
            comment = "".join(f"\n%% {line}" for line in (shown or "").splitlines())
            return explain_mermaid(stages) + comment
        return explain_text(stages) + (f"\n\n{shown}" if shown else "")

    def run(
        self,
        state_dir: str | Path | None = None,
        *,
        parallelism: int | None = None,
        master: str | None = None,
        max_epochs: int | None = None,
        epoch_rows: int | None = None,
        epoch_target: str | timedelta | None = None,
        restarts: int | None = None,
        keep_checkpoints: int | None = None,
        compact_after: int | None = None,
        from_epoch: int | None = None,
        allow_drop: bool = False,
        py_files: Sequence[str] = (),
        spark_conf: Mapping[str, str] | None = None,
        memory: str | None = None,
        log_dir: str | Path | None = None,
        config: str | Path | None = None,
        verbose: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
        on_step: Step | None = None,
        stop: threading.Event | None = None,
        watch: bool = False,
    ) -> RunResult:
        """Run the pipeline on Spark and return what it did.

        With a `state_dir` it continues where the last run on that directory ended, at any
        parallelism. It ends when every source has ended, after `max_epochs`, or when `stop` is set; the
        epoch at work is finished and committed. An active SparkSession is used; without one, a session on
        `master` (`local[*]`) is started and kept for the next run. What is not given here comes from the
        environment and `headrace.toml`. With `watch`, operators of a dataflow whose files change are
        reloaded between two epochs, and keep what they remember.
        """
        settings = load_settings(
            flags={
                "run": {
                    "parallelism": parallelism,
                    "max_epochs": max_epochs,
                    "epoch_rows": epoch_rows,
                    "epoch_target": epoch_target,
                    "restarts": restarts,
                },
                "state": {
                    "dir": None if state_dir is None else str(state_dir),
                    "keep_checkpoints": keep_checkpoints,
                    "compact_after": compact_after,
                },
                "spark": {"master": master, "memory": memory, "conf": spark_conf},
                "log": {"dir": None if log_dir is None else str(log_dir)},
            },
            config=None if config is None else Path(config),
        )
        return run_job(
            self.plan(),
            settings,
            from_epoch=from_epoch,
            allow_drop=allow_drop,
            py_files=py_files,
            verbose=verbose,
            on_progress=on_progress,
            on_step=on_step,
            stop=stop,
            refresh=Reload(self.dataflow, functions=self._functions)
            if watch and self.dataflow is not None
            else None,
        )


def _calling(
    function: Function, columns: Sequence[str], names: Sequence[str], schema: pa.Schema | None
) -> ArrowOperator:
    if isinstance(function, TableFunction):
        if len(names) != len(function.columns):
            raise PlanError(
                f"`{function.name}` gives {len(function.columns)} columns, and {len(names)} are named",
                hint=f"its columns are {', '.join(function.columns.names)}",
            )
        return TableFunctionCall(
            function, columns, columns=dict(zip(function.columns.names, names, strict=True))
        )
    if len(names) != 1:
        raise PlanError(f"`{function.name}` gives one column, and {len(names)} are named")
    if isinstance(function, AsyncFunction):
        if schema is None:
            raise PlanError(
                f"`{function.name}` is asynchronous, and rows that wait for it are kept in the checkpoint",
                hint="say which columns they have: stream.call(…, schema=pa.schema([…]))",
            )
        return AsyncCall(function, {names[0]: tuple(columns)}, schema=schema)
    if isinstance(function, ScalarFunction | NativeFunction):
        return FunctionCall(function, columns, output=names[0])
    raise PlanError(f"`{function.name}` is an aggregate, and cannot be called for a row", hint="use SQL")


def _functions(given: Iterable[Function | str | Path]) -> tuple[Function, ...]:
    """Functions, those of files and modules among them."""
    loaded = [load_udfs(one) if isinstance(one, str | Path) else [one] for one in given]
    return tuple(function for several in loaded for function in several)


def _spark_plan(stages: StagePlan, settings: Settings) -> str:
    from headrace.jobs.explain_spark import explain_spark

    return explain_spark(stages, settings)
