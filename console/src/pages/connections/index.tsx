import { useState } from "react";
import { Link } from "wouter";
import { useConnectors, useDelete, useProfiles, useTables } from "../../api/hooks";
import type { ConnectionProfile, ConnectionTable } from "../../api/types";
import { formatAge, plural } from "../../lib/format";
import { Dialog } from "../../ui/dialog";
import { Icon } from "../../ui/icons";
import { Button, Empty, ErrorNotice, Loading, Search, Tag } from "../../ui/parts";

export default function ConnectionsPage() {
  const tables = useTables();
  const profiles = useProfiles();
  const connectors = useConnectors();
  const [text, setText] = useState("");
  const [table, setTable] = useState<ConnectionTable | null>(null);
  const [profile, setProfile] = useState<ConnectionProfile | null>(null);
  const [open, setOpen] = useState<string | null>(null);
  const remove = useDelete();
  const nameOf = (id: string) => connectors.data?.find((connector) => connector.id === id)?.name ?? id;
  const shown = (tables.data ?? []).filter((one) => `${one.name} ${one.connector}`.toLowerCase().includes(text.toLowerCase()));
  return (
    <div className="page">
      <div className="page-head">
        <h1 className="grow">Connections</h1>
        <Link href="/connections/new" className="button primary">
          <Icon name="plus" size={16} />
          New connection
        </Link>
      </div>
      {tables.error && <ErrorNotice error={tables.error} retry={() => void tables.refetch()} />}
      {!tables.data && !tables.error && <Loading />}
      {tables.data?.length === 0 && (
        <div className="card">
          <Empty title="No tables yet">
            <p>A table of a connection can be named by every pipeline, as a source, a sink or for lookups.</p>
            <Link href="/connections/new" className="button primary">
              Connect a system
            </Link>
          </Empty>
        </div>
      )}
      {tables.data && tables.data.length > 0 && (
        <section className="card" aria-label="Tables">
          <header>
            <h2>Tables</h2>
            <span className="grow" />
            <Search label="Search tables" value={text} onChange={setText} />
          </header>
          <div className="table-wrap">
            <table className="table">
              <caption className="visually-hidden">Tables of connections</caption>
              <thead>
                <tr>
                  <th scope="col">Name</th>
                  <th scope="col">Connector</th>
                  <th scope="col">Type</th>
                  <th scope="col">Format</th>
                  <th scope="col">Columns</th>
                  <th scope="col" className="right">
                    Pipelines
                  </th>
                  <th scope="col">Created</th>
                  <th scope="col">
                    <span className="visually-hidden">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {shown.map((one) => (
                  <TableLines
                    key={one.id}
                    table={one}
                    connector={nameOf(one.connector)}
                    open={open === one.id}
                    onToggle={() => setOpen(open === one.id ? null : one.id)}
                    onDelete={() => setTable(one)}
                  />
                ))}
              </tbody>
            </table>
          </div>
          {shown.length === 0 && <Empty title="No table matches" />}
        </section>
      )}
      {profiles.data && profiles.data.length > 0 && (
        <section className="card" aria-label="Connection profiles">
          <header>
            <h2>Profiles</h2>
            <span className="muted small">Addresses and credentials that tables share</span>
          </header>
          <div className="table-wrap">
            <table className="table">
              <caption className="visually-hidden">Connection profiles</caption>
              <thead>
                <tr>
                  <th scope="col">Name</th>
                  <th scope="col">Connector</th>
                  <th scope="col">Description</th>
                  <th scope="col">
                    <span className="visually-hidden">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {profiles.data.map((one) => (
                  <tr key={one.id}>
                    <td className="name">{one.name}</td>
                    <td>{nameOf(one.connector)}</td>
                    <td className="muted">{one.description}</td>
                    <td className="right">
                      <Button small kind="plain" icon="trash" label={`Delete ${one.name}`} onClick={() => setProfile(one)} />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </section>
      )}
      {table && (
        <Dialog
          title={`Delete the table ${table.name}?`}
          confirm="Delete"
          danger
          onConfirm={() => remove.mutateAsync(`/connection_tables/${table.id}`)}
          onClose={() => setTable(null)}
        >
          <p>
            {table.consumers > 0
              ? `${plural(table.consumers, "pipeline")} uses it. Its data in the other system stays.`
              : "No pipeline uses it. Its data in the other system stays."}
          </p>
        </Dialog>
      )}
      {profile && (
        <Dialog
          title={`Delete the profile ${profile.name}?`}
          confirm="Delete"
          danger
          onConfirm={() => remove.mutateAsync(`/connection_profiles/${profile.id}`)}
          onClose={() => setProfile(null)}
        >
          <p>Its credentials are removed from this server.</p>
        </Dialog>
      )}
    </div>
  );
}

interface TableLinesProps {
  table: ConnectionTable;
  connector: string;
  open: boolean;
  onToggle: () => void;
  onDelete: () => void;
}

function TableLines({ table, connector, open, onToggle, onDelete }: TableLinesProps) {
  return (
    <>
      <tr>
        <td className="name">
          <button type="button" className="link" aria-expanded={open} onClick={onToggle}>
            {table.name}
          </button>
        </td>
        <td>
          {connector}
          {table.connection_profile && <span className="muted"> · {table.connection_profile.name}</span>}
        </td>
        <td>
          <Tag>{table.table_type}</Tag>
        </td>
        <td>{table.schema.format?.type ?? <span className="muted">–</span>}</td>
        <td className="num">{table.schema.fields.length}</td>
        <td className="right">{table.consumers}</td>
        <td className="muted">{formatAge(table.created_at)}</td>
        <td className="right">
          <Button small kind="plain" icon="trash" label={`Delete ${table.name}`} onClick={onDelete} />
        </td>
      </tr>
      {open && (
        <tr>
          <td colSpan={8}>
            <ul className="columns" aria-label={`Columns of ${table.name}`}>
              {table.schema.fields.map((field) => (
                <li key={field.name}>
                  <code>{field.name}</code> <span className="muted small">{field.type}</span>
                  {field.required && <span className="muted small"> not null</span>}
                </li>
              ))}
              {table.schema.fields.length === 0 && <li className="muted">The columns are found when a pipeline reads it.</li>}
            </ul>
          </td>
        </tr>
      )}
    </>
  );
}
