import { useState } from "react";
import { Link, useSearchParams } from "wouter";
import { useConnectors } from "../../api/hooks";
import type { Connector } from "../../api/types";
import { Button, Empty, ErrorNotice, Loading, Search, Tag } from "../../ui/parts";
import { ProfileStep } from "./profile";
import { TableStep } from "./table";

/** A new connection: its connector, then where the system is, then the table. */
export default function NewConnectionPage() {
  const connectors = useConnectors();
  const [search, setSearch] = useSearchParams();
  const [profile, setProfile] = useState<string | null>(null);
  const id = search.get("connector");
  const connector = connectors.data?.find((one) => one.id === id);
  const withProfile = connector?.connection_config != null;
  const step = !connector ? 0 : withProfile && profile === null ? 1 : 2;
  const steps = ["Connector", ...(withProfile || !connector ? ["Profile"] : []), "Table"];
  const here = step === 2 ? steps.length - 1 : step;
  const choose = (next: string | null) => {
    setProfile(null);
    setSearch(next ? { connector: next } : {});
  };
  return (
    <div className="page">
      <div className="page-head">
        <div className="grow stack tight">
          <Link href="/connections" className="small">
            Connections
          </Link>
          <h1>{connector ? `New connection to ${connector.name}` : "New connection"}</h1>
        </div>
        <ol className="steps" aria-label="Steps">
          {steps.map((name, index) => (
            <li key={name} aria-current={index === here ? "step" : undefined}>
              <span aria-hidden="true">{index + 1}</span>
              {name}
            </li>
          ))}
        </ol>
      </div>
      {connectors.error && <ErrorNotice error={connectors.error} retry={() => void connectors.refetch()} />}
      {!connectors.data && !connectors.error && <Loading />}
      {connectors.data && step === 0 && <Cards connectors={connectors.data} onChoose={choose} />}
      {connector && step === 1 && <ProfileStep connector={connector} onChosen={setProfile} onBack={() => choose(null)} />}
      {connector && step === 2 && (
        <TableStep
          connector={connector}
          profile={profile}
          onBack={() => (withProfile ? setProfile(null) : choose(null))}
        />
      )}
    </div>
  );
}

function Cards({ connectors, onChoose }: { connectors: Connector[]; onChoose: (id: string) => void }) {
  const [text, setText] = useState("");
  const shown = connectors
    .filter((one) => !one.hidden && one.enabled)
    .filter((one) => `${one.id} ${one.name} ${one.description}`.toLowerCase().includes(text.toLowerCase()))
    .sort((a, b) => a.name.localeCompare(b.name));
  return (
    <>
      <Search label="Search connectors" value={text} onChange={setText} />
      <div className="connectors">
        {shown.map((one) => (
          <button key={one.id} type="button" className="connector" onClick={() => onChoose(one.id)}>
            <strong>{one.name}</strong>
            <span className="muted small">{one.description}</span>
            <span className="badges">
              {one.source && <Tag>source</Tag>}
              {one.sink && <Tag>sink</Tag>}
            </span>
          </button>
        ))}
      </div>
      {shown.length === 0 && (
        <Empty title="No connector matches">
          <Button onClick={() => setText("")}>Show all</Button>
        </Empty>
      )}
    </>
  );
}
