import { useMemo, useState } from "react";
import { useLocation } from "wouter";
import { useMetrics, useOperators, useProgress } from "../../api/hooks";
import type { Job, Metric, Operator, PipelineGraph } from "../../api/types";
import { formatBytes, formatCount, formatSeconds, formatTime } from "../../lib/format";
import { edgesOf, isSource } from "../../lib/graph";
import { addUp, byOperator, recentOf, skewOf, type OperatorMetrics, type Series } from "../../lib/metrics";
import { isEnded } from "../../lib/states";
import { Chart, type Line } from "../../ui/chart";
import { Graph } from "../../ui/graph";
import { Empty, Facts } from "../../ui/parts";
import { words } from "../../lib/schema";

interface OperatorsTabProps {
  pipeline: string;
  graph: PipelineGraph;
  job: Job | undefined;
}

export function OperatorsTab({ pipeline, graph, job }: OperatorsTabProps) {
  const live = job !== undefined && !isEnded(job.state);
  const [seconds, setSeconds] = useState(300);
  const { data } = useMetrics(pipeline, job?.id, live, seconds);
  const operators = useOperators(pipeline, job?.id, live);
  const metrics = useMemo(() => byOperator(data ?? []), [data]);
  const [chosen, setChosen] = useState<number | null>(null);
  const [, navigate] = useLocation();
  const node = graph.nodes.find((one) => one.node_id === chosen) ?? graph.nodes[0];
  if (!node) return <Empty title="The plan of this pipeline is not known yet" />;
  const own = metrics.get(node.node_id);
  const held = live ? operators.data?.find((one) => one.id === node.id) : undefined;
  return (
    <>
      {live && <ProgressFacts pipeline={pipeline} job={job.id} />}
      <div className="operators">
      <section className="card" aria-label="Graph of operators">
        <Graph
          graph={graph}
          metrics={metrics}
          chosen={node.node_id}
          onChoose={setChosen}
          onChooseEdge={(from, to) => navigate(tapAddress(pipeline, graph, from, to))}
          direction="TB"
        />
      </section>
      <section className="card" aria-label="The chosen operator">
        <header>
          <h2 className="grow clip">{node.id}</h2>
          <select
            className="select auto"
            aria-label="Operator"
            value={node.node_id}
            onChange={(event) => setChosen(Number(event.target.value))}
          >
            {graph.nodes.map((one) => (
              <option key={one.node_id} value={one.node_id}>
                {one.id}
              </option>
            ))}
          </select>
        </header>
        <div className="body stack">
          {node.description !== node.id && <p className="muted small description">{node.description}</p>}
          <Facts
            facts={[
              { name: "Operator", value: node.operator },
              { name: "Parallelism", value: node.parallelism },
              { name: "Stage", value: node.stage },
              ...(own ? numbersOf(own, isSource(graph, node)) : []),
              ...(held ? holdingsOf(held) : []),
            ]}
          />
          <label className="row small">
            Charts of the last
            <select className="select auto" value={seconds} onChange={(event) => setSeconds(Number(event.target.value))}>
              <option value={300}>five minutes</option>
              <option value={3600}>hour</option>
            </select>
          </label>
          {own ? (
            <Charts metrics={own} state={held?.state ?? []} seconds={seconds} />
          ) : (
            <p className="muted">{live ? "No numbers yet: they come with the first epochs." : "Numbers are shown while the pipeline runs."}</p>
          )}
          {own && own.subtasks.length > 1 && <Subtasks metrics={own} />}
        </div>
      </section>
      </div>
    </>
  );
}

function tapAddress(pipeline: string, graph: PipelineGraph, from: number, to: number): string {
  const edge = graph.edges.findIndex((one) => one.src_id === from && one.dest_id === to);
  const named = edgesOf(graph)[edge];
  return `/pipelines/${pipeline}/tap?${new URLSearchParams({ ...named }).toString()}`;
}

/** How far the whole pipeline is. */
function ProgressFacts({ pipeline, job }: { pipeline: string; job: string }) {
  const { data } = useProgress(pipeline, job);
  if (!data || data.epoch === null) return null;
  return (
    <section className="card facts-card" aria-label="Progress">
      <div className="body">
        <Facts
          facts={[
            data.rows_in_per_second !== null && { name: "Rows/s in", value: formatCount(data.rows_in_per_second) },
            data.rows_out_per_second !== null && { name: "Rows/s out", value: formatCount(data.rows_out_per_second) },
            data.rows_in !== null && { name: "Rows in", value: formatCount(data.rows_in) },
            data.rows_out !== null && { name: "Rows out", value: formatCount(data.rows_out) },
            { name: "Epoch", value: data.epoch },
            data.epoch_seconds !== null && { name: "Last epoch took", value: formatSeconds(data.epoch_seconds) },
            data.lag !== null && { name: "Unread rows", value: formatCount(data.lag) },
            data.lag_bytes !== null && { name: "Unread", value: formatBytes(data.lag_bytes) },
            data.lag_files !== null && { name: "Unread files", value: formatCount(data.lag_files) },
            data.watermark !== null && { name: "Watermark", value: formatTime(data.watermark) },
            data.state_bytes !== null && { name: "State", value: formatBytes(data.state_bytes) },
            (data.late_rows ?? 0) > 0 && { name: "Late rows", value: formatCount(data.late_rows ?? 0) },
            (data.bad_rows ?? 0) > 0 && { name: "Bad rows", value: formatCount(data.bad_rows ?? 0) },
            (data.dead_letters ?? 0) > 0 && { name: "Dead letters", value: formatCount(data.dead_letters ?? 0) },
          ]}
        />
      </div>
    </section>
  );
}

