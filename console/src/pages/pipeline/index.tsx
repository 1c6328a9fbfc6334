import { Link, useLocation } from "wouter";
import { useJobErrors, usePipeline, usePipelineJobs, useProgress } from "../../api/hooks";
import type { Job } from "../../api/types";
import { formatAge, formatSeconds, formatTime } from "../../lib/format";
import { isEnded, latestJob } from "../../lib/states";
import { Icon } from "../../ui/icons";
import { ErrorNotice, Loading, StateBadge, Tag } from "../../ui/parts";
import { Tabs, type Tab } from "../../ui/tabs";
import { Actions } from "./actions";
import { CheckpointsTab } from "./checkpoints";
import { ErrorsTab } from "./errors";
import { LogsTab } from "./logs";
import { OperatorsTab } from "./operators";
import { OutputsTab } from "./outputs";
import { QueryTab } from "./query";
import { StateTab } from "./state";
import { TapTab } from "./tap";

type Key = "operators" | "outputs" | "tap" | "checkpoints" | "state" | "query" | "errors" | "logs";

/** What the process does, until its first epoch is committed. */
function Message({ pipeline, job }: { pipeline: string; job: Job }) {
  const { data } = useProgress(pipeline, job.id);
  if (!data || data.epoch !== null || data.message === "" || isEnded(job.state)) return null;
  return <span className="muted small">{data.message}</span>;
}

export default function PipelinePage({ id, tab }: { id: string; tab: string | undefined }) {
  const [, navigate] = useLocation();
  const pipeline = usePipeline(id);
  const jobs = usePipelineJobs(id);
  const job = latestJob(jobs.data ?? []);
  const errors = useJobErrors(id, job?.id);
  if (!pipeline.data) {
    return (
      <div className="page">
        {pipeline.error ? <ErrorNotice error={pipeline.error} retry={() => void pipeline.refetch()} /> : <Loading />}
        {pipeline.error && <Link href="/pipelines">To the pipelines</Link>}
      </div>
    );
  }
  const { name, graph } = pipeline.data;
  const bad = (errors.data ?? []).filter((message) => message.level === "error").length;
  const tabs: Tab<Key>[] = [
    { key: "operators", label: "Operators" },
    { key: "outputs", label: "Outputs" },
    { key: "tap", label: "Tap" },
    { key: "checkpoints", label: "Checkpoints" },
    { key: "state", label: "State" },
    { key: "query", label: "Query" },
    { key: "errors", label: "Errors", count: errors.data?.length ?? 0, bad: bad > 0 },
    { key: "logs", label: "Log" },
  ];
  const current = tabs.find(({ key }) => key === tab)?.key ?? "operators";
  const running = job?.start_time && job.finish_time === null;
  return (
    <div className="page">
      <div className="page-head">
        <div className="grow stack tight">
          <Link href="/pipelines" className="row small back">
            <Icon name="left" size={13} />
            Pipelines
          </Link>
          <div className="row wrap">
            <h1>{name}</h1>
            {job && <StateBadge state={job.state} />}
            {pipeline.data.kind !== "sql" && <Tag>{pipeline.data.kind}</Tag>}
            <span className="muted small">
              {id}
              {running && job.start_time ? ` · started ${formatAge(job.start_time)}` : ""}
              {job?.finish_time && job.start_time
                ? ` · ended ${formatTime(job.finish_time)} after ${formatSeconds((job.finish_time - job.start_time) / 1e6)}`
                : ""}
              {job && job.run_id > 1 ? ` · run ${job.run_id}` : ""}
            </span>
          </div>
          {job && <Message pipeline={id} job={job} />}
        </div>
        <Actions pipeline={pipeline.data} job={job} />
      </div>
      {job?.failure_reason && job.state === "Failed" && (
        <div className="notice bad" role="alert">
          <Icon name="warning" />
          <div className="grow stack tight">
            <strong>The pipeline failed{job.failure_reason.domain ? ` (${job.failure_reason.domain})` : ""}</strong>
            <pre>{job.failure_reason.error}</pre>
          </div>
        </div>
      )}
      <Tabs
        label="About this pipeline"
        tabs={tabs}
        current={current}
        onChange={(key) => navigate(`/pipelines/${id}${key === "operators" ? "" : `/${key}`}`)}
      >
        {current === "operators" && <OperatorsTab pipeline={id} graph={graph} job={job} />}
        {current === "outputs" && <OutputsTab pipeline={id} job={job} />}
        {current === "tap" && <TapTab pipeline={id} graph={graph} job={job} />}
        {current === "checkpoints" && <CheckpointsTab pipeline={id} job={job} graph={graph} />}
        {current === "state" && job && <StateTab pipeline={id} job={job} />}
        {current === "query" && <QueryTab pipeline={pipeline.data} />}
        {current === "errors" && (
          <ErrorsTab messages={errors.data} error={errors.error} query={pipeline.data.query} />
        )}
        {current === "logs" && <LogsTab pipeline={id} job={job} />}
      </Tabs>
    </div>
  );
}
