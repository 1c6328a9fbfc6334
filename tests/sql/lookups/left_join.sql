-- Rows without an entry, and those whose key is null, have nulls; the last line of a key counts.
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

SELECT o.order_id, o.customer_id, c.id, c.name, c.plan FROM orders AS o LEFT JOIN customers AS c ON c.id = o.customer_id;
