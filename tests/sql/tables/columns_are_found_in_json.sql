-- No columns are written: those of the lines are found out; the event time is read from texts.
CREATE TABLE orders (WATERMARK FOR placed_at) WITH (
  connector = 'single_file',
  path = '../inputs/orders.json',
  format = 'json',
  type = 'source'
);

SELECT window.start AS minute, country, orders, amount FROM (
  SELECT tumble(INTERVAL '1 minute') AS window, ship_to.country AS country, count(*) AS orders, sum(amount) AS amount
  FROM orders GROUP BY window, ship_to.country
);
