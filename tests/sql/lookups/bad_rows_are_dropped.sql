-- Lines that cannot be read, or have no key, are not there.
CREATE TABLE orders (
  order_id BIGINT,
  customer_id TEXT,
  placed_at TIMESTAMP,
  amount BIGINT,
  item INT,
  WATERMARK FOR placed_at
) WITH (connector = 'single_file', path = 'orders.json', format = 'json', type = 'source');

CREATE TEMPORARY TABLE broken (id TEXT PRIMARY KEY, name TEXT)
WITH (connector = 'single_file', path = 'broken.json', bad_data = 'drop');

SELECT o.order_id, b.name FROM orders o LEFT JOIN broken b ON o.customer_id = b.id WHERE o.order_id IN (1, 2, 4, 6);
