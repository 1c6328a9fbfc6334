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

SELECT p.order_id, c.name, p.total, c.city
FROM purchases AS p JOIN customers AS c ON p.customer_id = c.id;
