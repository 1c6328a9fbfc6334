-- Rows are aggregated by a column of the lookup table, in windows.
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

SELECT tumble(interval '1 minute') AS window, c.plan, count(*) AS orders, sum(o.amount) AS amount
FROM orders o LEFT JOIN customers c ON o.customer_id = c.id
GROUP BY window, c.plan;
