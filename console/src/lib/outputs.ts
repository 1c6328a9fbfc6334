import type { OutputData } from "../api/types";

export type DataRow = Record<string, unknown>;

export interface OutputRow {
  number: number;
  time: number | null;
  row: DataRow;
}

/** The rows of an event of the output stream; its batch is a JSON text of a list or of lines. */
export function rowsOf(data: OutputData): OutputRow[] {
  return parseBatch(data.batch).map((row, index) => ({
    number: data.start_id + index,
    time: data.timestamps[index] ?? null,
    row,
  }));
}

export function parseBatch(text: string): DataRow[] {
  const trimmed = text.trim();
  if (trimmed === "") return [];
  if (trimmed.startsWith("[")) return JSON.parse(trimmed) as DataRow[];
  return trimmed.split("\n").map((line) => JSON.parse(line) as DataRow);
}

/** The newest rows, no more than a page can bear. */
export function keepLast<T>(rows: readonly T[], more: readonly T[], limit: number): T[] {
  return [...rows, ...more].slice(-limit);
}
