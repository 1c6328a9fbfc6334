-- Event time is computed from a text, as logs have it.
CREATE TABLE orders (
  id BIGINT,
  at TEXT,
  event_time TIMESTAMP NOT NULL GENERATED ALWAYS AS (CAST(at AS TIMESTAMP)) STORED,
  WATERMARK FOR event_time AS event_time - INTERVAL '5 seconds'
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT window.start AS start, window.end AS "end", count(*) AS orders
FROM (
  SELECT tumble(interval '1 minute') AS window, count(*) AS one, id
  FROM orders
  GROUP BY window, id
)
GROUP BY window;
