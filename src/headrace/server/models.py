"""The bodies and answers of the REST API. Times are microseconds since 1970."""

from __future__ import annotations

import re
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from headrace.server.program import Kind
from headrace.server.states import JobState, StopMode

Item = TypeVar("Item")

LARGEST_TEXT = 1_000_000
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f/\\]")


def _check_name(name: str) -> str:
    if not name.strip() or _NOT_IN_NAMES.search(name):
        raise ValueError("a name has at least one character, no slashes and no control characters")
    return name


def _check_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("a text has no NUL characters")
    return text


Name = Annotated[str, StringConstraints(max_length=200), AfterValidator(_check_name)]
Text = Annotated[str, StringConstraints(max_length=LARGEST_TEXT), AfterValidator(_check_text)]
Parallelism = Annotated[int, Field(ge=1, le=1024)]
Interval = Annotated[int, Field(ge=1_000_000, le=86_400_000_000)]
MetricName = Literal[
    "bytes_recv",
    "bytes_sent",
    "messages_recv",
    "messages_sent",
    "backpressure",
    "tx_queue_size",
    "tx_queue_rem",
]
Language = Literal["python", "rust"]


class Body(BaseModel):
    """What a client sends: a key that nobody reads is refused, and so is `"2"` for a number."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answer(BaseModel):
    """What the server answers."""


class Failure(Answer):
    """The answer to a request that failed."""

    error: str


class Listed(Answer, Generic[Item]):
    """A list."""

    data: list[Item]


class Paged(Answer, Generic[Item]):
    """A part of a list; the id of its last item as `starting_after` gets the next part."""

    data: list[Item]
    has_more: bool = Field(serialization_alias="hasMore")


class Pong(Answer):
    """The answer to a ping."""

    pong: bool = True


# ------------------------------------------------------------------------------------------ pipelines


class GraphNodeView(Answer):
    """An operator; `id`, `stage` and `chain` are those of `headrace explain`."""

    node_id: int
    operator: str
    description: str
    parallelism: int
    id: str
    stage: int
    chain: int


class GraphEdgeView(Answer):
    """Rows that go from one operator to another."""

    src_id: int
    dest_id: int
    key_type: str
    value_type: str
    edge_type: str


class GraphView(Answer):
    """The operators of a pipeline and what connects them."""

    nodes: list[GraphNodeView]
    edges: list[GraphEdgeView]


class UdfText(Body):
    """A function that belongs to one pipeline."""

    definition: Text
    language: Language = "rust"


class SchedulerConfig(Body):
    """The Spark that runs a pipeline, where it is another than the server's."""

    master: str | None = None
    conf: dict[str, str] | None = None


class QueryPost(Body):
    """A program to check."""

    query: Text
    udfs: list[UdfText] | None = None
    kind: Kind = "sql"
    files: dict[str, Text] | None = None


class PreviewPost(QueryPost):
    """A program to look at for a minute."""

    enable_sinks: bool = False


class PipelinePost(QueryPost):
    """A new pipeline."""

    name: Name
    parallelism: Parallelism = 1
    checkpoint_interval_micros: Interval | None = None
    state_url: str | None = Field(None, min_length=1, max_length=2000)
    tags: dict[str, str] | None = None
    env_vars: dict[str, str] | None = None
    scheduler_config: SchedulerConfig | None = None


class PipelinePatch(Body):
    """A change of a pipeline; what is left out stays."""

    stop: StopMode | None = None
    parallelism: Parallelism | None = None
    checkpoint_interval_micros: Interval | None = None
    env_vars: dict[str, str] | None = None
    scheduler_config: SchedulerConfig | None = None


