-- Calls that wait: in SELECT, in WHERE, inside each other, after windows, and for a row that failed before.
CREATE TABLE orders (
  id BIGINT NOT NULL,
  customer TEXT,
  amount DOUBLE,
  quantity INT,
  note TEXT,
  tags TEXT[],
  address STRUCT<city TEXT, geo STRUCT<lat DOUBLE, lon DOUBLE>>,
  at TIMESTAMP NOT NULL,
  WATERMARK FOR at
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_orders.json',
  format = 'json',
  type = 'source'
);

SELECT id, look_up(customer) AS city, price(quantity, note) AS price FROM orders;
SELECT id, upper(look_up(look_up(customer))) AS twice FROM orders WHERE price(quantity, 'x') > 3 AND id < 9;
SELECT w, look_up(most) AS city, n, price(n, 'y') AS price FROM (
  SELECT tumble('20 seconds') AS w, max(customer) AS most, count(*) AS n FROM orders GROUP BY 1
);
SELECT tumble('30 seconds') AS w, city, count(*) AS n, price(count(*), 'w') AS price
FROM (SELECT look_up(customer) AS city FROM orders) GROUP BY 1, 2;
SELECT id, never(id) AS nothing, row_number() OVER (PARTITION BY w ORDER BY city) AS place FROM (
  SELECT id, w, look_up(name) AS city FROM (
    SELECT max(id) AS id, min(customer) AS name, tumble('10 seconds') AS w FROM orders GROUP BY w
  )
);
