CREATE TABLE orders (
  id BIGINT NOT NULL,
  at TIMESTAMP NOT NULL,
  WATERMARK FOR at
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT id, row_time() AS at, row_time() = at AS same FROM orders WHERE id < 3;
