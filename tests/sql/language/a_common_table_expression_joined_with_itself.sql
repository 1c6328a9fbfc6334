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

WITH paid AS (SELECT id, customer FROM orders WHERE status = 'paid')
SELECT a.id AS first, b.id AS second, customer
FROM paid a JOIN paid b USING (customer)
WHERE a.id < b.id;
