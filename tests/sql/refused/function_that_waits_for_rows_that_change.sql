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

SELECT slow(customer) AS s, n FROM (SELECT customer, count(*) AS n FROM orders GROUP BY customer);