class PipelinePut(Body):
    """Another program for a pipeline; what is left out stays. Name, kind and `state_url` always stay.

    State that the new program cannot take up is lost only with `allow_drop`; with `ignore_state` it begins
    without any. `version` is that of the program it replaces: a pipeline with another one is not changed.
    """

    query: Text
    udfs: list[UdfText] | None = None
    files: dict[str, Text] | None = None
    name: Name | None = None
    kind: Kind | None = None
    state_url: str | None = Field(None, min_length=1, max_length=2000)
    parallelism: Parallelism | None = None
    checkpoint_interval_micros: Interval | None = None
    tags: dict[str, str] | None = None
    env_vars: dict[str, str] | None = None
    scheduler_config: SchedulerConfig | None = None
    allow_drop: bool = False
    ignore_state: bool = False
    version: int | None = Field(None, ge=1)


class RestartPost(Body):
    """How to restart: `force` does not finish the epoch at work, `ignore_state` begins without any state.

    With `from_epoch` the pipeline goes back to that checkpoint, and those behind it are removed.
    """

    force: bool | None = None
    ignore_state: bool | None = None
    from_epoch: int | None = Field(None, ge=0)


class PositionView(Answer):
    """A place in a text; both count from 1."""

    line: int
    column: int


class SpanView(Answer):
    """From a place to before another."""

    start: PositionView
    end: PositionView


class QueryErrorView(Answer):
    """A mistake in a program."""

    message: str
    span: SpanView | None


class ValidationView(Answer):
    """The graph of a program, or what is wrong with it."""

    graph: GraphView | None
    errors: list[QueryErrorView]


class KeptStateView(Answer):
    """State that a changed program goes on with: the position of a source, or the tables of an operator."""

    operator_id: str
    kind: Literal["position", "state"]
    rows: int
    bytes: int


class ChangeView(Answer):
    """What another program would do with the state of a pipeline at `epoch`; nothing is changed by asking.

    `applies` needs nothing, `drops_state` needs `allow_drop`, `refused` can only begin without state.
    """

    outcome: Literal["unchanged", "applies", "drops_state", "refused", "invalid"]
    version: int
    graph: GraphView | None
    errors: list[QueryErrorView]
    epoch: int | None
    kept: list[KeptStateView]
    fresh: list[str]
    dropped: list[str]
    refused: list[str]


class PipelineView(Answer):
    """A pipeline. Values of `env_vars` are never told."""

    id: str
    name: str
    kind: Kind
    query: str
    files: dict[str, str]
    udfs: list[UdfText]
    parallelism: int
    checkpoint_interval_micros: int
    stop: StopMode
    created_at: int
    created_by: str
    action: StopMode | None
    action_text: str
    action_in_progress: bool
    graph: GraphView
    preview: bool
    state_url: str | None
    tags: dict[str, str]
    version: int
    env_vars: dict[str, str]
    scheduler_config: SchedulerConfig
    job_id: str
    state: JobState


class VersionView(Answer):
    """An earlier program of a pipeline."""

    version: int
    query: str
    files: dict[str, str]
    udfs: list[UdfText]
    created_at: int
    created_by: str


# ----------------------------------------------------------------------------------------------- jobs


class FailureReason(Answer):
    """Why a job failed, and whose turn it is."""

    error: str
    domain: str


class JobView(Answer):
    """The one job of a pipeline. `run_id` grows with every start of its process."""

    id: str
    pipeline_id: str
    running_desired: bool
    state: JobState
    run_id: int
    start_time: int | None
    finish_time: int | None
    tasks: int | None
    failure_reason: FailureReason | None
    created_at: int
    scheduler_config: SchedulerConfig
    env_vars: dict[str, str]


class ProgressView(Answer):
    """How far a job is, as its process told last; null where it has told nothing."""

    state: JobState
    epoch: int | None
    rows_in: int | None
    rows_out: int | None
    rows_in_per_second: float | None
    rows_out_per_second: float | None
    watermark: int | None
    lag: float | None
    lag_bytes: float | None
    lag_files: float | None
    epoch_seconds: float | None
    state_bytes: int | None
    state_rows: int | None
    late_rows: int | None
    bad_rows: int | None
    dead_letters: int | None
    restarts: int
    message: str
    last_error: str | None


