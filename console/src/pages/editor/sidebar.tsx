import { useState } from "react";
import { Link } from "wouter";
import type { ConnectionTable, GlobalUdf } from "../../api/types";
import type { SqlFunction } from "../../lib/completion";
import { plural } from "../../lib/format";
import { Button, Search } from "../../ui/parts";

interface SidebarProps {
  tables: readonly ConnectionTable[] | undefined;
  /** Tables that the query can name, those that it defines itself among them. */
  local: Record<string, string[]>;
  functions: readonly SqlFunction[] | undefined;
  udfs: readonly GlobalUdf[] | undefined;
}

const SHOWN = 40;

/** What a query can use: tables with their columns, and functions. */
export function Sidebar({ tables = [], local, functions = [], udfs = [] }: SidebarProps) {
  const [text, setText] = useState("");
  const [all, setAll] = useState(false);
  const wanted = (name: string) => name.toLowerCase().includes(text.toLowerCase());
  const known = new Set(tables.map((table) => table.name));
  const saved = tables.filter((table) => wanted(table.name));
  const own = Object.entries(local).filter(([name]) => !known.has(name) && wanted(name));
  const named = [...udfs.map((udf): SqlFunction => ({ name: udf.name, signature: udf.language })), ...functions].filter(
    ({ name }) => wanted(name),
  );
  return (
    <section className="card" aria-label="Tables and functions">
      <header>
        <Search label="Search" value={text} onChange={setText} />
      </header>
      <div className="scroll">
        <ul className="tree" aria-label="Tables">
          <li className="group-label">Tables of the server</li>
          {saved.map((table) => (
            <li key={table.id}>
              <details>
                <summary>
                  {table.name} <span className="muted small">{table.table_type}</span>
                </summary>
                <ul>
                  {table.schema.fields.map((field) => (
                    <li key={field.name}>
                      <span className="clip">{field.name}</span>
                      <span className="type">{field.type}</span>
                    </li>
                  ))}
                </ul>
              </details>
            </li>
          ))}
          {saved.length === 0 && (
            <li className="muted small note">
              {tables.length === 0 ? <Link href="/connections/new">Connect a system</Link> : "None of that name"}
            </li>
          )}
          {own.length > 0 && <li className="group-label">In this query</li>}
          {own.map(([name, columns]) => (
            <li key={name}>
              <details>
                <summary>{name}</summary>
                <ul>
                  {columns.map((column) => (
                    <li key={column}>{column}</li>
                  ))}
                </ul>
              </details>
            </li>
          ))}
        </ul>
        {named.length > 0 && (
          <ul className="tree" aria-label="Functions">
            <li className="group-label">Functions</li>
            {named.slice(0, all || text ? named.length : SHOWN).map((item) => (
              <li key={item.name} className="function" title={item.description}>
                <span>{item.name}</span>
                <span className="type clip">{item.signature ?? item.kind}</span>
              </li>
            ))}
            {!all && !text && named.length > SHOWN && (
              <li>
                <Button small kind="plain" onClick={() => setAll(true)}>
                  Show all {plural(named.length, "function")}
                </Button>
              </li>
            )}
          </ul>
        )}
      </div>
    </section>
  );
}
