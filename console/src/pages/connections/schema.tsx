import type { ConnectionSchema, SchemaField } from "../../api/types";
import { Button, Field } from "../../ui/parts";

const FORMATS = ["json", "avro", "protobuf", "raw_string", "raw_bytes"] as const;
type Format = (typeof FORMATS)[number];
type Source = "fields" | "definition";

export interface SchemaDraft {
  format: Format;
  source: Source;
  fields: SchemaField[];
  definition: string;
}

export const EMPTY_SCHEMA: SchemaDraft = {
  format: "json",
  source: "fields",
  fields: [{ name: "", type: "string", required: true }],
  definition: "",
};

const LABELS: Record<Format, string> = {
  json: "JSON",
  avro: "Avro",
  protobuf: "Protobuf",
  raw_string: "Raw string",
  raw_bytes: "Raw bytes",
};

const DEFINITIONS: Partial<Record<Format, { key: string; label: string }>> = {
  json: { key: "json_schema", label: "JSON schema" },
  avro: { key: "avro_schema", label: "Avro schema" },
  protobuf: { key: "protobuf_schema", label: "Protobuf definition" },
};

const TYPES = [
  "string",
  "int64",
  "int32",
  "uint64",
  "uint32",
  "float64",
  "float32",
  "bool",
  "timestamp",
  "bytes",
  "json",
] as const;

/** What the server is sent; a connector without formats has columns alone, and may find them itself. */
export function schemaOf(draft: SchemaDraft, formats: boolean): ConnectionSchema | null {
  if (!formats) {
    const fields = draft.fields.filter((field) => field.name.trim() !== "");
    return fields.length > 0 ? { format: null, fields, definition: null } : null;
  }
  const definition = DEFINITIONS[draft.format];
  const raw = draft.format === "raw_string" || draft.format === "raw_bytes";
  const uses = draft.source === "definition" && definition;
  return {
    format: { type: draft.format },
    fields: raw || uses ? [] : draft.fields.filter((field) => field.name.trim() !== ""),
    definition: uses ? { type: definition.key, schema: draft.definition } : null,
  };
}

interface SchemaFormProps {
  draft: SchemaDraft;
  /** Whether the connector reads or writes messages of a format. */
  formats: boolean;
  onChange: (draft: SchemaDraft) => void;
}

export function SchemaForm({ draft, formats, onChange }: SchemaFormProps) {
  const definition = formats ? DEFINITIONS[draft.format] : undefined;
  const raw = formats && !definition;
  const columns = !formats || (definition && draft.source === "fields");
  const change = (index: number, field: SchemaField) =>
    onChange({ ...draft, fields: draft.fields.map((one, at) => (at === index ? field : one)) });
  return (
    <>
      {formats && (
        <Field label="Format">
          {(id) => (
            <select
              id={id}
              className="select"
              value={draft.format}
              onChange={(event) => onChange({ ...draft, format: event.target.value as Format })}
            >
              {FORMATS.map((format) => (
                <option key={format} value={format}>
                  {LABELS[format]}
                </option>
              ))}
            </select>
          )}
        </Field>
      )}
      {!formats && <p className="muted small">Without columns, the connector's own are taken.</p>}
      {raw && <p className="muted small">Each message is one column, value.</p>}
      {definition && (
        <fieldset className="row" aria-label="Where the columns come from">
          <label className="switch">
            <input
              type="radio"
              name="schema-source"
              checked={draft.source === "fields"}
              onChange={() => onChange({ ...draft, source: "fields" })}
            />
            Columns
          </label>
          <label className="switch">
            <input
              type="radio"
              name="schema-source"
              checked={draft.source === "definition"}
              onChange={() => onChange({ ...draft, source: "definition" })}
            />
            {definition.label}
          </label>
        </fieldset>
      )}
      {definition && draft.source === "definition" && (
        <Field label={definition.label}>
          {(id) => (
            <textarea
              id={id}
              className="textarea"
              rows={10}
              spellCheck={false}
              value={draft.definition}
              onChange={(event) => onChange({ ...draft, definition: event.target.value })}
            />
          )}
        </Field>
      )}
      {columns && (
        <div className="stack tight">
          {draft.fields.map((field, index) => (
            <div className="row" key={index}>
              <input
                className="input"
                aria-label={`Name of column ${index + 1}`}
                placeholder="name"
                spellCheck={false}
                value={field.name}
                onChange={(event) => change(index, { ...field, name: event.target.value })}
              />
              <select
                className="select"
                aria-label={`Type of column ${index + 1}`}
                value={field.type}
                onChange={(event) => change(index, { ...field, type: event.target.value })}
              >
                {TYPES.map((type) => (
                  <option key={type}>{type}</option>
                ))}
              </select>
              <label className="row small nowrap">
                <input
                  type="checkbox"
                  className="check"
                  checked={field.required}
                  onChange={(event) => change(index, { ...field, required: event.target.checked })}
                />
                not null
              </label>
              <Button
                kind="plain"
                icon="trash"
                label={`Remove column ${index + 1}`}
                disabled={draft.fields.length === 1}
                onClick={() => onChange({ ...draft, fields: draft.fields.filter((_, at) => at !== index) })}
              />
            </div>
          ))}
          <div>
            <Button
              small
              icon="plus"
              onClick={() => onChange({ ...draft, fields: [...draft.fields, { name: "", type: "string", required: true }] })}
            >
              Add a column
            </Button>
          </div>
        </div>
      )}
    </>
  );
}
