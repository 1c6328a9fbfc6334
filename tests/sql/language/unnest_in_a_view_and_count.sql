-- Tags in a view, then the most frequent: what trends are made of.
CREATE TABLE orders (
  at TIMESTAMP NOT NULL,
  tags TEXT[],
  WATERMARK FOR at
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

CREATE VIEW used AS SELECT unnest(tags) AS tag FROM orders;

SELECT tag, count(*) AS times FROM used WHERE tag IS NOT NULL GROUP BY tag HAVING count(*) > 1;
