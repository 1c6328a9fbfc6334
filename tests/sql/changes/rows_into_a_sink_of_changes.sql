-- What only grows is a creation each.
CREATE TABLE orders (
  id BIGINT NOT NULL,
  status TEXT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE TABLE made (
  id INT,
  status TEXT
) WITH (
  connector = 'single_file',
  path = 'made.json',
  format = 'debezium_json',
  type = 'sink'
);

INSERT INTO made SELECT id, status FROM orders WHERE id < 4;
