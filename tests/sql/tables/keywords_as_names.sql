-- Words of the language as names of columns and tables.
create table "order" (
  "timestamp" timestamp not null,
  "user" text,
  value double,
  start int,
  "end" int,
  "window" text,
  "Group" text,
  "select" boolean,
  type text,
  date text,
  count bigint,
  watermark for timestamp
) with (
  connector = 'single_file',
  path = '../inputs/lang_keywords.json',
  format = 'json',
  type = 'source'
);

select timestamp, "user", value, start, "end", "end" - start as length, "window", "Group", "select", type, date, count from "order";
