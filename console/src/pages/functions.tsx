import { useState } from "react";
import { post } from "../api/client";
import { useDelete, usePost, useUdfs } from "../api/hooks";
import type { GlobalUdf } from "../api/types";
import { formatAge } from "../lib/format";
import { Code } from "../ui/code";
import { Dialog } from "../ui/dialog";
import { Button, Empty, ErrorNotice, Field, Loading, Tag } from "../ui/parts";
import { useToasts } from "../ui/toasts";
import { FUNCTIONS } from "../lib/program";

interface UdfValidation {
  udf_name: string | null;
  errors: string[];
}

const LABELS = { python: "Python", rust: "Rust" } as const;

/** Functions that every pipeline can call. */
export default function FunctionsPage() {
  const udfs = useUdfs();
  const remove = useDelete();
  const [writing, setWriting] = useState(false);
  const [deleting, setDeleting] = useState<GlobalUdf | null>(null);
  return (
    <div className="page">
      <div className="page-head">
        <h1 className="grow">Functions</h1>
        {!writing && (
          <Button kind="primary" icon="plus" onClick={() => setWriting(true)}>
            New function
          </Button>
        )}
      </div>
      {writing && <NewFunction onDone={() => setWriting(false)} />}
      {udfs.error && <ErrorNotice error={udfs.error} retry={() => void udfs.refetch()} />}
      {!udfs.data && !udfs.error && <Loading />}
      {udfs.data?.length === 0 && !writing && (
        <div className="card">
          <Empty title="No functions yet">
            <p>A function in Python or Rust that is saved here can be called in every query.</p>
          </Empty>
        </div>
      )}
      {(udfs.data ?? []).map((udf) => (
        <section className="card" key={udf.id} aria-label={`Function ${udf.name}`}>
          <header>
            <h2>{udf.prefix ? `${udf.prefix}/${udf.name}` : udf.name}</h2>
            <Tag>{LABELS[udf.language]}</Tag>
            <span className="grow muted small clip">{udf.description}</span>
            <span className="muted small">{formatAge(udf.updated_at)}</span>
            <Button small kind="plain" icon="trash" label={`Delete ${udf.name}`} onClick={() => setDeleting(udf)} />
          </header>
          <Code grows label={`Definition of ${udf.name}`} language={udf.language} value={udf.definition} />
        </section>
      ))}
      {deleting && (
        <Dialog
          title={`Delete the function ${deleting.name}?`}
          confirm="Delete"
          danger
          onConfirm={() => remove.mutateAsync(`/udfs/${deleting.id}`)}
          onClose={() => setDeleting(null)}
        >
          <p>Pipelines that were started with it keep their copy.</p>
        </Dialog>
      )}
    </div>
  );
}

function NewFunction({ onDone }: { onDone: () => void }) {
  const { tell } = useToasts();
  const [language, setLanguage] = useState<"python" | "rust">("python");
  const [definition, setDefinition] = useState(FUNCTIONS.python);
  const [description, setDescription] = useState("");
  const [checked, setChecked] = useState<UdfValidation | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const create = usePost<GlobalUdf>("/udfs");
  const check = () =>
    post<UdfValidation>("/udfs/validate", { definition, language }).then(
      (answer) => {
        setChecked(answer);
        setProblem(null);
      },
      (error: unknown) => setProblem(error),
    );
  const choose = (next: "python" | "rust") => {
    setLanguage(next);
    if (definition === FUNCTIONS.python || definition === FUNCTIONS.rust) setDefinition(next === "python" ? FUNCTIONS.python : FUNCTIONS.rust);
    setChecked(null);
  };
  return (
    <section className="card" aria-label="New function">
      <header>
        <h2 className="grow">New function</h2>
        <select
          className="select auto"
          aria-label="Language"
          value={language}
          onChange={(event) => choose(event.target.value as "python" | "rust")}
        >
          <option value="python">Python</option>
          <option value="rust">Rust</option>
        </select>
      </header>
      <Code grows label="Definition" language={language} value={definition} onChange={setDefinition} />
      <div className="body stack">
        <Field label="Description">
          {(id) => (
            <input id={id} className="input" value={description} onChange={(event) => setDescription(event.target.value)} />
          )}
        </Field>
        {checked && checked.errors.length === 0 && (
          <div className="notice good" role="status">
            The function {checked.udf_name} can be saved.
          </div>
        )}
        {checked && checked.errors.length > 0 && <ErrorNotice error={new Error(checked.errors.join("\n\n"))} />}
        {problem !== null && <ErrorNotice error={problem} />}
        {create.error && <ErrorNotice error={create.error} />}
        <div className="row end">
          <Button onClick={onDone}>Cancel</Button>
          <Button onClick={() => void check()}>Check</Button>
          <Button
            kind="primary"
            disabled={create.isPending || definition.trim() === ""}
            onClick={() =>
              create.mutate(
                { prefix: "", language, definition, description },
                {
                  onSuccess: (udf) => {
                    tell(`The function ${udf.name} can be called in queries.`);
                    onDone();
                  },
                },
              )
            }
          >
            Save
          </Button>
        </div>
      </div>
    </section>
  );
}
