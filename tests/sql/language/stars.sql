CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  amount DOUBLE,
  status TEXT
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT * FROM orders WHERE id = 1;
SELECT o.*, id * 2 AS twice FROM orders AS o WHERE id = 2;
SELECT * EXCEPT (amount, status) FROM orders WHERE id = 3;
SELECT b.* FROM (SELECT id, amount FROM orders) a JOIN (SELECT id, customer FROM orders) b ON a.id = b.id WHERE a.id = 4;
SELECT id, * FROM (SELECT id AS number, customer FROM orders) JOIN (SELECT id FROM orders WHERE id = 6) ON number = id;