function numbersOf(metrics: OperatorMetrics, source: boolean) {
  const rowsIn = recentOf(metrics.rowsIn);
  const rowsOut = recentOf(metrics.rowsOut);
  const skew = skewOf(metrics.subtasks.map((subtask) => subtask.rowsIn));
  return [
    rowsIn !== null && !source && { name: "Rows/s in", value: formatCount(rowsIn) },
    rowsOut !== null && { name: "Rows/s out", value: formatCount(rowsOut) },
    metrics.backpressure !== null && { name: "Backpressure", value: `${Math.round(metrics.backpressure * 100)} %` },
    skew !== null && { name: "Busiest subtask", value: `${skew.toFixed(1)}× the mean` },
  ];
}

function holdingsOf(operator: Operator) {
  return [
    { name: "Busy", value: `${Math.round(operator.busy * 100)} %` },
    { name: "Worked", value: formatSeconds(operator.seconds) },
    operator.state_bytes > 0 && {
      name: "State",
      value: `${formatBytes(operator.state_bytes)}, ${formatCount(operator.state_rows)} rows stored`,
    },
    operator.watermark_delay !== null && { name: "Watermark behind", value: formatSeconds(operator.watermark_delay) },
    operator.late_rows > 0 && { name: "Late rows", value: formatCount(operator.late_rows) },
    operator.bad_rows > 0 && { name: "Bad rows", value: formatCount(operator.bad_rows) },
    ...Object.entries(operator.bad_by).map(([code, count]) => ({ name: `Bad: ${code}`, value: formatCount(count) })),
    operator.dead_letters > 0 && { name: "Dead letters", value: formatCount(operator.dead_letters) },
    operator.commits > 0 && { name: "Commit took", value: formatSeconds(operator.commit_seconds / operator.commits) },
  ];
}

function lineOf(label: string, [times, values]: Series): Line {
  return { label, times, values };
}

/** A source has no input and a sink no output: a line that is zero all along is left out if another is not. */
function linesOf(lines: Line[]): Line[] {
  const moving = lines.filter((line) => line.values.some(Boolean));
  return moving.length > 0 ? moving : lines;
}

interface ChartsProps {
  metrics: OperatorMetrics;
  state: readonly Metric[];
  seconds: number;
}

function Charts({ metrics, state, seconds }: ChartsProps) {
  const since = (state.at(-1)?.time ?? 0) - seconds * 1e6;
  const sizes = addUp([state.filter((one) => one.time >= since)]);
  const bytes = linesOf([lineOf("in", metrics.bytesIn), lineOf("out", metrics.bytesOut)]);
  return (
    <div className="charts">
      <Chart title="Rows per second" lines={linesOf([lineOf("in", metrics.rowsIn), lineOf("out", metrics.rowsOut)])} />
      {bytes.some((line) => line.values.some(Boolean)) && <Chart title="Bytes per second" lines={bytes} format={formatBytes} />}
      {sizes[1].some(Boolean) && <Chart title="State" lines={[lineOf("bytes", sizes)]} format={formatBytes} />}
      {[...metrics.others].map(([name, series]) => (
        <Chart
          key={name}
          title={words(name)}
          lines={[lineOf(words(name), series)]}
          format={name.includes("bytes") ? formatBytes : formatCount}
        />
      ))}
    </div>
  );
}

function Subtasks({ metrics }: { metrics: OperatorMetrics }) {
  return (
    <div className="table-wrap">
      <table className="table dense">
        <caption className="visually-hidden">Subtasks</caption>
        <thead>
          <tr>
            <th scope="col">Subtask</th>
            <th scope="col" className="right">
              Rows/s in
            </th>
            <th scope="col" className="right">
              Rows/s out
            </th>
          </tr>
        </thead>
        <tbody>
          {metrics.subtasks.map((subtask) => (
            <tr key={subtask.index}>
              <td>{subtask.index}</td>
              <td className="right">{subtask.rowsIn === null ? "–" : formatCount(subtask.rowsIn)}</td>
              <td className="right">{subtask.rowsOut === null ? "–" : formatCount(subtask.rowsOut)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