class JobMessageView(Answer):
    """A message of a job or about it."""

    id: str
    created_at: int
    operator_id: str | None
    task_index: int | None
    level: Literal["info", "warn", "error"]
    message: str
    details: str
    error_domain: str | None


class SpanOfTimeView(Answer):
    """A phase of a checkpoint."""

    start_time: int
    finish_time: int | None
    event: Literal["Checkpointing", "CheckpointingOperators", "WritingMetadata", "Compacting", "Committing"]
    description: str


class CheckpointView(Answer):
    """A checkpoint that can be resumed from."""

    epoch: int
    backend: str
    checkpoint_type: Literal["scheduled", "stopping"]
    start_time: int
    finish_time: int | None
    events: list[SpanOfTimeView]


class SubtaskCheckpointView(Answer):
    """What one subtask holds in a checkpoint."""

    index: int
    bytes: int
    event_spans: list[SpanOfTimeView]


class OperatorCheckpointView(Answer):
    """What one operator holds in a checkpoint."""

    operator_id: str
    bytes: int
    started_metadata_write: int | None
    finish_time: int | None
    subtasks: list[SubtaskCheckpointView]


class MetricView(Answer):
    """A value at a time."""

    time: int
    value: float


class SubtaskMetricsView(Answer):
    """The values of one subtask."""

    index: int
    metrics: list[MetricView]


class MetricGroupView(Answer):
    """The values of one metric."""

    name: MetricName
    subtasks: list[SubtaskMetricsView]


class OperatorMetricsView(Answer):
    """The metrics of one operator."""

    node_id: int
    metric_groups: list[MetricGroupView]


class OperatorView(Answer):
    """What an operator does and holds, since its run began; null where nothing is known.

    `busy` is the share of the last minute in which its busiest subtask worked, `skew` that subtask against
    the mean of all. `watermark_delay` is in seconds. `bad_by` counts bad rows by their code. `state` is how
    large its state was.
    """

    id: str
    name: str
    rows_in: float
    rows_out: float
    bytes_in: float
    bytes_out: float
    seconds: float
    busy: float
    skew: float | None
    backpressure: float
    watermark_delay: float | None
    state_rows: int
    state_bytes: int
    state: list[MetricView]
    late_rows: float
    bad_rows: float
    bad_by: dict[str, float]
    dead_letters: float
    commits: int
    commit_seconds: float


class OutputView(Answer):
    """Rows of an output; `batch` is a JSON array as text."""

    operator_id: str
    subtask_idx: int
    timestamps: list[int]
    start_id: int
    batch: str


class TapView(Answer):
    """Rows that one operator has sent to another in an epoch: a sample of those that the filter leaves.

    `seen` counts all rows of the epoch, `matched` those that the filter leaves. `batch` is a JSON array, as
    text.
    """

    epoch: int
    seen: int
    matched: int
    problem: str
    timestamps: list[int | None]
    batch: str


class StateQuery(Body):
    """SQL over the tables of a checkpoint; the latest unless told."""

    query: Text
    epoch: int | None = Field(None, ge=0)
    limit: int = Field(1000, ge=1, le=10_000)


class RowsView(Answer):
    """Rows as JSON objects."""

    columns: list[str]
    rows: list[dict[str, Any]]
    has_more: bool = Field(serialization_alias="hasMore")


class RowChangeView(Answer):
    """A row of state that is in one of two checkpoints only, or has other values in the later one."""

    change: Literal["added", "removed", "changed"]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class StateComparisonView(Answer):
    """How the rows of a table differ between the checkpoints of the epochs `before` and `after`."""

    before: int
    after: int
    rows_before: int
    rows_after: int
    added: int
    removed: int
    changed: int
    changes: list[RowChangeView]
    has_more: bool = Field(serialization_alias="hasMore")


