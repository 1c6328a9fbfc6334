-- Two lookup tables, one of them twice.
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

CREATE TEMPORARY TABLE items (
  code BIGINT PRIMARY KEY,
  title TEXT,
  since DATE,
  price DECIMAL(8, 2),
  maker STRUCT<name TEXT, country TEXT>,
  tags TEXT[]
) WITH (connector = 'single_file', path = 'items.json', format = 'json');

SELECT o.order_id, c.name, i.title, n.title AS next
FROM orders o
LEFT JOIN customers c ON o.customer_id = c.id
JOIN items i ON o.item = i.code
LEFT JOIN items n ON n.code = i.code + 1
WHERE i.title <> 'rug';
