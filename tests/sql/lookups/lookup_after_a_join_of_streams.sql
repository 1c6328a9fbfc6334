-- Two streams are joined, and then looked up.
CREATE TABLE orders (
  order_id BIGINT,
  customer_id TEXT,
  placed_at TIMESTAMP,
  amount BIGINT,
  item INT,
  WATERMARK FOR placed_at
) WITH (connector = 'single_file', path = 'orders.json', format = 'json', type = 'source');

CREATE TEMPORARY TABLE customers (
  id TEXT PRIMARY KEY,
  name TEXT,
  plan TEXT
) WITH (connector = 'single_file', path = 'customers.json', format = 'json', type = 'lookup');

SELECT a.order_id, b.order_id AS again, c.name
FROM orders a JOIN orders b ON a.customer_id = b.customer_id
LEFT JOIN customers c ON c.id = b.customer_id
WHERE a.order_id < b.order_id AND b.item = 2;
