CREATE TABLE orders (
  id BIGINT NOT NULL,
  amount DOUBLE
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT id FROM orders WHERE id <= 2;
SELECT max(amount) AS most FROM orders;
