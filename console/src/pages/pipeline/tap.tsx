import { useEffect, useRef, useState } from "react";
import { useSearch } from "wouter";
import { ApiError, events } from "../../api/client";
import type { Ended, Job, PipelineGraph, TappedRows } from "../../api/types";
import { formatCount, formatTime, plural } from "../../lib/format";
import { edgesOf, type NamedEdge } from "../../lib/graph";
import { keepLast, parseBatch, type DataRow } from "../../lib/outputs";
import { isEnded } from "../../lib/states";
import { Button, Empty, ErrorNotice } from "../../ui/parts";
import { Rows } from "../../ui/rows";

const SHOWN = 200;
const AGAIN_AFTER = 2000;

interface TapTabProps {
  pipeline: string;
  graph: PipelineGraph;
  job: Job | undefined;
}

/** Rows between any two operators, while the pipeline runs. */
export function TapTab({ pipeline, graph, job }: TapTabProps) {
  const edges = edgesOf(graph);
  const asked = new URLSearchParams(useSearch());
  const first = edges.findIndex((edge) => edge.from === asked.get("from") && edge.to === asked.get("to"));
  const [chosen, setChosen] = useState(Math.max(0, first));
  const [draft, setDraft] = useState("");
  const [where, setWhere] = useState("");
  const edge = edges[chosen] ?? edges[0];
  if (!edge) return <Empty title="The plan of this pipeline is not known yet" />;
  const live = job !== undefined && !isEnded(job.state);
  return (
    <section className="card fill" aria-label="Rows between two operators">
      <header>
        <form
          className="row wrap grow"
          onSubmit={(event) => {
            event.preventDefault();
            setWhere(draft.trim());
          }}
        >
          <label className="row small">
            Rows from
            <select className="select auto" value={chosen} onChange={(event) => setChosen(Number(event.target.value))}>
              {edges.map((one, index) => (
                <option key={index} value={index}>
                  {one.from} → {one.to}
                </option>
              ))}
            </select>
          </label>
          <label className="row small grow">
            where
            <input
              className="input mono grow"
              value={draft}
              placeholder="amount > 100 AND shop = 'mill'"
              spellCheck={false}
              onChange={(event) => setDraft(event.target.value)}
            />
          </label>
          <Button type="submit" disabled={draft.trim() === where}>
            Filter
          </Button>
        </form>
      </header>
      {live ? (
        <Tapped key={`${chosen} ${where}`} pipeline={pipeline} job={job.id} edge={edge} where={where} />
      ) : (
        <Empty title="Rows are shown while the pipeline runs" />
      )}
    </section>
  );
}

interface Shown {
  rows: readonly DataRow[];
  last: TappedRows | null;
  error: unknown;
}

function useTap(pipeline: string, job: string, edge: NamedEdge, where: string, paused: boolean): Shown {
  const [shown, setShown] = useState<Shown>({ rows: [], last: null, error: null });
  const pausedNow = useRef(paused);
  useEffect(() => {
    pausedNow.current = paused;
  }, [paused]);
  useEffect(() => {
    const abort = new AbortController();
    const query = new URLSearchParams({ operator_id: edge.from, target_id: edge.to, where });
    const path = `/pipelines/${pipeline}/jobs/${job}/tap?${query.toString()}`;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const look = async () => {
      try {
        for await (const last of events<TappedRows | Ended>("GET", path, undefined, abort.signal)) {
          if (!("epoch" in last)) {
            if (last.error) throw new Error(last.error);
            continue;
          }
          if (pausedNow.current) continue;
          setShown((before) => ({ rows: keepLast(before.rows, rowsOf(last), SHOWN), last, error: null }));
        }
      } catch (error) {
        if (abort.signal.aborted) return;
        setShown((before) => ({ ...before, error }));
        // What is wrong with the question does not pass by asking again.
        if (error instanceof ApiError && error.status >= 400 && error.status < 500) return;
      }
      if (!abort.signal.aborted) timer = setTimeout(() => void look(), AGAIN_AFTER);
    };
    void look();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [pipeline, job, edge.from, edge.to, where]);
  return shown;
}

function rowsOf(tapped: TappedRows): DataRow[] {
  return parseBatch(tapped.batch).map((row, index) => {
    const time = tapped.timestamps[index] ?? null;
    return time === null ? row : { "event time": formatTime(time), ...row };
  });
}

interface TappedProps {
  pipeline: string;
  job: string;
  edge: NamedEdge;
  where: string;
}

function Tapped({ pipeline, job, edge, where }: TappedProps) {
  const [paused, setPaused] = useState(false);
  const { rows, last, error } = useTap(pipeline, job, edge, where, paused);
  return (
    <>
      <div className="row bar-note">
        <span className={`badge ${last && !paused ? "good" : ""}`} role="status">
          {paused ? "Paused" : last ? "Live" : "Waiting for the next epoch"}
        </span>
        <span className="grow muted small">{last && describe(last, where !== "")}</span>
        <Button small onClick={() => setPaused(!paused)}>
          {paused ? "Go on" : "Pause"}
        </Button>
      </div>
      {error !== null && (
        <div className="body">
          <ErrorNotice error={error} />
        </div>
      )}
      {last?.problem && (
        <div className="body">
          <ErrorNotice error={last.problem} />
        </div>
      )}
      {rows.length > 0 ? (
        <Rows label={`Rows from ${edge.from} to ${edge.to}, the newest first`} rows={[...rows].reverse()} />
      ) : (
        error === null &&
        !last?.problem && (
          <Empty title={last ? "No row has matched yet" : "Waiting for rows"}>
            <p>A sample of each epoch is shown when the epoch is committed.</p>
          </Empty>
        )
      )}
    </>
  );
}

function describe({ epoch, seen, matched, timestamps }: TappedRows, isFiltered: boolean): string {
  const match = isFiltered ? `, ${formatCount(matched)} match` : "";
  const some = timestamps.length < matched ? `, a sample of ${timestamps.length}` : "";
  return `epoch ${epoch}: ${plural(seen, "row")}${match}${some}`;
}
