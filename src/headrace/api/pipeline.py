"""The Python API: compose sources, operators and sinks into a pipeline and run it."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, get_args

from headrace.api.arguments import check_argument, check_callable, check_id, check_run_arguments
from headrace.api.connectors import ConfiguredSink, ConfiguredSource
from headrace.api.function_calls import load_functions
from headrace.api.live_table import LiveTable, LiveTables, in_notebook
from headrace.api.other_names import missing_attribute
from headrace.api.plan_html import stages_html
from headrace.api.query_text import QueryText, SqlText
from headrace.api.recording import recording_plan
from headrace.api.run_options import RunOptions
from headrace.api.schemas import Schema, parse_schema, takes_schema
from headrace.api.shapes import Derived, Part, StreamShape, declared_shape
from headrace.api.stream import Stream, derived_stream
from headrace.base.call_site import call_site, located, suggest_argument
from headrace.base.errors import HeadraceError, InternalError, PlanError
from headrace.base.spans import Source
from headrace.connectors.base import Connector
from headrace.connectors.columns import source_schema
from headrace.dataflow.document.load import load_dataflow
from headrace.dataflow.document.model import Dataflow
from headrace.dataflow.plan.diagram import describe, draw_dataflow, mermaid_text
from headrace.dataflow.plan.lower import lower_dataflow
from headrace.dataflow.plan.reload import Reload
from headrace.dataflow.runtime.printed import recent_lines
from headrace.engine.explain import explain_json, explain_mermaid, explain_text
from headrace.engine.stages import StagePlan, cut_stages
from headrace.jobs.handle import PipelineRun, start_job
from headrace.jobs.progress import Progress, RunResult
from headrace.jobs.run import await_result, parallelism_of
from headrace.jobs.settings import Settings, load_settings
from headrace.model.builder import PlanBuilder, Port
from headrace.model.fragments import Function
from headrace.model.operator import ArrowOperator, SourceOperator
from headrace.model.plan import Plan, Role
from headrace.model.registry import registry
from headrace.sql.compile import MakeSink, Preview, ReplaceSink, compile_sql, print_rows
from headrace.sql.streams import LoweredStreams, Relational, StreamSql

ExplainFormat = Literal["text", "mermaid", "json"]


@dataclass(frozen=True)
class _Step:
    """A node of the plan that was added by a call, with its inputs as they were then."""

    role: Role
    what: str | ArrowOperator | SourceOperator
    inputs: tuple[tuple[Part, ...], ...]
    id: str
    options: Mapping[str, Any]

    @property
    def parts(self) -> list[Part]:
        """The origins of the rows of all inputs."""
        return [part for several in self.inputs for part in several]


Arguments = ParamSpec("Arguments")


def _run_to_the_end(
    start: Callable[Concatenate[Pipeline, Arguments], PipelineRun],
) -> Callable[Concatenate[Pipeline, Arguments], RunResult]:
    """The method `run`, which takes what `start` takes."""
    signature = inspect.signature(start).replace(return_annotation="RunResult")

    @functools.wraps(start)
    def run(self: Pipeline, /, *args: Arguments.args, **options: Arguments.kwargs) -> RunResult:
        try:
            signature.bind(self, *args, **options)
        except TypeError as error:
            raise TypeError(f"Pipeline.run() {suggest_argument(error, signature)}") from None
        if not self._live:
            return await_result(start(self, *args, **options))
        with self._live.connected():
            return _shown(start(self, *args, **options), self._live)

    run.__name__, run.__qualname__ = "run", "Pipeline.run"
    vars(run).update(__signature__=signature)
    run.__annotations__ = {**start.__annotations__, "return": "RunResult"}
    return run


class Pipeline:
    """Sources, operators and sinks under one name, which also identifies the state.

    Args:
        name: letters, digits, `-`, `_` and `.`.
        udfs: functions that its SQL and expressions may call: made with `@hr.udf`, `@hr.udaf` …, or files and
            modules of them.

    Raises:
        PlanError: the name is empty or has other characters.

    >>> import headrace as hr
    >>> from headrace.testing.in_process import run_in_process
    >>> pipeline = hr.Pipeline("shops")
    >>> sales = pipeline.source("memory", rows=[{"shop": "mill", "amount": 3}, {"shop": "mill", "amount": 4}])
    >>> totals = sales.group_by("shop").tumble("1h").aggregate(total="sum(amount)").select("shop", "total")
    >>> totals.sink("memory", name="totals")
    Stream(select_1: shop TEXT, total BIGINT)
    >>> import tempfile
    >>> result = run_in_process(pipeline, tempfile.mkdtemp())  # pipeline.run() does the same on Spark
    >>> result.rows["totals"].select(["shop", "total"]).to_pylist()
    [{'shop': 'mill', 'total': 7}]
    """

    @located
    def __init__(self, name: str = "pipeline", *, udfs: Iterable[Function | str | Path] = ()) -> None:
        if not isinstance(name, str):
            raise PlanError(
                f"the name of a pipeline is a string, got {type(name).__name__} {name!r}",
                hint="such as `hr.Pipeline('orders')`",
            )
        self.name = name
        self.dataflow: Dataflow | None = None
        """The document that it was made from, if it was one."""
        self._functions = load_functions(udfs)
        self._recording: tuple[Path, Mapping[str, Any]] | None = None
        self._begin: Callable[[], PlanBuilder] = lambda: PlanBuilder(name, secrets=self._sql.secrets)
        self._sql = StreamSql(functions=self._functions)
        self._builder = self._begin()
        self._steps: list[_Step] = []
        self._counts: dict[str, int] = {}
        self._chosen_ids: set[str] = set()
        self._query_ids: set[str] = set()
        self._queries: dict[Relational, str] = {}
        self._live = LiveTables()

    if not TYPE_CHECKING:  # to a type checker a class with __getattr__ has every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name)

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"

    @classmethod
    @located
    def from_sql(
        cls,
        text: str | Sequence[Source],
        *,
        udfs: Iterable[Function | str | Path] = (),
        name: str = "pipeline",
        preview: MakeSink | None = None,
        sinks: ReplaceSink | None = None,
    ) -> Pipeline:
        """The pipeline that SQL describes: tables, views, INSERTs and SELECTs.

        Args:
            text: the SQL.
            udfs: functions that it may call: made with `@hr.udf` and its like, or files and modules of them.
            name: the name of the pipeline.
            preview: chooses the sink for the rows of a bare SELECT. By default they are shown as a table in a
                notebook, and written to stdout elsewhere.
            sinks: replaces the sink of each table that is written, for tests.

        Returns:
            The pipeline.

        Raises:
            SqlError: the SQL is wrong; the exception lists every error with its position.

        >>> import headrace as hr
        >>> hr.Pipeline.from_sql("SELECT 1 AS one", name="one")
        Pipeline('one')
        """
        check_callable(preview, "preview", example="preview=lambda select: ('stdout', {})")
        check_callable(sinks, "sinks", example="sinks=lambda table: ('memory', {'name': table.name})")
        sources = [Source("<sql>", text)] if isinstance(text, str) else _sources(text)
        functions = load_functions(udfs)
        pipeline = cls(name, udfs=functions)
        show = preview or (pipeline._show_query if in_notebook() else print_rows)
        builder = compile_sql(sources, name=name, udfs=functions, preview=show, sinks=sinks)
        pipeline._begin = builder.copy
        pipeline._builder = pipeline._begin()
        return pipeline

    @classmethod
    @located
    def from_dataflow(
        cls, file: str | Path, *, name: str | None = None, udfs: Iterable[Function | str | Path] = ()
    ) -> Pipeline:
        """The pipeline that a YAML dataflow describes.

        Args:
            file: the document.
            name: the name of the pipeline; by default that of the file.
            udfs: functions that its SQL may call.

        Returns:
            The pipeline.

        Raises:
            DataflowError: the document is wrong; the exception lists every error with its position.
            UserError: there is no such file.

        >>> import headrace as hr
        >>> try:
        ...     hr.Pipeline.from_dataflow("missing.yml")
        ... except hr.UserError as error:
        ...     print(error.message)
        there is no file missing.yml
        """
        check_argument(file, "file", (str, Path), "a path", example="from_dataflow('flow.yml')")
        dataflow = load_dataflow(Path(file), name=name)
        pipeline = cls(dataflow.name, udfs=udfs)
        pipeline.dataflow = dataflow
        pipeline._begin = lower_dataflow(dataflow, functions=pipeline._functions).copy
        pipeline._builder = pipeline._begin()
        return pipeline

    @located
    def source(
        self,
        source: str | SourceOperator | ConfiguredSource,
        *,
        id: str | None = None,  # noqa: A002
        schema: Schema | None = None,
        **options: Any,
    ) -> Stream:
        """A stream of the rows of a source.

        Args:
            source: the name of a connector; its options made with `hr.sources`; or a `SourceOperator`.
            id: the name of the source and of its position; keep it when the pipeline changes.
            schema: its columns, as `"id BIGINT, name TEXT"`, `{"id": "BIGINT"}` or a pyarrow schema.
            options: the options of a connector that is given by name.

        Returns:
            The stream.

        Raises:
            ConfigurationError: an option is wrong.
            PlanError: `source` is not a source.

        >>> import headrace as hr
        >>> pipeline = hr.Pipeline()
        >>> pipeline.source("impulse", event_rate=10)
        Stream(impulse_1: counter BIGINT, subtask_index BIGINT)
        >>> pipeline.source("single_file", path="orders.json", schema="id BIGINT, shop TEXT", id="orders")
        Stream(orders: id BIGINT, shop TEXT)
        """
        what, connector_options = self._connector("source", source, options)
        declared = None if schema is None else parse_schema(schema)
        by_option = (
            declared is not None
            and isinstance(what, str)
            and what in registry.names("source")
            and takes_schema(registry.options("source", what))
        )
        if by_option:
            connector_options = {**connector_options, "schema": declared}
        operator = registry.build("source", what, connector_options) if isinstance(what, str) else what
        if isinstance(operator, Connector) and operator.emits_upserts(operator.options.model_dump()):
            raise PlanError(
                "`upsert` is for tables of SQL, which make changes of the rows",
                hint="define the table in SQL: hr.Pipeline.from_sql('CREATE TABLE … ')",
            )
        columns = source_schema(operator) if isinstance(operator, SourceOperator) else None
        shape = (
            StreamShape(columns)
            if declared is None or by_option
            else declared_shape(declared, has_watermark=False)
        )
        updating = isinstance(what, str) and _has_changes(what, connector_options)
        if updating:
            key = getattr(getattr(operator, "options", None), "primary_key", None) or ()
            shape = replace(shape, updating=True, key=tuple(key))
        return self._add("source", what, (), id=id, options=connector_options, shape=shape)

    @located
    def apply(
        self,
        operator: str | ArrowOperator,
        *inputs: Stream,
        id: str | None = None,  # noqa: A002
        schema: Schema | None = None,
        **options: Any,
    ) -> Stream:
        """Apply one operator to several streams; it distinguishes them by the index of the input.

        Args:
            operator: an `ArrowOperator`, or the registered name of one.
            inputs: the streams; the operator sees the first as input 0.
            id: the name of the operator and of its state.
            schema: the columns that it emits; needed if queries follow.
            options: the options of an operator that is given by name.

        Returns:
            The output stream of the operator.

        Raises:
            PlanError: no stream is given, one is of another pipeline, or `operator` is not an operator.

        >>> import headrace as hr
        >>> class Both(hr.ArrowOperator):
        ...     def process_batch(self, batch, ctx, collector):
        ...         collector.collect(batch)
        >>> pipeline = hr.Pipeline()
        >>> left = pipeline.source("memory", rows=[{"n": 1}])
        >>> right = pipeline.source("memory", rows=[{"n": 2}])
        >>> pipeline.apply(Both(), left, right)
        Stream(Both_1)
        """
        if not inputs:
            raise PlanError("apply needs at least one stream", hint="stream.apply(operator)")
        for stream in inputs:
            self._check_own(stream, "apply")
        if not isinstance(operator, str | ArrowOperator | type):
            raise PlanError(
                f"apply takes an operator, got {type(operator).__name__} {operator!r}",
                hint="make an object of a class that extends hr.ArrowOperator; a function goes to `.map(…)`",
            )
        has_watermark = all(stream._shape.has_watermark for stream in inputs)
        shape = declared_shape(schema, has_watermark=has_watermark)
        return self._add("operator", operator, inputs, id=id, options=options, shape=shape)

    @located
    def execute(self, text: str) -> Pipeline:
        """Define tables, views and functions in SQL, for `table` and `sql`.

        Args:
            text: CREATE TABLE … WITH (connector = …), CREATE TEMPORARY TABLE, CREATE VIEW and CREATE FUNCTION
                statements; SET updating_ttl.

        Returns:
            This pipeline.

        Raises:
            SqlError: a statement is wrong, or is not a definition.

        >>> import headrace as hr
        >>> pipeline = hr.Pipeline("orders")
        >>> pipeline.execute('''
        ...     CREATE TABLE orders (id BIGINT, shop TEXT, placed TIMESTAMP, WATERMARK FOR placed)
        ...     WITH (connector = 'single_file', path = 'orders.json');
        ...     CREATE VIEW mill AS SELECT id, placed FROM orders WHERE shop = 'mill';
        ... ''').table("mill")
        Stream(mill: id BIGINT, placed TIMESTAMP)
        """
        if not isinstance(text, str):
            raise PlanError(f"execute takes SQL, got {type(text).__name__}")
        sql = SqlText(text)
        with sql.explained():
            for name, rows in self._sql.define(sql.source).items():
                self._queries[rows] = name
        return self

    @located
    def table(self, name: str) -> Stream:
        """The rows of a table or view that was defined with `execute`, or of a stream named with `as_table`.

        Args:
            name: its name; not case-sensitive.

        Returns:
            The stream of its rows, with the event time and the watermark that the table declares.

        Raises:
            SqlError: there is no such table.

        >>> import headrace as hr
        >>> pipeline = hr.Pipeline()
        >>> pipeline.execute("CREATE TABLE ticks (counter BIGINT NOT NULL) WITH (connector = 'impulse')")
        Pipeline('pipeline')
        >>> pipeline.table("ticks").filter("counter % 2 = 0")
        Stream(filter_1: counter BIGINT)
        """
        if not isinstance(name, str):
            raise PlanError(f"table takes the name of a table, got {name!r}")
        return derived_stream(self, self._sql.table(name), name.lower())

    @located
    def sql(self, query: str, *, id: str | None = None, **tables: Stream) -> Stream:  # noqa: A002
        """Compute a SELECT over streams, and over the tables and views of the pipeline.

        Args:
            query: one SELECT.
            id: the name of its operators and their state.
            tables: streams by their names in the query.

        Returns:
            The stream of its rows.

        Raises:
            SqlError: the query is wrong.
            PlanError: the columns of a stream are not known.

        >>> import headrace as hr
        >>> pipeline = hr.Pipeline()
        >>> orders = pipeline.source("memory", rows=[{"id": 1, "shop": "mill"}])
        >>> paid = pipeline.source("memory", rows=[{"order_id": 1}])
        >>> pipeline.sql("SELECT o.shop FROM o JOIN p ON o.id = p.order_id", o=orders, p=paid)
        Stream(sql_1: shop TEXT)
        """
        return self._query("sql", SqlText(query), tables, id=id)

    @located
    def plan(self) -> Plan:
        """The pipeline as data.

        Returns:
            Its nodes and edges.

        Raises:
            PlanError: it cannot run: it is empty, has no sink, or nothing reads a source.

        >>> import headrace as hr
        >>> pipeline = hr.Pipeline()
        >>> _ = pipeline.source("memory", rows=[{"n": 1}]).filter("n > 0").sink("blackhole")
        >>> [node.id for node in pipeline.plan().nodes]
        ['memory_1', 'memory_1.watermark', 'filter_1.project', 'blackhole_1']
        """
        is_built = not any(isinstance(part, Derived) for step in self._steps for part in step.parts)
        plan = self._builder.plan() if is_built else self._planned(self._steps)
        if self._recording is None:
            return plan
        directory, program = self._recording
        return recording_plan(plan, directory, program=program)

    @located
    def record(self, directory: str | Path, *, program: Mapping[str, Any] | None = None) -> Pipeline:
        """Record the input and output of runs, for `headrace replay`.

        Args:
            directory: an empty or missing directory; to resume after a crash, the same one, with the same
                state directory.
            program: a description of the pipeline that is stored in the recording.

        Returns:
            The pipeline.

        >>> import headrace as hr, tempfile
        >>> from headrace.testing.in_process import run_in_process
        >>> pipeline = hr.Pipeline()
        >>> pipeline.source("impulse", message_count=30).sink("blackhole")
        Stream(impulse_1: counter BIGINT, subtask_index BIGINT)
        >>> [node.id for node in pipeline.record("recorded").plan().nodes]
        ['impulse_1', 'blackhole_1', 'recorder']
        """
        check_argument(directory, "directory", (str, Path), "a path", example="record('recorded')")
        self._recording = Path(directory).absolute(), dict(program or {})
        return self

    @located
    def explain(
        self,
        format: ExplainFormat = "text",  # noqa: A002
        *,
        spark: bool = False,
        parallelism: int | None = None,
    ) -> str:
        """The plan with its chains, stages and state tables.

        Args:
            format: `text`, `mermaid` (a diagram) or `json`.
            spark: whether to add Spark's own plan; this starts Spark.
            parallelism: how many subtasks an operator has.

        Returns:
            The plan as text.

        Raises:
            PlanError: the pipeline cannot run.

        >>> import headrace as hr
        >>> pipeline = hr.Pipeline()
        >>> _ = pipeline.source("memory", rows=[{"n": 1}]).sink("blackhole")
        >>> "memory_1" in pipeline.explain(parallelism=1)
        True
        """
        if format not in get_args(ExplainFormat):
            raise PlanError.unknown(
                f"`{format}` is not a format of explain",
                name=str(format),
                candidates=get_args(ExplainFormat),
                listing="it is one of",
            )
        settings = load_settings(flags={"run": {"parallelism": parallelism}}, flags_at=call_site())
        stages = cut_stages(self.plan(), parallelism=parallelism_of(settings) or 1)
        shown = _spark_plan(stages, settings) if spark else None
        if format == "json":
            return explain_json(stages, spark=shown)
        if format == "mermaid":
            comment = "".join(f"\n%% {line}" for line in (shown or "").splitlines())
            return explain_mermaid(stages) + comment
        return explain_text(stages) + (f"\n\n{shown}" if shown else "")

    @located
    def start(
        self,
        state_dir: str | Path | None = None,
        *,
        parallelism: int | str | None = None,
        master: str | None = None,
        max_epochs: int | None = None,
        epoch_rows: int | None = None,
        from_epoch: int | None = None,
        allow_drop: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
        stop: threading.Event | None = None,
        watch: bool = False,
        options: RunOptions | None = None,
    ) -> PipelineRun:
        """Start the pipeline on Spark and return at once, with a handle of the run.

        Several pipelines may run in one process, each with its own handle and its own state directory.

        Args:
            state_dir: the directory or URL of the checkpoints; without it they are deleted after the run.
            parallelism: how many subtasks an operator has, or bounds such as `auto:2-64` to scale with the
                load.
            master: the Spark master.
            max_epochs: the maximum number of epochs.
            epoch_rows: the maximum number of rows that an epoch reads.
            from_epoch: go back to the checkpoint of this epoch.
            allow_drop: whether state of removed operators may be dropped.
            on_progress: called after each epoch, in the thread of the run.
            stop: set it to end the run after the current epoch.
            watch: reload the operators of a dataflow whose files change.
            options: the other settings.

        Returns:
            The handle: `status`, `last_progress`, `await_termination(…)`, `stop()`; at the end of a `with`
            block it stops the run.

        Raises:
            UserError: the pipeline, a setting or the state directory is wrong; later errors are raised by
                the handle.

        >>> import headrace as hr
        >>> try:
        ...     hr.Pipeline("empty").start()
        ... except hr.PlanError as error:
        ...     print(error.message)
        pipeline `empty` is empty
        """
        check_run_arguments(
            state_dir,
            on_progress,
            from_epoch=from_epoch,
            allow_drop=allow_drop,
            watch=watch,
            master=master,
        )
        if stop is not None and not callable(getattr(stop, "is_set", None)):
            raise PlanError(f"`stop` takes a threading.Event, got {type(stop).__name__} {stop!r}")
        settings, keywords = self._job(
            state_dir,
            parallelism=parallelism,
            master=master,
            max_epochs=max_epochs,
            epoch_rows=epoch_rows,
            watch=watch,
            options=options,
        )
        return start_job(
            self.plan(),
            settings,
            from_epoch=from_epoch,
            allow_drop=allow_drop,
            on_progress=on_progress,
            stop=stop,
            **keywords,
        )

    run = _run_to_the_end(start)
    run.__doc__ = """Run the pipeline on Spark until it ends, and return a summary: `start(…)` and wait.

    With a `state_dir` it continues where the last run on that directory ended, at any parallelism. It
    ends when every source has ended, after `max_epochs`, or when `stop` is set; the current epoch is
    finished and committed. An active SparkSession is used; without one, a session on `master` is started
    and kept for the next run. Other settings come from the environment and `headrace.toml`.

    Args:
        state_dir: the directory or URL of the checkpoints; without it they are deleted after the run.
        options: the same as for `start`: `parallelism`, `max_epochs`, `stop` …

    Returns:
        The summary of the run.

    Raises:
        HeadraceError: the run failed; a `UserError` if the program, a setting or the state has to change.

    >>> import headrace as hr
    >>> try:
    ...     hr.Pipeline("empty").run()
    ... except hr.PlanError as error:
    ...     print(error.message)
    pipeline `empty` is empty
    """

    # ---------------------------------------------------------------------------------------- inside

    def _job(
        self,
        state_dir: str | Path | None,
        *,
        master: str | None,
        watch: bool,
        options: RunOptions | None,
        **run: int | str | None,
    ) -> tuple[Settings, dict[str, Any]]:
        """The settings of a run, and the keywords of a job that depend on its options."""
        chosen = RunOptions() if options is None else options
        if not isinstance(chosen, RunOptions):
            raise PlanError(
                f"`options` takes hr.RunOptions(…), got {type(options).__name__}",
                hint="such as `options=hr.RunOptions(restarts=5)`",
            )
        settings = chosen._settings(state_dir=state_dir, master=master, run=run)
        refresh = self._reload() if watch else None
        return settings, {
            "py_files": chosen.py_files,
            "verbose": chosen.verbose,
            "refresh": refresh,
            "questions": self._questions(),
        }

    def _questions(self) -> dict[str, Callable[..., Any]]:
        """Further questions of other processes that a run answers."""
        dataflow = self.dataflow
        if dataflow is None:
            return {}
        described = {**describe(dataflow), "mermaid": mermaid_text(draw_dataflow(dataflow))}
        return {"dataflow": lambda: described, "logs": recent_lines}

    def _reload(self) -> Reload:
        """What reloads the operators of a dataflow between epochs, for `watch`."""
        if self.dataflow is None:
            raise PlanError(
                f"`watch` is for dataflows, and `{self.name}` is not one",
                hint="leave it out, or make the pipeline with `Pipeline.from_dataflow('flow.yml')`",
            )
        return Reload(self.dataflow, functions=self._functions)

    def _planned(self, steps: Sequence[_Step]) -> Plan:
        """The plan of some of the steps, with the operators of the queries that they read."""
        builder = self._begin()
        # Once for each reader: what several read is computed once.
        roots = [part.rows for step in steps for part in step.parts if isinstance(part, Derived)]
        lowered = self._sql.lower(builder, roots, names=self._queries)
        for step in steps:
            inputs = [[port for part in parts for port in _ports(part, lowered)] for parts in step.inputs]
            builder.add(step.role, step.what, inputs, id=step.id, options=step.options)
        return builder.plan()

    def _show_query(self, preview: Preview) -> tuple[str, dict[str, Any]]:
        """The sink of a bare SELECT in a notebook."""
        table = LiveTable(self.name, preview.columns, updating=preview.updating, key=preview.key)
        return self._live.add(table)

    def _shown_plan(self, stream: Stream, sink: str, options: Mapping[str, Any]) -> Plan:
        """The plan of everything upstream of a stream and one sink, without the other sinks."""
        last = _Step("sink", sink, (stream._parts,), self._unique_id("show"), options)
        steps, wanted = [last], {node for part in last.parts for node in _origins(part)}
        for step in reversed(self._steps):
            if step.id in wanted:
                steps.insert(0, step)
                wanted |= {node for part in step.parts for node in _origins(part)}
        return self._planned(steps)

    def _show(
        self,
        stream: Stream,
        table: LiveTable,
        *,
        timeout: float | None,
        max_epochs: int | None,
        parallelism: int | None,
        options: RunOptions | None,
    ) -> None:
        """Run everything upstream of a stream and display its rows in a table."""
        live = LiveTables()
        plan = self._shown_plan(stream, *live.add(table))
        settings, keywords = self._job(
            None,
            parallelism=parallelism,
            master=None,
            max_epochs=max_epochs,
            epoch_rows=None,
            watch=False,
            options=options,
        )
        with live.connected():
            _shown(start_job(plan, settings, **keywords), live, timeout=timeout)
        if not in_notebook():
            sys.stdout.write(f"{table!r}\n")

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """The plan as a diagram, for notebooks."""
        try:
            stages = cut_stages(self.plan(), parallelism=1)
        except HeadraceError as error:
            return {"text/plain": f"{self!r}: {error.message}"}
        return {
            "text/plain": explain_text(stages),
            "text/vnd.mermaid": explain_mermaid(stages),
            "text/html": stages_html(stages),
        }

    def _add(
        self,
        role: Role,
        what: str | ArrowOperator | SourceOperator,
        inputs: Sequence[Stream],
        *,
        id: str | None,  # noqa: A002
        options: Mapping[str, Any],
        shape: StreamShape,
    ) -> Stream:
        """Add a node behind streams. Edges from queries are added when the pipeline is planned."""
        parts = tuple(stream._parts for stream in inputs)
        ports = [[part for part in several if isinstance(part, Port)] for several in parts]
        check_id(id, role)
        if id is not None and id in self._query_ids:
            raise PlanError(f"there is already an operator with the id `{id}`")
        port = self._builder.add(role, what, ports, id=id, options=options)
        self._steps.append(_Step(role, what, parts, port.node, options))
        if id is not None:
            self._chosen_ids.add(id)
        return Stream(self, (port,), shape)

    def _query(
        self,
        method: str,
        text: QueryText,
        tables: Mapping[str, Stream],
        *,
        id: str | None,  # noqa: A002
    ) -> Stream:
        check_id(id, method)
        rows: dict[str, Relational] = {}
        for name, stream in tables.items():
            self._check_own(stream, method)
            rows[name] = stream._rows(method)
        with text.explained():
            result = self._sql.query(text.source, rows)
        name = self._queries[result] = self._query_name(method, id)
        return derived_stream(self, result, name)

    def _query_name(self, method: str, id: str | None) -> str:  # noqa: A002
        """What the operators of a query are called after: its id, or the method and a number."""
        if id is None:
            while True:
                self._counts[method] = self._counts.get(method, 0) + 1
                name = f"{method}_{self._counts[method]}"
                if name not in self._chosen_ids:
                    self._query_ids.add(name)
                    return name
        if id in self._query_ids or any(step.id == id for step in self._steps):
            raise PlanError(f"there is already an operator with the id `{id}`")
        self._chosen_ids.add(id)
        self._query_ids.add(id)
        return id

    def _role(self, node: str) -> Role:
        """What was added with an id: a source, an operator or a sink."""
        return next(step.role for step in self._steps if step.id == node)

    def _operator(self, node: str) -> ArrowOperator | SourceOperator:
        """The source or operator that was added with an id."""
        step = next(step for step in self._steps if step.id == node)
        if not isinstance(step.what, str):
            return step.what
        operator: ArrowOperator | SourceOperator = registry.build(step.role, step.what, step.options)
        return operator

    def _unique_id(self, base: str) -> str:
        ids = {step.id for step in self._steps}
        return next(
            name
            for number in range(1, len(ids) + 2)
            if (name := base if number == 1 else f"{base}_{number}") not in ids
        )

    def _check_own(self, stream: object, method: str) -> None:
        """Refuse what is no stream of this pipeline."""
        if not isinstance(stream, Stream):
            raise PlanError(
                f"{method} takes streams, got {type(stream).__name__} {stream!r}",
                hint="a stream is what `pipeline.source(…)` and the methods of streams return",
            )
        if stream.pipeline is not self:
            raise PlanError(
                f"a stream of pipeline `{stream.pipeline.name}` cannot be used in `{self.name}`",
                hint="build both parts with one Pipeline object",
            )

    def _connector(
        self, role: Role, connector: Any, options: Mapping[str, Any]
    ) -> tuple[Any, Mapping[str, Any]]:
        """The name or object of a connector and its options."""
        if not isinstance(connector, ConfiguredSource | ConfiguredSink):
            return connector, options
        expected = ConfiguredSource if role == "source" else ConfiguredSink
        if not isinstance(connector, expected):
            other = "sink" if role == "source" else "source"
            name = connector.connector
            raise PlanError(
                f"{role} takes a {role}, got the {other} `{name}`",
                hint=f"make it with `hr.{role}s.{name}(…)`" if name in registry.names(role) else None,
            )
        if options:
            raise PlanError(
                f"options {', '.join(options)} were given with an object",
                hint=f"give them to the function that made it: `{connector.connector}(…)`",
            )
        return connector.connector, connector.options


def _sources(texts: object) -> list[Source]:
    """The scripts of a SQL program, as the command line passes them."""
    if not isinstance(texts, list | tuple) or not all(isinstance(text, Source) for text in texts):
        raise PlanError(
            f"from_sql takes SQL, got {type(texts).__name__} {texts!r}",
            hint="such as `from_sql('SELECT 1 AS a')`",
        )
    return list(texts)


def _ports(part: Part, lowered: LoweredStreams) -> tuple[Port, ...]:
    if isinstance(part, Port):
        return (part,)
    try:
        ports = lowered.ports(part.rows)
    except HeadraceError as error:
        error.where = error.where or part.site
        raise
    if part.kind == "forward":
        return ports
    return tuple(replace(port, kind=part.kind, keys=part.keys) for port in ports)


def _origins(part: Part) -> set[str]:
    """The ids of the nodes that produce the rows."""
    return {part.node} if isinstance(part, Port) else part.rows.origins


def _shown(run: PipelineRun, live: LiveTables, *, timeout: float | None = None) -> RunResult:
    """Wait for the end of a run and return its result; its tables are displayed until then."""
    result = live.follow(run, timeout=timeout)
    if result is None:
        raise InternalError("the run is over and has no result")
    return result


def _has_changes(connector: str, options: Mapping[str, Any]) -> bool:
    """Whether the rows of a source are changes, by their format or by the connector itself."""
    if options.get("format") == "debezium_json":
        return True
    is_updating = getattr(registry.constructor("source", connector), "is_updating", None)
    return is_updating is not None and bool(is_updating(options))


def _spark_plan(stages: StagePlan, settings: Settings) -> str:
    from headrace.jobs.explain_spark import explain_spark

    return explain_spark(stages, settings)
