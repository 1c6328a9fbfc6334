-- The results of windows are joined with a lookup table, and in windows again.
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

CREATE VIEW minutes AS
SELECT tumble(interval '1 minute') AS window, customer_id, sum(amount) AS amount FROM orders GROUP BY window, customer_id;

SELECT m.window.start AS start, c.name, m.amount FROM minutes m JOIN customers c ON m.customer_id = c.id;
SELECT m.window, count(c.name) AS named, sum(m.amount) AS amount
FROM minutes m LEFT JOIN customers c ON m.customer_id = c.id GROUP BY m.window;
