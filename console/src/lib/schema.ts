/** Forms from the option schemas of connectors: JSON schemas of objects. */

export interface JsonSchema {
  type?: string | string[];
  title?: string;
  description?: string;
  properties?: Record<string, JsonSchema>;
  required?: string[];
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  anyOf?: JsonSchema[];
  oneOf?: JsonSchema[];
  allOf?: JsonSchema[];
  $ref?: string;
  $defs?: Record<string, JsonSchema>;
  definitions?: Record<string, JsonSchema>;
  format?: string;
  minimum?: number;
  maximum?: number;
  items?: JsonSchema;
  additionalProperties?: boolean | JsonSchema;
  isSensitive?: string[];
  writeOnly?: boolean;
  examples?: unknown[];
  deprecated?: boolean;
  /** The roles of a connector that read the option. */
  "x-roles"?: string[];
}

export type Value = string | number | boolean | null | undefined | Value[] | { [key: string]: Value };
export type Values = Record<string, Value>;

export type Field = { name: string; label: string; help: string; required: boolean; fallback: Value; hint: string; roles: string[] | null } & (
  | { kind: "text" | "secret" | "multiline" | "number" | "integer" | "switch" | "json" }
  | { kind: "choice"; choices: string[] }
  | { kind: "map" }
  | { kind: "group"; fields: Field[] }
  | { kind: "variant"; variants: { title: string; fields: Field[]; fixed: Values }[] }
);

/** The fields of a form for an object, in the order of the schema, what is required first. */
export function fieldsOf(schema: JsonSchema, root: JsonSchema = schema): Field[] {
  const object = resolve(schema, root);
  const required = new Set(object.required ?? []);
  const sensitive = new Set(object.isSensitive ?? []);
  const fields = Object.entries(object.properties ?? {})
    .filter(([, property]) => !("const" in resolve(property, root)))
    .map(([name, property]) => fieldOf(name, property, root, required.has(name), sensitive.has(name)));
  return [...fields.filter((field) => field.required), ...fields.filter((field) => !field.required)];
}

function fieldOf(name: string, property: JsonSchema, root: JsonSchema, required: boolean, secret: boolean): Field {
  const outer = resolve(property, root);
  const options = (outer.anyOf ?? outer.oneOf ?? []).map((option) => resolve(option, root));
  const real = options.filter((option) => option.type !== "null");
  const inner = real.length === 1 ? { ...real[0], ...withoutChoices(outer) } : outer;
  const head = {
    name,
    label: outer.title && !isWords(outer.title, name) ? outer.title : words(name),
    help: outer.description ?? real[0]?.description ?? "",
    required,
    fallback: (outer.default ?? undefined) as Value,
    hint: hintOf(outer),
    roles: outer["x-roles"] ?? null,
  };
  if (secret || inner.writeOnly || inner.format === "password" || inner.format === "var-str") {
    return { ...head, kind: "secret" };
  }
  if (inner.enum) return { ...head, kind: "choice", choices: inner.enum.filter((value) => value !== null).map(String) };
  if (real.length > 1 && real.every((option) => option.type === "object" || option.properties)) {
    return {
      ...head,
      kind: "variant",
      variants: real.map((option, index) => ({
        title: option.title ?? Object.keys(option.properties ?? {})[0] ?? `Choice ${index + 1}`,
        fields: fieldsOf(option, root),
        fixed: fixedOf(option, root),
      })),
    };
  }
  const consts = real.map((option) => option.const ?? option.enum?.[0]);
  if (real.length > 1 && consts.every((value) => typeof value === "string")) {
    return { ...head, kind: "choice", choices: consts };
  }
  const types = real.length > 1 ? real.map((option) => option.type) : [inner.type].flat();
  const type = types.find((one) => one !== "null");
  if (real.length > 1) return { ...head, kind: types.every((one) => one !== "object" && one !== "array") ? "text" : "json" };
  switch (type) {
    case "boolean":
      return { ...head, kind: "switch" };
    case "integer":
      return { ...head, kind: "integer" };
    case "number":
      return { ...head, kind: "number" };
    case "object":
      if (inner.properties) return { ...head, kind: "group", fields: fieldsOf(inner, root) };
      return { ...head, kind: "map" };
    case "array":
      return { ...head, kind: "json" };
    default:
      return { ...head, kind: inner.format === "multiline" ? "multiline" : "text" };
  }
}

function fixedOf(schema: JsonSchema, root: JsonSchema): Values {
  const fixed: Values = {};
  for (const [name, property] of Object.entries(schema.properties ?? {})) {
    const found = resolve(property, root);
    if ("const" in found) fixed[name] = found.const as Value;
  }
  return fixed;
}

function withoutChoices(schema: JsonSchema): JsonSchema {
  const rest = { ...schema };
  delete rest.anyOf;
  delete rest.oneOf;
  return rest;
}

function resolve(schema: JsonSchema, root: JsonSchema): JsonSchema {
  let found = schema;
  for (let depth = 0; found.$ref && depth < 20; depth += 1) {
    const name = found.$ref.split("/").at(-1) ?? "";
    const own = { ...found };
    delete own.$ref;
    found = { ...(root.$defs?.[name] ?? root.definitions?.[name] ?? {}), ...own };
  }
  return found.allOf?.length === 1 && found.allOf[0] ? { ...resolve(found.allOf[0], root), ...found } : found;
}

function hintOf(schema: JsonSchema): string {
  const example = schema.examples?.[0];
  if (typeof example === "string" || typeof example === "number") return String(example);
  if (schema.default === undefined || schema.default === null || typeof schema.default === "object") return "";
  return typeof schema.default === "string" ? schema.default : JSON.stringify(schema.default);
}

/** bootstrap_servers → "Bootstrap servers". */
export function words(name: string): string {
  const text = name.replace(/[_.]/g, " ").trim();
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function isWords(title: string, name: string): boolean {
  return title.toLowerCase().replace(/\W/g, "") === name.toLowerCase().replace(/\W|_/g, "");
}

/** The fields that count for the chosen type of a table; all of them as long as none is chosen. */
export function fieldsFor(fields: readonly Field[], type: Value): Field[] {
  return fields.filter((field) => typeof type !== "string" || !field.roles || field.roles.includes(type));
}

/** What is sent: fields that were left empty are left out. */
export function prune(values: Values): Values {
  const kept: Values = {};
  for (const [name, value] of Object.entries(values)) {
    if (value === undefined || value === null || value === "") continue;
    if (typeof value === "object" && !Array.isArray(value)) {
      const inner = prune(value);
      if (Object.keys(inner).length > 0) kept[name] = inner;
    } else kept[name] = value;
  }
  return kept;
}

/** The labels of required fields without a value. */
export function missing(fields: readonly Field[], values: Values): string[] {
  return fields.flatMap((field) => {
    const value = values[field.name];
    if (field.kind === "group") {
      const inner = missing(field.fields, (value ?? {}) as Values);
      return field.required || value !== undefined ? inner : [];
    }
    if (!field.required || field.fallback !== undefined) return [];
    return value === undefined || value === null || value === "" ? [field.label] : [];
  });
}

export function parseSchema(text: string | null): JsonSchema | undefined {
  if (!text) return undefined;
  try {
    return JSON.parse(text) as JsonSchema;
  } catch {
    return undefined;
  }
}
