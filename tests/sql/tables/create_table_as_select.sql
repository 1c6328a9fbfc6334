CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  amount DOUBLE
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE TABLE totals AS
SELECT customer, sum(amount) AS total, count(*) AS orders FROM orders GROUP BY customer;

SELECT customer, total FROM totals WHERE orders > 1;
