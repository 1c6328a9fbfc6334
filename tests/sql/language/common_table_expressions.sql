-- Nested, shadowing a table, used twice.
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

WITH
  paid AS (SELECT id, customer, amount FROM orders WHERE status = 'paid'),
  orders (number, who, cost) AS (
    WITH paid AS (SELECT * FROM paid WHERE amount > 10)
    SELECT * FROM paid
  )
SELECT number, who, cost, 'big' AS size FROM orders WHERE cost >= 60
UNION ALL
SELECT number, who, cost, 'small' FROM orders WHERE cost < 60;
