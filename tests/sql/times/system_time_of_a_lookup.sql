-- A lookup table is joined as it is now, whether FOR SYSTEM_TIME says so or not.

CREATE TABLE orders (
  order_id BIGINT, customer_id TEXT, placed_at TIMESTAMP, proc_time TIMESTAMP GENERATED ALWAYS AS (proctime()),
  WATERMARK FOR placed_at
) WITH (connector = 'single_file', path = '../lookups/orders.json', format = 'json', type = 'source');
CREATE TEMPORARY TABLE customers (id TEXT PRIMARY KEY, name TEXT, plan TEXT)
WITH (connector = 'single_file', path = '../lookups/customers.json', format = 'json', type = 'lookup');

SELECT o.order_id, c.name FROM orders AS o LEFT JOIN customers FOR SYSTEM_TIME AS OF o.proc_time AS c ON o.customer_id = c.id
EXCEPT ALL SELECT o.order_id, c.name FROM orders AS o LEFT JOIN customers AS c ON o.customer_id = c.id;
SELECT o.order_id, c.name FROM orders AS o JOIN customers FOR SYSTEM_TIME AS OF proctime() AS c ON o.customer_id = c.id
WHERE order_id < 3;
