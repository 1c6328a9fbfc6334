-- The spelling from before WATERMARK FOR, with a column for the watermark; names as identifiers and as texts.
CREATE TABLE orders (
  id BIGINT,
  at TIMESTAMP,
  watermark TIMESTAMP GENERATED ALWAYS AS (at - INTERVAL '10 seconds') STORED
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source',
  event_time_field = 'at',
  watermark_field = watermark
);

SELECT count(*) AS orders, min(id) AS first FROM orders GROUP BY TUMBLE(INTERVAL '1' MINUTE);
