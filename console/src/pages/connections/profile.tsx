import { useState } from "react";
import { post } from "../../api/client";
import { usePost, useProfiles } from "../../api/hooks";
import type { ConnectionProfile, Connector, TestMessage } from "../../api/types";
import { fieldsOf, missing, parseSchema, prune, type Values } from "../../lib/schema";
import { Button, ErrorNotice, Field } from "../../ui/parts";
import { Form } from "./form";
import { TestResult } from "./test";

interface ProfileStepProps {
  connector: Connector;
  onChosen: (id: string) => void;
  onBack: () => void;
}

/** Where the system is and how to sign in there: a saved profile, or a new one. */
export function ProfileStep({ connector, onChosen, onBack }: ProfileStepProps) {
  const profiles = useProfiles();
  const saved = (profiles.data ?? []).filter((profile) => profile.connector === connector.id);
  const fields = fieldsOf(parseSchema(connector.connection_config) ?? {});
  const [name, setName] = useState("");
  const [values, setValues] = useState<Values>({});
  const [results, setResults] = useState<TestMessage[]>([]);
  const [testing, setTesting] = useState(false);
  const create = usePost<ConnectionProfile>("/connection_profiles");
  const body = { name: name.trim(), connector: connector.id, config: prune(values) };
  const lacks = [...(body.name === "" ? ["Name"] : []), ...missing(fields, values)];
  const test = async () => {
    setTesting(true);
    try {
      setResults([await post<TestMessage>("/connection_profiles/test", { ...body, name: body.name || "test" })]);
    } catch (error) {
      setResults([{ error: true, done: true, message: error instanceof Error ? error.message : String(error) }]);
    } finally {
      setTesting(false);
    }
  };
  return (
    <div className="form">
      {saved.length > 0 && (
        <section className="card" aria-label="Saved profiles">
          <header>
            <h2>Use a saved profile</h2>
          </header>
          <div className="body row wrap">
            {saved.map((profile) => (
              <Button key={profile.id} onClick={() => onChosen(profile.id)}>
                {profile.name}
              </Button>
            ))}
          </div>
        </section>
      )}
      <section className="card" aria-label="New profile">
        <header>
          <h2>{saved.length > 0 ? "Or make a new one" : "New profile"}</h2>
        </header>
        <div className="body form">
          <Field label="Name" required help="Tables name the profile; others can use it too.">
            {(id, help) => (
              <input
                id={id}
                aria-describedby={help}
                className="input"
                value={name}
                onChange={(event) => setName(event.target.value)}
              />
            )}
          </Field>
          <Form fields={fields} values={values} onChange={setValues} />
          <TestResult results={results} testing={testing} />
          {create.error && <ErrorNotice error={create.error} />}
          <div className="row">
            <Button onClick={onBack}>Back</Button>
            <span className="grow muted small">{lacks.length > 0 ? `Still empty: ${lacks.join(", ")}` : ""}</span>
            <Button disabled={testing || missing(fields, values).length > 0} onClick={() => void test()}>
              Test
            </Button>
            <Button
              kind="primary"
              disabled={lacks.length > 0 || create.isPending}
              onClick={() => create.mutate(body, { onSuccess: (profile) => onChosen(profile.id) })}
            >
              Save and go on
            </Button>
          </div>
        </div>
      </section>
    </div>
  );
}
