-- A column of JSON is read as a text and written as what it is.
CREATE TABLE events (
  id INT,
  properties JSON
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_json_columns.json',
  format = 'json',
  type = 'source'
);

CREATE TABLE out (
  id INT,
  plan TEXT,
  seats BIGINT,
  properties JSON
) WITH (
  connector = 'single_file',
  path = 'out.json',
  format = 'json',
  type = 'sink'
);

INSERT INTO out SELECT id, properties ->> 'plan', json_get_int(properties, 'seats'), properties FROM events;
