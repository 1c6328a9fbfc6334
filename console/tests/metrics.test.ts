import { expect, test } from "vitest";
import { addUp, byOperator, recentOf, skewOf } from "../src/lib/metrics";
import { keepLast, parseBatch } from "../src/lib/outputs";
import { layOut } from "../src/lib/graph";
import { placeIn, problemsOf } from "../src/lib/problems";
import { cookie, splitEvents } from "../src/api/client";

test("subtasks add up at every time that any of them has", () => {
  const series = addUp([
    [
      { time: 2e6, value: 1 },
      { time: 1e6, value: 2 },
    ],
    [{ time: 2e6, value: 10 }],
  ]);
  expect(series).toEqual([
    [1, 2],
    [2, 11],
  ]);
});

test("a rate is the mean of the last ten seconds", () => {
  expect(recentOf([[1, 12, 16, 20], [900, 0, 30, null]])).toBe(15);
  expect(recentOf([[], []])).toBeNull();
});

test("an operator is as held back as its worst subtask", () => {
  const subtask = (index: number, value: number) => ({ index, metrics: [{ time: 1e6, value }] });
  const found = byOperator([
    {
      node_id: 3,
      metric_groups: [
        { name: "backpressure", subtasks: [subtask(0, 0.1), subtask(1, 0.9)] },
        { name: "messages_recv", subtasks: [subtask(0, 10), subtask(1, 30)] },
        { name: "late_rows", subtasks: [subtask(0, 4)] },
      ],
    },
  ]).get(3);
  expect(found?.backpressure).toBe(0.9);
  expect(skewOf(found?.subtasks.map((one) => one.rowsIn) ?? [])).toBe(1.5);
  expect([...(found?.others.keys() ?? [])]).toEqual(["late_rows"]);
});

test("rows of an event are a list or lines of JSON", () => {
  expect(parseBatch('[{"a": 1}]')).toEqual([{ a: 1 }]);
  expect(parseBatch('{"a": 1}\n{"a": 2}\n')).toEqual([{ a: 1 }, { a: 2 }]);
  expect(parseBatch("")).toEqual([]);
  expect(keepLast([1, 2], [3, 4], 3)).toEqual([2, 3, 4]);
});

test("events are read as they come, in any pieces", () => {
  expect(splitEvents('data: {"a":\ndata: 1}\n\n: note\n\ndata: 2')).toEqual({ events: ['{"a":\n1}'], rest: "data: 2" });
  expect(splitEvents("event: x\r\ndata: 1\r\n\r\n")).toEqual({ events: ["1"], rest: "" });
});

test("a cookie is found by its whole name", () => {
  expect(cookie("csrf", "xcsrf=1; csrf=a%20b; y=2")).toBe("a b");
  expect(cookie("csrf", "")).toBeUndefined();
});

test("operators are placed, and boxed by stage", () => {
  const node = (node_id: number, stage: number) => ({ node_id, operator: "project", description: "", parallelism: 1, stage, chain: stage, id: String(node_id) });
  const edge = (src_id: number, dest_id: number) => ({ src_id, dest_id, key_type: "", value_type: "", edge_type: "Forward" });
  const { nodes, boxes } = layOut({ nodes: [node(0, 0), node(1, 0), node(2, 1)], edges: [edge(0, 1), edge(1, 2)] }, "TB");
  const ys = nodes.map(({ y }) => y);
  expect(ys).toEqual([...ys].sort((a, b) => a - b));
  expect(boxes.map(({ label }) => label)).toEqual(["Stage 0", "Stage 1"]);
  const [first, second] = boxes;
  expect((first?.y ?? 0) + (first?.height ?? 0)).toBeLessThanOrEqual(second?.y ?? 0);
});

test("a problem stands where the server says, or where its text says", () => {
  expect(placeIn("query.sql:3:8: no such column")).toEqual({ line: 3, column: 8 });
  expect(placeIn("in line 4 of it")).toEqual({ line: 4, column: 1 });
  expect(placeIn("nowhere")).toBeNull();
  expect(problemsOf(["query.sql:2:1: odd"])).toEqual([
    { message: "query.sql:2:1: odd", from: { line: 2, column: 1 }, to: null, severity: "error" },
  ]);
  expect(problemsOf(null)).toEqual([]);
});
