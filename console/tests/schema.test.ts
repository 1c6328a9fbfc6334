import { describe, expect, test } from "vitest";
import { fieldsFor, fieldsOf, missing, parseSchema, prune, type JsonSchema } from "../src/lib/schema";

const schema: JsonSchema = {
  required: ["topic", "auth"],
  $defs: {
    Sasl: {
      title: "SASL",
      type: "object",
      required: ["username"],
      properties: { type: { const: "sasl" }, username: { type: "string" }, password: { type: "string", format: "password" } },
    },
    None: { title: "None", type: "object", properties: { type: { const: "none" } } },
  },
  properties: {
    batch: { anyOf: [{ type: "integer" }, { type: "null" }], default: 500, description: "Rows at once" },
    mode: { enum: ["fast", "safe"] },
    headers: { type: "object", additionalProperties: { type: "string" } },
    auth: { oneOf: [{ $ref: "#/$defs/None" }, { $ref: "#/$defs/Sasl" }] },
    topic: { type: "string", title: "Topic" },
  },
};

describe("the form of a connector", () => {
  const fields = fieldsOf(schema);

  test("shows what is required first", () => {
    expect(fields.map(({ name, kind }) => [name, kind])).toEqual([
      ["auth", "variant"],
      ["topic", "text"],
      ["batch", "integer"],
      ["mode", "choice"],
      ["headers", "map"],
    ]);
  });

  test("offers variants with what each fixes, and hides secrets", () => {
    const auth = fields[0];
    if (auth?.kind !== "variant") throw new Error("not a variant");
    expect(auth.variants.map(({ title, fixed }) => [title, fixed])).toEqual([
      ["None", { type: "none" }],
      ["SASL", { type: "sasl" }],
    ]);
    expect(auth.variants[1]?.fields.map(({ name, kind }) => [name, kind])).toEqual([
      ["username", "text"],
      ["password", "secret"],
    ]);
  });

  test("knows what is missing", () => {
    expect(missing(fields, {})).toEqual(["Auth", "Topic"]);
    expect(missing(fields, { topic: "a", auth: { type: "none" } })).toEqual([]);
  });
});

test("a type of table shows the options that it reads", () => {
  const options = fieldsOf({
    properties: { both: { type: "string", "x-roles": ["source", "sink"] }, read: { type: "string", "x-roles": ["source"] }, type: {} },
  });
  const names = (type: string | undefined) => fieldsFor(options, type).map(({ name }) => name);
  expect(names(undefined)).toEqual(["both", "read", "type"]);
  expect(names("sink")).toEqual(["both", "type"]);
});

test("fields that were left empty are not sent", () => {
  expect(prune({ a: "", b: 0, c: false, d: undefined, e: { f: "" }, g: { h: "x" } })).toEqual({ b: 0, c: false, g: { h: "x" } });
});

test("a schema that is no JSON has no form", () => {
  expect(parseSchema("{")).toBeUndefined();
  expect(parseSchema(null)).toBeUndefined();
});
