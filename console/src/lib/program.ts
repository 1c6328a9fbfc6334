/** What an editor edits: a query with functions, a dataflow or a Python pipeline with files. */

import type { Kind, Udf } from "../api/types";

export interface Program {
  kind: Kind;
  query: string;
  udfs: Udf[];
  files: Record<string, string>;
}

const SQL = `-- Count events per second and say so.
CREATE TABLE events WITH (
  connector = 'impulse',
  event_rate = '10'
);

SELECT count(*) AS events, window.start AS second FROM (
  SELECT count(*), tumble(INTERVAL '1 second') AS window
  FROM events
  GROUP BY window
);
`;

const DATAFLOW = `nodes:
  - id: counter
    operator:
      python: counter.py
      inputs:
        tick: dora/timer/secs/1
      outputs:
        - count
`;

const COUNTER = `import pyarrow as pa
from dora import DoraStatus


class Operator:
    def __init__(self):
        self.count = 0

    def on_event(self, dora_event, send_output):
        if dora_event["type"] == "INPUT":
            self.count += 1
            print("count", self.count)
            send_output("count", pa.array([self.count]))
        return DoraStatus.CONTINUE
`;

const PYTHON = `import headrace as hr

pipeline = hr.Pipeline("numbers")
numbers = pipeline.source("impulse", event_rate=10)
numbers.map(lambda row: {"number": row["counter"]}).sink("preview")
`;

const PYTHON_FUNCTION = `from headrace import udf


@udf
def twice(value: int) -> int:
    return 2 * value
`;

const RUST_FUNCTION = `use arroyo_udf_plugin::udf;

#[udf]
fn twice(value: i64) -> i64 {
    2 * value
}
`;

/** What a new function begins with. */
export const FUNCTIONS = { python: PYTHON_FUNCTION, rust: RUST_FUNCTION };

/** What a new program of each kind begins with. */
export const EXAMPLES: Record<Kind, Program> = {
  sql: { kind: "sql", query: SQL, udfs: [], files: {} },
  dataflow: { kind: "dataflow", query: DATAFLOW, udfs: [], files: { "counter.py": COUNTER } },
  python: { kind: "python", query: PYTHON, udfs: [], files: {} },
};

export const KINDS: Record<Kind, { label: string; file: string; language: "sql" | "yaml" | "python" }> = {
  sql: { label: "SQL", file: "query.sql", language: "sql" },
  dataflow: { label: "Dataflow", file: "dataflow.yml", language: "yaml" },
  python: { label: "Python", file: "pipeline.py", language: "python" },
};

/** What the server is sent of a program: a query has functions, the other kinds have files. */
export function bodyOf({ kind, query, udfs, files }: Program): Omit<Program, "files"> & { files?: Record<string, string> } {
  return kind === "sql" ? { kind, query, udfs } : { kind, query, udfs: [], files };
}

export function isExample(program: Program): boolean {
  return JSON.stringify(bodyOf(program)) === JSON.stringify(bodyOf(EXAMPLES[program.kind]));
}

export function languageOf(file: string): "python" | "rust" | "yaml" | "json" | "sql" {
  if (file.endsWith(".rs")) return "rust";
  if (file.endsWith(".sql")) return "sql";
  if (file.endsWith(".json")) return "json";
  return /\.ya?ml$/.test(file) ? "yaml" : "python";
}
