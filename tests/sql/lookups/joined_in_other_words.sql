-- USING, a comma, columns named anew, a subquery and a common table expression.
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

SELECT * FROM (SELECT order_id, customer_id AS id FROM orders) o JOIN customers USING (id) WHERE order_id < 3;
SELECT o.order_id, c.* FROM orders o, customers c WHERE o.customer_id = c.id AND o.amount > 10;
SELECT order_id, who FROM orders JOIN customers AS c (k, who) ON (customer_id = (k)) WHERE amount > 10;
WITH named AS (SELECT order_id, name FROM orders JOIN "customers" ON customer_id = "customers".id) SELECT name FROM named WHERE order_id = 6;
