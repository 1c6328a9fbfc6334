/** What the server sends and takes, by its contract. Times are microseconds since 1970. */

export interface Page<T> {
  data: T[];
  hasMore?: boolean;
}

export type Kind = "sql" | "dataflow" | "python";

export type JobState =
  | "Created"
  | "Compiling"
  | "Scheduling"
  | "Running"
  | "Rescaling"
  | "Recovering"
  | "Restarting"
  | "CheckpointStopping"
  | "Stopping"
  | "Stopped"
  | "Finishing"
  | "Finished"
  | "Failing"
  | "Failed";

export type StopMode = "none" | "checkpoint" | "graceful" | "immediate" | "force";

export interface GraphNode {
  node_id: number;
  operator: string;
  description: string;
  parallelism: number;
  /** The id of the operator in the plan. */
  id: string;
  stage: number;
  chain: number;
}

export interface GraphEdge {
  src_id: number;
  dest_id: number;
  key_type: string;
  value_type: string;
  edge_type: string;
}

export interface PipelineGraph {
  nodes: GraphNode[];
  edges: GraphEdge[];
}

export interface Udf {
  definition: string;
  language: "python" | "rust";
}

export interface Pipeline {
  id: string;
  name: string;
  query: string;
  udfs: Udf[];
  checkpoint_interval_micros: number;
  stop: StopMode;
  created_at: number;
  action: StopMode | null;
  action_text: string;
  action_in_progress: boolean;
  graph: PipelineGraph;
  preview: boolean;
  state_url?: string | null;
  tags: Record<string, string>;
  kind: Kind;
  files: Record<string, string>;
  parallelism: number;
  version: number;
  created_by: string;
  job_id: string;
  state: JobState;
}

/** How far a job is; null where its process has told nothing. */
export interface Progress {
  state: JobState;
  epoch: number | null;
  rows_in: number | null;
  rows_out: number | null;
  rows_in_per_second: number | null;
  rows_out_per_second: number | null;
  watermark: number | null;
  /** What the sources have yet to read, of those that know it. */
  lag: number | null;
  lag_bytes: number | null;
  lag_files: number | null;
  epoch_seconds: number | null;
  state_bytes: number | null;
  state_rows: number | null;
  late_rows: number | null;
  bad_rows: number | null;
  dead_letters: number | null;
  restarts: number;
  message: string;
  last_error: string | null;
}

export interface Version {
  version: number;
  query: string;
  files: Record<string, string>;
  udfs: Udf[];
  created_at: number;
  created_by: string;
}

/** What another program would do with the state of a pipeline. */
export interface ChangePlan {
  outcome: "unchanged" | "applies" | "drops_state" | "refused" | "invalid";
  version: number;
  errors: QueryError[];
  epoch: number | null;
  kept: { operator_id: string; kind: "position" | "state"; rows: number; bytes: number }[];
  fresh: string[];
  dropped: string[];
  refused: string[];
}

export interface StateTable {
  operator_id: string;
  table: string;
  sql_name: string;
  kind: string;
  description: string;
  columns: Record<string, string>;
  key: string[];
  rows?: number;
  bytes?: number;
}

export interface QueryRows {
  columns: string[];
  rows: Record<string, unknown>[];
  hasMore: boolean;
}

export interface FailureReason {
  error: string;
  domain: string;
}

export interface Job {
  id: string;
  pipeline_id: string;
  running_desired: boolean;
  state: JobState;
  run_id: number;
  start_time: number | null;
  finish_time: number | null;
  tasks: number | null;
  failure_reason: FailureReason | null;
  created_at: number;
}

export interface JobLogMessage {
  id: string;
  created_at: number;
  operator_id: string | null;
  task_index: number | null;
  level: "info" | "warn" | "error";
  message: string;
  details: string;
  error_domain?: string | null;
}

export interface CheckpointEvent {
  start_time: number;
  finish_time: number | null;
  event: string;
  description: string;
}

export interface Checkpoint {
  epoch: number;
  backend: string;
  checkpoint_type: string;
  start_time: number;
  finish_time: number | null;
  events: CheckpointEvent[];
}

export interface OperatorCheckpointGroup {
  operator_id: string;
  bytes: number;
  started_metadata_write: number | null;
  finish_time: number | null;
  subtasks: { index: number; bytes: number; event_spans: CheckpointEvent[] }[];
}

export interface OutputData {
  operator_id: string;
  subtask_idx: number;
  timestamps: number[];
  start_id: number;
  /** Rows, as a JSON text. */
  batch: string;
}

