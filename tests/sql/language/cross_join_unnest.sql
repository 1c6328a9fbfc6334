CREATE TABLE orders (
  id BIGINT NOT NULL,
  status TEXT,
  tags TEXT[]
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT o.id, status, u.tag, upper(tag) AS loud
FROM orders AS o CROSS JOIN UNNEST(o.tags) AS u (tag)
WHERE tag <> 'z';
