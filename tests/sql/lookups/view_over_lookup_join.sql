-- A view over a lookup join is read twice, and joined with itself.
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

CREATE VIEW named AS
SELECT o.order_id, o.amount, c.name, c.plan FROM orders o JOIN customers c ON o.customer_id = c.id;

SELECT name, amount FROM named WHERE plan = 'Basic';
SELECT a.order_id, b.order_id AS next FROM named a JOIN named b ON a.order_id + 1 = b.order_id;
