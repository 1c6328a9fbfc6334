import type { Metric, OperatorMetricGroup } from "../api/types";

export type Series = [times: number[], values: (number | null)[]];

export interface OperatorMetrics {
  rowsIn: Series;
  rowsOut: Series;
  bytesIn: Series;
  bytesOut: Series;
  /** Between 0 and 1; null without samples. */
  backpressure: number | null;
  subtasks: { index: number; rowsIn: number | null; rowsOut: number | null }[];
  others: Map<string, Series>;
}

const KNOWN = new Set([
  "messages_recv",
  "messages_sent",
  "bytes_recv",
  "bytes_sent",
  "backpressure",
  "tx_queue_size",
  "tx_queue_rem",
]);

/** The metrics of every operator, by its number in the graph. */
export function byOperator(groups: readonly OperatorMetricGroup[]): Map<number, OperatorMetrics> {
  return new Map(groups.map((group) => [group.node_id, summarize(group)]));
}

function summarize(group: OperatorMetricGroup): OperatorMetrics {
  const named = new Map(group.metric_groups.map((metric) => [metric.name, metric.subtasks]));
  const total = (name: string) => addUp((named.get(name) ?? []).map((subtask) => subtask.metrics));
  const last = (name: string, index: number) =>
    named.get(name)?.find((subtask) => subtask.index === index)?.metrics.at(-1)?.value ?? null;
  const indexes = [...new Set([...named.values()].flat().map((subtask) => subtask.index))].sort((a, b) => a - b);
  const pressures = (named.get("backpressure") ?? [])
    .map((subtask) => subtask.metrics.at(-1)?.value)
    .filter((value) => value !== undefined);
  return {
    rowsIn: total("messages_recv"),
    rowsOut: total("messages_sent"),
    bytesIn: total("bytes_recv"),
    bytesOut: total("bytes_sent"),
    backpressure: pressures.length > 0 ? Math.max(...pressures) : null,
    subtasks: indexes.map((index) => ({
      index,
      rowsIn: last("messages_recv", index),
      rowsOut: last("messages_sent", index),
    })),
    others: new Map([...named.keys()].filter((name) => !KNOWN.has(name)).map((name) => [name, total(name)])),
  };
}

/** The sum over subtasks at every time that any of them has. Times become seconds. */
export function addUp(subtasks: readonly (readonly Metric[])[]): Series {
  const sums = new Map<number, number>();
  for (const metrics of subtasks) {
    for (const { time, value } of metrics) sums.set(time, (sums.get(time) ?? 0) + value);
  }
  const times = [...sums.keys()].sort((a, b) => a - b);
  return [times.map((time) => time / 1e6), times.map((time) => sums.get(time) ?? null)];
}

const RECENT_SECONDS = 10;

/** The mean of the last ten seconds: rows come by epochs, so that from second to second a rate jumps. */
export function recentOf([times, values]: Series): number | null {
  const since = (times.at(-1) ?? 0) - RECENT_SECONDS;
  const recent = values.filter((value, index) => value !== null && (times[index] ?? 0) > since) as number[];
  return recent.length > 0 ? recent.reduce((sum, value) => sum + value, 0) / recent.length : null;
}

/** The busiest subtask against the mean of all: 1 is even; null if there is nothing to compare. */
export function skewOf(values: readonly (number | null)[]): number | null {
  const known = values.filter((value) => value !== null);
  const sum = known.reduce((total, value) => total + value, 0);
  return known.length > 1 && sum > 0 ? Math.max(...known) / (sum / known.length) : null;
}
