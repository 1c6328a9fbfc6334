"""Request and response bodies of the REST API. Times are microseconds since 1970."""

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


class RequestBody(BaseModel):
    """A request body; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ResponseBody(BaseModel):
    """A response body."""


class Failure(ResponseBody):
    """The response to a request that failed."""

    error: str


class Listed(ResponseBody, Generic[Item]):
    """A list."""

    data: list[Item]


class Paged(ResponseBody, Generic[Item]):
    """One page of a list; the id of its last item as `starting_after` requests the next page."""

    data: list[Item]
    has_more: bool = Field(serialization_alias="hasMore")


class Pong(ResponseBody):
    """The response to a ping."""

    pong: bool = True


# ------------------------------------------------------------------------------------------ pipelines


class GraphNodeView(ResponseBody):
    """An operator of the graph; `id`, `stage` and `chain` are the same as in `headrace explain`."""

    node_id: int
    operator: str
    description: str
    parallelism: int
    id: str
    stage: int
    chain: int


class GraphEdgeView(ResponseBody):
    """An edge: one operator sends rows to another."""

    src_id: int
    dest_id: int
    key_type: str
    value_type: str
    edge_type: str


class GraphView(ResponseBody):
    """The operators of a pipeline and the edges between them."""

    nodes: list[GraphNodeView]
    edges: list[GraphEdgeView]


class UdfText(RequestBody):
    """The source of a function that one pipeline alone can call."""

    definition: Text
    language: Language = "rust"


class SchedulerConfig(RequestBody):
    """The Spark master and settings of a pipeline, if they differ from those of the server."""

    master: str | None = None
    conf: dict[str, str] | None = None


class QueryPost(RequestBody):
    """A program to check."""

    query: Text
    udfs: list[UdfText] | None = None
    kind: Kind = "sql"
    files: dict[str, Text] | None = None


class PreviewPost(QueryPost):
    """A program to run as a preview: for a minute, without its sinks unless `enable_sinks` is set."""

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


class PipelinePatch(RequestBody):
    """A change of a pipeline's settings; fields that are left out keep their values."""

    stop: StopMode | None = None
    parallelism: Parallelism | None = None
    checkpoint_interval_micros: Interval | None = None
    env_vars: dict[str, str] | None = None
    scheduler_config: SchedulerConfig | None = None


class PipelinePut(RequestBody):
    """A new program for a pipeline; fields that are left out keep their values.

    Name, kind and `state_url` cannot change. State that the new program cannot use is dropped only with
    `allow_drop`; with `ignore_state` it starts without state. `version` is the version that is replaced: if
    the pipeline has another one by now, nothing is changed.
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


class RestartPost(RequestBody):
    """How to restart: `force` abandons the current epoch, `ignore_state` starts without state.

    With `from_epoch` the pipeline goes back to that checkpoint, and later checkpoints are removed.
    """

    force: bool | None = None
    ignore_state: bool | None = None
    from_epoch: int | None = Field(None, ge=0)


class PositionView(ResponseBody):
    """A position in a program; lines and columns are counted from 1."""

    line: int
    column: int


class SpanView(ResponseBody):
    """A range of a program; `end` is not part of it."""

    start: PositionView
    end: PositionView


class QueryErrorView(ResponseBody):
    """An error in a program."""

    message: str
    span: SpanView | None


class ValidationView(ResponseBody):
    """The graph of a program, or its errors."""

    graph: GraphView | None
    errors: list[QueryErrorView]


class KeptStateView(ResponseBody):
    """State that a changed program keeps: the position of a source, or the tables of an operator."""

    operator_id: str
    kind: Literal["position", "state"]
    rows: int
    bytes: int


class ChangeView(ResponseBody):
    """What a new program would do to the state of a pipeline at `epoch`; nothing is changed.

    `outcome`: `applies` keeps all state, `drops_state` needs `allow_drop`, `refused` needs `ignore_state`.
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


class PipelineView(ResponseBody):
    """A pipeline. The values of `env_vars` are hidden."""

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


class VersionView(ResponseBody):
    """An earlier program of a pipeline."""

    version: int
    query: str
    files: dict[str, str]
    udfs: list[UdfText]
    created_at: int
    created_by: str


# ----------------------------------------------------------------------------------------------- jobs


class FailureReason(ResponseBody):
    """Why a job failed; `domain` says whether the user, an external system or Headrace caused it."""

    error: str
    domain: str


class JobView(ResponseBody):
    """The job of a pipeline; it has exactly one. `run_id` increases with every start of its process."""

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


class ProgressView(ResponseBody):
    """The progress of a job, as its process last reported it; null for values not reported yet."""

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


class JobMessageView(ResponseBody):
    """A log message of a job or about it."""

    id: str
    created_at: int
    operator_id: str | None
    task_index: int | None
    level: Literal["info", "warn", "error"]
    message: str
    details: str
    error_domain: str | None


class CheckpointPhaseView(ResponseBody):
    """A phase of a checkpoint."""

    start_time: int
    finish_time: int | None
    event: Literal["Checkpointing", "CheckpointingOperators", "WritingMetadata", "Compacting", "Committing"]
    description: str


class CheckpointView(ResponseBody):
    """A checkpoint that a run can resume from."""

    epoch: int
    backend: str
    checkpoint_type: Literal["scheduled", "stopping"]
    start_time: int
    finish_time: int | None
    events: list[CheckpointPhaseView]


