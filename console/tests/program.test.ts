import { expect, test } from "vitest";
import { edgesOf } from "../src/lib/graph";
import { bodyOf, EXAMPLES, isExample, languageOf } from "../src/lib/program";
import { textOfPart, withText } from "../src/pages/editor/files";
import type { PipelineGraph } from "../src/api/types";

test("a query is sent with its functions, other programs with their files", () => {
  expect(Object.keys(bodyOf(EXAMPLES.sql))).toEqual(["kind", "query", "udfs"]);
  const dataflow = bodyOf({ ...EXAMPLES.dataflow, udfs: [{ language: "python", definition: "" }] });
  expect(dataflow.udfs).toEqual([]);
  expect(Object.keys(dataflow.files ?? {})).toEqual(["counter.py"]);
});

test("an example that was changed is one no more", () => {
  expect(isExample(EXAMPLES.python)).toBe(true);
  expect(isExample({ ...EXAMPLES.python, query: "" })).toBe(false);
  expect(isExample(withText(EXAMPLES.dataflow, "counter.py", ""))).toBe(false);
});

test("each part of a program has a text of its own", () => {
  const program = { ...EXAMPLES.sql, udfs: [{ language: "rust" as const, definition: "a" }, { language: "python" as const, definition: "b" }] };
  expect(textOfPart(withText(program, 1, "c"), 1)).toBe("c");
  expect(textOfPart(withText(program, 1, "c"), 0)).toBe("a");
  expect(textOfPart(withText(program, null, "c"), null)).toBe("c");
  expect(textOfPart(withText(EXAMPLES.dataflow, "x.py", "c"), "x.py")).toBe("c");
});

test("a file is shown in the language of its name", () => {
  expect(["a.py", "b.rs", "c.yml", "d.json", "e.sql", "f"].map(languageOf)).toEqual(["python", "rust", "yaml", "json", "sql", "python"]);
});

test("edges are named after the operators that they join", () => {
  const graph = {
    nodes: [
      { node_id: 4, id: "orders" },
      { node_id: 7, id: "totals" },
    ],
    edges: [{ src_id: 4, dest_id: 7 }],
  } as unknown as PipelineGraph;
  expect(edgesOf(graph)).toEqual([{ from: "orders", to: "totals" }]);
});
