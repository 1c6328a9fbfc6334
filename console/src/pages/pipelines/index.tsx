import { useMemo, useState } from "react";
import { Link } from "wouter";
import { patch } from "../../api/client";
import { useOverview } from "../../api/overview";
import { formatCount, plural } from "../../lib/format";
import { countGroups, knows, select, total, type Column, type Sorting } from "../../lib/listing";
import { canStop, GROUPS, type Group } from "../../lib/states";
import { Dialog } from "../../ui/dialog";
import { Icon } from "../../ui/icons";
import { Button, Empty, ErrorNotice, Loading, Search } from "../../ui/parts";
import { useToasts } from "../../ui/toasts";
import { PipelineTable } from "./table";

const CAPTIONS: Record<Group, [string, string]> = {
  running: ["Running", "good"],
  changing: ["Changing", "busy"],
  failed: ["Failed", "bad"],
  stopped: ["Stopped", "idle"],
  finished: ["Finished", "done"],
};

const OPTIONAL: Column[] = ["rowsIn", "rowsOut", "lag", "watermarkDelay", "epochSeconds", "restarts"];

export function PipelinesPage() {
  const { rows, error, refetch } = useOverview();
  const [text, setText] = useState("");
  const [group, setGroup] = useState<Group | null>(null);
  const [sorting, setSorting] = useState<Sorting>({ column: "name", descending: false });
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [asking, setAsking] = useState(false);
  const { tell } = useToasts();
  const shown = useMemo(() => select(rows ?? [], text, group, sorting), [rows, text, group, sorting]);
  const counts = useMemo(() => countGroups(rows ?? []), [rows]);
  const columns = useMemo(() => OPTIONAL.filter((column) => knows(rows ?? [], column)), [rows]);
  const stoppable = (rows ?? []).filter((row) => chosen.has(row.id) && canStop(row.state));
  const rate = total(rows ?? [], "rowsIn");

  const stopChosen = async () => {
    const results = await Promise.allSettled(
      stoppable.map((row) => patch(`/pipelines/${row.id}`, { stop: "checkpoint" })),
    );
    await refetch();
    const failed = results.filter((result) => result.status === "rejected");
    if (failed.length > 0) throw new Error(`${plural(failed.length, "pipeline")} could not be stopped: ${String(failed[0]?.reason)}`);
    tell(`${plural(stoppable.length, "pipeline")} will stop after a checkpoint.`);
    setChosen(new Set());
  };

  return (
    <div className="page">
      <div className="page-head">
        <h1 className="grow">Pipelines</h1>
        <Link href="/pipelines/new" className="button primary">
          <Icon name="plus" size={16} />
          New pipeline
        </Link>
      </div>
      {error && !rows && <ErrorNotice error={error} retry={() => void refetch()} />}
      {!rows && !error && <Loading />}
      {rows?.length === 0 && (
        <div className="card">
          <Empty title="No pipelines yet">
            <p>A pipeline reads streams, computes with SQL, and writes what comes out to tables.</p>
            <Link href="/pipelines/new" className="button primary">
              Write the first one
            </Link>
          </Empty>
        </div>
      )}
      {rows && rows.length > 0 && (
        <>
          <div className="tiles" role="group" aria-label="Pipelines by state">
            {GROUPS.map((key) => (
              <button
                key={key}
                type="button"
                className="tile"
                aria-pressed={group === key}
                onClick={() => setGroup(group === key ? null : key)}
              >
                <span className="caption">
                  <span className={`dot ${counts[key] > 0 ? CAPTIONS[key][1] : "none"}`} />
                  <span className="muted">{CAPTIONS[key][0]}</span>
                </span>
                <span className="figure">{counts[key]}</span>
              </button>
            ))}
            {rate !== null && (
              <div className="tile">
                <span className="caption muted">Rows/s in</span>
                <span className="figure">{formatCount(rate)}</span>
              </div>
            )}
          </div>
          <div className="card">
            <header>
              <Search label="Search by name, id or error" value={text} onChange={setText} />
              <select
                className="select auto"
                aria-label="State"
                value={group ?? ""}
                onChange={(event) => setGroup((event.target.value || null) as Group | null)}
              >
                <option value="">All states</option>
                {GROUPS.map((key) => (
                  <option key={key} value={key}>
                    {CAPTIONS[key][0]}
                  </option>
                ))}
              </select>
              <span className="grow" />
              <span className="muted small" role="status">
                {chosen.size > 0 ? `${chosen.size} chosen` : plural(shown.length, "pipeline")}
              </span>
              <Button icon="stop" disabled={stoppable.length === 0} onClick={() => setAsking(true)}>
                Stop{stoppable.length > 0 ? ` ${stoppable.length}` : ""}
              </Button>
            </header>
            <PipelineTable
              rows={shown}
              columns={columns}
              sorting={sorting}
              onSort={setSorting}
              chosen={chosen}
              onChoose={setChosen}
            />
            {shown.length === 0 && (
              <Empty title="No pipeline matches">
                <Button
                  onClick={() => {
                    setText("");
                    setGroup(null);
                  }}
                >
                  Show all
                </Button>
              </Empty>
            )}
          </div>
        </>
      )}
      {asking && (
        <Dialog
          title={`Stop ${plural(stoppable.length, "pipeline")}?`}
          confirm="Stop"
          danger
          onConfirm={stopChosen}
          onClose={() => setAsking(false)}
        >
          <p>Each takes a checkpoint first, and resumes from it when it is started again.</p>
          <p className="muted small">{stoppable.map((row) => row.name).join(", ")}</p>
        </Dialog>
      )}
    </div>
  );
}
