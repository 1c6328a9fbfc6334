import { useEffect, useRef, useState } from "react";
import { patch, post } from "../../api/client";
import { useJobErrors, usePipelineJobs } from "../../api/hooks";
import type { Pipeline } from "../../api/types";
import { plural } from "../../lib/format";
import { bodyOf, type Program } from "../../lib/program";
import { isEnded, latestJob, wordOf } from "../../lib/states";
import { Button, Empty, ErrorNotice } from "../../ui/parts";
import { Rows } from "../../ui/rows";
import { useOutputs } from "../pipeline/outputs";

/** Runs a program as a preview and shows its rows as they come. */
export function Preview({ program }: { program: Program }) {
  const [pipeline, setPipeline] = useState<Pipeline | null>(null);
  const [error, setError] = useState<unknown>(null);
  const sent = useRef<Promise<Pipeline> | null>(null);
  useEffect(() => {
    // React mounts twice in development; the preview is asked for once.
    sent.current ??= post<Pipeline>("/pipelines/preview", { ...bodyOf(program), enable_sinks: false });
    sent.current.then(setPipeline, setError);
  }, [program]);
  if (error !== null) return <ErrorNotice error={error} />;
  if (!pipeline) return <Empty title="Asking for a preview…" />;
  return <PreviewRows pipeline={pipeline} />;
}

function PreviewRows({ pipeline }: { pipeline: Pipeline }) {
  const jobs = usePipelineJobs(pipeline.id);
  const job = latestJob(jobs.data ?? []);
  const ended = job !== undefined && isEnded(job.state);
  const { rows, count, line } = useOutputs(pipeline.id, job?.id, true);
  const errors = useJobErrors(pipeline.id, job?.state === "Failed" ? job.id : undefined);
  const stop = () => void patch(`/pipelines/${pipeline.id}`, { stop: "immediate" }).catch(() => undefined);
  // A page that is left does not keep Spark busy.
  useEffect(() => stop, []); // eslint-disable-line react-hooks/exhaustive-deps
  const failure = job?.failure_reason?.error ?? errors.data?.find((message) => message.level === "error")?.message;
  return (
    <div className="stack tight preview">
      <div className="row bar">
        <span className={`badge ${ended ? "" : line === "open" || rows.length > 0 ? "good" : "busy"}`} role="status">
          {job ? wordOf(job.state) : "Starting"}
        </span>
        <span className="muted small grow">{plural(count, "row")}</span>
        {!ended && (
          <Button small icon="stop" onClick={stop}>
            Stop the preview
          </Button>
        )}
      </div>
      {failure && <ErrorNotice error={new Error(failure)} />}
      {rows.length > 0 ? (
        <Rows label="Rows of the preview, the newest first" rows={rows.map(({ row }) => row).reverse()} />
      ) : (
        !failure && <Empty title={ended ? "The preview ended without a row" : "Waiting for the first rows"} />
      )}
    </div>
  );
}
