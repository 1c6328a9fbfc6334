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

SELECT order_id, id FROM purchases FULL JOIN customers ON customer_id = id;
