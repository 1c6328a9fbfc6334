CREATE TABLE orders (
  customer TEXT,
  quantity INT,
  at TIMESTAMP NOT NULL,
  id BIGINT NOT NULL,
  WATERMARK FOR at
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT customer, spread(quantity) AS spread, count(*) AS n FROM orders GROUP BY customer HAVING count(*) > 1;
SELECT tumble(interval '1 minute') AS window, spread(id) AS spread, middle(quantity) AS middle FROM orders GROUP BY 1;
