-- Decimals are the bytes of their digits here, numbers in a TIMESTAMP are nanoseconds.
CREATE TABLE things (
  id BIGINT PRIMARY KEY,
  at TIMESTAMP,
  price DECIMAL(10, 2),
  data BYTEA,
  doc JSON,
  tags TEXT[]
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_types_cdc.json',
  format = 'debezium_json',
  type = 'source'
);

CREATE TABLE out (
  id BIGINT PRIMARY KEY,
  at TIMESTAMP,
  price DECIMAL(10, 2),
  data BYTEA,
  doc JSON,
  tags TEXT[]
) WITH (
  connector = 'single_file',
  path = 'out.json',
  format = 'debezium_json',
  type = 'sink'
);

INSERT INTO out SELECT * FROM things;
