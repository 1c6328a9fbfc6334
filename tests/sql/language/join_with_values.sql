-- A small table of constants beside a stream.
CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  amount DOUBLE,
  status TEXT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE VIEW labels AS SELECT * FROM (VALUES ('new', 'fresh'), ('paid', 'done')) AS l (status, label);

SELECT id, label FROM orders JOIN labels ON orders.status = labels.status;