/** A sample of the rows that one operator has sent to another in an epoch. */
export interface TappedRows {
  epoch: number;
  seen: number;
  matched: number;
  problem: string;
  timestamps: (number | null)[];
  /** Rows, as a JSON text. */
  batch: string;
}

/** Why a stream of events has ended early. */
export interface Ended {
  error?: string;
}

export interface StateComparison {
  /** The epochs that were compared. */
  before: number;
  after: number;
  rows_before: number;
  rows_after: number;
  added: number;
  removed: number;
  changed: number;
  changes: { change: "added" | "removed" | "changed"; before: Record<string, unknown> | null; after: Record<string, unknown> | null }[];
  hasMore: boolean;
}

export interface Metric {
  time: number;
  value: number;
}

export interface OperatorMetricGroup {
  node_id: number;
  metric_groups: { name: string; subtasks: { index: number; metrics: Metric[] }[] }[];
}

/** What an operator does and holds, since its run began. */
export interface Operator {
  id: string;
  rows_in: number;
  rows_out: number;
  seconds: number;
  /** The share of the last minute in which its busiest subtask worked. */
  busy: number;
  skew: number | null;
  backpressure: number;
  watermark_delay: number | null;
  state_rows: number;
  state_bytes: number;
  state: Metric[];
  late_rows: number;
  bad_rows: number;
  /** By their code. */
  bad_by: Record<string, number>;
  dead_letters: number;
  commits: number;
  commit_seconds: number;
}

/** The process of a running pipeline and its Spark. */
export interface Process {
  pipeline_id: string;
  pipeline: string;
  run_id: number;
  state: JobState;
  pid: number | null;
  master: string;
  cores: number | null;
  active_tasks: number | null;
  failed_tasks: number | null;
  idle_ratio: number | null;
  spark_url: string | null;
  memory: Record<string, number>;
}

export interface Cluster {
  version: string;
  cores: number;
  memory: number | null;
  memory_available: number | null;
  server_pid: number;
  server_memory: number | null;
  server_cpu_seconds: number;
  started: number;
  master: string;
  processes: Process[];
}

export interface AuditEntry {
  id: number;
  time: number;
  user: string;
  address: string;
  method: string;
  path: string;
  status: number;
}

export interface Connector {
  id: string;
  name: string;
  icon: string;
  description: string;
  /** A JSON schema, as a text. */
  table_config: string;
  enabled: boolean;
  source: boolean;
  sink: boolean;
  custom_schemas: boolean;
  testing: boolean;
  hidden: boolean;
  connection_config: string | null;
}

export interface ConnectionProfile {
  id: string;
  name: string;
  connector: string;
  config: unknown;
  description: string;
}

export interface TestMessage {
  error: boolean;
  done: boolean;
  message: string;
}

export interface SchemaField {
  name: string;
  type: string;
  required: boolean;
  sql_name?: string | null;
  [more: string]: unknown;
}

export interface ConnectionSchema {
  format?: ({ type: string } & Record<string, unknown>) | null;
  bad_data?: unknown;
  framing?: unknown;
  fields: SchemaField[];
  definition?: { type: string; schema: string } | null;
  inferred?: boolean | null;
  primary_keys?: string[];
}

export interface ConnectionTable {
  id: string;
  name: string;
  created_at: number;
  connector: string;
  connection_profile: ConnectionProfile | null;
  table_type: "source" | "sink" | "lookup";
  config: Record<string, unknown>;
  schema: ConnectionSchema;
  consumers: number;
}

export interface ConnectionTablePost {
  name: string;
  connector: string;
  connection_profile_id: string | null;
  config: unknown;
  schema: ConnectionSchema | null;
}

export interface GlobalUdf {
  id: string;
  prefix: string;
  name: string;
  language: "python" | "rust";
  created_at: number;
  updated_at: number;
  definition: string;
  description: string | null;
}

export interface Location {
  line: number;
  column: number;
}

export interface QueryError {
  message: string;
  span?: { start: Location; end: Location } | null;
}

export interface QueryValidation {
  graph: PipelineGraph | null;
  errors: (QueryError | string)[] | null;
}

export interface PipelinePost {
  name: string;
  kind: Kind;
  query: string;
  udfs: Udf[];
  files?: Record<string, string>;
  parallelism: number;
  checkpoint_interval_micros?: number;
}

export interface PipelinePatch {
  stop?: StopMode;
  parallelism?: number;
  checkpoint_interval_micros?: number;
}
