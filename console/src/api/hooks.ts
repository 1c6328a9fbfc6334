import { keepPreviousData, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { get, getAll, getText, patch, post, remove } from "./client";
import { fetchSession } from "./session";
import type {
  AuditEntry,
  Checkpoint,
  Cluster,
  ConnectionProfile,
  ConnectionTable,
  Connector,
  GlobalUdf,
  Job,
  JobLogMessage,
  Operator,
  OperatorCheckpointGroup,
  OperatorMetricGroup,
  Page,
  Pipeline,
  PipelinePatch,
  Progress,
  StateComparison,
  StateTable,
  Version,
} from "./types";

const LIVE = 2000;

export function usePipeline(id: string) {
  return useQuery({
    queryKey: ["pipelines", id],
    queryFn: ({ signal }) => get<Pipeline>(`/pipelines/${id}`, signal),
    refetchInterval: LIVE,
  });
}

export function usePipelineJobs(id: string) {
  return useQuery({
    queryKey: ["pipelines", id, "jobs"],
    queryFn: async ({ signal }) => (await get<Page<Job>>(`/pipelines/${id}/jobs`, signal)).data,
    refetchInterval: LIVE,
  });
}

const ofJob = (pipeline: string, job: string) => `/pipelines/${pipeline}/jobs/${job}`;

export function useJobErrors(pipeline: string, job: string | undefined) {
  return useQuery({
    queryKey: ["pipelines", pipeline, "errors", job],
    queryFn: async ({ signal }) =>
      (await get<Page<JobLogMessage>>(`${ofJob(pipeline, job ?? "")}/errors?limit=100`, signal)).data,
    enabled: job !== undefined,
    refetchInterval: LIVE * 2,
  });
}

export function useCheckpoints(pipeline: string, job: string | undefined) {
  return useQuery({
    queryKey: ["pipelines", pipeline, "checkpoints", job],
    queryFn: async ({ signal }) => (await get<Page<Checkpoint>>(`${ofJob(pipeline, job ?? "")}/checkpoints`, signal)).data,
    enabled: job !== undefined,
    refetchInterval: LIVE * 2,
  });
}

export function useCheckpointGroups(pipeline: string, job: string, epoch: number | undefined) {
  return useQuery({
    queryKey: ["pipelines", pipeline, "checkpoints", job, epoch],
    queryFn: async ({ signal }) =>
      (
        await get<Page<OperatorCheckpointGroup>>(
          `${ofJob(pipeline, job)}/checkpoints/${epoch ?? 0}/operator_checkpoint_groups`,
          signal,
        )
      ).data,
    enabled: epoch !== undefined,
  });
}

export function useMetrics(pipeline: string, job: string | undefined, live: boolean, seconds: number) {
  return useQuery({
    queryKey: ["pipelines", pipeline, "metrics", job, seconds],
    queryFn: async ({ signal }) =>
      (
        await get<Page<OperatorMetricGroup>>(
          `${ofJob(pipeline, job ?? "")}/operator_metric_groups?seconds=${seconds}`,
          signal,
        )
      ).data,
    enabled: job !== undefined,
    refetchInterval: live ? LIVE : false,
    placeholderData: keepPreviousData,
  });
}

export function useOperators(pipeline: string, job: string | undefined, live: boolean) {
  return useQuery({
    queryKey: ["pipelines", pipeline, "operators", job],
    queryFn: async ({ signal }) => (await get<Page<Operator>>(`${ofJob(pipeline, job ?? "")}/operators`, signal)).data,
    enabled: job !== undefined && live,
    refetchInterval: LIVE,
  });
}

export function useCluster() {
  return useQuery({
    queryKey: ["cluster"],
    queryFn: ({ signal }) => get<Cluster>("/cluster", signal),
    refetchInterval: LIVE,
  });
}

/** Who changed what; only authors ask, as the refusal of others would be an entry itself. */
export function useAudit() {
  const session = useQuery({ queryKey: ["session"], queryFn: fetchSession });
  return useQuery({
    enabled: session.data?.role === "author",
    queryKey: ["audit"],
    queryFn: async ({ signal }) => (await get<Page<AuditEntry>>("/audit?limit=50", signal)).data,
    refetchInterval: LIVE * 2,
    retry: false,
  });
}

export function useProgress(pipeline: string, job: string | undefined) {
  return useQuery({
    queryKey: ["pipelines", pipeline, "progress", job],
    queryFn: ({ signal }) => get<Progress>(`${ofJob(pipeline, job ?? "")}/progress`, signal),
    enabled: job !== undefined,
    refetchInterval: LIVE,
  });
}

export function useLogs(pipeline: string, job: string | undefined, live: boolean) {
  return useQuery({
    queryKey: ["pipelines", pipeline, "logs", job],
    queryFn: ({ signal }) => getText(`${ofJob(pipeline, job ?? "")}/logs`, signal),
    enabled: job !== undefined,
    refetchInterval: live ? LIVE * 2 : false,
  });
}

export function useVersions(pipeline: string, version: number) {
  return useQuery({
    queryKey: ["pipelines", pipeline, "versions", version],
    queryFn: async ({ signal }) => (await get<Page<Version>>(`/pipelines/${pipeline}/versions`, signal)).data,
  });
}

export function useStateTables(pipeline: string, job: string | undefined, epoch: number | null) {
  return useQuery({
    queryKey: ["pipelines", pipeline, "state", job, epoch],
    queryFn: async ({ signal }) =>
      (await get<Page<StateTable>>(`${ofJob(pipeline, job ?? "")}/state${epoch === null ? "" : `?epoch=${epoch}`}`, signal))
        .data,
    enabled: job !== undefined,
    retry: false,
  });
}

export interface Comparison {
  table: StateTable;
  /** Nothing for the oldest checkpoint that is kept. */
  before: number | null;
  /** Nothing for the latest checkpoint. */
  after: number | null;
}

export function useStateComparison(pipeline: string, job: string, asked: Comparison | null) {
  return useQuery({
    queryKey: ["pipelines", pipeline, "comparison", job, asked],
    queryFn: ({ signal }) => {
      const query = new URLSearchParams({
        operator_id: asked?.table.operator_id ?? "",
        table: asked?.table.table ?? "",
      });
      if (asked?.before != null) query.set("before", String(asked.before));
      if (asked?.after != null) query.set("after", String(asked.after));
      return get<StateComparison>(`${ofJob(pipeline, job)}/state/compare?${query.toString()}`, signal);
    },
    enabled: asked !== null,
    retry: false,
    staleTime: Infinity,
  });
}

export function useConnectors() {
  return useQuery({
    queryKey: ["connectors"],
    queryFn: async ({ signal }) => (await get<Page<Connector>>("/connectors", signal)).data,
    staleTime: Infinity,
  });
}

export function useTables() {
  return useQuery({
    queryKey: ["connection_tables"],
    queryFn: ({ signal }) => getAll<ConnectionTable>("/connection_tables", signal),
  });
}

export function useProfiles() {
  return useQuery({
    queryKey: ["connection_profiles"],
    queryFn: async ({ signal }) => (await get<Page<ConnectionProfile>>("/connection_profiles", signal)).data,
  });
}

export function useUdfs() {
  return useQuery({
    queryKey: ["udfs"],
    queryFn: async ({ signal }) => (await get<Page<GlobalUdf>>("/udfs", signal)).data,
  });
}

/** A change of the server's data; every list is asked for again when it is done. */
function useChange<Input, Output>(change: (input: Input) => Promise<Output>) {
  const client = useQueryClient();
  return useMutation({ mutationFn: change, onSettled: () => client.invalidateQueries() });
}

export function usePatchPipeline() {
  return useChange(({ id, ...body }: PipelinePatch & { id: string }) => patch<Pipeline>(`/pipelines/${id}`, body));
}

export function useRestartPipeline() {
  return useChange(({ id, ignoreState = false, fromEpoch }: { id: string; ignoreState?: boolean; fromEpoch?: number }) =>
    post<Pipeline>(`/pipelines/${id}/restart`, { force: true, ignore_state: ignoreState, from_epoch: fromEpoch }),
  );
}

export function useDelete() {
  return useChange((path: string) => remove<unknown>(path));
}

export function usePost<Output>(path: string) {
  return useChange((body: unknown) => post<Output>(path, body));
}
