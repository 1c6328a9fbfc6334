import { useId } from "react";
import type { Field as FormField, Value, Values } from "../../lib/schema";
import { Button, Field } from "../../ui/parts";

interface FormProps {
  fields: readonly FormField[];
  values: Values;
  onChange: (values: Values) => void;
  /** Values that the other system proposes, by the name of the field. */
  proposals?: Record<string, readonly string[]> | undefined;
}

/** A form for the options of a connector. */
export function Form({ fields, values, onChange, proposals }: FormProps) {
  const required = fields.filter((field) => field.required);
  const optional = fields.filter((field) => !field.required);
  const show = (field: FormField) => (
    <Control
      key={field.name}
      field={field}
      value={values[field.name]}
      onChange={(value) => onChange({ ...values, [field.name]: value })}
      proposals={proposals}
    />
  );
  const folded = required.length > 0 && optional.length > 3;
  return (
    <>
      {required.map(show)}
      {folded ? (
        <details>
          <summary>{optional.length} more options</summary>
          <div className="form">{optional.map(show)}</div>
        </details>
      ) : (
        optional.map(show)
      )}
    </>
  );
}

interface ControlProps {
  field: FormField;
  value: Value;
  onChange: (value: Value) => void;
  proposals?: Record<string, readonly string[]> | undefined;
}

function Control({ field, value, onChange, proposals }: ControlProps) {
  const list = useId();
  const offered = proposals?.[field.name];
  switch (field.kind) {
    case "switch":
      return (
        <label className="switch">
          <input
            type="checkbox"
            checked={Boolean(value ?? field.fallback ?? false)}
            onChange={(event) => onChange(event.target.checked)}
          />
          <span>
            {field.label}
            {field.help && (
              <>
                <br />
                <span className="muted small">{field.help}</span>
              </>
            )}
          </span>
        </label>
      );
    case "choice":
      return (
        <Field label={field.label} help={field.help} required={field.required}>
          {(id, help) => (
            <select
              id={id}
              aria-describedby={help}
              className="select"
              value={plain(value ?? field.fallback)}
              onChange={(event) => onChange(event.target.value || undefined)}
            >
              <option value="">{field.required ? "Choose…" : "Not set"}</option>
              {field.choices.map((choice) => (
                <option key={choice} value={choice}>
                  {choice}
                </option>
              ))}
            </select>
          )}
        </Field>
      );
    case "group":
      return (
        <fieldset className="group field">
          <legend>{field.label}</legend>
          {field.help && <span className="help">{field.help}</span>}
          <Form fields={field.fields} values={(value ?? {}) as Values} onChange={onChange} proposals={proposals} />
        </fieldset>
      );
    case "variant":
      return <Variant field={field} value={value} onChange={onChange} proposals={proposals} />;
    case "map":
      return <MapControl field={field} value={(value ?? {}) as Values} onChange={onChange} />;
    case "multiline":
    case "json":
      return (
        <Field label={field.label} help={field.help} required={field.required}>
          {(id, help) => (
            <textarea
              id={id}
              aria-describedby={help}
              className="textarea"
              spellCheck={false}
              value={typeof value === "string" ? value : value == null ? "" : JSON.stringify(value)}
              onChange={(event) => onChange(field.kind === "json" ? parsed(event.target.value) : event.target.value)}
            />
          )}
        </Field>
      );
    default:
      return (
        <Field label={field.label} help={field.help} required={field.required}>
          {(id, help) => (
            <>
              <input
                id={id}
                aria-describedby={help}
                className="input"
                type={field.kind === "secret" ? "password" : field.kind === "text" ? "text" : "number"}
                step={field.kind === "number" ? "any" : undefined}
                autoComplete={field.kind === "secret" ? "new-password" : "off"}
                spellCheck={false}
                placeholder={field.hint}
                list={offered ? list : undefined}
                value={plain(value)}
                onChange={(event) => onChange(numeric(field, event.target.value))}
              />
              {offered && (
                <datalist id={list}>
                  {offered.map((one) => (
                    <option key={one} value={one} />
                  ))}
                </datalist>
              )}
            </>
          )}
        </Field>
      );
  }
}

function numeric(field: FormField, text: string): Value {
  if (text === "") return undefined;
  return field.kind === "number" || field.kind === "integer" ? Number(text) : text;
}

function plain(value: Value): string {
  return typeof value === "string" || typeof value === "number" ? String(value) : "";
}

function parsed(text: string): Value {
  try {
    return JSON.parse(text) as Value;
  } catch {
    return text;
  }
}

type VariantField = Extract<FormField, { kind: "variant" }>;

function Variant({ field, value, onChange, proposals }: Omit<ControlProps, "field"> & { field: VariantField }) {
  const values = (value ?? {}) as Values;
  const fits = (index: number) => {
    const variant = field.variants[index];
    if (!variant) return false;
    const names = Object.keys(variant.fixed);
    return names.length > 0
      ? names.every((name) => values[name] === variant.fixed[name])
      : variant.fields.some((one) => one.name in values);
  };
  const index = value == null ? -1 : field.variants.findIndex((_, at) => fits(at));
  const variant = field.variants[index];
  return (
    <fieldset className="group field">
      <legend>{field.label}</legend>
      {field.help && <span className="help">{field.help}</span>}
      <select
        className="select"
        aria-label={field.label}
        value={index}
        onChange={(event) => {
          const chosen = field.variants[Number(event.target.value)];
          onChange(chosen && { ...Object.fromEntries(chosen.fields.map((one) => [one.name, undefined])), ...chosen.fixed });
        }}
      >
        <option value={-1}>{field.required ? "Choose…" : "Not set"}</option>
        {field.variants.map((one, at) => (
          <option key={one.title} value={at}>
            {one.title}
          </option>
        ))}
      </select>
      {variant && variant.fields.length > 0 && (
        <Form fields={variant.fields} values={values} onChange={(next) => onChange({ ...next, ...variant.fixed })} proposals={proposals} />
      )}
    </fieldset>
  );
}

type MapField = Extract<FormField, { kind: "map" }>;

function MapControl({ field, value, onChange }: { field: MapField; value: Values; onChange: (value: Value) => void }) {
  const entries = Object.entries(value);
  const change = (index: number, name: string, text: string) =>
    onChange(Object.fromEntries(entries.map((entry, at) => (at === index ? [name, text] : entry))));
  return (
    <fieldset className="group field">
      <legend>{field.label}</legend>
      {field.help && <span className="help">{field.help}</span>}
      {entries.map(([name, text], index) => (
        <div className="row" key={index}>
          <input
            className="input"
            aria-label={`${field.label}, name ${index + 1}`}
            value={name}
            onChange={(event) => change(index, event.target.value, textOf(text))}
          />
          <input
            className="input"
            aria-label={`${field.label}, value ${index + 1}`}
            value={textOf(text)}
            onChange={(event) => change(index, name, event.target.value)}
          />
          <Button
            kind="plain"
            icon="trash"
            label={`Remove ${name || "this entry"}`}
            onClick={() => onChange(Object.fromEntries(entries.filter((_, at) => at !== index)))}
          />
        </div>
      ))}
      <div>
        <Button small icon="plus" disabled={"" in value} onClick={() => onChange({ ...value, "": "" })}>
          Add
        </Button>
      </div>
    </fieldset>
  );
}

function textOf(value: Value): string {
  return typeof value === "string" ? value : JSON.stringify(value ?? "");
}
