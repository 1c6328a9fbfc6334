-- How much is remembered, and for how long, changes no result.
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
) WITH (connector = 'single_file', path = 'customers.json', format = 'json', type = 'lookup',
  'lookup.cache.max_bytes' = 100000, 'lookup.cache.ttl' = interval '10 seconds');

CREATE TEMPORARY TABLE forgotten (
  id TEXT PRIMARY KEY,
  name TEXT,
  plan TEXT
) WITH (connector = 'single_file', path = 'customers.json', format = 'json', "lookup.cache.max_bytes" = 0, lookup.cache.ttl = '1 minute');

SELECT o.order_id, c.name, f.plan FROM orders o JOIN customers c ON o.customer_id = c.id JOIN forgotten f ON f.id = c.id;
