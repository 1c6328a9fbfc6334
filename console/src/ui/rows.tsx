/** Rows of data as a table. */

import type { DataRow } from "../lib/outputs";

export function columnsOf(rows: readonly DataRow[]): string[] {
  const names = new Set<string>();
  for (const row of rows) for (const name of Object.keys(row)) names.add(name);
  return [...names];
}

export function textOf(value: unknown): string {
  if (value === null || value === undefined) return "null";
  if (typeof value === "string") return value;
  if (typeof value === "object") return JSON.stringify(value);
  return JSON.stringify(value);
}

interface RowsProps {
  rows: readonly DataRow[];
  label: string;
  columns?: readonly string[];
}

export function Rows({ rows, label, columns }: RowsProps) {
  const names = columns ?? columnsOf(rows);
  return (
    // A region that scrolls must be reachable by keyboard.
    // eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex
    <div className="table-wrap rows" role="region" aria-label={label} tabIndex={0}>
      <table className="table dense data">
        <thead>
          <tr>
            {names.map((name) => (
              <th key={name} scope="col" className={typeof rows[0]?.[name] === "number" ? "right" : ""}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>
              {names.map((name) => {
                const value = row[name];
                return (
                  <td key={name} className={value == null ? "muted" : typeof value === "number" ? "right" : ""}>
                    {textOf(value)}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
