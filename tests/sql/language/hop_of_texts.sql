-- hop('slide', 'width')
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

SELECT hop('30 seconds', '1 minute') AS window, count(*) AS n FROM orders GROUP BY 1;
