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

SELECT state, sum(total) AS total FROM purchases GROUP BY state HAVING sum(total) > 20;