class SubtaskCheckpointView(ResponseBody):
    """The state of one subtask in a checkpoint."""

    index: int
    bytes: int
    event_spans: list[CheckpointPhaseView]


class OperatorCheckpointView(ResponseBody):
    """The state of one operator in a checkpoint."""

    operator_id: str
    bytes: int
    started_metadata_write: int | None
    finish_time: int | None
    subtasks: list[SubtaskCheckpointView]


class MetricView(ResponseBody):
    """The value of a metric at one time."""

    time: int
    value: float


class SubtaskMetricsView(ResponseBody):
    """The values of a metric for one subtask."""

    index: int
    metrics: list[MetricView]


class MetricGroupView(ResponseBody):
    """The values of one metric for each subtask."""

    name: MetricName
    subtasks: list[SubtaskMetricsView]


class OperatorMetricsView(ResponseBody):
    """The metrics of one operator."""

    node_id: int
    metric_groups: list[MetricGroupView]


class OperatorView(ResponseBody):
    """Metrics and state size of an operator since the run started; null for values that are not known.

    `busy` is the share of the last minute in which its busiest subtask worked, `skew` the ratio of that
    subtask to the mean of all. `watermark_delay` is in seconds. `bad_by` counts bad rows by error code.
    `state` is the size of the state over time.
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


class OutputView(ResponseBody):
    """Rows of a preview; `batch` is a JSON array in a string."""

    operator_id: str
    subtask_idx: int
    timestamps: list[int]
    start_id: int
    batch: str


class TapView(ResponseBody):
    """A sample of the rows that one operator sent to another in an epoch and that match the filter.

    `seen` counts all rows of the epoch, `matched` those that match. `batch` is a JSON array in a string.
    """

    epoch: int
    seen: int
    matched: int
    problem: str
    timestamps: list[int | None]
    batch: str


class StateQuery(RequestBody):
    """SQL over the tables of a checkpoint; the latest one unless `epoch` is set."""

    query: Text
    epoch: int | None = Field(None, ge=0)
    limit: int = Field(1000, ge=1, le=10_000)


class RowsView(ResponseBody):
    """Rows as JSON objects."""

    columns: list[str]
    rows: list[dict[str, Any]]
    has_more: bool = Field(serialization_alias="hasMore")


class RowChangeView(ResponseBody):
    """A row of state that was added, removed or changed between two checkpoints."""

    change: Literal["added", "removed", "changed"]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class StateComparisonView(ResponseBody):
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


class StateTableView(ResponseBody):
    """A state table in a checkpoint; `rows` counts stored rows, including replaced and deleted ones."""

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


class ConnectorView(ResponseBody):
    """A connector; the JSON schemas of its options are strings."""

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


class ProfilePost(RequestBody):
    """A new connection profile."""

    name: Name
    connector: str
    config: dict[str, Any]
    description: str | None = Field(None, max_length=10_000)


class ProfileView(ResponseBody):
    """A connection profile; secret options are shown as `***`."""

    id: str
    name: str
    connector: str
    config: dict[str, Any]
    description: str


class AutocompleteView(ResponseBody):
    """Possible values by the name of the option."""

    values: dict[str, list[str]]


class TablePost(RequestBody):
    """A new connection table."""

    name: Name
    connector: str
    connection_profile_id: str | None = None
    config: dict[str, Any] | None = None
    table_schema: dict[str, Any] | None = Field(None, alias="schema")


class TableView(ResponseBody):
    """A connection table; `consumers` is the number of pipelines that use it."""

    id: str
    name: str
    created_at: int
    connector: str
    connection_profile: ProfileView | None
    table_type: Literal["source", "sink", "lookup"]
    config: dict[str, Any]
    table_schema: dict[str, Any] = Field(serialization_alias="schema")
    consumers: int


class TestMessageView(ResponseBody):
    """A message of a connection test."""

    error: bool
    done: bool
    message: str


# ------------------------------------------------------------------------------------------ functions


class UdfPost(RequestBody):
    """A new function for the SQL of all pipelines."""

    prefix: str = Field("", max_length=200)
    language: Language = "rust"
    definition: Text
    description: str | None = Field(None, max_length=10_000)


class UdfView(ResponseBody):
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


class UdfValidatePost(RequestBody):
    """The source of a function to check."""

    definition: Text
    language: Language = "rust"


class UdfValidationView(ResponseBody):
    """The name of a function, or its errors."""

    udf_name: str | None
    errors: list[str]


# --------------------------------------------------------------------------------------------- cluster


class ProcessView(ResponseBody):
    """The process of a running pipeline and its Spark; null for values not reported yet.

    `memory` is in bytes, by kind of process: `driver`, Spark's `java`, Python `workers`, `other`.
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


class ClusterView(ResponseBody):
    """The machine, the server process and the processes of its pipelines. Sizes are in bytes."""

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


class SessionPost(RequestBody):
    """A token, to sign in from a browser."""

    token: str = Field(max_length=1000)


class SessionView(ResponseBody):
    """The user of the request and their role."""

    user: str
    role: Literal["viewer", "operator", "author"]
    sign_in_required: bool


class AuditView(ResponseBody):
    """A request that changed something, or was refused."""

    id: int
    time: int
    user: str
    address: str
    method: str
    path: str
    status: int
