CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  at TIMESTAMP NOT NULL,
  WATERMARK FOR at
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT a.id FROM orders a JOIN (orders b JOIN orders c ON b.id = c.id) USING (id);
