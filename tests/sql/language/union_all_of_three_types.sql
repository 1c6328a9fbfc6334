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

SELECT id AS number FROM orders WHERE id = 1
UNION ALL SELECT amount FROM orders WHERE id = 2
UNION ALL SELECT NULL FROM orders WHERE id = 3
UNION ALL SELECT CAST(7 AS TINYINT) FROM orders WHERE id = 4;
