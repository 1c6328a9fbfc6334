import { Link } from "wouter";
import { useAudit, useCluster } from "../api/hooks";
import { useOverview } from "../api/overview";
import type { AuditEntry, Process } from "../api/types";
import { formatAge, formatBytes, formatSeconds, formatTime } from "../lib/format";
import { countGroups } from "../lib/listing";
import { Empty, ErrorNotice, Facts, Loading, StateBadge } from "../ui/parts";

/** What this server is, what runs on it, and who changed what. */
export default function ClusterPage() {
  const { rows, error } = useOverview();
  const cluster = useCluster();
  const audit = useAudit();
  if (error && !rows) return <ErrorNotice error={error} />;
  if (cluster.error && !cluster.data) return <ErrorNotice error={cluster.error} />;
  if (!rows || !cluster.data) return <Loading />;
  const counts = countGroups(rows);
  const { processes, ...server } = cluster.data;
  const used = processes.reduce((sum, process) => sum + memoryOf(process), 0);
  return (
    <div className="page">
      <h1>Cluster</h1>
      <section className="card" aria-label="Server">
        <header>
          <h2>Server</h2>
        </header>
        <div className="body">
          <Facts
            facts={[
              { name: "Version", value: server.version },
              { name: "Started", value: formatAge(server.started) },
              { name: "Cores of the machine", value: server.cores },
              server.memory !== null && {
                name: "Memory of the machine",
                value: `${formatBytes(server.memory)}, ${formatBytes(server.memory_available ?? 0)} available`,
              },
              server.server_memory !== null && { name: "Memory of the server", value: formatBytes(server.server_memory) },
              { name: "CPU time of the server", value: formatSeconds(server.server_cpu_seconds) },
              { name: "Memory of pipelines", value: formatBytes(used) },
              { name: "Spark master", value: server.master },
              { name: "Pipelines", value: `${rows.length}: ${counts.running} running, ${counts.failed} failed` },
            ]}
          />
        </div>
      </section>
      <section className="card" aria-label="Processes">
        <header>
          <h2>Processes</h2>
        </header>
        {processes.length > 0 ? <Processes processes={processes} /> : <Empty title="No pipeline runs" />}
      </section>
      {audit.data && audit.data.length > 0 && <Audit entries={audit.data} />}
      <section className="card" aria-label="Interfaces">
        <header>
          <h2>Interfaces</h2>
        </header>
        <div className="body stack tight">
          <a href="/api/v1/swagger-ui">The REST API</a>
          <a href="/api/v1/api-docs/openapi.json">Its OpenAPI document</a>
        </div>
      </section>
    </div>
  );
}

function memoryOf(process: Process): number {
  return Object.values(process.memory).reduce((sum, size) => sum + size, 0);
}

function Processes({ processes }: { processes: Process[] }) {
  return (
    // A region that scrolls must be reachable by keyboard.
    // eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex
    <div className="table-wrap" role="region" aria-label="Processes of pipelines" tabIndex={0}>
      <table className="table">
        <thead>
          <tr>
            <th scope="col">Pipeline</th>
            <th scope="col">State</th>
            <th scope="col">Master</th>
            <th scope="col" className="right">
              Process
            </th>
            <th scope="col" className="right">
              Cores
            </th>
            <th scope="col" className="right">
              Tasks
            </th>
            <th scope="col" className="right">
              Idle
            </th>
            <th scope="col" className="right">
              Memory
            </th>
            <th scope="col">Spark</th>
          </tr>
        </thead>
        <tbody>
          {processes.map((process) => (
            <tr key={process.pipeline_id}>
              <td className="name">
                <Link href={`/pipelines/${process.pipeline_id}`}>{process.pipeline}</Link>
              </td>
              <td>
                <StateBadge state={process.state} />
              </td>
              <td>{process.master}</td>
              <td className="right">{process.pid ?? "–"}</td>
              <td className="right">{process.cores ?? "–"}</td>
              <td className="right">{process.active_tasks ?? "–"}</td>
              <td className="right">{process.idle_ratio === null ? "–" : `${Math.round(process.idle_ratio * 100)} %`}</td>
              <td className="right" title={partsOf(process)}>
                {memoryOf(process) > 0 ? formatBytes(memoryOf(process)) : "–"}
              </td>
              <td>{process.spark_url ? <a href={process.spark_url}>Web pages</a> : <span className="muted">–</span>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function partsOf({ memory }: Process): string {
  return Object.entries(memory)
    .map(([name, size]) => `${name}: ${formatBytes(size)}`)
    .join("\n");
}

function Audit({ entries }: { entries: AuditEntry[] }) {
  return (
    <section className="card" aria-label="Changes">
      <header>
        <h2 className="grow">Changes and refused requests</h2>
        <span className="muted small">the last {entries.length}</span>
      </header>
      {/* eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- a region that scrolls must be reachable by keyboard */}
      <div className="table-wrap rows" role="region" aria-label="Changes and refused requests" tabIndex={0}>
        <table className="table dense">
          <thead>
            <tr>
              <th scope="col">Time</th>
              <th scope="col">User</th>
              <th scope="col">From</th>
              <th scope="col">Request</th>
              <th scope="col" className="right">
                Answer
              </th>
            </tr>
          </thead>
          <tbody>
            {entries.map((entry) => (
              <tr key={entry.id}>
                <td className="num">{formatTime(entry.time)}</td>
                <td>{entry.user}</td>
                <td>{entry.address}</td>
                <td className="mono">
                  {entry.method} {entry.path}
                </td>
                <td className="right">{entry.status}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
