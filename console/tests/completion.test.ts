import { describe, expect, test } from "vitest";
import type { Connector } from "../src/api/types";
import { completeOption, definedTables, optionPlace, optionsOf } from "../src/lib/completion";

const kafka = {
  id: "kafka",
  name: "Kafka",
  description: "Topics",
  table_config: JSON.stringify({
    required: ["topic"],
    properties: {
      commit: { type: "boolean", description: "Whether offsets are committed" },
      "source.offset": { enum: ["latest", "earliest"] },
      topic: { type: "string" },
    },
  }),
  connection_config: JSON.stringify({ required: [], properties: { bootstrap_servers: { type: "string" } } }),
} as Connector;

describe("where an option is written", () => {
  test("a name, a value, a value of the connector", () => {
    expect(optionPlace("CREATE TABLE t (a INT) WITH (con")).toEqual({ connector: null, option: null, prefix: "con" });
    expect(optionPlace("CREATE TABLE t WITH (connector = 'kaf")).toEqual({ connector: null, option: "connector", prefix: "kaf" });
    expect(optionPlace("x WITH (\n connector = 'kafka',\n 'source.offset' = 'la")).toEqual({
      connector: "kafka",
      option: "source.offset",
      prefix: "la",
    });
    expect(optionPlace("x WITH (connector = 'kafka', ")).toEqual({ connector: "kafka", option: null, prefix: "" });
  });

  test("brackets and commas in texts do not count", () => {
    expect(optionPlace("x WITH (connector = 'kafka', topic = 'a),b', to")).toEqual({ connector: "kafka", option: null, prefix: "to" });
  });

  test("nowhere else", () => {
    expect(optionPlace("SELECT * FROM t WHERE a")).toBeNull();
    expect(optionPlace("CREATE TABLE t WITH (connector = 'kafka'); SEL")).toBeNull();
    expect(optionPlace("WITH x AS (SELECT a")).toBeNull();
  });
});

describe("what is offered", () => {
  const labels = (before: string) => completeOption([kafka], optionPlace(before) ?? { connector: null, option: null, prefix: "" }).map(({ label }) => label);

  test("the options of the connector, what is required first", () => {
    expect(labels("x WITH (connector = 'kafka', ")).toEqual(["topic", "commit", "source.offset", "bootstrap_servers"]);
    expect([...optionsOf(kafka)].filter(([, field]) => field.required).map(([name]) => name)).toEqual(["topic"]);
  });

  test("connectors, choices, true and false", () => {
    expect(labels("x WITH (connector = '")).toEqual(["kafka"]);
    expect(labels("x WITH (connector = 'kafka', 'source.offset' = '")).toEqual(["latest", "earliest"]);
    expect(labels("x WITH (connector = 'kafka', commit = '")).toEqual(["true", "false"]);
    expect(labels("x WITH (connector = 'kafka', topic = '")).toEqual([]);
    expect(labels("x WITH (connector = 'unknown', topic = '")).toEqual([]);
  });
});

test("tables that a query defines have their columns", () => {
  const query = `CREATE TABLE orders (
    id BIGINT, price DECIMAL(10, 2), ts TIMESTAMP NOT NULL,
    WATERMARK FOR ts AS ts - INTERVAL '5 seconds', PRIMARY KEY (id)
  ) WITH (connector = 'kafka');
  CREATE VIEW big AS SELECT * FROM orders;
  CREATE TABLE half (a INT`;
  expect(definedTables(query)).toEqual({ orders: ["id", "price", "ts"], big: [], half: ["a"] });
});
