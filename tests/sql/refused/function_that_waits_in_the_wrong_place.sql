CREATE FUNCTION slow(name TEXT) RETURNS TEXT LANGUAGE python AS $$ await thing(); return name $$;
CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  quantity INT,
  at TIMESTAMP NOT NULL,
  WATERMARK FOR at
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT slow(customer) AS s, count(*) AS n FROM orders GROUP BY 1;
SELECT customer, max(slow(customer)) AS s FROM orders GROUP BY customer;
SELECT customer, count(*) AS n FROM orders GROUP BY customer HAVING slow(customer) = 'x';
SELECT a.id FROM orders AS a JOIN orders AS b ON slow(a.customer) = b.customer;
SELECT DISTINCT ON (slow(customer)) id FROM orders;
