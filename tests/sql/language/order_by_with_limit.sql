CREATE TABLE orders (
  id BIGINT NOT NULL,
  amount DOUBLE
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 3;
