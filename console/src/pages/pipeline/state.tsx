import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { post } from "../../api/client";
import { useCheckpoints, useStateComparison, useStateTables, type Comparison } from "../../api/hooks";
import type { Job, QueryRows, StateComparison, StateTable } from "../../api/types";
import { formatAge, plural } from "../../lib/format";
import { Code } from "../../ui/code";
import { Button, Empty, ErrorNotice, Loading, Tag } from "../../ui/parts";
import type { DataRow } from "../../lib/outputs";
import { Rows, textOf } from "../../ui/rows";

const LIMIT = 1000;

interface Asked {
  query: string;
  epoch: number | null;
}

/** The tables of a checkpoint, and SQL over them. */
export function StateTab({ pipeline, job }: { pipeline: string; job: Job }) {
  const checkpoints = useCheckpoints(pipeline, job.id);
  const [epoch, setEpoch] = useState<number | null>(null);
  const tables = useStateTables(pipeline, job.id, epoch);
  const [query, setQuery] = useState("");
  const [compared, setCompared] = useState<Comparison | null>(null);
  const ask = useMutation({
    mutationFn: (asked: Asked) =>
      post<QueryRows>(`/pipelines/${pipeline}/jobs/${job.id}/state/query`, { ...asked, limit: LIMIT }),
  });
  const epochs = [...(checkpoints.data ?? [])].sort((a, b) => b.epoch - a.epoch);
  if (checkpoints.data?.length === 0) {
    return <Empty title="No checkpoint yet">The tables of the operators are shown when the first epoch is committed.</Empty>;
  }
  const show = (table: StateTable) => {
    const text = `SELECT * FROM ${table.sql_name} LIMIT 100`;
    setQuery(text);
    ask.mutate({ query: text, epoch });
  };
  return (
    <div className="stack">
      <section className="card" aria-label="Tables of the checkpoint">
        <header>
          <h2 className="grow">Tables</h2>
          <label className="row small">
            Epoch
            <select
              className="select auto"
              value={epoch ?? ""}
              onChange={(event) => setEpoch(event.target.value === "" ? null : Number(event.target.value))}
            >
              <option value="">the latest</option>
              {epochs.map((one) => (
                <option key={one.epoch} value={one.epoch}>
                  {one.epoch} · {formatAge(one.start_time)}
                </option>
              ))}
            </select>
          </label>
        </header>
        {tables.error && (
          <div className="body">
            <ErrorNotice error={tables.error} retry={() => void tables.refetch()} />
          </div>
        )}
        {!tables.data && !tables.error && <Loading />}
        {tables.data?.length === 0 && <Empty title="No operator of this pipeline keeps a table" />}
        {tables.data && tables.data.length > 0 && (
          <Tables tables={tables.data} onShow={show} onCompare={(table) => setCompared({ table, before: null, after: epoch })} />
        )}
      </section>
      {compared && (
        <Compared
          pipeline={pipeline}
          job={job.id}
          epochs={epochs.map((one) => one.epoch).reverse()}
          compared={compared}
          onChange={setCompared}
        />
      )}
      {tables.data && tables.data.length > 0 && (
        <section className="card" aria-label="SQL over the state">
          <header>
            <h2 className="grow">SQL over the state</h2>
            <Button
              kind="primary"
              icon="play"
              disabled={query.trim() === "" || ask.isPending}
              onClick={() => ask.mutate({ query, epoch })}
            >
              Run
            </Button>
          </header>
          <div className="sql-box">
            <Code
              label="SQL over the state"
              language="sql"
              value={query}
              onChange={setQuery}
              onRun={() => ask.mutate({ query, epoch })}
            />
          </div>
          {ask.isPending && <Loading what="Reading the checkpoint" />}
          {ask.error && (
            <div className="body">
              <ErrorNotice error={ask.error} />
            </div>
          )}
          {ask.data && (
            <>
              <p className="bar-note muted small" role="status">
                {plural(ask.data.rows.length, "row")}
                {ask.data.hasMore ? ", and there are more" : ""}
              </p>
              {ask.data.rows.length > 0 && <Rows label="Rows of the state" rows={ask.data.rows} columns={ask.data.columns} />}
            </>
          )}
        </section>
      )}
    </div>
  );
}

