/** The list of pipelines: what a line shows, how it is searched, filtered and sorted. */

import type { JobState, Pipeline, Progress } from "../api/types";
import { GROUPS, groupOf, type Group } from "./states";

export interface Row {
  id: string;
  name: string;
  kind: string;
  state: JobState;
  rowsIn: number | null;
  rowsOut: number | null;
  /** Rows a source has yet to read. */
  lag: number | null;
  watermarkDelay: number | null;
  epochSeconds: number | null;
  restarts: number | null;
  lastError: string | null;
  history: readonly (number | null)[];
}

export type Column = "name" | "state" | "rowsIn" | "rowsOut" | "lag" | "watermarkDelay" | "epochSeconds" | "restarts";

export interface Sorting {
  column: Column;
  descending: boolean;
}

export function select(rows: readonly Row[], text: string, group: Group | null, { column, descending }: Sorting): Row[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = rows.filter((row) => {
    if (group && groupOf(row.state) !== group) return false;
    const haystack = `${row.name} ${row.id} ${row.kind} ${row.lastError ?? ""}`.toLowerCase();
    return words.every((word) => haystack.includes(word));
  });
  const sign = descending ? -1 : 1;
  return kept.sort((a, b) => {
    const [left, right] = [a[column], b[column]];
    // What is not known stands last, whichever way one sorts.
    if (left === null || right === null) return left === right ? byName(a, b) : left === null ? 1 : -1;
    const order =
      column === "state"
        ? GROUPS.indexOf(groupOf(a.state)) - GROUPS.indexOf(groupOf(b.state))
        : typeof left === "string"
          ? left.localeCompare(String(right), "en", { numeric: true, sensitivity: "base" })
          : left - (right as number);
    return order * sign || byName(a, b);
  });
}

function byName(a: Row, b: Row): number {
  return a.name.localeCompare(b.name, "en", { numeric: true }) || a.id.localeCompare(b.id);
}

export function countGroups(rows: readonly Row[]): Record<Group, number> {
  const counts: Record<Group, number> = { running: 0, changing: 0, failed: 0, stopped: 0, finished: 0 };
  for (const row of rows) counts[groupOf(row.state)] += 1;
  return counts;
}

/** Whether any line knows a column: one that nobody fills is not shown. */
export function knows(rows: readonly Row[], column: Column): boolean {
  return rows.some((row) => row[column] !== null);
}

export function total(rows: readonly Row[], column: "rowsIn" | "rowsOut"): number | null {
  const known = rows.map((row) => row[column]).filter((value) => value !== null);
  return known.length > 0 ? known.reduce((sum, value) => sum + value, 0) : null;
}

export function rowOf(
  pipeline: Pipeline,
  progress: Progress | undefined,
  history: readonly (number | null)[],
  now: number = Date.now(),
): Row {
  const state = progress?.state ?? pipeline.state;
  const runs = state === "Running";
  const watermark = progress?.watermark ?? null;
  return {
    id: pipeline.id,
    name: pipeline.name,
    kind: pipeline.kind,
    state,
    rowsIn: runs ? (progress?.rows_in_per_second ?? null) : null,
    rowsOut: runs ? (progress?.rows_out_per_second ?? null) : null,
    lag: runs ? (progress?.lag ?? null) : null,
    watermarkDelay: runs && watermark !== null ? Math.max(0, (now - watermark / 1000) / 1000) : null,
    epochSeconds: runs ? (progress?.epoch_seconds ?? null) : null,
    restarts: progress?.restarts ?? null,
    lastError: progress?.last_error ?? null,
    history,
  };
}

const KEPT = 60;

/** What the pipelines read per second at the last times that the server was asked. */
export class History {
  private readonly samples = new Map<string, (number | null)[]>();

  add(progress: Record<string, Progress>): void {
    for (const [id, { rows_in_per_second }] of Object.entries(progress)) {
      this.samples.set(id, [...this.of(id), rows_in_per_second].slice(-KEPT));
    }
    for (const id of this.samples.keys()) if (!(id in progress)) this.samples.delete(id);
  }

  of(id: string): readonly (number | null)[] {
    return this.samples.get(id) ?? [];
  }
}
