import type { QueryError } from "../api/types";
import type { Problem } from "../ui/code";

/** What the server found wrong with a query, as the editor underlines it. */
export function problemsOf(errors: readonly (QueryError | string)[] | null): Problem[] {
  return (errors ?? []).map((error) => {
    if (typeof error === "string") return { message: error, from: placeIn(error), to: null, severity: "error" };
    const { span } = error;
    return { message: error.message, from: span?.start ?? placeIn(error.message), to: span?.end ?? null, severity: "error" };
  });
}

/** The line and column that a message names, as in `query.sql:3:8`, `line 3` or `line 3, column 8`. */
export function placeIn(text: string): { line: number; column: number } | null {
  const found = /\.sql:(\d+)(?::(\d+))?/.exec(text) ?? /\bline (\d+)(?:,? col(?:umn)? (\d+))?/i.exec(text);
  return found ? { line: Number(found[1]), column: Number(found[2] ?? 1) } : null;
}
