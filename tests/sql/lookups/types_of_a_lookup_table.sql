-- Columns of every kind, and a key of another width.
CREATE TABLE orders (
  order_id BIGINT,
  customer_id TEXT,
  placed_at TIMESTAMP,
  amount BIGINT,
  item INT,
  WATERMARK FOR placed_at
) WITH (connector = 'single_file', path = 'orders.json', format = 'json', type = 'source');

CREATE TEMPORARY TABLE items (
  code BIGINT PRIMARY KEY,
  title TEXT,
  since DATE,
  price DECIMAL(8, 2),
  maker STRUCT<name TEXT, country TEXT>,
  tags TEXT[]
) WITH (connector = 'single_file', path = 'items.json', format = 'json');

SELECT o.order_id, i.*, i.maker.name AS maker_name, i.price * o.amount AS total FROM orders o LEFT JOIN items i ON o.item = i.code WHERE o.order_id > 7;
