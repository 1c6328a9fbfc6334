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

SELECT upper(customer) AS who, count(*) AS n FROM orders GROUP BY 1;
SELECT id % 3 AS rest, sum(amount) AS total FROM orders GROUP BY rest;
SELECT count(*) AS n FROM orders GROUP BY amount > 20;
SELECT customer, count(*) AS n FROM orders GROUP BY ALL HAVING n > 2;
