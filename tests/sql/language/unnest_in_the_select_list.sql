CREATE TABLE orders (
  id BIGINT NOT NULL,
  tags TEXT[]
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT id, unnest(tags) AS tag FROM orders;
