-- Tutorials write the length of a window as a text.
CREATE TABLE orders (
  at TIMESTAMP NOT NULL,
  id BIGINT NOT NULL,
  WATERMARK FOR at
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT tumble('30 seconds') AS window, count(*) AS n FROM orders GROUP BY 1;
