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

CREATE TABLE totals WITH (
  connector = 'single_file',
  path = 'totals.json',
  format = 'debezium_json',
  type = 'sink'
);

INSERT INTO totals SELECT customer, sum(amount) AS total, count(*) AS n FROM orders GROUP BY customer;
