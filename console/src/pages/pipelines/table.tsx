import { memo, useCallback, type Dispatch, type SetStateAction } from "react";
import { Link } from "wouter";
import { usePatchPipeline } from "../../api/hooks";
import { formatCount, formatSeconds } from "../../lib/format";
import type { Column, Row, Sorting } from "../../lib/listing";
import { canStart, canStop } from "../../lib/states";
import { Button, StateBadge, Tag } from "../../ui/parts";
import { Sparkline } from "../../ui/sparkline";
import { useToasts } from "../../ui/toasts";

const HEADS: Record<Column, { label: string; title: string }> = {
  name: { label: "Name", title: "" },
  state: { label: "State", title: "" },
  rowsIn: { label: "Rows/s in", title: "Rows per second that the sources read" },
  rowsOut: { label: "Rows/s out", title: "Rows per second that the sinks took" },
  lag: { label: "Lag", title: "Rows that the sources have yet to read" },
  watermarkDelay: { label: "Watermark", title: "How far the watermark is behind the clock" },
  epochSeconds: { label: "Epoch", title: "How long the last epoch took" },
  restarts: { label: "Restarts", title: "Restarts after failures" },
};

interface PipelineTableProps {
  rows: readonly Row[];
  columns: readonly Column[];
  sorting: Sorting;
  onSort: (sorting: Sorting) => void;
  chosen: ReadonlySet<string>;
  onChoose: Dispatch<SetStateAction<ReadonlySet<string>>>;
}

export function PipelineTable({ rows, columns, sorting, onSort, chosen, onChoose }: PipelineTableProps) {
  const { mutate } = usePatchPipeline();
  const { fail } = useToasts();
  const change = useCallback(
    (id: string, stop: "none" | "checkpoint") => mutate({ id, stop }, { onError: fail }),
    [mutate, fail],
  );
  const toggle = useCallback(
    (id: string) =>
      onChoose((before) => {
        const next = new Set(before);
        if (!next.delete(id)) next.add(id);
        return next;
      }),
    [onChoose],
  );
  const all = rows.length > 0 && rows.every((row) => chosen.has(row.id));
  const heads: Column[] = ["name", "state", ...columns];
  return (
    <div className="table-wrap">
      <table className="table pipelines">
        <caption className="visually-hidden">Pipelines</caption>
        <thead>
          <tr>
            <th scope="col">
              <input
                type="checkbox"
                className="check"
                aria-label="Choose all that are shown"
                checked={all}
                onChange={() => onChoose(new Set(all ? [] : rows.map((row) => row.id)))}
              />
            </th>
            {heads.map((column) => (
              <th
                key={column}
                scope="col"
                className={column === "name" || column === "state" ? "" : "right"}
                title={HEADS[column].title || undefined}
                aria-sort={sorting.column === column ? (sorting.descending ? "descending" : "ascending") : undefined}
              >
                <button
                  type="button"
                  onClick={() =>
                    onSort({
                      column,
                      descending: sorting.column === column ? !sorting.descending : column !== "name" && column !== "state",
                    })
                  }
                >
                  {HEADS[column].label}
                  <span aria-hidden="true">{sorting.column === column ? (sorting.descending ? " ↓" : " ↑") : ""}</span>
                </button>
              </th>
            ))}
            <th scope="col">Last error</th>
            <th scope="col">
              <span className="visually-hidden">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <Line
              key={row.id}
              row={row}
              columns={columns}
              chosen={chosen.has(row.id)}
              onToggle={toggle}
              onChange={change}
            />
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface LineProps {
  row: Row;
  columns: readonly Column[];
  chosen: boolean;
  onToggle: (id: string) => void;
  onChange: (id: string, stop: "none" | "checkpoint") => void;
}

const CELLS: Record<Exclude<Column, "name" | "state">, (row: Row) => string> = {
  rowsIn: (row) => show(row.rowsIn, formatCount),
  rowsOut: (row) => show(row.rowsOut, formatCount),
  lag: (row) => show(row.lag, formatCount),
  watermarkDelay: (row) => show(row.watermarkDelay, formatSeconds),
  epochSeconds: (row) => show(row.epochSeconds, formatSeconds),
  restarts: (row) => show(row.restarts, String),
};

function show(value: number | null, format: (value: number) => string): string {
  return value === null ? "–" : format(value);
}

const Line = memo(
  function Line({ row, columns, chosen, onToggle, onChange }: LineProps) {
    return (
      <tr>
        <td>
          <input
            type="checkbox"
            className="check"
            aria-label={`Choose ${row.name}`}
            checked={chosen}
            onChange={() => onToggle(row.id)}
          />
        </td>
        <td className="name">
          <Link href={`/pipelines/${row.id}`}>{row.name}</Link>
          {row.kind !== "sql" && <Tag>{row.kind}</Tag>}
        </td>
        <td>
          <StateBadge state={row.state} />
        </td>
        {columns.map((column) =>
          column === "rowsIn" ? (
            <td key={column} className="right">
              <span className="with-spark">
                <Sparkline values={row.history} label={`Rows per second of ${row.name} over the last minutes`} />
                <span className="figure">{CELLS.rowsIn(row)}</span>
              </span>
            </td>
          ) : (
            <td key={column} className={column === "restarts" && (row.restarts ?? 0) > 0 ? "right busy" : "right"}>
              {column === "name" || column === "state" ? null : CELLS[column](row)}
            </td>
          ),
        )}
        <td className="error clip" title={row.lastError ?? undefined}>
          {row.lastError && <span className="bad">{row.lastError}</span>}
        </td>
        <td className="right">
          {canStop(row.state) && (
            <Button small kind="plain" icon="stop" label={`Stop ${row.name}`} onClick={() => onChange(row.id, "checkpoint")} />
          )}
          {canStart(row.state) && (
            <Button small kind="plain" icon="play" label={`Start ${row.name}`} onClick={() => onChange(row.id, "none")} />
          )}
        </td>
      </tr>
    );
  },
  (before, after) =>
    before.chosen === after.chosen &&
    before.columns === after.columns &&
    before.onToggle === after.onToggle &&
    JSON.stringify(before.row) === JSON.stringify(after.row),
);
