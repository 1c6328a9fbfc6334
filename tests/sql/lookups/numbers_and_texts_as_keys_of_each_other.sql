-- A whole number is looked up as its text, a text as the number that it is, if it is one.
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

SELECT o.order_id, c.id, c.name FROM orders o JOIN customers c ON c.id = o.item;
SELECT o.order_id, i.title FROM (SELECT order_id, CASE WHEN order_id > 6 THEN customer_id ELSE '1' END AS text FROM orders) o
LEFT JOIN items i ON o.text = i.code;
