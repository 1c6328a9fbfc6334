-- Any expression over the rows can be compared with the key.
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

SELECT o.order_id, c.name FROM orders o JOIN customers c ON lower(coalesce(o.customer_id, 'eve')) = c.id WHERE o.amount < 10;
SELECT o.order_id, c.name FROM orders o JOIN customers c ON c.id = CASE WHEN o.item = 1 THEN 'cy' END;
SELECT o.order_id, c.name FROM orders o JOIN customers c ON 'bob' = c.id WHERE o.order_id = 3;
