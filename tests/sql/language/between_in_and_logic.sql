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

SELECT id
FROM orders
WHERE (amount BETWEEN 5 AND 40 OR status IN ('refund', 'none'))
  AND NOT (customer = 'dee')
  AND id NOT BETWEEN 100 AND 200
  AND id NOT IN (10);
