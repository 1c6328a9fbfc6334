-- The five most used tags of every window.
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

CREATE VIEW used AS (SELECT unnest(tags) AS tag FROM orders);

SELECT * FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY window ORDER BY count DESC, tag) AS row_num
  FROM (
    SELECT count(*) AS count, tag, hop(interval '30 seconds', interval '1 minute') AS window
    FROM used
    GROUP BY tag, window
  )
) WHERE row_num <= 2;