class StateTableView(Answer):
    """A table of a checkpoint; `rows` counts stored rows, replaced and deleted ones included."""

    operator_id: str
    table: str
    sql_name: str
    kind: str
    description: str
    columns: dict[str, str]
    key: list[str]
    rows: int
    bytes: int


# ---------------------------------------------------------------------------------------- connections


class ConnectorView(Answer):
    """A kind of connection; the JSON schemas of its options are texts."""

    id: str
    name: str
    icon: str
    description: str
    table_config: str
    enabled: bool
    source: bool
    sink: bool
    custom_schemas: bool
    testing: bool
    hidden: bool
    connection_config: str | None


class ProfilePost(Body):
    """A new connection profile."""

    name: Name
    connector: str
    config: dict[str, Any]
    description: str | None = Field(None, max_length=10_000)


class ProfileView(Answer):
    """A connection profile; secret options are `***`."""

    id: str
    name: str
    connector: str
    config: dict[str, Any]
    description: str


class AutocompleteView(Answer):
    """Values that options can have, by option."""

    values: dict[str, list[str]]


class TablePost(Body):
    """A new connection table."""

    name: Name
    connector: str
    connection_profile_id: str | None = None
    config: dict[str, Any] | None = None
    table_schema: dict[str, Any] | None = Field(None, alias="schema")


class TableView(Answer):
    """A connection table; `consumers` is how many pipelines name it."""

    id: str
    name: str
    created_at: int
    connector: str
    connection_profile: ProfileView | None
    table_type: Literal["source", "sink", "lookup"]
    config: dict[str, Any]
    table_schema: dict[str, Any] = Field(serialization_alias="schema")
    consumers: int


class TestMessageView(Answer):
    """What a test of a connection says."""

    error: bool
    done: bool
    message: str


# ------------------------------------------------------------------------------------------ functions


class UdfPost(Body):
    """A new function for the SQL of all pipelines."""

    prefix: str = Field("", max_length=200)
    language: Language = "rust"
    definition: Text
    description: str | None = Field(None, max_length=10_000)


class UdfView(Answer):
    """A function that all pipelines can call."""

    id: str
    prefix: str
    name: str
    language: Language
    created_at: int
    updated_at: int
    definition: str
    description: str | None
    dylib_url: str | None


class UdfValidatePost(Body):
    """A function to check."""

    definition: Text
    language: Language = "rust"


class UdfValidationView(Answer):
    """The name of a function, or what is wrong with it."""

    udf_name: str | None
    errors: list[str]


# --------------------------------------------------------------------------------------------- cluster


class ProcessView(Answer):
    """The process of a running pipeline and its Spark; null where it has told nothing.

    `memory` is in bytes: of the `driver`, of Spark's `java`, of its Python `workers`, of `other` processes.
    """

    pipeline_id: str
    pipeline: str
    job_id: str
    run_id: int
    state: JobState
    pid: int | None
    master: str
    cores: int | None
    active_tasks: int | None
    failed_tasks: int | None
    idle_ratio: float | None
    spark_url: str | None
    memory: dict[str, int]


class ClusterView(Answer):
    """The machine of the server, the server itself and the processes of its pipelines. Sizes are in bytes."""

    version: str
    cores: int
    memory: int | None
    memory_available: int | None
    server_pid: int
    server_memory: int | None
    server_cpu_seconds: float
    started: int
    master: str
    processes: list[ProcessView]


# ----------------------------------------------------------------------------------------------- users


class SessionPost(Body):
    """A token, to sign in with a browser."""

    token: str = Field(max_length=1000)


class SessionView(Answer):
    """Who asks, and what they may do."""

    user: str
    role: Literal["viewer", "operator", "author"]
    sign_in_required: bool


class AuditView(Answer):
    """A request that changed something, or was refused."""

    id: int
    time: int
    user: str
    address: str
    method: str
    path: str
    status: int
