import { useEffect, useRef, useState } from "react";
import { listen } from "../../api/client";
import type { Job, OutputData } from "../../api/types";
import { plural } from "../../lib/format";
import { keepLast, rowsOf, type OutputRow } from "../../lib/outputs";
import { isEnded } from "../../lib/states";
import { Button, Empty } from "../../ui/parts";
import { Rows } from "../../ui/rows";

const SHOWN = 500;

type Line = "waiting" | "open" | "lost" | "ended";

/** Rows as the sinks take them. */
export function useOutputs(pipeline: string, job: string | undefined, live: boolean) {
  const [rows, setRows] = useState<readonly OutputRow[]>([]);
  const [count, setCount] = useState(0);
  const [line, setLine] = useState<Line>("waiting");
  const [paused, setPaused] = useState(false);
  const waiting = useRef<OutputRow[]>([]);
  const pausedNow = useRef(paused);
  useEffect(() => {
    pausedNow.current = paused;
  }, [paused]);
  useEffect(() => {
    if (job === undefined || !live) return;
    const close = listen<OutputData>(`/pipelines/${pipeline}/jobs/${job}/output`, {
      onMessage: (data) => waiting.current.push(...rowsOf(data)),
      onState: setLine,
    });
    // Rows may come by the thousand: the page is drawn a few times a second.
    const timer = setInterval(() => {
      if (waiting.current.length === 0 || pausedNow.current) return;
      const more = waiting.current;
      waiting.current = [];
      setCount((before) => before + more.length);
      setRows((before) => keepLast(before, more, SHOWN));
    }, 250);
    return () => {
      close();
      clearInterval(timer);
    };
  }, [pipeline, job, live]);
  return { rows, count, line, paused, setPaused, clear: () => setRows([]) };
}

const LINES: Record<Line, string> = {
  waiting: "Connecting…",
  open: "Live",
  lost: "Connection lost, trying again…",
  ended: "The stream has ended",
};

export function OutputsTab({ pipeline, job }: { pipeline: string; job: Job | undefined }) {
  const live = job !== undefined && !isEnded(job.state);
  const { rows, count, line, paused, setPaused, clear } = useOutputs(pipeline, job?.id, live);
  return (
    <section className="card fill" aria-label="Rows as they come">
      <header>
        <span className={`badge ${live && line === "open" ? "good" : line === "lost" ? "busy" : ""}`} role="status">
          {live ? (paused ? "Paused" : LINES[line]) : "Not running"}
        </span>
        <span className="grow muted small">
          {plural(count, "row")}{count > SHOWN ? `, the last ${SHOWN} are shown` : ""}
        </span>
        <Button small disabled={!live} onClick={() => setPaused(!paused)}>
          {paused ? "Go on" : "Pause"}
        </Button>
        <Button small disabled={rows.length === 0} onClick={clear}>
          Clear
        </Button>
      </header>
      {rows.length > 0 ? (
        <Rows label="Output rows, the newest first" rows={rows.map(({ row }) => row).reverse()} />
      ) : (
        <Empty title={live ? "Waiting for rows" : "Rows are shown while the pipeline runs"}>
          <p>A SELECT without INSERT INTO and sinks that can be previewed show their rows here.</p>
        </Empty>
      )}
    </section>
  );
}