interface TablesProps {
  tables: StateTable[];
  onShow: (table: StateTable) => void;
  onCompare: (table: StateTable) => void;
}

function Tables({ tables, onShow, onCompare }: TablesProps) {
  return (
    <div className="table-wrap">
      <table className="table">
        <caption className="visually-hidden">Tables of the checkpoint</caption>
        <thead>
          <tr>
            <th scope="col">Table</th>
            <th scope="col">Operator</th>
            <th scope="col">Kind</th>
            <th scope="col">Columns</th>
            <th scope="col" className="right">
              Stored rows
            </th>
            <th scope="col">
              <span className="visually-hidden">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {tables.map((table) => (
            <tr key={`${table.operator_id}.${table.table}`}>
              <td className="name" title={table.description}>
                {table.table}
              </td>
              <td>{table.operator_id}</td>
              <td>
                <Tag>{table.kind}</Tag>
              </td>
              <td className="muted small columns-cell">
                {Object.keys(table.columns)
                  .map((name) => (table.key.includes(name) ? `${name} (key)` : name))
                  .join(", ")}
              </td>
              <td className="right">{table.rows ?? "–"}</td>
              <td className="right">
                <Button small icon="table" onClick={() => onShow(table)}>
                  Show rows
                </Button>{" "}
                <Button small onClick={() => onCompare(table)}>
                  Compare…
                </Button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface ComparedProps {
  pipeline: string;
  job: string;
  epochs: number[];
  compared: Comparison;
  onChange: (compared: Comparison | null) => void;
}

/** The rows of a table that are not the same in two checkpoints. */
function Compared({ pipeline, job, epochs, compared, onChange }: ComparedProps) {
  const { data, error, isFetching } = useStateComparison(pipeline, job, compared);
  const { table, before, after } = compared;
  const choose = (label: string, otherwise: string, value: number | null, set: (epoch: number | null) => Comparison) => (
    <label className="row small">
      {label}
      <select
        className="select auto"
        value={value ?? ""}
        onChange={(event) => onChange(set(event.target.value === "" ? null : Number(event.target.value)))}
      >
        <option value="">{otherwise}</option>
        {(value === null || epochs.includes(value) ? epochs : [value, ...epochs]).map((one) => (
          <option key={one} value={one}>
            {one}
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <section className="card" aria-label="Comparison of two epochs">
      <header>
        <h2 className="grow clip">
          {table.operator_id}.{table.table}
        </h2>
        {choose("Epoch", "the oldest", before, (epoch) => ({ ...compared, before: epoch }))}
        {choose("and epoch", "the latest", after, (epoch) => ({ ...compared, after: epoch }))}
        <Button small onClick={() => onChange(null)}>
          Close
        </Button>
      </header>
      {isFetching && <Loading what="Reading both checkpoints" />}
      {error && (
        <div className="body">
          <ErrorNotice error={error} />
        </div>
      )}
      {data && (
        <>
          <p className="bar-note muted small" role="status">
            {plural(data.rows_before, "row")} in epoch {data.before}, {data.rows_after} in epoch {data.after}: {data.added} added, {data.removed}{" "}
            removed, {data.changed} changed{data.hasMore ? `; the first ${data.changes.length} are shown` : ""}
          </p>
          {data.changes.length > 0 && <Rows label="Rows that differ" rows={data.changes.map(rowOf)} />}
        </>
      )}
    </section>
  );
}

/** A difference as a row: of one that has changed, the columns that differ have both values. */
function rowOf({ change, before, after }: StateComparison["changes"][number]): DataRow {
  const row = after ?? before ?? {};
  const values = Object.entries(row).map(([name, value]) => {
    const old = before && after ? before[name] : value;
    return [name, textOf(old) === textOf(value) ? value : `${textOf(old)} → ${textOf(value)}`];
  });
  return { change, ...(Object.fromEntries(values) as DataRow) };
}
