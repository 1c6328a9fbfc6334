import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useLocation } from "wouter";
import { events, get } from "../../api/client";
import { usePost } from "../../api/hooks";
import type { ConnectionTable, ConnectionTablePost, Connector, TestMessage } from "../../api/types";
import { fieldsFor, fieldsOf, missing, parseSchema, prune, type Values } from "../../lib/schema";
import { Button, ErrorNotice, Field } from "../../ui/parts";
import { useToasts } from "../../ui/toasts";
import { Form } from "./form";
import { EMPTY_SCHEMA, SchemaForm, schemaOf, type SchemaDraft } from "./schema";
import { TestResult } from "./test";

interface TableStepProps {
  connector: Connector;
  profile: string | null;
  onBack: () => void;
}

export function TableStep({ connector, profile, onBack }: TableStepProps) {
  const [, navigate] = useLocation();
  const { tell } = useToasts();
  const [name, setName] = useState("");
  const [values, setValues] = useState<Values>({});
  const [schema, setSchema] = useState<SchemaDraft>(EMPTY_SCHEMA);
  const [results, setResults] = useState<TestMessage[]>([]);
  const [testing, setTesting] = useState(false);
  const create = usePost<ConnectionTable>("/connection_tables");
  const options = fieldsOf(parseSchema(connector.table_config) ?? {});
  const formats = options.some((option) => option.name === "format");
  const fields = fieldsFor(options, values["type"]);
  const proposals = useQuery({
    queryKey: ["connection_profiles", profile, "autocomplete"],
    queryFn: ({ signal }) =>
      get<{ values: Record<string, string[]> }>(`/connection_profiles/${profile ?? ""}/autocomplete`, signal),
    enabled: profile !== null,
    retry: false,
  });
  const body: ConnectionTablePost = {
    name: name.trim(),
    connector: connector.id,
    connection_profile_id: profile,
    config: prune(values),
    schema: connector.custom_schemas ? schemaOf(schema, formats) : null,
  };
  const lacks = [...(body.name === "" ? ["Name"] : []), ...missing(fields, values)];
  const test = async () => {
    setTesting(true);
    setResults([]);
    try {
      for await (const message of events<TestMessage>("POST", "/connection_tables/test", body)) {
        setResults((before) => [...before, message]);
        if (message.done) break;
      }
    } catch (error) {
      setResults([{ error: true, done: true, message: error instanceof Error ? error.message : String(error) }]);
    } finally {
      setTesting(false);
    }
  };
  return (
    <div className="form">
      <section className="card" aria-label="Table">
        <header>
          <h2>Table</h2>
        </header>
        <div className="body form">
          <Field label="Name" required help="The name that queries use.">
            {(id, help) => (
              <input
                id={id}
                aria-describedby={help}
                className="input"
                spellCheck={false}
                value={name}
                onChange={(event) => setName(event.target.value)}
              />
            )}
          </Field>
          <Form fields={fields} values={values} onChange={setValues} proposals={proposals.data?.values} />
        </div>
      </section>
      {connector.custom_schemas && (
        <section className="card" aria-label="Schema">
          <header>
            <h2>Schema</h2>
          </header>
          <div className="body form">
            <SchemaForm draft={schema} formats={formats} onChange={setSchema} />
          </div>
        </section>
      )}
      <TestResult results={results} testing={testing} />
      {create.error && <ErrorNotice error={create.error} />}
      <div className="row">
        <Button onClick={onBack}>Back</Button>
        <span className="grow muted small">{lacks.length > 0 ? `Still empty: ${lacks.join(", ")}` : ""}</span>
        {connector.testing && (
          <Button disabled={testing || lacks.length > 0} onClick={() => void test()}>
            Test
          </Button>
        )}
        <Button
          kind="primary"
          disabled={lacks.length > 0 || create.isPending}
          onClick={() =>
            create.mutate(body, {
              onSuccess: (table) => {
                tell(`The table ${table.name} can be used in queries.`);
                navigate("/connections");
              },
            })
          }
        >
          Create
        </Button>
      </div>
    </div>
  );
}
