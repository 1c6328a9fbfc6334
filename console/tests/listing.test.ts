import { describe, expect, test } from "vitest";
import { countGroups, History, knows, rowOf, select, total, type Row } from "../src/lib/listing";
import { canStart, canStop, groupOf, latestJob } from "../src/lib/states";
import type { Job, JobState, Pipeline, Progress } from "../src/api/types";

function row(name: string, state: JobState, more: Partial<Row> = {}): Row {
  return {
    id: `pl_${name}`,
    name,
    kind: "sql",
    state,
    rowsIn: null,
    rowsOut: null,
    lag: null,
    watermarkDelay: null,
    epochSeconds: null,
    restarts: null,
    lastError: null,
    history: [],
    ...more,
  };
}

const ROWS = [
  row("orders_10", "Running", { rowsIn: 5 }),
  row("orders_9", "Failed", { lastError: "no topic Weir" }),
  row("clicks", "Stopped", { rowsIn: 50 }),
];
const names = (rows: Row[]) => rows.map((one) => one.name);

describe("the list of pipelines", () => {
  test("is sorted by name, numbers by their value", () => {
    expect(names(select(ROWS, "", null, { column: "name", descending: false }))).toEqual(["clicks", "orders_9", "orders_10"]);
  });

  test("puts what is not known last in both directions", () => {
    expect(names(select(ROWS, "", null, { column: "rowsIn", descending: true }))).toEqual(["clicks", "orders_10", "orders_9"]);
    expect(names(select(ROWS, "", null, { column: "rowsIn", descending: false }))).toEqual(["orders_10", "clicks", "orders_9"]);
  });

  test("is searched for every word, in names and errors", () => {
    const sorting = { column: "name", descending: false } as const;
    expect(names(select(ROWS, "ORDERS weir", null, sorting))).toEqual(["orders_9"]);
    expect(names(select(ROWS, "nothing", null, sorting))).toEqual([]);
    expect(names(select(ROWS, "", "stopped", sorting))).toEqual(["clicks"]);
  });

  test("is counted by state, and a column that nobody fills is not shown", () => {
    expect(countGroups(ROWS)).toEqual({ running: 1, changing: 0, failed: 1, stopped: 1, finished: 0 });
    expect(knows(ROWS, "rowsIn")).toBe(true);
    expect(knows(ROWS, "lag")).toBe(false);
    expect(total(ROWS, "rowsIn")).toBe(55);
    expect(total(ROWS, "rowsOut")).toBeNull();
  });
});

test("what a pipeline told last is shown while it runs, and how far its watermark is behind", () => {
  const pipeline = { id: "pl_1", name: "a", kind: "sql", state: "Running" } as Pipeline;
  const progress = {
    state: "Running",
    rows_in_per_second: 7,
    rows_out_per_second: 1,
    watermark: 90_000_000,
    epoch_seconds: 0.2,
    restarts: 2,
    last_error: null,
  } as Progress;
  const shown = rowOf(pipeline, progress, [], 100_000);
  expect([shown.rowsIn, shown.watermarkDelay, shown.restarts]).toEqual([7, 10, 2]);
  const stopped = rowOf(pipeline, { ...progress, state: "Stopped" }, [], 100_000);
  expect([stopped.state, stopped.rowsIn, stopped.watermarkDelay]).toEqual(["Stopped", null, null]);
  expect(rowOf(pipeline, undefined, []).state).toBe("Running");
});

test("the sparkline has the last rates, and forgets pipelines that are gone", () => {
  const history = new History();
  for (let rate = 0; rate < 70; rate += 1) history.add({ a: { rows_in_per_second: rate } as Progress });
  expect(history.of("a")).toHaveLength(60);
  expect(history.of("a").at(-1)).toBe(69);
  history.add({});
  expect(history.of("a")).toEqual([]);
});

describe("states", () => {
  test("a pipeline can be started or stopped, never both", () => {
    const states: JobState[] = ["Created", "Running", "Rescaling", "Recovering", "CheckpointStopping", "Stopped", "Finished", "Failed"];
    for (const state of states) expect(canStart(state) && canStop(state)).toBe(false);
    expect(canStop("Recovering")).toBe(true);
    expect(canStart("Failed")).toBe(true);
    expect(groupOf("CheckpointStopping")).toBe("changing");
  });

  test("the newest job is the job of a pipeline", () => {
    const job = (id: string, created_at: number) => ({ id, created_at }) as Job;
    expect(latestJob([job("a", 1), job("b", 3), job("c", 2)])?.id).toBe("b");
    expect(latestJob([])).toBeUndefined();
  });
});
