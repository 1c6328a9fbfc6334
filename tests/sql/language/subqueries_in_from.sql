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

SELECT total + 1 AS more
FROM (
  SELECT amount * 2 AS total
  FROM (SELECT amount FROM orders WHERE id < 5)
  WHERE amount < 50
) AS doubled;
