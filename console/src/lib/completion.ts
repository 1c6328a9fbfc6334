/** Completion of SQL: connector options inside WITH (…), tables and their columns, functions. */

import type { Completion, CompletionContext, CompletionResult, CompletionSource } from "@codemirror/autocomplete";
import type { Connector, ConnectionTable } from "../api/types";
import { fieldsOf, parseSchema, type Field } from "./schema";

export interface SqlFunction {
  name: string;
  signature?: string;
  description?: string;
  kind?: string;
}

export interface OptionPlace {
  /** The connector that the WITH clause names so far. */
  connector: string | null;
  /** The option whose value is being written; null where a name is expected. */
  option: string | null;
  /** What is written of it so far. */
  prefix: string;
}

/** Where in a WITH clause a text ends; null if it does not end in one. */
export function optionPlace(before: string): OptionPlace | null {
  const clause = openClause(before);
  if (clause === null) return null;
  const connector = /\bconnector\s*=\s*'([^']*)'/i.exec(clause)?.[1] ?? null;
  const last = clause.slice(lastComma(clause) + 1);
  const value = /^\s*'?([\w.]+)'?\s*=\s*(?:'([^']*))?$/.exec(last);
  if (value) return last.trimEnd().endsWith("=") ? null : { connector, option: value[1] ?? "", prefix: value[2] ?? "" };
  const name = /^\s*'?([\w.]*)$/.exec(last);
  return name ? { connector, option: null, prefix: name[1] ?? "" } : null;
}

/** The text after the last `WITH (` whose bracket is still open. */
function openClause(before: string): string | null {
  const starts = [...before.matchAll(/\bWITH\s*\(/gi)];
  const start = starts.at(-1);
  if (!start) return null;
  const clause = before.slice(start.index + start[0].length);
  let quoted = false;
  for (const letter of clause) {
    if (letter === "'") quoted = !quoted;
    else if (!quoted && letter === ")") return null;
  }
  return clause;
}

function lastComma(clause: string): number {
  let quoted = false;
  let found = -1;
  for (let index = 0; index < clause.length; index += 1) {
    if (clause[index] === "'") quoted = !quoted;
    else if (!quoted && clause[index] === ",") found = index;
  }
  return found;
}

/** The options of a connector by their names in SQL. */
export function optionsOf(connector: Connector): Map<string, Field> {
  const options = new Map<string, Field>();
  const add = (fields: readonly Field[], prefix: string) => {
    for (const field of fields) {
      if (field.kind === "group") add(field.fields, `${prefix}${field.name}.`);
      else options.set(prefix + field.name, field);
    }
  };
  for (const text of [connector.table_config, connector.connection_config]) {
    const schema = parseSchema(text);
    if (schema) add(fieldsOf(schema), "");
  }
  return options;
}

export function completeOption(connectors: readonly Connector[], place: OptionPlace): Completion[] {
  const connector = connectors.find(({ id }) => id === place.connector);
  if (place.option === "connector") {
    return connectors.map(({ id, name, description }) => ({ label: id, detail: name, info: description, type: "constant" }));
  }
  if (place.option !== null) {
    const field = connector && optionsOf(connector).get(place.option);
    if (field?.kind === "choice") return field.choices.map((label) => ({ label, type: "constant" }));
    if (field?.kind === "switch") return ["true", "false"].map((label) => ({ label, type: "constant" }));
    return [];
  }
  const options = connector ? optionsOf(connector) : new Map<string, Field>();
  const named: Completion[] = [...options].map(([name, field]) => ({
    label: name,
    apply: `${name.includes(".") ? `'${name}'` : name} = `,
    type: "property",
    boost: field.required ? 2 : 0,
    ...(field.required ? { detail: "required" } : {}),
    ...(field.help ? { info: field.help } : {}),
  }));
  const connectorOption: Completion = { label: "connector", apply: "connector = ", type: "property", boost: 3 };
  return place.connector === null ? [connectorOption, ...named] : named;
}

/** The tables of the server and their columns, for the completion of the SQL mode. */
export function columnsByTable(tables: readonly ConnectionTable[], query: string): Record<string, string[]> {
  const found: Record<string, string[]> = {};
  for (const table of tables) found[table.name] = table.schema.fields.map((field) => field.name);
  return Object.assign(found, definedTables(query));
}

/** The tables and views that a query itself defines, with the columns that it declares. */
export function definedTables(query: string): Record<string, string[]> {
  const found: Record<string, string[]> = {};
  const definition = /\bCREATE\s+(?:TEMPORARY\s+)?(?:TABLE|VIEW)\s+"?(\w+)"?\s*(\()?/gi;
  for (const match of query.matchAll(definition)) {
    const name = match[1] ?? "";
    found[name] = match[2] ? declaredColumns(query.slice(match.index + match[0].length)) : [];
  }
  return found;
}

function declaredColumns(text: string): string[] {
  let depth = 1;
  let end = 0;
  const cuts: number[] = [-1];
  for (; end < text.length && depth > 0; end += 1) {
    const letter = text[end];
    if (letter === "(") depth += 1;
    else if (letter === ")") depth -= 1;
    else if (letter === "," && depth === 1) cuts.push(end);
  }
  return cuts
    .map((cut, index) => text.slice(cut + 1, cuts[index + 1] ?? end - 1).trim())
    .map((part) => /^"?(\w+)"?\s+\w/.exec(part)?.[1] ?? "")
    .filter((name) => name !== "" && !/^(WATERMARK|PRIMARY|CONSTRAINT|UNIQUE|FOREIGN)$/i.test(name));
}

export function sqlCompletion(connectors: readonly Connector[], functions: readonly SqlFunction[]): CompletionSource {
  const named: Completion[] = functions.map(({ name, signature, description, kind }) => ({
    label: name,
    type: "function",
    apply: `${name}(`,
    ...(signature ?? kind ? { detail: signature ?? kind ?? "" } : {}),
    ...(description ? { info: description } : {}),
  }));
  return (context: CompletionContext): CompletionResult | null => {
    const place = optionPlace(context.state.sliceDoc(0, context.pos));
    if (place) {
      const options = completeOption(connectors, place);
      return options.length > 0 ? { from: context.pos - place.prefix.length, options, validFor: /^[\w.]*$/ } : null;
    }
    const word = context.matchBefore(/\w+/);
    if (!word || (word.text.length < 2 && !context.explicit)) return null;
    return { from: word.from, options: named, validFor: /^\w*$/ };
  };
}
