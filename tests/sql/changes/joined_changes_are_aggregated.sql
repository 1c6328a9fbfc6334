CREATE TABLE customers (
  id INT PRIMARY KEY,
  name TEXT,
  city TEXT,
  credit DOUBLE
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_customers_cdc.json',
  format = 'debezium_json',
  type = 'source'
);

CREATE TABLE purchases (
  order_id BIGINT,
  customer_id INT,
  total BIGINT,
  state TEXT,
  PRIMARY KEY (order_id)
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_purchases_cdc.json',
  format = 'debezium_json',
  type = 'source'
);

CREATE TABLE totals (
  city TEXT PRIMARY KEY,
  orders INT,
  total DOUBLE
) WITH (
  connector = 'single_file',
  path = 'totals.json',
  format = 'debezium_json',
  type = 'sink'
);

INSERT INTO totals
SELECT city, count(*), sum(total)
FROM purchases JOIN customers ON customer_id = id
WHERE state = 'done' OR total > 5
GROUP BY city;
