import type { SqlFunction } from "../lib/completion";

/** The functions of SQL, if the server tells them. */
export function useFunctions(): readonly SqlFunction[] | undefined {
  return undefined;
}
