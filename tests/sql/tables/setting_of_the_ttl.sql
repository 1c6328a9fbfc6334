SET updating_ttl = interval '1 hour';
set updating_ttl = '90 minutes';

CREATE TABLE orders (
  customer TEXT,
  amount DOUBLE
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT customer, count(*) AS orders FROM orders GROUP BY customer;
